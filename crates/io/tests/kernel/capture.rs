use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use uxfrm_io::capture::{Capture, CaptureDirection};
use uxfrm_io::{Namespace, Rtnetlink};

use crate::{in_namespace, prefix};

#[test]
fn capture_shows_packets_of_interface() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let mut here = Rtnetlink::open().unwrap();
        here.add_veth("wire", "wire", far.as_fd()).unwrap();
        let wire = here.link("wire").unwrap().index;
        here.set_up(wire).unwrap();
        here.add_address(wire, prefix("192.0.2.1/24")).unwrap();
        let (mut capture, receiver) = far
            .enter(|| {
                let mut there = Rtnetlink::open().unwrap();
                let wire = there.link("wire").unwrap().index;
                there.set_up(wire).unwrap();
                there.add_address(wire, prefix("192.0.2.2/24")).unwrap();
                (Capture::open(wire).unwrap(), UdpSocket::bind("192.0.2.2:4500").unwrap())
            })
            .unwrap();
        UdpSocket::bind("192.0.2.1:0")
            .unwrap()
            .send_to(b"proof", receiver.local_addr().unwrap())
            .unwrap();
        let is_udp = |bytes: &[u8]| bytes[0] == 0x45 && bytes[9] == 17;
        let frame = capture.next(Duration::from_secs(2), is_udp).unwrap().unwrap();
        assert_eq!((&frame.bytes[28..], frame.direction), (&b"proof"[..], CaptureDirection::In));
        assert_eq!(capture.next(Duration::from_millis(1), is_udp).unwrap(), None);
    });
}

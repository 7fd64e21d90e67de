use std::os::fd::AsFd;

use uxfrm_io::ethtool::{FeatureState, feature, set_features};
use uxfrm_io::{Namespace, Port, Rtnetlink, Udp, UdpOptions};
use uxfrm_packet::{Batch, Pool, UdpPath};

use crate::udp::{burst, datagrams};
use crate::{in_namespace, prefix, receive_until};

/// An end of the wire with an address and these features, and a socket there.
fn settle(address: &str, super_packets: FeatureState, gro: FeatureState) -> Udp {
    let mut kernel = Rtnetlink::open().unwrap();
    let wire = kernel.link("wire").unwrap().index;
    kernel.add_address(wire, prefix(&format!("{address}/24"))).unwrap();
    kernel.set_up(wire).unwrap();
    set_features("wire", feature::SUPER_PACKETS, super_packets).unwrap();
    set_features("wire", feature::GRO, gro).unwrap();
    Udp::open(&UdpOptions::new(format!("{address}:4500").parse().unwrap())).unwrap()
}

/// In how many buffers a burst of 40 datagrams arrives at the other end of a wire with these
/// features.
fn buffers(super_packets: FeatureState, gro: FeatureState) -> usize {
    let far = Namespace::new().unwrap();
    Rtnetlink::open().unwrap().add_veth("wire", "wire", far.as_fd()).unwrap();
    let mut sender = settle("192.0.2.1", super_packets, gro);
    let mut receiver = far.enter(|| settle("192.0.2.2", super_packets, gro)).unwrap();
    let (local, remote) = (sender.local(), receiver.local());
    let path = UdpPath { local, remote, tos: 0, dont_fragment: true };
    let mut batch: Batch = [burst(40, 1000, path)].into_iter().collect();
    assert_eq!(sender.transmit(&mut batch, &mut Pool::new()).packets, 40);
    let got = receive_until(&mut receiver, |got| datagrams(got).len() == 40);
    assert_eq!(datagrams(&got).len(), 40);
    let index = Rtnetlink::open().unwrap().link("wire").unwrap().index;
    Rtnetlink::open().unwrap().delete_link(index).unwrap();
    got.len()
}

#[test]
fn super_packets_cross_veth_whole_or_by_gro() {
    in_namespace(|| {
        assert_eq!(buffers(FeatureState::On, FeatureState::Off), 1, "as it was sent");
        assert_eq!(buffers(FeatureState::Off, FeatureState::Off), 40, "cut");
        let joined = buffers(FeatureState::Off, FeatureState::On);
        assert!(joined < 20, "cut and joined: {joined} buffers");
    });
}

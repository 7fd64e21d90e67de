use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uxfrm_io::rtnetlink::{Route, Via};
use uxfrm_io::tun::{QueueCount, TunOffload};
use uxfrm_io::{Namespace, Port, Rtnetlink, SegmentingPort, Tun, TunOptions, Udp, UdpOptions};
use uxfrm_packet::{BATCH, Batch, Checksum, PacketBuf, Pool, Segments, UdpPath};

use crate::{prefix, receive_until, with_tun};

/// A TUN that is up, with both families' addresses, the other end of each being `.2`.
fn tun(options: &TunOptions, host: u8) -> Tun {
    let tun = Tun::open(options).unwrap();
    let mut kernel = Rtnetlink::open().unwrap();
    let link = kernel.link(tun.name()).unwrap().index;
    kernel.set_up(link).unwrap();
    kernel.add_address(link, prefix(&format!("192.0.2.{host}/24"))).unwrap();
    kernel.add_address(link, prefix(&format!("2001:db8::{host}/64"))).unwrap();
    tun
}

/// Hands packets from one TUN to the other until told to stop; the largest number of bytes in one
/// buffer.
fn shuttle(mut ends: [SegmentingPort<Tun>; 2], stop: &AtomicBool) -> usize {
    let (mut pool, mut batch, mut largest) = (Pool::new(), Batch::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, to) in [(0, 1), (1, 0)] {
            idle &= ends[from].receive(&mut pool, &mut batch).unwrap() == 0;
            largest = largest.max(batch.as_slice().iter().map(PacketBuf::len).max().unwrap_or(0));
            let done = ends[to].transmit(&mut batch, &mut pool);
            assert_eq!(done.refused.unsupported, 0, "{done:?}");
        }
        if idle {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    largest
}

/// A megabyte by TCP through two TUNs in two namespaces; the largest buffer on the way.
fn transfer([near, far]: [&TunOptions; 2], from: &str, to: &str) -> usize {
    let near = tun(near, 1);
    let (other, listener) =
        Namespace::new().unwrap().enter(|| (tun(far, 2), TcpListener::bind(to).unwrap())).unwrap();
    let stop = AtomicBool::new(false);
    let sent: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_be_bytes).collect();
    std::thread::scope(|scope| {
        let wire =
            scope.spawn(|| shuttle([SegmentingPort::new(near), SegmentingPort::new(other)], &stop));
        let server = scope.spawn(|| {
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            got
        });
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(client.local_addr().unwrap().ip().to_string(), from);
        client.write_all(&sent).unwrap();
        drop(client);
        assert!(server.join().unwrap() == sent, "the bytes that were sent");
        stop.store(true, Ordering::Relaxed);
        wire.join().unwrap()
    })
}

#[test]
fn tcp_crosses_two_tuns_in_super_packets() {
    with_tun(|| {
        let options = TunOptions::new("uxio%d");
        assert!(transfer([&options; 2], "192.0.2.1", "192.0.2.2:0") > 10_000);
    });
    with_tun(|| {
        let options = TunOptions::new("uxio%d");
        assert!(transfer([&options; 2], "2001:db8::1", "[2001:db8::2]:0") > 10_000);
    });
}

#[test]
fn tcp_crosses_two_plain_tuns_packet_by_packet() {
    with_tun(|| {
        let options = TunOptions { offload: TunOffload::Plain, ..TunOptions::new("uxio%d") };
        assert!(transfer([&options; 2], "192.0.2.1", "192.0.2.2:0") <= 1500);
    });
}

#[test]
fn super_packets_are_segmented_for_a_plain_tun() {
    with_tun(|| {
        let most = TunOptions::new("uxio%d");
        let plain = TunOptions { offload: TunOffload::Plain, ..most.clone() };
        assert!(transfer([&most, &plain], "2001:db8::1", "[2001:db8::2]:0") > 10_000);
    });
}

#[test]
fn udp_burst_crosses_tun_as_super_packet() {
    with_tun(|| {
        for (here, there) in
            [("192.0.2.1:0", "192.0.2.2:0"), ("[2001:db8::1]:0", "[2001:db8::2]:0")]
        {
            let far = Namespace::new().unwrap();
            let mut near = tun(&TunOptions::new("uxio%d"), 1);
            let open =
                |address: &str| Udp::open(&UdpOptions::new(address.parse().unwrap())).unwrap();
            let (mut other, mut receiver) =
                far.enter(|| (tun(&TunOptions::new("uxio%d"), 2), open(there))).unwrap();
            assert!(
                near.accepts().udp4 && near.accepts().udp6,
                "this kernel has no USO: {:?}",
                near.accepts()
            );
            let mut sender = open(here);
            let path = UdpPath {
                local: sender.local(),
                remote: receiver.local(),
                tos: 0,
                dont_fragment: true,
            };
            let mut burst = PacketBuf::from_slice(&[9; 10_500]);
            burst.segments = Segments::Burst { stride: 1000 };
            burst.udp = Some(path);
            let (mut pool, mut batch) = (Pool::new(), [burst].into_iter().collect::<Batch>());
            assert_eq!(sender.transmit(&mut batch, &mut pool).packets, 11);
            let is_train = |packet: &PacketBuf| packet.segments == Segments::Udp { size: 1000 };
            let got = receive_until(&mut near, |got| got.iter().any(is_train));
            let mut batch: Batch = got.into_iter().filter(is_train).collect();
            let done = other.transmit(&mut batch, &mut pool);
            assert_eq!((done.packets, done.refused.packets()), (11, 0), "{done:?}");
            let got = receive_until(&mut receiver, |got| !got.is_empty());
            assert_eq!((got[0].len(), got[0].segments), (10_500, Segments::Burst { stride: 1000 }));
        }
    });
}

#[test]
fn refused_super_packet_disables_kind_only_before_success() {
    with_tun(|| {
        let broken = || {
            let mut packet = PacketBuf::from_slice(&[0; 3000]);
            packet.bytes_mut()[0] = 0x45;
            packet.segments = Segments::Tcp { mss: 1000 };
            packet.checksum = Checksum::Partial { start: 5000, offset: 16 };
            packet
        };
        let mut tun = tun(&TunOptions::new("uxio%d"), 1);
        let mut pool = Pool::new();
        let done = tun.transmit(&mut [broken()].into_iter().collect(), &mut pool);
        assert_eq!((done.packets, done.refused.unsupported), (0, 1), "{done:?}");
        assert!(!tun.accepts().tcp4 && tun.accepts().tcp6);
    });
}

#[test]
fn udp_packet_from_tun_has_partial_checksum() {
    with_tun(|| {
        let mut tun = tun(&TunOptions::new("uxio%d"), 1);
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.send_to(&[7; 100], "192.0.2.2:9").unwrap();
        let is_ours = |packet: &PacketBuf| packet.bytes()[0] == 0x45 && packet.bytes()[9] == 17;
        let got = receive_until(&mut tun, |got| got.iter().any(is_ours));
        let packet = got.iter().find(|packet| is_ours(packet)).unwrap();
        assert_eq!((packet.len(), packet.segments), (128, Segments::One));
        assert_eq!(packet.checksum, Checksum::Partial { start: 20, offset: 6 });
        assert!(packet.capacity() < 4096, "no super-buffer for a small packet");
    });
}

#[test]
fn tun_leftover_has_waited_since_last_read() {
    const WAIT: Duration = Duration::from_millis(20);
    with_tun(|| {
        let mut tun = tun(&TunOptions::new("uxio%d"), 1);
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        let mut pool = Pool::new();
        let mut read = |most: usize, tun: &mut Tun| {
            let mut into = Batch::new();
            (most..BATCH).for_each(|_| into.push(PacketBuf::from_slice(&[])));
            tun.receive(&mut pool, &mut into).unwrap()
        };
        while read(BATCH, &mut tun) > 0 {}
        for _ in 0..5 {
            socket.send_to(&[7; 100], "192.0.2.2:9").unwrap();
        }
        std::thread::sleep(WAIT);
        assert_eq!((read(2, &mut tun), tun.waited()), (2, Duration::ZERO), "nobody knows");
        std::thread::sleep(WAIT);
        assert_eq!(read(2, &mut tun), 2);
        assert!(tun.waited() >= WAIT);
        assert!(read(BATCH, &mut tun) >= 1 && tun.waited() < WAIT, "{:?}", tun.waited());
        socket.send_to(&[7; 100], "192.0.2.2:9").unwrap();
        std::thread::sleep(WAIT);
        assert!(read(BATCH, &mut tun) >= 1);
        assert_eq!(tun.waited(), Duration::ZERO, "it was read to its end");
    });
}

#[test]
fn queues_share_a_device_that_goes_with_the_last() {
    with_tun(|| {
        let options = TunOptions { queues: QueueCount::Several, ..TunOptions::new("uxio") };
        let first = Tun::open(&options).unwrap();
        let second = first.another_queue().unwrap();
        assert_eq!(second.name(), "uxio");
        let mut kernel = Rtnetlink::open().unwrap();
        drop(first);
        assert!(kernel.link("uxio").is_ok());
        drop(second);
        assert!(kernel.link("uxio").is_err());
        let single = Tun::open(&TunOptions::new("uxio")).unwrap();
        assert!(single.another_queue().is_err());
        assert!(Tun::open(&TunOptions::new("a-name-of-17-byte")).is_err());
    });
}

#[test]
fn routes_to_a_tun_go_with_it() {
    with_tun(|| {
        let device = tun(&TunOptions::new("uxio"), 1);
        let mut kernel = Rtnetlink::open().unwrap();
        let link = kernel.link("uxio").unwrap().index;
        let net = prefix("198.51.100.0/24");
        kernel.add_route(&Route::new(net, Via::Link(link))).unwrap();
        assert_eq!(kernel.route_to(net.address(), 0).unwrap().link, link);
        drop(device);
        assert!(kernel.route_to(net.address(), 0).is_err());
    });
}

#[test]
fn deleted_device_is_an_error() {
    with_tun(|| {
        let mut device = tun(&TunOptions::new("uxio"), 1);
        let mut kernel = Rtnetlink::open().unwrap();
        let link = kernel.link("uxio").unwrap().index;
        kernel.delete_link(link).unwrap();
        let mut poller = uxfrm_io::poll::Poller::new().unwrap();
        poller.add(device.descriptor().unwrap(), 1).unwrap();
        assert!(poller.wait(Some(Duration::from_secs(2))).unwrap().has(1));
        assert!(device.receive(&mut Pool::new(), &mut Batch::new()).is_err());
    });
}

#[test]
fn tun_drops_are_counted_by_first_queue() {
    with_tun(|| {
        let options = TunOptions { queues: QueueCount::Several, ..TunOptions::new("full0") };
        let mut first = tun(&options, 1);
        let mut second = first.another_queue().unwrap();
        let mut kernel = Rtnetlink::open().unwrap();
        let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
        let sent = 2 * 500; // two queues of `txqueuelen` packets have that much room at the most
        let before = kernel.transmit_drops("full0").unwrap();
        for _ in 0..4 * sent {
            // A queueing discipline may refuse it, and says so.
            let _refused = sender.send_to(b"a datagram", "192.0.2.2:9");
        }
        let dropped = kernel.transmit_drops("full0").unwrap() - before;
        assert!(dropped > 0);
        assert_eq!((first.overflowed(), second.overflowed()), (dropped, 0));
        assert_eq!(first.overflowed(), 0, "what was told is not told again");
    });
}

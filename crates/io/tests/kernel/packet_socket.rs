use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uxfrm_io::rtnetlink::{Neighbour, NeighbourState, RouteMonitor, RoutingChange};
use uxfrm_io::{FramePort, Frames, Namespace, PacketSocket, PacketSocketOptions, Rtnetlink};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments};
use uxfrm_testkit::packets;

use crate::{await_carrier, in_namespace, prefix};

/// A device of this namespace that is connected to one of another, both up: index and address of
/// each.
fn connected(far: &Namespace) -> [(u32, MacAddr); 2] {
    let settle = |name: &str, address: &str| {
        let mut kernel = Rtnetlink::open().unwrap();
        let link = kernel.link(name).unwrap();
        kernel.set_up(link.index).unwrap();
        kernel.add_address(link.index, prefix(address)).unwrap();
        (link.index, link.mac.unwrap())
    };
    Rtnetlink::open().unwrap().add_veth("near", "far", far.as_fd()).unwrap();
    let both =
        [settle("near", "192.0.2.1/24"), far.enter(|| settle("far", "192.0.2.2/24")).unwrap()];
    await_carrier("near");
    far.enter(|| await_carrier("far")).unwrap();
    both
}

fn receive(port: &mut PacketSocket, count: usize) -> Vec<PacketBuf> {
    let (mut pool, mut batch) = (Pool::new(), Batch::new());
    let deadline = Instant::now() + Duration::from_secs(2);
    while batch.len() < count && Instant::now() < deadline {
        if port.receive(&mut pool, &mut batch).unwrap() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    batch.drain().collect()
}

#[test]
fn packet_socket_takes_only_frames_to_device_address() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [(near_index, near_mac), (far_index, far_mac)] = connected(&far);
        let mut sender = PacketSocket::open(&PacketSocketOptions::new(near_index)).unwrap();
        let mut receiver = far
            .enter(|| PacketSocket::open(&PacketSocketOptions::new(far_index)).unwrap())
            .unwrap();
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        let to =
            |destination, ether_type| EthernetHeader { destination, source: near_mac, ether_type };
        let plain = || packets::udp("198.51.100.1:1", "203.0.113.1:2", b"a datagram");
        frames.push(to(MacAddr([2; 6]), EtherType::IPV4), plain());
        frames.push(to(MacAddr([0xff; 6]), EtherType::IPV4), plain());
        frames.push(to(far_mac, EtherType::ARP), plain());
        // A tag of VLAN 5, and the packet behind it.
        let mut tagged = plain();
        tagged.push(4).unwrap().copy_from_slice(&[0, 5, 8, 0]);
        frames.push(to(far_mac, EtherType::VLAN), tagged);
        // A tag that says a priority and no VLAN.
        let mut priority = packets::udp("198.51.100.1:1", "203.0.113.1:2", b"urgent");
        let urgent = priority.bytes().to_vec();
        priority.push(4).unwrap().copy_from_slice(&[0xe0, 0, 8, 0]);
        frames.push(to(far_mac, EtherType::VLAN), priority);
        let joined = packets::tcp_super("198.51.100.1:1", "203.0.113.1:2", &[7; 5000], 1000);
        let expected = joined.bytes().to_vec();
        frames.push(to(far_mac, EtherType::IPV4), joined);
        let mut burst = PacketBuf::from_slice(plain().bytes());
        let len = burst.len();
        burst.append(len).unwrap().copy_from_slice(plain().bytes());
        burst.segments = Segments::Burst { stride: u16::try_from(len).unwrap() };
        frames.push(to(far_mac, EtherType::IPV4), burst);
        let sent = sender.transmit(&mut frames, &mut pool);
        assert_eq!((sent.packets, sent.refused.packets()), (5 + 5 + 2, 0));
        let mut came = receive(&mut receiver, 4);
        assert_eq!(came.len(), 4);
        assert_eq!(came.remove(0).bytes(), urgent);
        assert_eq!(came[0].bytes(), expected);
        assert_eq!(came[0].segments, Segments::Tcp { mss: 1000 });
        assert_eq!(came[0].checksum, Checksum::Partial { start: 20, offset: 16 });
        assert!(came[1..].iter().all(|packet| packet.bytes() == plain().bytes()));
    });
}

/// Who does not look for too long loses what comes, and hears how much that was.
#[test]
fn full_queue_losses_are_counted() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [(near_index, near_mac), (far_index, far_mac)] = connected(&far);
        let mut sender = PacketSocket::open(&PacketSocketOptions::new(near_index)).unwrap();
        let small = PacketSocketOptions { buffer: 4096, ..PacketSocketOptions::new(far_index) };
        let mut receiver = far.enter(|| PacketSocket::open(&small).unwrap()).unwrap();
        let header =
            EthernetHeader { destination: far_mac, source: near_mac, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        assert_eq!(receiver.lost(), 0);
        for _ in 0..100 {
            let packet = packets::udp("198.51.100.1:1", "203.0.113.1:2", b"a datagram");
            frames.push(header, packet);
        }
        assert_eq!(sender.transmit(&mut frames, &mut pool).packets, 100);
        // The kernel may take its time to bring them.
        let (mut batch, mut lost) = (Batch::new(), 0);
        let deadline = Instant::now() + Duration::from_secs(5);
        while batch.len() as u64 + lost < 100 && Instant::now() < deadline {
            lost += receiver.lost();
            if lost > 0 {
                receiver.receive(&mut pool, &mut batch).unwrap();
            }
        }
        assert_eq!((batch.len() as u64 + lost, receiver.lost()), (100, 0));
        assert!(lost > 0 && !batch.is_empty());
    });
}

#[test]
fn used_neighbour_is_resolved() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [(link, _), (_, mac)] = connected(&far);
        let address = "192.0.2.2".parse().unwrap();
        let mut kernel = Rtnetlink::open().unwrap();
        let mut surroundings = RouteMonitor::open().unwrap();
        assert_eq!(kernel.neighbour(link, address).unwrap(), None);
        kernel.use_neighbour(link, address).unwrap();
        let expected = Neighbour { link, address, state: NeighbourState::Known(mac) };
        let deadline = Instant::now() + Duration::from_secs(5);
        while surroundings.next_change() != Some(RoutingChange::Neighbour(expected)) {
            assert!(Instant::now() < deadline, "{:?}", kernel.neighbour(link, address));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(kernel.neighbour(link, address).unwrap(), Some(expected));
    });
}

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uxfrm_io::napi::NapiDeferral;
use uxfrm_io::xdp::{FrameSelection, Program, ProgramOptions, Queue, XdpError, XdpVerdict};
use uxfrm_io::{
    FramePort, Frames, Namespace, PacketSocket, PacketSocketOptions, Rtnetlink, Xdp, poll::Poller,
};
use uxfrm_packet::checksum::{self, Verification};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments};
use uxfrm_testkit::packets;
use zerocopy::IntoBytes;

use crate::{await_carrier, in_namespace, not_run};

/// A device of this namespace and one of another that are connected: index and address of each.
pub(crate) fn connected(far: &Namespace) -> [(u32, MacAddr); 2] {
    let settle = |name: &str| {
        let mut kernel = Rtnetlink::open().unwrap();
        let link = kernel.link(name).unwrap();
        kernel.set_up(link.index).unwrap();
        (link.index, link.mac.unwrap())
    };
    Rtnetlink::open().unwrap().add_veth("near", "far", far.as_fd()).unwrap();
    let both = [settle("near"), far.enter(|| settle("far")).unwrap()];
    await_carrier("near");
    far.enter(|| await_carrier("far")).unwrap();
    both
}

pub(crate) fn options((link, mac): (u32, MacAddr)) -> ProgramOptions {
    let takes = FrameSelection::Esp { ports: vec![4500, 4501] };
    ProgramOptions { link, mac, mtu: 1500, selection: takes, queues: 1 }
}

fn open(program: &Arc<Program>, link: u32) -> Xdp {
    let others = PacketSocket::open(&PacketSocketOptions::new(link)).unwrap();
    Xdp::new(Queue::open(program, 0).unwrap(), others).unwrap()
}

/// Receives so many packets, each time that the port's descriptor says so.
fn receive(port: &mut impl FramePort, count: usize) -> Vec<PacketBuf> {
    let (mut pool, mut batch) = (Pool::new(), Batch::new());
    let mut poller = Poller::new().unwrap();
    poller.add(port.descriptor().unwrap(), 0).unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    while batch.len() < count && Instant::now() < deadline {
        if !poller.wait(Some(Duration::from_millis(100))).unwrap().is_empty() {
            port.receive(&mut pool, &mut batch).unwrap();
        }
    }
    batch.drain().collect()
}

pub(crate) fn esp(number: u32) -> PacketBuf {
    esp_of(number, 64)
}

pub(crate) fn esp_of(number: u32, size: usize) -> PacketBuf {
    let mut packet = packets::udp("192.0.2.1:1", "192.0.2.2:2", &vec![7; size]);
    packet.bytes_mut()[9] = Protocol::ESP.0;
    packet.bytes_mut()[24..28].copy_from_slice(&number.to_be_bytes());
    packet
}

pub(crate) fn number(packet: &PacketBuf) -> u32 {
    u32::from_be_bytes(packet.bytes()[24..28].try_into().unwrap())
}

/// Many more than a ring has places, in order, by a ring at both ends. The kernel's stack sees
/// none.
#[test]
fn sealed_packets_pass_by_the_rings_in_order() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = open(&program, near.0);
        let (_theirs, mut receiver, mut bystander) = far
            .enter(|| {
                let program = Program::attach(options(there)).unwrap();
                let bystander = PacketSocket::open(&PacketSocketOptions::new(there.0)).unwrap();
                let receiver = open(&program, there.0);
                (program, receiver, bystander)
            })
            .unwrap();
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        let mut expected = 0..;
        for _ in 0..400 {
            let first = expected.start;
            // A burst of two, and twenty alone.
            let mut burst = esp(expected.next().unwrap());
            let len = burst.len();
            let second = esp(expected.next().unwrap());
            burst.append(len).unwrap().copy_from_slice(second.bytes());
            burst.segments = Segments::Burst { stride: u16::try_from(len).unwrap() };
            frames.push(header, burst);
            expected.by_ref().take(20).for_each(|number| frames.push(header, esp(number)));
            let sent = sender.transmit(&mut frames, &mut pool);
            assert_eq!((sent.packets, sent.refused.packets()), (22, 0));
            let came: Vec<u32> = receive(&mut receiver, 22).iter().map(number).collect();
            assert_eq!(came, (first..expected.start).collect::<Vec<_>>());
        }
        assert_eq!(bystander.receive(&mut pool, &mut Batch::new()).unwrap(), 0);
    });
}

/// What the program leaves to the kernel, and what a ring can't send, goes by the packet socket.
#[test]
fn non_esp_passes_by_packet_socket() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = open(&program, near.0);
        let (_theirs, mut receiver) = far
            .enter(|| {
                let program = Program::attach(options(there)).unwrap();
                let receiver = open(&program, there.0);
                (program, receiver)
            })
            .unwrap();
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        let mut open_checksum = packets::udp("198.51.100.1:1", "203.0.113.1:2", b"a datagram");
        open_checksum.checksum = Checksum::Partial { start: 20, offset: 6 };
        frames.push(header, open_checksum);
        frames.push(header, packets::udp("198.51.100.1:1", "203.0.113.1:2", b"plain"));
        frames.push(header, esp(1));
        let mut large = packets::udp("192.0.2.1:1", "192.0.2.2:2", &[7; 3000]);
        large.bytes_mut()[9] = Protocol::ESP.0;
        frames.push(header, large);
        let sent = sender.transmit(&mut frames, &mut pool);
        assert_eq!((sent.packets, sent.refused.too_big), (3, 1));
        let came = receive(&mut receiver, 3);
        assert_eq!(came.len(), 3);
        let (by_ring, others): (Vec<_>, Vec<_>) =
            came.iter().partition(|packet| packet.bytes()[9] == Protocol::ESP.0);
        assert_eq!((by_ring.len(), others.len()), (1, 2));
        assert_eq!(others[0].checksum, Checksum::Partial { start: 20, offset: 6 });
    });
}

#[test]
fn queue_open_waits_until_other_owner_releases_it() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, _there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let held = Queue::open(&program, 0).unwrap();
        let refused = Queue::open(&program, 0).unwrap_err();
        let XdpError::Queue(0, error) = &refused else { panic!("{refused}") };
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "it gives up after a while");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            Queue::open(&program, 0).unwrap();
        });
    });
}

#[test]
fn xdp_program_detaches_with_last_owner() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, _there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let refused = Program::attach(options(near)).unwrap_err();
        assert!(matches!(refused, XdpError::Attach(_)), "{refused}");
        let missing = Queue::open(&program, 1).unwrap_err();
        assert!(matches!(missing, XdpError::Queue(1, _)), "{missing}");
        let queue = Queue::open(&program, 0).unwrap();
        assert!(!queue.is_zero_copy().unwrap(), "a veth copies");
        drop(program);
        assert!(Program::attach(options(near)).is_err(), "the queue is there still");
        drop(queue);
        drop(Program::attach(options(near)).unwrap());
        let large = ProgramOptions { mtu: 9000, ..options(near) };
        let program = Program::attach(large).unwrap();
        let refused = Queue::open(&program, 0).unwrap_err();
        assert!(matches!(refused, XdpError::TooLarge(9014)), "{refused}");
        // No driver of the loopback device's takes a program.
        let loopback = Rtnetlink::open().unwrap().link("lo").unwrap();
        let refused = Program::attach(options((loopback.index, MacAddr([0; 6])))).unwrap_err();
        assert!(matches!(refused, XdpError::Attach(_)), "{refused}");
    });
}

#[test]
fn xdp_esp_program_takes_only_esp_to_device() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, _there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let _socket = open(&program, near.0);
        let framed = |destination, ether_type, packet: &PacketBuf| {
            let header = EthernetHeader { destination, source: MacAddr([2; 6]), ether_type };
            [header.as_bytes(), packet.bytes()].concat()
        };
        let verdict = |bytes: &[u8]| program.verdict(bytes).unwrap();
        let (v4, v6) = (EtherType::IPV4, EtherType::IPV6);
        let in_udp = |to: &str, marker: [u8; 4]| {
            let from = if to.starts_with('[') { "[2001:db8::1]:9" } else { "192.0.2.1:9" };
            packets::udp(from, to, &[&marker[..], &[7; 40]].concat())
        };
        let next_is_esp = |mut packet: PacketBuf, at: usize| {
            packet.bytes_mut()[at] = Protocol::ESP.0;
            packet
        };
        let over_v6 = |to: &str| next_is_esp(in_udp(to, [1; 4]), 6);
        let changed = |at: usize, byte: u8| {
            let mut packet = esp(1);
            packet.bytes_mut()[at] = byte;
            packet
        };
        for (packet, ether_type, expected) in [
            (esp(1), v4, XdpVerdict::Socket),
            (over_v6("[2001:db8::2]:9"), v6, XdpVerdict::Socket),
            (in_udp("192.0.2.2:4500", [0, 0, 0, 1]), v4, XdpVerdict::Socket),
            (in_udp("192.0.2.2:4501", [1; 4]), v4, XdpVerdict::Socket),
            (in_udp("[2001:db8::2]:4500", [0, 0, 0, 1]), v6, XdpVerdict::Socket),
            // IKE behind its marker, another port, plain.
            (in_udp("192.0.2.2:4500", [0; 4]), v4, XdpVerdict::Kernel),
            (in_udp("[2001:db8::2]:4500", [0; 4]), v6, XdpVerdict::Kernel),
            (in_udp("192.0.2.2:4502", [1; 4]), v4, XdpVerdict::Kernel),
            (in_udp("[2001:db8::2]:500", [1; 4]), v6, XdpVerdict::Kernel),
            (
                packets::tcp_super("192.0.2.1:4500", "192.0.2.2:4500", &[7; 9], 9),
                v4,
                XdpVerdict::Kernel,
            ),
            // To a group, or to neighbours only.
            (changed(16, 224), v4, XdpVerdict::Kernel),
            (over_v6("[ff02::1]:9"), v6, XdpVerdict::Kernel),
            (over_v6("[fe80::1]:9"), v6, XdpVerdict::Kernel),
            (over_v6("[fec0::1]:9"), v6, XdpVerdict::Socket),
            // Options, a fragment, another fragment.
            (changed(0, 0x46), v4, XdpVerdict::Kernel),
            (changed(6, 0x20), v4, XdpVerdict::Kernel),
            (changed(7, 1), v4, XdpVerdict::Kernel),
            (changed(6, 0x40), v4, XdpVerdict::Socket),
            // Another type of frame.
            (esp(1), EtherType::ARP, XdpVerdict::Kernel),
            (esp(1), EtherType::VLAN, XdpVerdict::Kernel),
        ] {
            let bytes = framed(near.1, ether_type, &packet);
            assert_eq!(verdict(&bytes), expected, "{ether_type:?} {packet:?} {:?}", packet.bytes());
        }
        // A tag that says a priority and no VLAN; one of VLAN 1; another behind it; to another
        // device; cut short.
        let tagged = |destination, tag: [u8; 4]| {
            let packet = PacketBuf::from_slice(&[&tag[..], esp(1).bytes()].concat());
            framed(destination, EtherType::VLAN, &packet)
        };
        assert_eq!(verdict(&tagged(near.1, [0xf0, 0, 8, 0])), XdpVerdict::Socket);
        assert_eq!(verdict(&tagged(near.1, [0xe0, 1, 8, 0])), XdpVerdict::Kernel);
        assert_eq!(verdict(&tagged(near.1, [0, 0, 0x81, 0])), XdpVerdict::Kernel);
        assert_eq!(verdict(&tagged(MacAddr([2; 6]), [0, 0, 8, 0])), XdpVerdict::Kernel);
        assert_eq!(verdict(&tagged(near.1, [0, 0, 8, 0])[..37]), XdpVerdict::Kernel);
        for destination in [MacAddr([2; 6]), MacAddr([0xff; 6])] {
            assert_eq!(verdict(&framed(destination, v4, &esp(1))), XdpVerdict::Kernel);
        }
        let whole = framed(near.1, v4, &esp(1));
        assert_eq!(verdict(&whole[..34]), XdpVerdict::Socket);
        assert_eq!(verdict(&whole[..33]), XdpVerdict::Kernel);
        // A datagram that says to be longer than its packet is, or too short for a marker.
        for length in [[0, 200], [0, 11]] {
            let mut packet = in_udp("192.0.2.2:4500", [1; 4]);
            packet.bytes_mut()[24..26].copy_from_slice(&length);
            assert_eq!(verdict(&framed(near.1, v4, &packet)), XdpVerdict::Kernel);
        }
    });
}

/// Host mode's: what is not to the host itself is not the gateway's, ESP or not, as the host's
/// addresses change.
#[test]
fn xdp_own_esp_program_takes_only_host_esp() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, _there] = connected(&far);
        let takes = FrameSelection::OwnEsp;
        let program =
            Program::attach(ProgramOptions { selection: takes, ..options(near) }).unwrap();
        let _queue = Queue::open(&program, 0).unwrap();
        let [v4, v6, other] =
            ["192.0.2.2", "2001:db8::2", "192.0.2.9"].map(|own| own.parse().unwrap());
        let link_local = "fe80::2".parse().unwrap();
        program.set_host_addresses(&[v4, v6, link_local]).unwrap();
        let to = |destination: &str, change: fn(&mut [u8])| {
            let is_v6 = destination.starts_with('[');
            let source = if is_v6 { "[2001:db8::1]:1" } else { "192.0.2.1:1" };
            let mut packet = packets::udp(source, destination, &[7; 40]);
            packet.bytes_mut()[if is_v6 { 6 } else { 9 }] = Protocol::ESP.0;
            change(packet.bytes_mut());
            let ether_type = if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 };
            let header =
                EthernetHeader { destination: near.1, source: MacAddr([2; 6]), ether_type };
            program.verdict(&[header.as_bytes(), packet.bytes()].concat()).unwrap()
        };
        for (destination, change, expected) in [
            ("192.0.2.2:2", (|_| {}) as fn(&mut [u8]), XdpVerdict::Socket),
            ("[2001:db8::2]:2", |_| {}, XdpVerdict::Socket),
            // To others: the kernel forwards it.
            ("192.0.2.9:2", |_| {}, XdpVerdict::Kernel),
            ("[2001:db8::9]:2", |_| {}, XdpVerdict::Kernel),
            ("224.0.0.1:2", |_| {}, XdpVerdict::Kernel),
            ("[fe80::2]:2", |_| {}, XdpVerdict::Kernel),
            // No ESP; options; fragments, which the kernel puts together.
            ("192.0.2.2:4500", |packet| packet[9] = Protocol::UDP.0, XdpVerdict::Kernel),
            ("[2001:db8::2]:4500", |packet| packet[6] = Protocol::UDP.0, XdpVerdict::Kernel),
            ("192.0.2.2:2", |packet| packet[0] = 0x46, XdpVerdict::Kernel),
            ("192.0.2.2:2", |packet| packet[6] = 0x20, XdpVerdict::Kernel),
            ("192.0.2.2:2", |packet| packet[7] = 1, XdpVerdict::Kernel),
        ] {
            assert_eq!(to(destination, change), expected, "{destination}");
        }
        program.set_host_addresses(&[v6, other]).unwrap();
        assert_eq!(to("192.0.2.2:2", |_| {}), XdpVerdict::Kernel);
        assert_eq!(to("192.0.2.9:2", |_| {}), XdpVerdict::Socket);
        assert_eq!(to("[2001:db8::2]:2", |_| {}), XdpVerdict::Socket);
        // One that two devices had, and that is nobody's any more; one behind it goes all the same.
        program.set_host_addresses(&[]).unwrap();
        assert_eq!(to("192.0.2.9:2", |_| {}), XdpVerdict::Kernel);
        assert_eq!(to("[2001:db8::2]:2", |_| {}), XdpVerdict::Kernel);
    });
}

/// Frames have room for the MTU that the device had: what is longer since is the kernel's, both
/// ways.
#[test]
fn frames_above_initial_mtu_go_to_kernel() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = open(&program, near.0);
        let verdict = |size: usize| {
            let header = EthernetHeader {
                destination: near.1,
                source: there.1,
                ether_type: EtherType::IPV4,
            };
            let packet = esp_of(1, size);
            program.verdict(&[header.as_bytes(), packet.bytes()].concat()).unwrap()
        };
        // 2048 bytes, of which 256 are the kernel's.
        let headers = 14 + 20 + 8;
        assert_eq!(verdict(2048 - 256 - headers), XdpVerdict::Socket);
        assert_eq!(verdict(2048 - 256 - headers + 1), XdpVerdict::Kernel);
        let mut kernel = Rtnetlink::open().unwrap();
        kernel.set_mtu(near.0, 3000).unwrap();
        let mut receiver = far
            .enter(|| {
                Rtnetlink::open().unwrap().set_mtu(there.0, 3000).unwrap();
                PacketSocket::open(&PacketSocketOptions::new(there.0)).unwrap()
            })
            .unwrap();
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        frames.push(header, esp_of(1, 2900));
        frames.push(header, esp_of(3, 1472));
        let sent = sender.transmit(&mut frames, &mut pool);
        assert_eq!((sent.packets, sent.refused.packets()), (2, 0));
        let came = receive(&mut receiver, 2);
        assert_eq!(came.iter().map(PacketBuf::len).collect::<Vec<_>>(), [1500, 2928]);
    });
}

/// Who does not look for too long loses what comes, and hears how much that was.
#[test]
fn full_queue_losses_are_counted() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = Queue::open(&program, 0).unwrap();
        let mut receiver = far
            .enter(|| Queue::open(&Program::attach(options(there)).unwrap(), 0).unwrap())
            .unwrap();
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        assert_eq!(receiver.lost(), 0);
        let mut sent = 0;
        for _ in 0..50 {
            (0..100).for_each(|number| frames.push(header, esp(number)));
            sent += sender.transmit(&mut frames, &mut pool).packets;
        }
        assert_eq!(sent, 5000);
        // The kernel may take its time to bring them.
        let (mut batch, mut came, mut lost) = (Batch::new(), 0, 0);
        let deadline = Instant::now() + Duration::from_secs(5);
        while came + lost < sent && Instant::now() < deadline {
            lost += receiver.lost();
            if lost > 0 {
                came += receiver.receive(&mut pool, &mut batch).unwrap() as u64;
                pool.give_all(&mut batch);
            }
        }
        assert_eq!((came + lost, receiver.lost()), (sent, 0));
        assert!(lost > 0 && came > 0);
    });
}

/// A device that gathers holds more frames than its link may have on their way: the rest leaves
/// later, in order, and none is lost.
#[test]
fn ring_backlog_leaves_later_in_order() {
    [64, 1300].into_iter().for_each(frames_find_room);
}

fn frames_find_room(size: usize) {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = Queue::open(&program, 0).unwrap();
        let (mut receiver, gathering) = far
            .enter(|| {
                let program = Program::attach(options(there)).unwrap();
                let receiver = Queue::open(&program, 0).unwrap();
                (receiver, NapiDeferral::start(there.0, Duration::from_millis(2)))
            })
            .unwrap();
        let _gathering = match gathering {
            Ok(gathering) => gathering,
            Err(error) => return not_run(&format!("a kernel before Linux 6.13: {error}")),
        };
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        let (mut numbers, mut came, mut kept) = (0.., Vec::new(), 0);
        for _ in 0..4 {
            for number in numbers.by_ref().take(400) {
                frames.push(header, esp_of(number, size));
            }
            let sent = sender.transmit(&mut frames, &mut pool);
            assert_eq!((sent.packets, sent.refused.packets()), (400, 0));
            while sender.has_backlog() {
                kept += 1;
                assert_eq!(sender.transmit(&mut frames, &mut pool).packets, 0);
            }
            let all = came.len() + 400;
            while came.len() < all {
                let some = receive(&mut receiver, 1);
                assert!(!some.is_empty(), "{} of {all}", came.len());
                came.extend(some.iter().map(number));
            }
        }
        assert!(kept > 0, "there was room");
        // While the device is down nobody needs to try again.
        Rtnetlink::open().unwrap().set_down(near.0).unwrap();
        frames.push(header, esp(0));
        let _sent = sender.transmit(&mut frames, &mut pool);
        assert!(!sender.has_backlog());
        assert!(came.into_iter().eq(0..numbers.start), "out of order");
    });
}

/// Plain packets, checksums that senders left open too; those to the host's addresses by the
/// kernel, as these change.
#[test]
fn forwarded_packets_come_by_ring() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(ProgramOptions {
            selection: FrameSelection::Forwarded,
            ..options(near)
        })
        .unwrap();
        let [v4, v6, other] =
            ["192.0.2.1", "2001:db8::1", "192.0.2.9"].map(|own| own.parse().unwrap());
        program.set_host_addresses(&[v4, v6]).unwrap();
        let mut bystander = PacketSocket::open(&PacketSocketOptions::new(near.0)).unwrap();
        let mut receiver = open(&program, near.0);
        let mut sender =
            far.enter(|| PacketSocket::open(&PacketSocketOptions::new(there.0)).unwrap()).unwrap();
        let framed = |packet: &PacketBuf| {
            let ether_type =
                if packet.bytes()[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
            EthernetHeader { destination: near.1, source: there.1, ether_type }
        };
        let verdict = |packet: &PacketBuf| {
            program.verdict(&[framed(packet).as_bytes(), packet.bytes()].concat()).unwrap()
        };
        let to = |destination: &str| {
            let source =
                if destination.starts_with('[') { "[2001:db8::5]:5" } else { "192.0.2.5:5" };
            packets::udp(source, destination, b"passing")
        };
        for (packet, expected) in [
            (to("192.0.2.9:9"), XdpVerdict::Socket),
            (to("[2001:db8::9]:9"), XdpVerdict::Socket),
            (to("192.0.2.1:9"), XdpVerdict::Kernel),
            (to("[2001:db8::1]:9"), XdpVerdict::Kernel),
            (to("224.0.0.1:9"), XdpVerdict::Kernel),
            (to("255.255.255.255:9"), XdpVerdict::Kernel),
            (to("[ff02::1]:9"), XdpVerdict::Kernel),
            (to("[fe80::9]:9"), XdpVerdict::Kernel),
            (packets::udp("[fe80::9]:9", "[2001:db8::9]:9", b"near"), XdpVerdict::Kernel),
            (packets::tcp("192.0.2.5:5", "192.0.2.9:9", 1, b"passing"), XdpVerdict::Socket),
        ] {
            assert_eq!(verdict(&packet), expected, "{:?}", packet.bytes());
        }
        program.set_host_addresses(&[v6, other]).unwrap();
        assert_eq!(verdict(&to("192.0.2.1:9")), XdpVerdict::Socket);
        assert_eq!(verdict(&to("192.0.2.9:9")), XdpVerdict::Kernel);
        assert_eq!(verdict(&to("[2001:db8::1]:9")), XdpVerdict::Kernel);

        let (mut pool, mut frames) = (Pool::new(), Frames::new());
        let whole = to("192.0.2.7:7");
        frames.push(framed(&whole), PacketBuf::from_slice(whole.bytes()));
        let joined = packets::tcp_super("192.0.2.5:5", "192.0.2.7:7", &[7; 2500], 1000);
        frames.push(framed(&joined), joined);
        let priority = [&[0xe0, 0, 8, 0], whole.bytes()].concat();
        let tagged = EthernetHeader { ether_type: EtherType::VLAN, ..framed(&whole) };
        frames.push(tagged, PacketBuf::from_slice(&priority));
        let sent = sender.transmit(&mut frames, &mut pool);
        assert_eq!(sent.packets, 5);
        let mut came = receive(&mut receiver, 5);
        assert_eq!(came.pop().unwrap().bytes(), whole.bytes());
        assert_eq!((came.len(), program.received()), (4, 5), "by the ring");
        assert_eq!((came[0].bytes(), came[0].checksum), (whole.bytes(), Checksum::AsIs));
        // A link by which no super-packets come cuts them; the sums are left to it all the same.
        for mut packet in came.into_iter().skip(1) {
            checksum::complete(&mut packet).unwrap();
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            assert_eq!(checksum::verify(&ip, packet.bytes()), Verification::Right);
        }
        assert_eq!(bystander.receive(&mut pool, &mut Batch::new()).unwrap(), 0);
        // What leaves, super-packets too, leaves by the packet socket.
        let reply = packets::tcp_super("192.0.2.7:7", "192.0.2.5:5", &[7; 2500], 1000);
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        frames.push(header, reply);
        assert_eq!(receiver.transmit(&mut frames, &mut pool).packets, 3);
        assert_eq!(receive(&mut sender, 1)[0].segments, Segments::Tcp { mss: 1000 });
    });
}

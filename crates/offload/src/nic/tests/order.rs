//! Super-packets and order: segments are not swapped, with one queue or many, in either kind.

use std::collections::HashMap;

use uxfrm_packet::checksum::{Verification, verify};
use uxfrm_packet::{IpPacket, tcp::Tcp};

use super::*;

fn super_packet(port: u16, payload: &[u8]) -> PacketBuf {
    packets::tcp_super(&format!("10.1.0.1:{port}"), "10.2.0.1:9", payload, 1000)
}

fn sequence_of(esp: &PacketBuf) -> u32 {
    u32::from_be_bytes(*esp.bytes()[24..].first_chunk().unwrap())
}

#[test]
fn a_super_packet_leaves_as_segments_in_order_each_with_its_number() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("connectx6dx");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    let payload: Vec<u8> = (0..60_500_u32).map(|place| (place / 1000).to_le_bytes()[0]).collect();
    let wire = bed.protect(handle, vec![super_packet(7, &payload)]);
    assert_eq!(wire.iter().map(sequence_of).collect::<Vec<_>>(), (1..=61).collect::<Vec<_>>());
    let mut right = TestGatewayPair::new(&wrapping).right;
    let mut joined: Vec<u8> = Vec::new();
    for packet in right.inbound(wire) {
        let ip = IpPacket::parse(packet.bytes()).unwrap();
        assert_eq!(verify(&ip, packet.bytes()), Verification::Right);
        let segment = Tcp::parse(ip.upper(packet.bytes())).unwrap();
        assert_eq!(segment.header.sequence.get() as usize, 1000 + joined.len());
        joined.extend(segment.payload);
    }
    assert_eq!(joined, payload);
    assert_eq!(bed.counts(handle).packets, 61);
}

#[test]
fn super_packet_without_gso_is_dropped_by_name() {
    let mut profile = Profile::by_name("unlimited").unwrap();
    profile.segmentation = false;
    let mut bed = TestBed::of(NicSetup::new(profile, NIC));
    let handle = bed.add_sending(&IpsecSetup::tunnel4(), OffloadKind::Packet);
    assert!(bed.protect(handle, vec![super_packet(7, &[1; 5000])]).is_empty());
    assert_eq!(bed.nic.drops().of(NicDrop::TxUnsupported), 5, "counted in segments");
}

#[test]
fn four_streams_keep_their_order_through_two_devices_and_all_queues() {
    for (profile, queues) in [("connectx6dx", 16), ("unlimited", 64)] {
        let wrapping = IpsecSetup::tunnel4();
        let (mut left, mut right) = (TestBed::new(profile), TestBed::new(profile));
        let out = left.add_sending(&wrapping, OffloadKind::Packet);
        let _ = right.add_receiving(&wrapping, OffloadKind::Packet);
        let mut next: HashMap<u16, u32> = HashMap::new();
        let mut queue_of: HashMap<u16, usize> = HashMap::new();
        for _ in 0..20 {
            let burst = (1..=4).map(|port| super_packet(port, &[7; 30_000])).collect();
            let mut wire: Batch = left.protect(out, burst).into_iter().collect();
            right.nic.receive(&mut wire, NOW, &mut right.pool, &mut right.queues);
            for (place, queue) in right.queues.physical().enumerate() {
                for received in queue.drain(..) {
                    let ip = IpPacket::parse(received.packet.bytes()).unwrap();
                    let segment = Tcp::parse(ip.upper(received.packet.bytes())).unwrap();
                    let port = segment.header.source.get();
                    assert_eq!(*queue_of.entry(port).or_insert(place), place, "one queue a flow");
                    // Each super-packet starts at 1000 again.
                    let expected = next.entry(port).or_insert(1000);
                    assert_eq!(segment.header.sequence.get(), *expected);
                    *expected = if *expected == 30_000 { 1000 } else { *expected + 1000 };
                }
            }
        }
        assert_eq!(queue_of.len(), 4);
        assert_eq!(right.queues.physical().count(), queues);
        right.assert_accounts();
    }
}

/// The engine has the window: packets swapped by queues would be too old for it.
#[test]
fn crypto_kind_keeps_order_per_sa() {
    let wrapping = IpsecSetup { window: 32, ..IpsecSetup::tunnel4() };
    let config = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI);
    let mut sender = Sender::new(&config);
    let mut bed = TestBed::new("unlimited");
    let _ = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let of_flow = |port: u64| packets::udp(&format!("10.1.0.1:{port}"), "10.2.0.1:9", b"flow");
    let wire = (1..=200).map(|number| sender.esp(&of_flow(number % 4 + 1), number)).collect();
    let sent: Vec<_> = (1..=200).collect();
    let received: Vec<u32> =
        bed.receive(wire).iter().map(|received| sequence_of(&received.packet)).collect();
    assert_eq!(received, sent, "queue by queue");
}

#[test]
fn joint_queue_drain_keeps_arrival_order() {
    let wrapping = IpsecSetup::tunnel4();
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut bed = TestBed::new("unlimited");
    let _ = bed.add_receiving(&wrapping, OffloadKind::Packet);
    let of_flow = |port: u64| packets::udp(&format!("10.1.0.1:{port}"), "10.2.0.1:9", b"flow");
    let mut wire: Batch = (1..=60).map(|number| sender.esp(&of_flow(number), number)).collect();
    bed.nic.receive(&mut wire, NOW, &mut bed.pool, &mut bed.queues);
    let all: Vec<_> = bed.queues.in_order().collect();
    let port =
        |packet: &PacketBuf| u16::from_be_bytes(*packet.bytes()[20..].first_chunk().unwrap());
    let ports: Vec<_> = all.iter().map(|(.., received)| port(&received.packet)).collect();
    assert_eq!(ports, (1..=60).collect::<Vec<_>>());
    let queues: std::collections::HashSet<_> = all.iter().map(|(_, queue, _)| queue.0).collect();
    assert!(queues.len() > 8, "spread all the same");
    assert_eq!(bed.queues.drain().count(), 0);
}

//! Whatever its headers and fragmentation, a packet that a policy protects never leaves or enters
//! in plaintext.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::IpAddr;

use uxfrm_engine::{
    Direction, DropReason, Family, Mode, Policy, PolicyKind, PortMask, Prefix, Selector,
};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments, checksum::Sum};
use uxfrm_testkit::{IpsecSetup, PairDirection, PlaintextDetector, Rng, TestGatewayPair, packets};

/// As long as a fragment unit, so that each fragment has a part.
const MARKER: &[u8] = b"a secret";
const PORT: u16 = 9;

/// Headers that may stand between IPv6's own and the upper layer.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

fn pair(family: Family, selector: impl Fn(Selector) -> Selector) -> TestGatewayPair {
    let setup = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
    let mut pair = TestGatewayPair::new(&setup);
    let policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    let all = Prefix::any(family);
    let selector = selector(Selector { source: all, destination: all, ..policy.selector });
    let policy = Policy { selector, ..policy };
    pair.left.database.apply(pair.left.now, |change| {
        change.flush_policies(PolicyKind::Main);
        change.add_policy(policy).unwrap();
    });
    pair
}

/// A datagram to the port, with only the marker as payload, behind any extension headers or
/// options.
fn datagram(rng: &mut Rng, family: Family) -> Vec<u8> {
    let payload = MARKER.repeat(1 + rng.below(300));
    let len = u16::try_from(8 + payload.len()).unwrap();
    let upper = [&[0, 7], &PORT.to_be_bytes()[..], &len.to_be_bytes(), &[0; 2], &payload].concat();
    let host = |last: u8| -> IpAddr {
        match family {
            Family::V4 => [10, 1, last, 1].into(),
            Family::V6 => [0xfd, 0, 0, last, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].into(),
        }
    };
    let (source, destination) = (host(1), host(u8::try_from(2 + rng.below(9)).unwrap()));
    match family {
        Family::V4 => with_options(rng, packets::ip(source, destination, Protocol::UDP, &upper)),
        Family::V6 => {
            let (first, upper) = extended(rng, 17, upper);
            packets::ip(source, destination, Protocol(first), &upper)
        }
    }
}

/// With up to six extension headers before it.
fn extended(rng: &mut Rng, mut next: u8, mut upper: Vec<u8>) -> (u8, Vec<u8>) {
    for _ in 0..rng.below(7) {
        let units = u8::try_from(rng.below(3)).unwrap();
        let mut header = vec![0; (usize::from(units) + 1) * 8];
        (header[0], header[1]) = (next, units);
        upper = [header, upper].concat();
        next = EXTENSIONS[rng.below(EXTENSIONS.len())];
    }
    (next, upper)
}

fn with_options(rng: &mut Rng, packet: Vec<u8>) -> Vec<u8> {
    let words = rng.below(11);
    let (header, rest) = packet.split_at(20);
    let mut packet = [header, &vec![1; 4 * words], rest].concat();
    packet[0] = 0x40 | u8::try_from(5 + words).unwrap();
    let len = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    uxfrm_packet::ipv4::fill_checksum(&mut packet).unwrap();
    packet
}

/// As the host sends it: whole, or fragmented in any order.
fn handed_over(rng: &mut Rng, packet: &[u8]) -> Vec<PacketBuf> {
    if rng.permille(300) {
        return vec![PacketBuf::from_slice(packet)];
    }
    let ident = rng.next_u64().to_be_bytes();
    let size = 200 + 8 * rng.below(100);
    let mut fragments = match packet[0] >> 4 {
        4 => fragments_v4(packet, size),
        _ => packets::fragments(packet, size),
    };
    for place in (1..fragments.len()).rev() {
        fragments.swap(place, rng.below(place + 1));
    }
    for fragment in &mut fragments {
        let bytes = fragment.bytes_mut();
        match bytes[0] >> 4 {
            4 => bytes[4..6].copy_from_slice(&ident[..2]),
            _ => bytes[44..48].copy_from_slice(&ident[..4]),
        }
        // IPv6 has none.
        let _ = uxfrm_packet::ipv4::fill_checksum(bytes);
    }
    fragments
}

/// With its options in each.
fn fragments_v4(packet: &[u8], size: usize) -> Vec<PacketBuf> {
    let (head, body) = packet.split_at(usize::from(packet[0] & 15) * 4);
    let fragment = |(number, fragment): (usize, &[u8])| {
        let offset = number * size;
        let more = u16::from(offset + fragment.len() < body.len());
        let mut bytes = [head, fragment].concat();
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        let place = u16::try_from(offset / 8).unwrap() | more << 13;
        bytes[6..8].copy_from_slice(&place.to_be_bytes());
        PacketBuf::from_slice(&bytes)
    };
    body.chunks(size).enumerate().map(fragment).collect()
}

fn assert_hidden(pair: &mut TestGatewayPair, packets: Vec<PacketBuf>) {
    let (wire, _) = pair.left.outbound(packets);
    let mut listener = PlaintextDetector::new(MARKER);
    listener.listen(&wire);
    let plain = wire.iter().find(|packet| packet.bytes().windows(8).any(|bytes| bytes == MARKER));
    assert_eq!(listener.seen, 0, "{:02x?}", plain.map(|packet| &packet.bytes()[..100]));
}

#[test]
fn port_policy_matches_behind_extension_headers() {
    for family in [Family::V4, Family::V6] {
        let mut rng = Rng::new(family as u64);
        let mut pair = pair(family, |all| Selector {
            protocol: 17,
            destination_port: PortMask::exactly(PORT),
            ..all
        });
        for _ in 0..400 {
            let datagrams: Vec<_> =
                (0..1 + rng.below(40)).map(|_| datagram(&mut rng, family)).collect();
            let packets = datagrams.iter().flat_map(|whole| handed_over(&mut rng, whole));
            let packets = packets.collect();
            assert_hidden(&mut pair, packets);
        }
        pair.left.assert_packets_accounted();
        assert!(pair.left.worker.outward().sent > 5_000, "{:?}", pair.left.reasons());
    }
}

#[test]
fn no_plaintext_leaves_under_protect_all() {
    for family in [Family::V4, Family::V6] {
        let mut rng = Rng::new(7 + family as u64);
        let mut pair = pair(family, |all| all);
        for _ in 0..2_000 {
            let packets = (0..1 + rng.below(40)).map(|_| damaged(&mut rng, family)).collect();
            let (wire, _) = pair.left.outbound(packets);
            for packet in wire {
                // Packets of the other family have no policy.
                let is_plain = packet.bytes().windows(8).any(|bytes| bytes == MARKER);
                let version = if family == Family::V4 { 4 } else { 6 };
                assert!(!is_plain || packet.bytes()[0] >> 4 != version, "{:02x?}", packet.bytes());
            }
        }
        pair.left.assert_packets_accounted();
    }
}

#[test]
fn no_plaintext_enters_under_protect_all() {
    for family in [Family::V4, Family::V6] {
        let mut rng = Rng::new(70 + family as u64);
        let setup = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        let mut right = TestGatewayPair::new(&setup).right;
        let all = Prefix::any(family);
        right.database.apply(right.now, |change| {
            change.flush_policies(PolicyKind::Main);
            for direction in [Direction::In, Direction::Forward] {
                let policy = setup.policy(direction, PairDirection::LeftToRight);
                let selector = Selector { source: all, destination: all, ..policy.selector };
                change.add_policy(Policy { selector, ..policy }).unwrap();
            }
        });
        for _ in 0..2_000 {
            let packets = (0..1 + rng.below(40)).map(|_| damaged(&mut rng, family)).collect();
            let version = if family == Family::V4 { 4 } else { 6 };
            let arrived = right.inbound(packets);
            let one = arrived.iter().find(|packet| packet.bytes()[0] >> 4 == version);
            assert!(one.is_none(), "{:02x?}", one.map(PacketBuf::bytes));
        }
        right.assert_packets_accounted();
        assert!(right.worker.inward().dropped > 10_000, "{:?}", right.reasons());
    }
}

/// A packet or super-packet with changed header bits.
fn damaged(rng: &mut Rng, family: Family) -> PacketBuf {
    let whole = datagram(rng, family);
    let mut fragments = handed_over(rng, &whole);
    let mut packet = fragments.swap_remove(rng.below(fragments.len()));
    for _ in 0..rng.below(4) {
        let place = rng.below(packet.len().min(80));
        packet.bytes_mut()[place] ^= 1 << rng.below(8);
    }
    packet.trim(if rng.permille(100) { rng.below(packet.len()) } else { packet.len() });
    let size = u16::try_from(rng.below(1500)).unwrap();
    packet.segments = match rng.below(12) {
        0 => Segments::Udp { size },
        1 => Segments::Tcp { mss: size },
        2 => Segments::Burst { stride: size },
        _ => Segments::One,
    };
    packet
}

/// A guest chooses where its partial checksum goes (`virtio_net_hdr`), and it is completed after
/// the policy look-up: that must not change the packet's flow.
#[test]
fn partial_checksum_cannot_change_policy_fields() {
    let elsewhere = || packets::udp("10.1.0.1:7", "198.51.100.1:9", &[MARKER, &[0; 2]].concat());
    // The first half of the destination becomes the sum of all behind it: 10.2.
    let mut forged = elsewhere();
    let sum = Sum::of(&forged.bytes()[16..]).plus_u16(0x0a02).checksum();
    let len = forged.len();
    forged.bytes_mut()[len - 2..].copy_from_slice(&sum.to_be_bytes());
    forged.checksum = Checksum::Partial { start: 16, offset: 0 };
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let (wire, _) = pair.left.outbound(vec![elsewhere(), forged, elsewhere()]);
    let destinations = wire.iter().map(|packet| packet.bytes()[16..20].to_vec());
    assert_eq!(destinations.collect::<Vec<_>>(), [[198, 51, 100, 1]; 2]);
    assert_eq!(pair.left.drops(DropReason::OutMalformed), 1);
    pair.assert_accounts();
}

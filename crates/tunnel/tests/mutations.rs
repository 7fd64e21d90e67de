//! Ten million malformed packets, random or mutated, into each decapsulator: no panic, and every
//! one is counted. Accepted ones do not count.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod gateway;

use std::collections::BTreeMap;

use gateway::{End, Gateway};
use uxfrm_packet::{HEADROOM, PacketBuf, ipv4};
use uxfrm_testkit::{Rng, packets};
use uxfrm_tunnel::config::UdpFraming;
use uxfrm_tunnel::{DropReason, TunnelConfig, TunnelKind};

const MALFORMED: u64 = 10_000_000;

/// Valid packets of every selected tunnel.
fn good(wanted: impl Fn(&TunnelConfig) -> bool) -> Vec<Vec<u8>> {
    let left = Gateway::new(End::Left);
    let inner = [
        packets::udp("10.0.0.1:7", "10.0.0.2:9", &[1; 40]),
        packets::tcp("[2002:c612::1]:7", "[2002:c633:6410::2]:9", 1, &[2; 60]),
    ];
    let mut good = Vec::new();
    for (index, tunnel) in left.tunnels.iter().enumerate() {
        if !wanted(tunnel.config()) {
            continue;
        }
        for inner in &inner {
            let mut packet = PacketBuf::from_slice(inner.bytes());
            if left.send(index, &mut packet).is_ok() {
                good.push(packet.bytes().to_vec());
            }
        }
    }
    good
}

/// Writes a mutated packet of `good`, or random bytes.
fn fill(packet: &mut PacketBuf, good: &[Vec<u8>], rng: &mut Rng) {
    packet.reset();
    let bytes = &good[rng.below(good.len())];
    if rng.permille(50) {
        let room = packet.append(rng.below(200)).unwrap();
        return rng.fill(room);
    }
    let len = if rng.permille(100) { rng.below(bytes.len() + 1) } else { bytes.len() };
    packet.append(len).unwrap().copy_from_slice(&bytes[..len]);
    if len == 0 {
        return;
    }
    for _ in 0..=rng.below(3) {
        let place = rng.below(len.min(100));
        let byte = &mut packet.bytes_mut()[place];
        match rng.below(4) {
            0 => *byte ^= 1 << rng.below(8),
            1 => *byte = 0,
            2 => *byte = 0xff,
            _ => *byte = u8::try_from(rng.below(256)).unwrap(),
        }
    }
    // Otherwise most would end at an invalid length, or at the UDP checksum.
    if rng.permille(500) {
        let _ = ipv4::fill_checksum(packet.bytes_mut());
    }
    if rng.permille(500)
        && packet.len() > 28
        && packet.bytes()[0] == 0x45
        && packet.bytes()[9] == 17
    {
        packet.bytes_mut()[26..28].fill(0);
    }
}

/// Sends packets until [`MALFORMED`] were dropped: counts by reason, and the number accepted.
fn counted(good: &[Vec<u8>], seed: u64) -> (BTreeMap<DropReason, u64>, u64) {
    let right = Gateway::new(End::Right);
    let mut rng = Rng::new(seed);
    let mut packet = PacketBuf::with_capacity(2048, HEADROOM);
    let (mut counts, mut taken, mut dropped) = (BTreeMap::new(), 0, 0);
    while dropped < MALFORMED {
        fill(&mut packet, good, &mut rng);
        if (taken + dropped) % 7 == 0 {
            packet.udp = Some(gateway::path(rng.below(256)));
        }
        match right.receive(&mut packet) {
            Ok(()) => taken += 1,
            Err(reason) => {
                dropped += 1;
                *counts.entry(reason).or_default() += 1;
            }
        }
    }
    (counts, taken)
}

fn ten_million(reasons: usize, seed: u64, wanted: impl Fn(&TunnelConfig) -> bool) {
    let good = good(wanted);
    assert!(!good.is_empty());
    let (counts, taken) = counted(&good, seed);
    assert_eq!(counts.values().sum::<u64>(), MALFORMED, "each is counted once");
    assert!(taken > MALFORMED / 100, "some are good enough: {taken}");
    // The mutations reach every part of the path.
    assert!(counts.len() >= reasons, "{} reasons: {counts:?}", counts.len());
}

#[test]
fn ipip() {
    ten_million(12, 1, |config| config.kind == TunnelKind::Ipip && config.udp.is_none());
}

#[test]
fn sit() {
    ten_million(12, 2, |config| config.kind == TunnelKind::Sit && config.udp.is_none());
}

#[test]
fn gre() {
    ten_million(12, 3, |config| config.kind == TunnelKind::Gre && config.udp.is_none());
}

#[test]
fn ip6tnl() {
    ten_million(12, 4, |config| config.kind == TunnelKind::Ip6tnl && config.udp.is_none());
}

#[test]
fn ip6gre() {
    ten_million(12, 5, |config| config.kind == TunnelKind::Ip6gre && config.udp.is_none());
}

#[test]
fn fou() {
    ten_million(12, 6, |config| config.udp.is_some_and(|udp| udp.framing == UdpFraming::Fou));
}

#[test]
fn gue() {
    ten_million(16, 7, |config| config.udp.is_some_and(|udp| udp.framing == UdpFraming::Gue));
}

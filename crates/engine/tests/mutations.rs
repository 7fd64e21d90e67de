//! Random and mutated packets, ten million from the network and some from the host: no panic, and
//! every one of them is accounted for.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::iter;
use std::net::SocketAddr;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::{
    Family, Mode, Moment, Output, SaTransform, Settings, UdpEncapKind, WireHeaders,
};
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, SizeClass, UdpPath};
use uxfrm_testkit::{IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets};

const PACKETS: u64 = 10_000_000;

/// A packet, and its UDP path if it came through a socket.
type SamplePacket = (Vec<u8>, Option<UdpPath>);

/// Good packets of every shape. SAs from `OPEN` on neither encrypt nor authenticate, so that
/// changed bytes reach the code behind.
const OPEN: u32 = 0x8000;

fn shapes() -> Vec<IpsecSetup> {
    use Family::{V4, V6};
    let mut shapes = Vec::new();
    for (mode, inner, outer) in [
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V6, V4),
        (Mode::Tunnel, V4, V6),
        (Mode::Tunnel, V6, V6),
    ] {
        for encap in iter::once(None).chain(UdpEncapKind::processed().map(Some)) {
            let window = 0;
            shapes.push(IpsecSetup { encap, window, ..IpsecSetup::new(mode, inner, outer) });
        }
    }
    shapes
}

fn open() -> SaTransform {
    SaTransform {
        transform: Transform::cipher_auth(None, None).unwrap(),
        encryption_key: KeyMaterial::empty(),
        authentication_key: KeyMaterial::empty(),
    }
}

/// A gateway with SAs of all shapes, and packets that it accepts.
fn target() -> (TestGateway, Vec<SamplePacket>) {
    let base = IpsecSetup::tunnel4();
    let addresses = ["192.0.2.2", "2001:db8::2", "10.2.0.1", "fd00:2::1"];
    let settings = Settings {
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..Settings::default()
    };
    let mut right = TestGateway::new(settings);
    right.add_policy(base.policy(uxfrm_engine::Direction::In, PairDirection::LeftToRight));
    right.add_policy(base.policy(uxfrm_engine::Direction::Forward, PairDirection::LeftToRight));
    let mut good = Vec::new();
    for (number, setup) in (0_u32..).zip(shapes()) {
        for spi in [0x1000 + number, OPEN + number] {
            let state = || {
                let mut state = setup.sa(PairDirection::LeftToRight, spi);
                if spi >= OPEN {
                    state.transform = open();
                }
                state
            };
            right.add_sa(state());
            for headers in [WireHeaders::Engine, WireHeaders::UdpSocket] {
                let mut setup = setup.clone();
                setup.settings.headers = headers;
                let mut pair = TestGatewayPair::without_sas(&setup);
                pair.left.add_sa(state());
                good.extend(sealed(&setup, &mut pair.left));
            }
        }
    }
    (right, good)
}

fn sealed(setup: &IpsecSetup, left: &mut TestGateway) -> Vec<SamplePacket> {
    let (source, destination) = setup.hosts(PairDirection::LeftToRight);
    let (from, to) = (SocketAddr::new(source, 7), SocketAddr::new(destination, 9));
    let (from, to) = (from.to_string(), to.to_string());
    let sent = vec![
        packets::udp(&from, &to, &[1; 50]),
        packets::tcp(&from, &to, 1, &[2; 90]),
        packets::echo(source, destination, &[3; 30]),
        packets::echo(source, destination, &[4; 1800]),
    ];
    let wire = left.outbound(sent).0;
    let turned = |path: UdpPath| UdpPath { local: path.remote, remote: path.local, ..path };
    wire.iter().map(|packet| (packet.bytes().to_vec(), packet.udp.map(turned))).collect()
}

/// Fills a buffer with a mutated packet or noise.
fn fill(packet: &mut PacketBuf, good: &[SamplePacket], rng: &mut Rng) {
    let (bytes, udp) = &good[rng.below(good.len())];
    packet.udp = *udp;
    match rng.below(16) {
        0 => {
            let room = packet.append(rng.below(200)).unwrap();
            rng.fill(room);
        }
        1 => packet.append(bytes.len()).unwrap().copy_from_slice(bytes),
        2 | 3 => {
            let kept = &bytes[..rng.below(bytes.len() + 1)];
            packet.append(kept.len()).unwrap().copy_from_slice(kept);
        }
        _ => {
            packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
            for _ in 0..=rng.below(3) {
                damage(packet.bytes_mut(), rng);
            }
        }
    }
    if packet.udp.is_none() && rng.permille(700) {
        // Most would fail at the header checksum.
        let _ = uxfrm_packet::ipv4::fill_checksum(packet.bytes_mut());
    }
    if rng.permille(20) {
        let stride = u16::try_from(rng.below(300)).unwrap();
        packet.segments = Segments::Burst { stride };
    }
}

fn damage(bytes: &mut [u8], rng: &mut Rng) {
    // Headers and trailers are the critical parts.
    let place = match rng.below(3) {
        0 => rng.below(bytes.len().min(64)),
        1 => bytes.len() - 1 - rng.below(bytes.len().min(24)),
        _ => rng.below(bytes.len()),
    };
    match rng.below(4) {
        0 => bytes[place] ^= 1 << rng.below(8),
        1 => bytes[place] = 0,
        2 => bytes[place] = 0xff,
        _ => rng.fill(&mut bytes[place..][..1]),
    }
}

#[test]
fn bad_packets_are_all_accounted_for() {
    let (mut right, good) = target();
    let mut rng = Rng::new(7);
    let (mut pool, mut out, mut batch) = (Pool::new(), Output::default(), Batch::new());
    let mut given = 0;
    while given < PACKETS {
        for _ in 0..256 {
            let mut packet = pool.take(SizeClass::Packet);
            fill(&mut packet, &good, &mut rng);
            batch.push(packet);
        }
        given += 256;
        let now = Moment(given * 1_000_000);
        right.worker.inbound(&mut batch, now, &mut pool, &mut out);
        pool.give_all(&mut out.host);
        out.events.clear();
        if given % (256 * 1000) == 0 {
            right.assert_packets_accounted();
        }
    }
    right.assert_packets_accounted();
    let inward = right.worker.inward();
    assert!(inward.received >= PACKETS, "bursts count as more");
    assert!(inward.sent > PACKETS / 100, "some are good enough: {inward:?}");
    // The mutations reach every part of the data path.
    assert!(right.reasons().len() >= 12, "{:?}", right.reasons());
}

#[test]
fn bad_packets_from_the_host_are_accounted_for_too() {
    let mut rng = Rng::new(8);
    for setup in shapes() {
        let mut left = TestGatewayPair::new(&setup).left;
        let (source, destination) = setup.hosts(PairDirection::LeftToRight);
        let (from, to) = (SocketAddr::new(source, 7), SocketAddr::new(destination, 9));
        let (from, to) = (from.to_string(), to.to_string());
        for _ in 0..2_000 {
            let payload = vec![0; rng.below(4000)];
            let mut packet = packets::tcp_super(&from, &to, &payload, 1000);
            if rng.permille(500) {
                packet = packets::udp(&from, &to, &payload);
            }
            for _ in 0..rng.below(3) {
                damage(packet.bytes_mut(), &mut rng);
            }
            packet.trim(if rng.permille(200) { rng.below(packet.len()) } else { packet.len() });
            let size = u16::try_from(rng.below(2000)).unwrap();
            packet.segments = match rng.below(6) {
                0 => Segments::One,
                1 => Segments::Udp { size },
                2 => Segments::Tcp { mss: size },
                3 => Segments::Burst { stride: size },
                _ => packet.segments,
            };
            for wire in left.outbound(vec![packet]).0 {
                assert!(wire.len() <= 65_535);
                left.pool.give(wire);
            }
        }
        left.assert_packets_accounted();
        assert!(left.worker.outward().sent > 1000, "{:?}", left.reasons());
    }
}

//! Any bytes as packets for a whole gateway: no panic, and every packet is accounted for.

use std::iter;
use std::time::Duration;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{
    Action, DefaultActions, Direction, Family, HostPort, Mode, SaConfig, SaTransform, Settings,
    UdpEncapKind, UdpSuper, WireHeaders,
};
use uxfrm_packet::{Checksum, PacketBuf, Segments, UdpPath, ipv4};

use super::script::{self, ScriptPieces};
use crate::wire::reversed;
use crate::{EspSuite, IpsecSetup, PairDirection, TestGateway, packets};

/// Flag of a piece: it came through a UDP socket, 4500 to 4500.
const SOCKET: u8 = 1;
/// Its IPv4 header checksum is corrected first, or most mutations would fail there.
const CHECKSUM: u8 = 2;
/// It is a segment burst or a super-packet: its first two bytes are the segment size.
const MANY: u8 = 4;
/// The pieces before it go into the gateway as a batch, and a second passes.
const BATCH: u8 = 8;
/// It is UDP rather than TCP, for super-packets.
const DATAGRAMS: u8 = 16;

/// SPIs from here on belong to SAs with null algorithms, so that mutations reach the code after
/// them.
const OPEN: u32 = 0x8000;

/// A script of packets from the network.
///
/// # Panics
/// If the gateway does, or a packet is neither sent nor held nor dropped.
pub fn inbound(bytes: &[u8]) {
    let mut gateway = receiver();
    run(
        bytes,
        |piece| from_wire(piece.0, piece.1),
        |packets| {
            gateway.now = gateway.now.plus(Duration::from_secs(1));
            let arrived = gateway.inbound(packets);
            assert!(arrived.iter().all(|packet| packet.udp.is_none()));
            gateway.assert_packets_accounted();
        },
    );
}

/// A script of packets and super-packets from the host.
///
/// # Panics
/// If the gateway does, a packet is neither sent nor dropped, or anything but ESP leaves.
pub fn outbound(bytes: &[u8]) {
    let mut gateway = sender();
    run(
        bytes,
        |piece| from_host(piece.0, piece.1),
        |packets| {
            gateway.now = gateway.now.plus(Duration::from_secs(1));
            let wire = gateway.outbound(packets).0;
            assert!(wire.iter().all(|packet| packet.bytes()[9] == 50), "plain text leaves");
            gateway.assert_packets_accounted();
        },
    );
}

/// Packets of every form that the receiver accepts: single, as segment bursts, in fragments.
#[must_use]
pub fn inbound_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, wrapping) in (0_u32..).zip(setups()) {
        for spi in [0x1000 + number, OPEN + number] {
            for headers in [WireHeaders::Engine, WireHeaders::UdpSocket] {
                if headers == WireHeaders::UdpSocket && wrapping.encap.is_none() {
                    continue;
                }
                let mut wrapping = wrapping.clone();
                (wrapping.settings.headers, wrapping.settings.mtu) = (headers, 576);
                let mut left = sender_of(&wrapping, state(&wrapping, spi));
                let mut seed = Vec::new();
                for packet in left.outbound(plain_packets(&wrapping)).0 {
                    let (flags, bytes) = piece_of(&packet);
                    script::write(&mut seed, flags, &bytes);
                }
                seeds.push(seed);
            }
        }
    }
    seeds
}

/// Plain packets and super-packets of both families.
#[must_use]
pub fn outbound_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (source, destination) in [
        ("10.1.0.1:7", "10.2.0.1:9"),
        ("[fd00:1::1]:7", "[fd00:2::1]:9"),
        ("10.1.0.1:7", "10.9.0.1:9"),
    ] {
        let mut seed = Vec::new();
        script::write(&mut seed, CHECKSUM, packets::udp(source, destination, &[1; 40]).bytes());
        script::write(&mut seed, BATCH, packets::tcp(source, destination, 1, &[2; 40]).bytes());
        let tcp = packets::tcp_super(source, destination, &[3; 400], 100);
        script::write(&mut seed, MANY, &[&[0, 100], tcp.bytes()].concat());
        let udp = packets::udp(source, destination, &[4; 400]);
        script::write(&mut seed, MANY | DATAGRAMS, &[&[0, 100], udp.bytes()].concat());
        seeds.push(seed);
    }
    let big = packets::dont_fragment(packets::udp("10.1.0.1:7", "10.2.0.1:9", &[5; 1460]));
    let mut seed = Vec::new();
    script::write(&mut seed, 0, big.bytes());
    seeds.push(seed);
    seeds
}

/// Collects a script's packets into batches and runs them.
fn run(
    bytes: &[u8],
    packet: impl Fn((u8, &[u8])) -> PacketBuf,
    mut batch: impl FnMut(Vec<PacketBuf>),
) {
    let mut collected = Vec::new();
    for piece in ScriptPieces(bytes).take(64) {
        if piece.flags & BATCH != 0 {
            batch(std::mem::take(&mut collected));
        }
        collected.push(packet((piece.flags, piece.bytes)));
    }
    batch(collected);
}

fn from_wire(flags: u8, bytes: &[u8]) -> PacketBuf {
    let (size, bytes) = sized(flags, bytes);
    let mut packet = checked(flags, bytes);
    if flags & SOCKET != 0 {
        packet.udp = Some(UdpPath {
            local: ([192, 0, 2, 2], 4500).into(),
            remote: ([192, 0, 2, 1], 4500).into(),
            tos: 0,
            dont_fragment: false,
        });
    }
    if let Some(stride) = size {
        packet.segments = Segments::Burst { stride };
    }
    packet
}

fn from_host(flags: u8, bytes: &[u8]) -> PacketBuf {
    let (size, bytes) = sized(flags, bytes);
    let mut packet = checked(flags, bytes);
    if let Some(size) = size {
        let start = if bytes.first().is_some_and(|byte| byte >> 4 == 6) { 40 } else { 20 };
        let offset = if flags & DATAGRAMS == 0 { 16 } else { 6 };
        packet.checksum = Checksum::Partial { start, offset };
        packet.segments = match flags & DATAGRAMS {
            0 => Segments::Tcp { mss: size },
            _ => Segments::Udp { size },
        };
    }
    packet
}

fn sized(flags: u8, bytes: &[u8]) -> (Option<u16>, &[u8]) {
    match bytes.split_first_chunk() {
        Some((size, bytes)) if flags & MANY != 0 => (Some(u16::from_be_bytes(*size)), bytes),
        Some(_) | None => (None, bytes),
    }
}

fn checked(flags: u8, bytes: &[u8]) -> PacketBuf {
    let mut packet = PacketBuf::from_slice(bytes);
    if flags & CHECKSUM != 0 {
        // Other packets have no header checksum.
        let _ = ipv4::fill_checksum(packet.bytes_mut());
    }
    packet
}

/// A packet as a piece of the other end's script.
fn piece_of(packet: &PacketBuf) -> (u8, Vec<u8>) {
    let socket = if packet.udp.map(reversed).is_some() { SOCKET } else { CHECKSUM };
    match packet.segments {
        Segments::Burst { stride } => {
            (socket | MANY, [&stride.to_be_bytes()[..], packet.bytes()].concat())
        }
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
            (socket, packet.bytes().to_vec())
        }
    }
}

/// Every mode and pair of families, with and without UDP, with all algorithms in turn.
fn setups() -> Vec<IpsecSetup> {
    use Family::{V4, V6};
    let modes = [
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V6, V4),
        (Mode::Tunnel, V4, V6),
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
    ];
    let encaps = || iter::once(None).chain(UdpEncapKind::processed().map(Some));
    let shapes = modes.iter().flat_map(|shape| encaps().map(|encap| (*shape, encap)));
    let shapes = shapes.zip(EspSuite::ALL.iter().cycle()).enumerate();
    shapes
        .map(|(number, (((mode, inner, outer), encap), suite))| {
            let esn = if number % 2 == 0 { SaFlags::ESN } else { SaFlags::empty() };
            let window = if number % 2 == 0 { 128 } else { 0 };
            let wrapping = IpsecSetup::new(mode, inner, outer);
            IpsecSetup { encap, suite: *suite, flags: esn, window, ..wrapping }
        })
        .collect()
}

fn state(wrapping: &IpsecSetup, spi: u32) -> SaConfig {
    let mut state = wrapping.sa(PairDirection::LeftToRight, spi);
    if spi >= OPEN {
        (state.replay.window, state.flags) = (0, SaFlags::empty());
        state.transform = SaTransform {
            transform: Transform::cipher_auth(None, None).expect("the null algorithms"),
            encryption_key: KeyMaterial::empty(),
            authentication_key: KeyMaterial::empty(),
        };
    }
    state
}

/// A gateway with the SAs of all setups.
fn receiver() -> TestGateway {
    let addresses = ["192.0.2.2", "2001:db8::2", "10.2.0.1", "fd00:2::1"];
    let settings = Settings {
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        host: HostPort::SuperPackets { udp: UdpSuper::Taken },
        ..Settings::default()
    };
    let mut gateway = TestGateway::new(settings);
    let changed = gateway.database.apply(gateway.now, |change| {
        for (number, wrapping) in (0_u32..).zip(setups()) {
            for spi in [0x1000 + number, OPEN + number] {
                change.add_sa(state(&wrapping, spi))?;
            }
            let first = wrapping.encap.is_none() && wrapping.outer == Family::V4;
            if first && wrapping.mode == Mode::Tunnel {
                change.add_policy(wrapping.policy(Direction::In, PairDirection::LeftToRight))?;
            }
        }
        Ok::<_, uxfrm_engine::Error>(())
    });
    changed.expect("valid states and policies");
    gateway
}

/// A gateway that drops packets without a policy and protects all others by ESP in IPv4.
fn sender() -> TestGateway {
    let wrapping = IpsecSetup::tunnel4();
    let mut gateway = sender_of(&wrapping, state(&wrapping, 0x1000));
    let six = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    gateway.add_policy(six.policy(Direction::Out, PairDirection::LeftToRight));
    let block = DefaultActions { outbound: Action::Block, ..DefaultActions::default() };
    gateway.database.apply(gateway.now, |change| change.set_defaults(block));
    gateway
}

fn sender_of(wrapping: &IpsecSetup, state: SaConfig) -> TestGateway {
    let addresses = [
        wrapping.gateways(PairDirection::LeftToRight).0,
        wrapping.hosts(PairDirection::LeftToRight).0,
    ];
    let settings =
        Settings { addresses: addresses.into_iter().collect(), ..wrapping.settings.clone() };
    let mut gateway = TestGateway::new(settings);
    gateway.add_policy(wrapping.policy(Direction::Out, PairDirection::LeftToRight));
    gateway.add_sa(state);
    gateway
}

fn plain_packets(wrapping: &IpsecSetup) -> Vec<PacketBuf> {
    let (source, destination) = wrapping.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let (from, to) = (end(source, 7), end(destination, 9));
    vec![
        packets::udp(&from, &to, &[1; 12]),
        packets::tcp_super(&from, &to, &[2; 60], 40),
        packets::echo(source, destination, &[3; 16]),
        packets::echo(source, destination, &[4; 580]),
    ]
}

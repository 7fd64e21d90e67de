//! Every mode, family, transform and encapsulation, out of one gateway and into another.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{Family, HostPort, Mode, UdpEncapKind, UdpSuper, WireHeaders};
use uxfrm_packet::{IpPacket, checksum::Verification};
use uxfrm_packet::{PacketBuf, Protocol, Segments, checksum};
use uxfrm_testkit::{
    EspSuite, IpsecSetup, PairDirection, PlaintextDetector, TestGatewayPair, packets,
};

const MARKER: &[u8] = b"SECRET-PLAINTEXT";

fn shapes() -> Vec<(Mode, Family, Family)> {
    use Family::{V4, V6};
    vec![
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V4, V6),
        (Mode::Tunnel, V6, V4),
        (Mode::Tunnel, V6, V6),
    ]
}

/// A datagram between the hosts of a setup.
fn datagram(setup: &IpsecSetup, way: PairDirection, payload: &[u8]) -> PacketBuf {
    let (source, destination) = ends(setup, way);
    packets::udp(&source, &destination, payload)
}

fn ends(setup: &IpsecSetup, way: PairDirection) -> (String, String) {
    let (source, destination) = setup.hosts(way);
    (
        std::net::SocketAddr::new(source, 7).to_string(),
        std::net::SocketAddr::new(destination, 9).to_string(),
    )
}

fn marked(len: usize) -> Vec<u8> {
    MARKER.iter().copied().cycle().take(len.max(MARKER.len())).collect()
}

/// Sends packets of many sizes both ways and compares what arrives byte for byte.
fn exercise(setup: &IpsecSetup) {
    let mut pair = TestGatewayPair::new(setup);
    let mut listener = PlaintextDetector::new(MARKER);
    for len in [16, 17, 18, 19, 20, 63, 64, 65, 255, 1000, 1300] {
        for way in [PairDirection::LeftToRight, PairDirection::RightToLeft] {
            let sent: Vec<PacketBuf> = (0..3).map(|_| datagram(setup, way, &marked(len))).collect();
            let plain: Vec<Vec<u8>> = sent.iter().map(|packet| packet.bytes().to_vec()).collect();
            let arrived = match way {
                PairDirection::LeftToRight => pair.left_to_right(sent),
                PairDirection::RightToLeft => pair.right_to_left(sent),
            };
            let arrived: Vec<Vec<u8>> =
                arrived.iter().map(|packet| comparable(setup, packet.bytes())).collect();
            let plain: Vec<Vec<u8>> =
                plain.iter().map(|packet| comparable(setup, packet)).collect();
            assert_eq!(
                arrived,
                plain,
                "{setup:?} {len} {way:?}: {:?} {:?}",
                pair.left.reasons(),
                pair.right.reasons()
            );
            listener.listen(&pair.last_on_wire);
        }
    }
    assert_eq!(listener.seen == 0, setup.suite.encrypts(), "{setup:?}");
    pair.assert_accounts();
}

/// Behind a UDP socket the header of transport mode is lost: id, DF, TTL and checksum are not the
/// sender's.
fn comparable(setup: &IpsecSetup, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let rebuilt = setup.settings.headers == WireHeaders::UdpSocket
        && setup.mode == Mode::Transport
        && setup.encap.is_some();
    if rebuilt && packet[0] >> 4 == 4 {
        packet[4..8].fill(0);
        packet[10..12].fill(0);
    }
    packet
}

#[test]
fn every_header_form_and_transform_round_trips() {
    for (mode, inner, outer) in shapes() {
        for suite in EspSuite::ALL {
            for flags in [SaFlags::empty(), SaFlags::ESN] {
                exercise(&IpsecSetup { suite, flags, ..IpsecSetup::new(mode, inner, outer) });
            }
        }
    }
}

#[test]
fn esp_in_udp_round_trips() {
    for (mode, inner, outer) in shapes() {
        for kind in UdpEncapKind::processed() {
            for headers in [WireHeaders::Engine, WireHeaders::UdpSocket] {
                let mut setup = IpsecSetup::new(mode, inner, outer);
                setup.encap = Some(kind);
                setup.settings.headers = headers;
                exercise(&setup);
            }
        }
    }
}

#[test]
fn udp_checksums_are_right_over_ipv6_and_absent_over_ipv4() {
    for (outer, expected) in [(Family::V6, Verification::Right), (Family::V4, Verification::Absent)]
    {
        let setup = IpsecSetup {
            encap: Some(UdpEncapKind::Esp),
            ..IpsecSetup::new(Mode::Tunnel, Family::V4, outer)
        };
        let mut pair = TestGatewayPair::new(&setup);
        pair.left_to_right(vec![datagram(&setup, PairDirection::LeftToRight, b"hello")]);
        let bytes = pair.last_on_wire[0].bytes();
        let ip = IpPacket::parse(bytes).unwrap();
        assert_eq!((ip.protocol, checksum::verify(&ip, bytes)), (Protocol::UDP, expected));
    }
}

#[test]
fn super_packets_round_trip_as_bursts() {
    for (mode, inner, outer) in shapes() {
        for (encap, headers) in [
            (None, WireHeaders::Engine),
            (Some(UdpEncapKind::Esp), WireHeaders::Engine),
            (Some(UdpEncapKind::Esp), WireHeaders::UdpSocket),
        ] {
            for suite in [EspSuite::Gcm128, EspSuite::CbcSha1] {
                let mut setup = IpsecSetup { encap, suite, ..IpsecSetup::new(mode, inner, outer) };
                setup.settings.headers = headers;
                setup.settings.host = HostPort::SuperPackets { udp: UdpSuper::Refused };
                super_packet(&setup);
            }
        }
    }
}

fn super_packet(setup: &IpsecSetup) {
    let mut pair = TestGatewayPair::new(setup);
    let (source, destination) = ends(setup, PairDirection::LeftToRight);
    let payload = marked(50_000);
    let sent = packets::tcp_super(&source, &destination, &payload, 1300);
    let (wire, _) = pair.left.outbound(vec![sent]);
    assert_eq!(pair.left.worker.outward().sent, 39, "{setup:?} {:?}", pair.left.reasons());
    let mut listener = PlaintextDetector::new(MARKER);
    listener.listen(&wire);
    assert_eq!(listener.seen, 0);
    for burst in &wire {
        let Segments::Burst { stride } = burst.segments else { panic!("a burst: {burst:?}") };
        assert!(burst.len() <= 65_000 && burst.len() > stride.into());
        assert_eq!(burst.udp.is_some(), headerless(setup));
    }
    // As bursts, as a GRO socket or a memory port hands them over.
    let turned = wire.into_iter().map(|mut burst| {
        burst.udp = burst.udp.map(|path| uxfrm_packet::UdpPath {
            local: path.remote,
            remote: path.local,
            ..path
        });
        burst
    });
    let arrived = pair.right.inbound(turned.collect());
    let total: usize = arrived.iter().map(|packet| body(packet.bytes()).len()).sum();
    assert_eq!(total, payload.len(), "{setup:?} {:?}", pair.right.reasons());
    let joined: Vec<u8> = arrived.iter().flat_map(|packet| body(packet.bytes()).to_vec()).collect();
    assert_eq!(joined, payload);
    assert!(arrived.len() <= 2, "{setup:?}: {} packets", arrived.len());
    pair.assert_accounts();
}

/// Of a buffer's worth of segments and a few more, so that the last buffer has any number of them,
/// also a short one alone.
#[test]
fn remainder_behind_full_bursts_leaves() {
    for encap in [None, Some(UdpEncapKind::Esp)] {
        let mut setup = IpsecSetup { encap, ..IpsecSetup::tunnel4() };
        setup.settings.host = HostPort::SuperPackets { udp: UdpSuper::Refused };
        for mss in [1400_u16, 700] {
            for full in 60_000 / usize::from(mss)..64_000 / usize::from(mss) {
                let mut pair = TestGatewayPair::new(&setup);
                let payload = marked(full * usize::from(mss) + 100);
                let (source, destination) = ends(&setup, PairDirection::LeftToRight);
                let sent = packets::tcp_super(&source, &destination, &payload, mss);
                let arrived = pair.left_to_right(vec![sent]);
                let joined: Vec<u8> =
                    arrived.iter().flat_map(|packet| body(packet.bytes()).to_vec()).collect();
                assert!(joined == payload, "{full} of {mss}: {:?}", pair.right.reasons());
                pair.assert_accounts();
            }
        }
    }
}

fn headerless(setup: &IpsecSetup) -> bool {
    setup.encap.is_some() && setup.settings.headers == WireHeaders::UdpSocket
}

fn body(packet: &[u8]) -> &[u8] {
    let ip = IpPacket::parse(packet).unwrap();
    &ip.upper(packet)[20..]
}

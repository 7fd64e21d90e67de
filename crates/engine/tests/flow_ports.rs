//! ESP in UDP from source port 0: each inner flow has its own port, so that networks spread the
//! flows of one SA.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use uxfrm_engine::{
    Family, KeepaliveInterval, Mode, SourcePorts, UdpEncap, UdpEncapKind, WireHeaders,
};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, checksum, udp::UdpDatagram};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGatewayPair, packets, split_burst};

/// Not Linux's default range.
const PORTS: RangeInclusive<u16> = 10_000..=20_000;
const SHAPES: [(Mode, Family, Family); 4] = [
    (Mode::Transport, Family::V4, Family::V4),
    (Mode::Transport, Family::V6, Family::V6),
    (Mode::Tunnel, Family::V4, Family::V6),
    (Mode::Tunnel, Family::V6, Family::V4),
];

fn spreading(mode: Mode, inner: Family, outer: Family) -> IpsecSetup {
    let mut setup = IpsecSetup::new(mode, inner, outer);
    setup.settings.headers = WireHeaders::UdpSocket;
    setup.settings.source_ports = SourcePorts { seed: 9, range: PORTS };
    setup
}

/// Two gateways with an SA from left to right without a fixed source port.
fn pair(setup: &IpsecSetup) -> TestGatewayPair {
    let mut pair = TestGatewayPair::without_sas(setup);
    let encap = Some(UdpEncap {
        kind: UdpEncapKind::Esp,
        source_port: 0,
        destination_port: 4500,
        original_address: setup.outer.unspecified(),
    });
    for gateway in [&mut pair.left, &mut pair.right] {
        gateway.add_sa(uxfrm_engine::SaConfig {
            encap,
            ..setup.sa(PairDirection::LeftToRight, FIRST_SPI)
        });
    }
    pair
}

/// Packet `number` of a flow.
fn of_flow(setup: &IpsecSetup, flow: u16, number: u8) -> PacketBuf {
    let (source, destination) = setup.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    packets::udp(&end(source, 1000 + flow), &end(destination, 9), &[number; 32])
}

/// Outer source port of a wire packet.
fn port(packet: &PacketBuf) -> u16 {
    assert_eq!(packet.udp, None, "no socket has this port");
    let ip = IpPacket::parse(packet.bytes()).unwrap();
    assert_eq!(ip.protocol, Protocol::UDP);
    let udp = UdpDatagram::parse(ip.upper(packet.bytes())).unwrap();
    assert_eq!(udp.header.destination.get(), 4500);
    udp.header.source.get()
}

#[test]
fn flow_keeps_its_source_port_and_order() {
    for (mode, inner, outer) in SHAPES {
        let setup = spreading(mode, inner, outer);
        let mut pair = pair(&setup);
        let mut ports: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        for number in 0..20 {
            let sent: Vec<_> = (0..8).map(|flow| of_flow(&setup, flow, number)).collect();
            let plain: Vec<_> = sent.iter().map(|packet| packet.bytes().to_vec()).collect();
            let wire = pair.left.outbound(sent).0;
            for (flow, packet) in (0..).zip(&wire) {
                ports.entry(flow).or_default().insert(port(packet));
                let ip = IpPacket::parse(packet.bytes()).unwrap();
                let sum = checksum::verify(&ip, packet.bytes());
                assert_ne!(sum, checksum::Verification::Wrong, "{mode:?} {outer:?}");
            }
            let arrived = pair.right.inbound(wire);
            assert_eq!(arrived.iter().map(|packet| packet.bytes()).collect::<Vec<_>>(), plain);
        }
        assert!(ports.values().all(|of_flow| of_flow.len() == 1), "a flow changed its port");
        assert!(ports.values().flatten().all(|port| PORTS.contains(port)), "{ports:?}");
        let different = ports.values().flatten().collect::<BTreeSet<_>>().len();
        assert!(ports.len() == 8 && different >= 7, "{different} ports for 8 flows");
        assert!(pair.right.events.is_empty(), "another port is no other place: {mode:?}");
    }
}

#[test]
fn flow_port_is_the_same_in_every_worker() {
    let of_worker = |seed| {
        let mut setup = spreading(Mode::Tunnel, Family::V4, Family::V4);
        setup.settings.seed = seed;
        let sent = vec![of_flow(&setup, 0, 0)];
        port(&pair(&setup).left.outbound(sent).0[0])
    };
    assert_eq!(of_worker(1), of_worker(2));
}

#[test]
fn segments_of_super_packet_share_source_port() {
    let setup = spreading(Mode::Tunnel, Family::V4, Family::V4);
    let mut pair = pair(&setup);
    let payload = vec![7; 20_000];
    let sent = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &payload, 1000);
    let wire: Vec<_> = pair.left.outbound(vec![sent]).0.iter().flat_map(split_burst).collect();
    let ports: BTreeSet<u16> = wire.iter().map(port).collect();
    assert_eq!((wire.len(), ports.len()), (20, 1));
    let bytes: usize = pair.right.inbound(wire).iter().map(|packet| packet.len() - 40).sum();
    assert_eq!(bytes, payload.len());
}

#[test]
fn flow_ports_send_no_keepalives() {
    let mut pair = pair(&spreading(Mode::Tunnel, Family::V4, Family::V4));
    for source_port in [4500, 0] {
        let setup = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
        let mut state =
            setup.sa(PairDirection::LeftToRight, FIRST_SPI + 1 + u32::from(source_port));
        state.encap = state.encap.map(|encap| UdpEncap { source_port, ..encap });
        state.direction = Some(uxfrm_engine::Direction::Out);
        state.replay.window = 0;
        state.nat_keepalive = KeepaliveInterval::from_secs(20);
        pair.left.add_sa(state);
    }
    let now = pair.left.now;
    pair.left.database.handle_timeout(now, &mut Vec::new());
    let due: Vec<_> = pair.left.database.take_keepalives().collect();
    assert_eq!(due.iter().map(|one| one.source.port()).collect::<Vec<_>>(), [4500]);
}

//! Two tunnel loops with a wire in memory.

use std::net::IpAddr;
use std::num::NonZeroU16;

use uxfrm_io::Memory;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, Segments, Version};
use uxfrm_testkit::packets;
use uxfrm_tunnel::config::{PathMtuDiscovery, TunnelUdpEncap, UdpFraming};
use uxfrm_tunnel::{DecapPort as FouPort, PortRequest, TunnelConfig, TunnelKind};

use super::*;

/// One end, and the far sides of its host, its wire and its ICMP socket.
struct End {
    tunnel_loop: TunnelLoop,
    control: TunnelControl,
    host: Memory,
    errors: Memory,
}

fn config(kind: TunnelKind, framing: Option<UdpFraming>) -> TunnelConfig {
    let mut config = TunnelConfig::new(kind, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    config.udp =
        framing.map(|framing| TunnelUdpEncap::new(framing, NonZeroU16::new(5555).unwrap()));
    config
}

fn turned(config: &TunnelConfig) -> TunnelConfig {
    TunnelConfig { local: config.remote, remote: config.local, ..config.clone() }
}

fn end(config: TunnelConfig, wire_in: Memory, wire_out: Memory) -> End {
    let mut ports = DecapPorts::new();
    let protocol = config.kind.protocol(Version::V4).0;
    let kind = if config.udp.is_some_and(|udp| udp.framing == UdpFraming::Gue) { 2 } else { 1 };
    let request = PortRequest { port: 5555, protocol, kind, ..PortRequest::default() };
    ports.add(FouPort::of(&request).unwrap()).unwrap();
    let local = config.local;
    let mut tunnels = Tunnels::new();
    let tunnel = tunnels.add(Tunnel::new("t", config).unwrap()).unwrap();
    let (near_host, host) = Memory::pair(256);
    let (near_errors, errors) = Memory::pair(16);
    let (unused, _) = Memory::pair(1);
    let route =
        TunnelRoute { tunnel, local, egress: egress((1500, 1400), 1, uxfrm_tunnel::ALL_PORTS) };
    let interface = TunnelInterface { route, port: Box::new(near_host), counts: Arc::default() };
    let incoming = ReceivePort {
        source: ReceiveSource::Protocol(Version::V4, Protocol(protocol)),
        port: Box::new(wire_in),
        counts: Arc::default(),
    };
    let sockets = TunnelSockets {
        incoming: vec![incoming],
        errors: vec![Box::new(near_errors)],
        outgoing: [Box::new(wire_out), Box::new(unused)],
    };
    let (mut tunnel_loop, control) = TunnelLoop::new(sockets).unwrap();
    assert!(
        tunnel_loop.apply(tunnels, ports, vec![TunnelChange::Open(interface)]).unwrap().is_empty()
    );
    End { tunnel_loop, control, host, errors }
}

fn pair(config: TunnelConfig) -> (End, End) {
    let (left_out, right_in) = Memory::pair(256);
    let (right_out, left_in) = Memory::pair(256);
    let right = end(turned(&config), right_in, right_out);
    (end(config, left_in, left_out), right)
}

fn turn(end: &mut End) {
    turn_of(&mut end.tunnel_loop);
}

fn turn_of(tunnel_loop: &mut TunnelLoop) {
    tunnel_loop.waker().wake();
    tunnel_loop.turn().unwrap();
}

fn give(port: &mut Memory, packet: PacketBuf) {
    let mut batch = Batch::new();
    batch.push(packet);
    assert_eq!(port.transmit(&mut batch, &mut Pool::new()).refused.packets(), 0);
}

fn taken(port: &mut Memory) -> Vec<PacketBuf> {
    let mut batch = Batch::new();
    port.receive(&mut Pool::new(), &mut batch).unwrap();
    batch.drain().collect()
}

#[test]
fn tunnel_carries_packets_and_super_packets() {
    for kind in [TunnelKind::Ipip, TunnelKind::Gre] {
        for framing in [None, Some(UdpFraming::Fou), Some(UdpFraming::Gue)] {
            let (mut left, mut right) = pair(config(kind, framing));
            let one = packets::udp("10.0.0.1:1", "10.0.0.2:2", b"one");
            let bytes = one.bytes().to_vec();
            let payload = vec![5; 20_000];
            give(&mut left.host, one);
            give(&mut left.host, packets::tcp_super("10.0.0.1:1", "10.0.0.2:2", &payload, 1300));
            turn(&mut left);
            turn(&mut right);
            let came = taken(&mut right.host);
            assert_eq!(came.len(), 2, "{kind:?} {framing:?}");
            assert!(came.iter().any(|packet| packet.bytes() == bytes));
            let whole = came.iter().find(|packet| packet.len() == payload.len() + 40).unwrap();
            assert_eq!(whole.segments, Segments::Tcp { mss: 1300 });
            let sent = left.tunnel_loop.interfaces[0].interface.counts.traffic.sent.read();
            assert_eq!(sent.0, 1 + 16);
            assert_eq!(
                right.tunnel_loop.interfaces[0].interface.counts.traffic.received.read(),
                sent
            );
        }
    }
}

#[test]
fn unroutable_packet_is_counted_and_answered() {
    let (mut left, _right) = pair(config(TunnelKind::Ipip, None));
    let mut large = packets::udp("10.0.0.1:1", "10.0.0.2:2", &[0; 1500]);
    large.bytes_mut()[6] = 0x40;
    give(&mut left.host, large);
    turn(&mut left);
    assert_eq!(left.tunnel_loop.drops().of(DropReason::OutTooBig), 1);
    let own = &left.tunnel_loop.interfaces[0].interface.counts.drops;
    assert_eq!(own.of(DropReason::OutTooBig), 1);
    let told = taken(&mut left.host);
    assert_eq!((told.len(), told[0].bytes()[20..22].to_vec()), (1, vec![3, 4]));
    let strange =
        packets::ip([192, 0, 2, 2].into(), [192, 0, 2, 1].into(), Protocol::SCTP, &[1; 40]);
    let (mut far, mut other) = pair(config(TunnelKind::Ipip, None));
    other.tunnel_loop.to_network[0].push(PacketBuf::from_slice(&strange));
    let sent = other.tunnel_loop.outgoing[0]
        .transmit(&mut other.tunnel_loop.to_network[0], &mut Pool::new());
    assert_eq!(sent.packets, 1);
    turn(&mut far);
    assert_eq!(far.tunnel_loop.drops().of(DropReason::InUnclaimed), 1);
    let SocketCounts { received, drops } = &*far.tunnel_loop.incoming[0].incoming.counts;
    assert_eq!((received.read(), drops.of(DropReason::InUnclaimed)), ((1, 60), 1));
}

#[test]
fn large_packet_without_df_leaves_in_fragments() {
    let off = TunnelConfig {
        path_mtu: PathMtuDiscovery::Off,
        ..config(TunnelKind::Gre, Some(UdpFraming::Fou))
    };
    let (mut left, mut right) = pair(off);
    give(&mut left.host, packets::udp("10.0.0.1:1", "10.0.0.2:2", &[7; 2000]));
    turn(&mut left);
    turn(&mut right);
    // A socket would have reassembled them; here each fragment is counted.
    assert_eq!(right.tunnel_loop.drops().of(DropReason::InFragment), 2);
}

#[test]
fn icmp_error_lowers_path_mtu_and_reaches_inner_sender() {
    let (mut left, mut right) = pair(config(TunnelKind::Ipip, Some(UdpFraming::Fou)));
    give(&mut left.host, packets::udp("10.0.0.1:1", "10.0.0.2:2", &[7; 1200]));
    turn(&mut left);
    let wire = taken_from(right.tunnel_loop.incoming[0].incoming.port.as_mut());
    let mut message = vec![3, 4, 0, 0, 0, 0, 4, 176];
    message.extend(&wire[0].bytes()[..100]);
    let error =
        packets::ip([203, 0, 113, 1].into(), [192, 0, 2, 1].into(), Protocol::ICMP, &message);
    give(&mut left.errors, PacketBuf::from_slice(&error));
    turn(&mut left);
    assert_eq!(left.tunnel_loop.interfaces[0].interface.route.egress.path_mtu, 1200);
    let told = taken(&mut left.host);
    let ip = IpPacket::parse(told[0].bytes()).unwrap();
    assert_eq!(ip.destination, IpAddr::from([10, 0, 0, 1]));
    assert_eq!(told[0].bytes()[26..28], 1172_u16.to_be_bytes());
    assert_eq!(told[0].checksum, Checksum::AsIs);
    let tunnel_port = &mut left.tunnel_loop.interfaces[0];
    tunnel_port.expire_pmtu(Moment(now().0 + tunnel_port::PMTU_LIFETIME / 2));
    assert_eq!(tunnel_port.interface.route.egress.path_mtu, 1200);
    tunnel_port.expire_pmtu(Moment(now().0 + tunnel_port::PMTU_LIFETIME));
    assert_eq!(tunnel_port.interface.route.egress.path_mtu, 1500);
}

fn taken_from(port: &mut dyn Port) -> Vec<PacketBuf> {
    let mut batch = Batch::new();
    port.receive(&mut Pool::new(), &mut batch).unwrap();
    batch.drain().collect()
}

#[test]
fn tunnel_changes_apply_while_others_carry_traffic() {
    let (mut left, mut right) = pair(config(TunnelKind::Ipip, None));
    let (near, mut far) = Memory::pair(16);
    let altered = TunnelConfig {
        ttl: uxfrm_tunnel::config::HeaderByte::Fixed(9),
        ..config(TunnelKind::Ipip, None)
    };
    let mut tunnels = left.tunnel_loop.tunnels.clone();
    let first = tunnels.change(Tunnel::new("t", altered).unwrap()).unwrap();
    let gre = tunnels.add(Tunnel::new("u", config(TunnelKind::Gre, None)).unwrap()).unwrap();
    let route = |tunnel| TunnelRoute {
        tunnel,
        local: [192, 0, 2, 1].into(),
        egress: egress((1500, 1400), 1, uxfrm_tunnel::ALL_PORTS),
    };
    let second =
        TunnelInterface { port: Box::new(near), route: route(gre), counts: Arc::default() };
    let again = ReceivePort {
        source: left.tunnel_loop.incoming[0].incoming.source,
        port: Box::new(Memory::pair(1).0),
        counts: Arc::default(),
    };
    let changes = vec![
        TunnelChange::Replace(route(first)),
        TunnelChange::Open(second),
        TunnelChange::Listen(again),
    ];
    let (control, ports) = (left.control, DecapPorts::new());
    let orderer = std::thread::spawn(move || {
        control.apply(tunnels.clone(), ports.clone(), changes).unwrap();
        control
    });
    while left.tunnel_loop.interfaces.len() < 2 {
        left.tunnel_loop.turn().unwrap();
    }
    left.control = orderer.join().unwrap();
    assert_eq!(left.tunnel_loop.incoming.len(), 1, "one socket for each source");
    give(&mut left.host, packets::udp("10.0.0.1:1", "10.0.0.2:2", b"one"));
    give(&mut far, packets::udp("10.0.0.1:1", "10.0.0.2:2", b"two"));
    turn_of(&mut left.tunnel_loop);
    let wire = taken_from(right.tunnel_loop.incoming[0].incoming.port.as_mut());
    let heads: Vec<_> = wire.iter().map(|packet| packet.bytes()[8..10].to_vec()).collect();
    assert_eq!((heads.len(), &heads[0], heads[1][1]), (2, &vec![9, 4], 47));
    let closed = left.tunnel_loop.apply(
        Tunnels::new(),
        DecapPorts::new(),
        vec![TunnelChange::Close("t".to_owned())],
    );
    assert_eq!((closed.unwrap().len(), left.tunnel_loop.interfaces.len()), (1, 1));
    turn(&mut right);
    drop(left.tunnel_loop);
    assert!(matches!(
        left.control.apply(Tunnels::new(), DecapPorts::new(), vec![]),
        Err(Error::Ended)
    ));
}

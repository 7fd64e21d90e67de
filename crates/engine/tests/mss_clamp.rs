//! TCP's SYNs whose MSS is lowered to what fits into tunnels, and from where senders hear of
//! packets that are too big.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::IpAddr;

use uxfrm_engine::{
    Direction, Family, FlowKey, IcmpErrorWay, Mode, MssClamp, UdpEncapKind,
    explain::too_big::{HostErrorWay, TooBigExplanation},
};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, checksum, tcp::Tcp};
use uxfrm_testkit::{IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

/// A SYN, or a segment without it, that announces 1460 bytes.
fn segment(source: &str, destination: &str, flags: u8) -> PacketBuf {
    let (from, to) = (ip(source), ip(destination));
    let mut upper = [0x30, 0x39, 1, 187, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, flags, 255, 255, 0, 0, 0, 0]
        .into_iter()
        .chain([2, 4, 5, 0xb4])
        .collect::<Vec<u8>>();
    let sum = checksum::Sum::of_pseudo(from, to, Protocol::TCP, 24).plus_bytes(&upper);
    upper[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
    PacketBuf::from_slice(&packets::ip(from, to, Protocol::TCP, &upper))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mss(packet: &PacketBuf) -> u16 {
    let ip = IpPacket::parse(packet.bytes()).unwrap();
    assert_eq!(checksum::verify(&ip, packet.bytes()), checksum::Verification::Right);
    let tcp = Tcp::parse(ip.upper(packet.bytes())).unwrap();
    let option = tcp.options().find(|option| option.kind == 2).unwrap();
    u16::from_be_bytes([option.data[0], option.data[1]])
}

const SYN: u8 = 2;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;

fn clamping(mode: Mode, inner: Family, outer: Family) -> IpsecSetup {
    let mut setup = IpsecSetup::new(mode, inner, outer);
    setup.settings.clamp_mss = MssClamp::On;
    setup
}

fn hosts(setup: &IpsecSetup) -> (String, String) {
    let (here, there) = setup.hosts(PairDirection::LeftToRight);
    (here.to_string(), there.to_string())
}

#[test]
fn syns_announce_what_fits_into_their_bundle() {
    for (mode, inner, outer, encap, mtu, expected) in [
        (Mode::Tunnel, Family::V4, Family::V4, None, 1500, 1406),
        (Mode::Tunnel, Family::V4, Family::V4, Some(UdpEncapKind::Esp), 1500, 1398),
        (Mode::Tunnel, Family::V6, Family::V4, None, 1500, 1386),
        (Mode::Tunnel, Family::V6, Family::V6, None, 1500, 1366),
        // Below IPv6's least MTU, so that nothing is cut outside ESP.
        (Mode::Tunnel, Family::V6, Family::V6, None, 1300, 1166),
        (Mode::Transport, Family::V4, Family::V4, None, 1500, 1426),
        (Mode::Tunnel, Family::V4, Family::V4, None, 9000, 1460),
    ] {
        let mut setup = IpsecSetup { encap, ..clamping(mode, inner, outer) };
        setup.settings.mtu = mtu;
        let mut pair = TestGatewayPair::new(&setup);
        let (here, there) = hosts(&setup);
        let expected = [expected, expected, 1460];
        let mut batch = [SYN, SYN_ACK, ACK].map(|flags| segment(&here, &there, flags));
        pair.left.worker.clamp_outbound(&mut batch);
        assert_eq!(batch.each_ref().map(mss), expected, "{mode:?} {inner:?} {outer:?} {mtu}");
        // The same for what came: by the bundle of its answers.
        let mut batch = [SYN, SYN_ACK, ACK].map(|flags| segment(&there, &here, flags));
        pair.left.worker.clamp_inbound(&mut batch);
        assert_eq!(batch.each_ref().map(mss), expected, "{mode:?} {inner:?} {outer:?} {mtu}");
        let outgoing = [SYN, SYN_ACK, ACK].map(|flags| segment(&here, &there, flags));
        let came = pair.left_to_right(outgoing.into());
        assert!(came.iter().all(|packet| mss(packet) == 1460), "the engine itself changes none");
    }
}

#[test]
fn what_no_tunnel_takes_stays() {
    let setup = clamping(Mode::Tunnel, Family::V4, Family::V4);
    let mut pair = TestGatewayPair::new(&setup);
    assert!(pair.left.worker.clamps_mss());
    let mut batch = [segment("10.1.0.1", "192.0.2.77", SYN)];
    pair.left.worker.clamp_outbound(&mut batch);
    assert_eq!(mss(&batch[0]), 1460);
    let (here, there) = hosts(&setup);
    let mut stateless = TestGatewayPair::without_sas(&setup);
    let mut batch = [segment(&here, &there, SYN)];
    stateless.left.worker.clamp_outbound(&mut batch);
    assert_eq!(mss(&batch[0]), 1460, "what fits is not known");
    assert!(!TestGatewayPair::new(&IpsecSetup::tunnel4()).left.worker.clamps_mss());
}

/// Before it waited what fits was not known.
#[test]
fn a_syn_that_waited_for_its_state_is_changed_as_well() {
    for clamp in [MssClamp::On, MssClamp::Off] {
        let mut setup = IpsecSetup::tunnel4();
        setup.settings.clamp_mss = clamp;
        let mut pair = TestGatewayPair::without_sas(&setup);
        pair.left.listen([]);
        let (here, there) = hosts(&setup);
        let (wire, _) = pair.left.outbound(vec![segment(&here, &there, SYN)]);
        assert!(wire.is_empty());
        pair.add_sas(&setup, 0x100);
        let came = pair.left_to_right(Vec::new());
        let expected = if clamp == MssClamp::On { 1406 } else { 1460 };
        assert_eq!(came.iter().map(mss).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn host_answers_senders_that_no_policy_is_for() {
    let setup = IpsecSetup::tunnel4();
    let (here, there) = hosts(&setup);
    let big = || {
        packets::dont_fragment(packets::udp(
            &format!("{here}:7"),
            &format!("{there}:9"),
            &[0; 1500],
        ))
    };
    let answer = |gateway: &mut TestGateway| {
        let (wire, host) = gateway.outbound(vec![big()]);
        assert!(wire.is_empty());
        host.into_iter().next().unwrap()
    };
    let packet = big();
    let flow = FlowKey::of_bytes(&IpPacket::parse(packet.bytes()).unwrap(), packet.bytes());
    // What becomes of the error that the engine made, as the data path and explanations say.
    let judged = |gateway: &mut TestGateway, told: &PacketBuf| {
        let way = gateway.worker.icmp_error_way(told);
        let snapshot = gateway.database.snapshot();
        let explained = TooBigExplanation::of(&snapshot, gateway.worker.settings(), &flow);
        assert_eq!(explained.engine, way);
        (way, explained)
    };
    let mut pair = TestGatewayPair::new(&setup);
    let told = answer(&mut pair.left);
    let (from, explained) = judged(&mut pair.left, &told);
    assert_eq!(from, IcmpErrorWay::FromHost);
    assert!(!explained.comes_by_tunnel);
    assert!(explained.host.iter().all(|(_, way)| *way == HostErrorWay::Plain));
    let none = PacketBuf::from_slice(b"no IP");
    assert_eq!(pair.left.worker.icmp_error_way(&none), IcmpErrorWay::Withheld);
    // The sender is behind a tunnel itself: the answer is the destination's, and goes in there.
    let back = setup.policy(Direction::Out, PairDirection::RightToLeft);
    pair.left.add_policy(back);
    assert_eq!(judged(&mut pair.left, &told).0, IcmpErrorWay::ThroughHostPort);
    // A policy takes what the host itself sends to there.
    let mut pair = TestGatewayPair::new(&setup);
    let mut own = setup.policy(Direction::Out, PairDirection::RightToLeft);
    let source = pair.left.worker.settings().addresses.like(ip(&here)).unwrap();
    own.selector.source = uxfrm_engine::Prefix::host(source);
    pair.left.add_policy(own);
    let (from, explained) = judged(&mut pair.left, &told);
    assert_eq!(from, IcmpErrorWay::ThroughHostPort);
    let (_, host) = explained.host.iter().find(|(own, _)| *own == source).unwrap();
    assert!(matches!(host, HostErrorWay::IntoTunnel(_)), "{host:?}");
    // The tunnel that the packet came out of is for its protocol alone, and not for ICMP.
    for (direction, way) in [
        (Direction::Out, PairDirection::RightToLeft),
        (Direction::In, PairDirection::LeftToRight),
        (Direction::Forward, PairDirection::LeftToRight),
    ] {
        let mut pair = TestGatewayPair::new(&setup);
        let mut udp = setup.policy(direction, way);
        udp.selector.protocol = Protocol::UDP.0;
        pair.left.add_policy(udp);
        let (from, explained) = judged(&mut pair.left, &told);
        assert_eq!(from, IcmpErrorWay::Withheld, "{direction:?}");
        assert_eq!(explained.comes_by_tunnel, direction != Direction::Out);
    }
}

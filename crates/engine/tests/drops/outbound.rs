//! Reasons of packets on their way out.

use std::net::Ipv6Addr;
use std::time::Duration;

use uxfrm_engine::{
    Action, DefaultActions, Direction, DropReason, Event, Family, LifetimeLimits, Mode, Policy,
    PolicyFlags, PolicyKind, PortMask, SaConfig, Settings, SoftHardLimit, WireHeaders,
};
use uxfrm_packet::{PacketBuf, Protocol, Segments};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::{Known, Raised};

const OUT: PairDirection = PairDirection::LeftToRight;

pub(crate) fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")
}

fn left() -> TestGateway {
    TestGatewayPair::new(&IpsecSetup::tunnel4()).left
}

/// The left gateway with its policy, and its state changed.
fn with_state(change: impl FnOnce(&mut SaConfig)) -> TestGateway {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    let mut state = setup.sa(OUT, FIRST_SPI);
    change(&mut state);
    left.add_sa(state);
    left
}

/// The left gateway with its states, and its policy `out` changed.
fn with_policy(change: impl FnOnce(&mut Policy)) -> TestGateway {
    let (setup, mut left) = (IpsecSetup::tunnel4(), left());
    let mut policy = setup.policy(Direction::Out, OUT);
    change(&mut policy);
    left.database.apply(left.now, |to| to.update_policy(policy)).unwrap();
    left
}

fn sent(mut left: TestGateway, packets: Vec<PacketBuf>, known: Known) -> Raised {
    left.outbound(packets);
    Raised::by(left, known)
}

pub(crate) fn malformed() -> Raised {
    sent(left(), vec![PacketBuf::from_slice(b"\x45 no IP")], Known::NOTHING)
}

pub(crate) fn wrong_super_packet() -> Raised {
    let mut packet = datagram();
    packet.segments = Segments::Tcp { mss: 1000 };
    sent(left(), vec![packet], Known::FLOW)
}

pub(crate) fn policy_block() -> Raised {
    let left = with_policy(|policy| policy.action = Action::Block);
    sent(left, vec![datagram()], Known::FLOW_AND_POLICY)
}

pub(crate) fn hold(policy: &mut Policy) {
    (policy.action, policy.flags) = (Action::Block, PolicyFlags::HELD);
    policy.templates.clear();
}

pub(crate) fn held() -> Raised {
    sent(with_policy(hold), vec![datagram()], Known::FLOW_AND_POLICY)
}

/// Without policies, and closed.
pub(crate) fn close(gateway: &mut TestGateway) {
    let all = Action::Block;
    gateway.database.apply(gateway.now, |to| {
        to.flush_policies(PolicyKind::Main);
        to.set_defaults(DefaultActions { inbound: all, forward: all, outbound: all });
    });
}

pub(crate) fn default_block() -> Raised {
    let mut left = left();
    close(&mut left);
    sent(left, vec![datagram()], Known::FLOW)
}

pub(crate) fn no_state() -> Raised {
    let left = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left;
    sent(left, vec![datagram()], Known::FLOW_AND_POLICY)
}

/// A gateway in which a packet waits for a state.
fn waiting() -> TestGateway {
    let mut left = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left;
    left.listen([]);
    left.outbound(vec![datagram()]);
    assert!(matches!(left.events[..], [Event::Acquire { .. }]));
    left
}

pub(crate) fn acquire_failed() -> Raised {
    let mut left = waiting();
    left.now = left.now.plus(Duration::from_secs(31));
    sent(left, Vec::new(), Known::FLOW_AND_POLICY)
}

pub(crate) fn policy_gone() -> Raised {
    let mut left = waiting();
    left.database.apply(left.now, |to| to.flush_policies(PolicyKind::Main));
    sent(left, Vec::new(), Known::FLOW)
}

pub(crate) fn wait_full() -> Raised {
    sent(waiting(), (0..110).map(|_| datagram()).collect(), Known::FLOW_AND_POLICY)
}

pub(crate) fn only(packets: u64) -> LifetimeLimits {
    let packets = SoftHardLimit { soft: u64::MAX, hard: packets };
    LifetimeLimits { packets, ..LifetimeLimits::default() }
}

pub(crate) fn state_expired() -> Raised {
    let left = with_state(|state| state.limits = only(3));
    sent(left, (0..9).map(|_| datagram()).collect(), Known::ALL_PLAIN)
}

pub(crate) fn state_direction() -> Raised {
    let left = with_state(|state| state.direction = Some(Direction::In));
    sent(left, vec![datagram()], Known::FLOW_AND_POLICY)
}

pub(crate) fn sequence_overflow() -> Raised {
    let left = with_state(|state| state.replay.sent = (1 << 32) - 3);
    sent(left, (0..9).map(|_| datagram()).collect(), Known::ALL_PLAIN)
}

pub(crate) fn sequence_reserve() -> Raised {
    let left = left();
    left.database.snapshot().sad.iter().for_each(|sa| sa.sequence().reserve(3));
    let several = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 5000], 1000);
    sent(left, vec![several], Known::ALL_PLAIN)
}

/// A fragment waited for a state in tunnel mode; now its policy has transport mode.
pub(crate) fn mode_mismatch() -> Raised {
    let setup = IpsecSetup::transport4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    let transport = setup.policy(Direction::Out, OUT);
    let mut tunnel = transport.clone();
    tunnel.templates[0].mode = Mode::Tunnel;
    left.database.apply(left.now, |to| to.update_policy(tunnel)).unwrap();
    left.listen([]);
    let whole = packets::udp("192.0.2.1:7", "192.0.2.2:9", &[7; 64]);
    left.outbound(vec![packets::fragments(whole.bytes(), 48).remove(0)]);
    left.database.apply(left.now, |to| to.update_policy(transport)).unwrap();
    left.add_sa(setup.sa(OUT, FIRST_SPI));
    sent(left, Vec::new(), Known::ALL_PLAIN)
}

pub(crate) fn too_big() -> Raised {
    let large = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 1472]);
    sent(left(), vec![packets::dont_fragment(large)], Known::ALL_PLAIN)
}

pub(crate) fn fragment() -> Raised {
    let left = with_policy(|policy| {
        policy.selector.protocol = 17;
        policy.selector.destination_port = PortMask::exactly(9);
    });
    let whole = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 64]);
    let first = || packets::fragments(whole.bytes(), 48).remove(0);
    // The second is a duplicate; the first is late.
    let mut left = left;
    left.outbound(vec![first(), first()]);
    left.now = left.now.plus(Duration::from_secs(31));
    sent(left, Vec::new(), Known::FLOW)
}

pub(crate) fn no_room() -> Raised {
    let huge = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 65_500]);
    sent(left(), vec![huge], Known::ALL_PLAIN)
}

/// A wildcard state at a gateway without an address of its family.
pub(crate) fn bundle() -> Raised {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGateway::new(Settings::default());
    let mut policy = setup.policy(Direction::Out, OUT);
    policy.templates[0].source = Family::V4.unspecified();
    left.add_policy(policy);
    left.add_sa(SaConfig { source: Family::V4.unspecified(), ..setup.sa(OUT, FIRST_SPI) });
    sent(left, vec![datagram()], Known::FLOW_AND_POLICY)
}

/// A routing header leads a plain packet to a protected destination.
pub(crate) fn unprotected() -> Raised {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let left = TestGatewayPair::new(&setup).left;
    let mut upper = vec![17, 2, 4, 1, 0, 0, 0, 0];
    upper.extend("fd00:2::1".parse::<Ipv6Addr>().unwrap().octets());
    upper.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    let (source, by) = ("fd00:1::5".parse().unwrap(), "fd88::1".parse().unwrap());
    let packet = PacketBuf::from_slice(&packets::ip(source, by, Protocol(43), &upper));
    sent(left, vec![packet], Known::FLOW)
}

/// Time exceeded, by an address that no policy names.
pub(crate) fn quotes_protected() -> Raised {
    sent(left(), vec![told_of("10.2.0.1:9", "10.1.0.1:7")], Known::FLOW)
}

/// A plain packet that came back four times, with one hop left.
pub(crate) fn comes_back() -> Raised {
    let left =
        TestGateway::new(Settings { headers: WireHeaders::UdpSocket, ..Settings::default() });
    let looping = || {
        let mut packet = datagram();
        packet.bytes_mut()[8] = 1;
        packet
    };
    sent(left, (0..5).map(|_| looping()).collect(), Known::FLOW)
}

fn told_of(source: &str, destination: &str) -> PacketBuf {
    let quoted = packets::udp(source, destination, b"payload");
    let message = [&[11, 0, 0, 0, 0, 0, 0, 0][..], quoted.bytes()].concat();
    let (gateway, sender) = ("192.0.2.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
    PacketBuf::from_slice(&packets::ip(gateway, sender, Protocol::ICMP, &message))
}

#[test]
fn errors_about_plain_packets_pass() {
    for (source, destination) in [("10.1.0.1:7", "10.2.0.1:9"), ("10.3.0.1:9", "10.1.0.1:7")] {
        let mut left = left();
        let (wire, _) = left.outbound(vec![told_of(source, destination)]);
        assert_eq!((wire.len(), left.reasons()), (1, vec![]), "{source}");
    }
}

#[test]
fn errors_in_fragments_are_judged_whole() {
    let mut left = left();
    let told = told_of("10.2.0.1:9", "10.1.0.1:7");
    let (wire, _) = left.outbound(packets::fragments(told.bytes(), 24));
    assert_eq!((wire.len(), left.reasons()), (0, vec![(DropReason::OutQuotesProtected, 1)]));
    let told = told_of("10.3.0.1:9", "10.1.0.1:7");
    let (gateway, sender) = ("192.0.2.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
    let echo = packets::echo(gateway, sender, &[1; 100]);
    for plain in [told, echo] {
        let fragments = packets::fragments(plain.bytes(), 24);
        let count = fragments.len();
        let (wire, _) = left.outbound(fragments);
        assert_eq!((wire.len(), left.reasons().len()), (count, 1));
    }
}

//! Fragmented datagrams under policies with ports, and in transport mode: later fragments have no
//! ports, so alone they would not match such policies and leave plain, or be dropped on receipt.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::time::Duration;

use uxfrm_engine::{
    Action, Direction, DropReason, Family, HostView, Mode, Policy, PolicyKind, PortMask, Priority,
    Reqid, SaConfig,
};
use uxfrm_packet::{Ecn, IpPacket, PacketBuf, Protocol};
use uxfrm_testkit::{
    IpsecSetup, PairDirection, PlaintextDetector, TestGateway, TestGatewayPair, packets,
};

const MARKER: &[u8] = b"not for everybody";
/// Bytes of each fragment's payload.
const SIZE: usize = 1200;

/// A datagram to a port, longer than any network takes.
fn datagram(setup: &IpsecSetup, way: PairDirection, port: u16) -> Vec<u8> {
    let (source, destination) = setup.hosts(way);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    packets::udp_bytes(&end(source, 7), &end(destination, port), &MARKER.repeat(200))
}

/// With these policies in place of its own.
fn with(gateway: &mut TestGateway, policies: impl IntoIterator<Item = Policy>) {
    gateway.database.apply(gateway.now, |change| change.flush_policies(PolicyKind::Main));
    policies.into_iter().for_each(|policy| gateway.add_policy(policy));
}

fn for_port(mut policy: Policy, port: u16) -> Policy {
    policy.selector.protocol = 17;
    policy.selector.destination_port = PortMask::exactly(port);
    policy
}

/// A left gateway that protects datagrams to port 9, and nothing else.
fn pair_for_port_9(setup: &IpsecSetup) -> TestGatewayPair {
    let mut pair = TestGatewayPair::new(setup);
    with(&mut pair.left, [for_port(setup.policy(Direction::Out, PairDirection::LeftToRight), 9)]);
    pair
}

fn all_setups() -> Vec<IpsecSetup> {
    let families = [Family::V4, Family::V6];
    let tunnels = families
        .into_iter()
        .flat_map(|inner| families.map(|outer| IpsecSetup::new(Mode::Tunnel, inner, outer)));
    let transports = families.map(|family| IpsecSetup::new(Mode::Transport, family, family));
    tunnels.chain(transports).collect()
}

/// What the host makes of what arrives there.
fn put_together(setup: &IpsecSetup, arrived: Vec<PacketBuf>) -> Vec<PacketBuf> {
    let mut pair = TestGatewayPair::new(setup);
    with(&mut pair.right, []);
    pair.right.inbound(arrived)
}

fn assert_hidden(packets: &[PacketBuf]) {
    let mut listener = PlaintextDetector::new(MARKER);
    listener.listen(packets);
    assert_eq!(listener.seen, 0);
}

#[test]
fn fragments_follow_port_policy_of_datagram() {
    for setup in all_setups() {
        for backwards in [false, true] {
            let mut pair = pair_for_port_9(&setup);
            let plain = datagram(&setup, PairDirection::LeftToRight, 9);
            let mut fragments = packets::fragments(&plain, SIZE);
            if backwards {
                fragments.reverse();
            }
            let arrived = pair.left_to_right(fragments);
            assert_hidden(&pair.last_on_wire);
            assert!(pair.last_on_wire.iter().all(|packet| packet.len() <= 1500));
            let arrived = put_together(&setup, arrived);
            assert_eq!(arrived.len(), 1, "{setup:?} {:?}", pair.left.reasons());
            assert!(arrived[0].bytes() == plain, "{setup:?}");
            pair.assert_accounts();
        }
    }
}

#[test]
fn tunnelled_ipv6_keeps_fragment_size() {
    for (outer, size) in [(Family::V4, SIZE), (Family::V6, SIZE), (Family::V4, 1448)] {
        let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, outer);
        let mut pair = pair_for_port_9(&setup);
        // To a host behind the far gateway.
        let addresses = [setup.gateways(PairDirection::RightToLeft).0].into_iter().collect();
        let path_mtus = [].into_iter().collect();
        pair.right.database.set_host(HostView { addresses, mtu: 1500, path_mtus });
        let fragments = packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), size);
        let longest = fragments.iter().map(|fragment| fragment.len()).max().unwrap();
        let arrived = pair.left_to_right(fragments);
        assert!(arrived.len() > 2 && arrived.iter().all(|packet| packet.len() <= longest));
        assert!(pair.last_on_wire.iter().all(|packet| packet.len() <= 1500));
        pair.assert_accounts();
    }
}

#[test]
fn unmatched_fragments_leave_unchanged() {
    for setup in all_setups() {
        let mut pair = pair_for_port_9(&setup);
        let plain = datagram(&setup, PairDirection::LeftToRight, 10);
        let fragments = packets::fragments(&plain, SIZE);
        // The way may take no more than the host made them for.
        let longest = fragments.iter().map(|fragment| fragment.len()).max().unwrap();
        let (wire, _) = pair.left.outbound(fragments);
        assert!(wire.len() > 2 && wire.iter().all(|packet| packet.len() <= longest));
        let fragments = wire.iter().map(|packet| IpPacket::parse(packet.bytes()).unwrap());
        assert!(fragments.into_iter().all(|ip| ip.is_fragment()));
        let arrived = put_together(&setup, wire);
        assert!(arrived[0].bytes() == plain, "{setup:?}");
        pair.assert_accounts();
    }
}

#[test]
fn block_policy_drops_all_fragments() {
    for setup in all_setups() {
        let mut pair = TestGatewayPair::new(&setup);
        let own = setup.policy(Direction::Out, PairDirection::LeftToRight);
        let block = Policy { action: Action::Block, templates: vec![], ..own };
        with(&mut pair.left, [for_port(block, 9)]);
        let plain = datagram(&setup, PairDirection::LeftToRight, 9);
        let (wire, _) = pair.left.outbound(packets::fragments(&plain, SIZE));
        assert!(wire.is_empty());
        assert_eq!(pair.left.reasons(), [(DropReason::OutPolicyBlock, 1)]);
        pair.assert_accounts();
    }
}

#[test]
fn transport_mode_carries_reassembled_datagram() {
    for family in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Transport, family, family);
        let mut pair = TestGatewayPair::new(&setup);
        let plain = datagram(&setup, PairDirection::LeftToRight, 9);
        let arrived = pair.left_to_right(packets::fragments(&plain, SIZE));
        assert_eq!(arrived.len(), 1, "{:?} {:?}", pair.left.reasons(), pair.right.reasons());
        assert!(arrived[0].bytes() == plain);
        assert_hidden(&pair.last_on_wire);
        pair.assert_accounts();
    }
}

#[test]
fn incomplete_datagram_times_out() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = pair_for_port_9(&setup);
    let mut fragments = packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), SIZE);
    let last = fragments.pop().unwrap();
    assert!(pair.left.outbound(fragments).0.is_empty());
    assert_eq!(pair.left.worker.outward().held, 2);
    assert_eq!(pair.left.worker.waiting(), 1, "whoever has no packets is to come back");
    pair.assert_accounts();
    pair.wait(Duration::from_secs(31));
    assert!(pair.left.outbound(vec![]).0.is_empty());
    assert_eq!(pair.left.drops(DropReason::OutFragment), 2);
    assert_eq!(pair.left.worker.waiting(), 0);
    assert!(pair.left.outbound(vec![last]).0.is_empty());
    assert_eq!(pair.left.worker.waiting(), 1);
    pair.assert_accounts();
}

#[test]
fn overlap_drops_datagram() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = pair_for_port_9(&setup);
    let plain = datagram(&setup, PairDirection::LeftToRight, 9);
    let mut fragments = packets::fragments(&plain, SIZE);
    fragments.insert(1, packets::fragments(&plain, SIZE - 8).remove(1));
    assert!(pair.left.outbound(fragments).0.is_empty());
    assert_eq!(pair.left.drops(DropReason::OutFragment), 2);
    pair.assert_accounts();
}

#[test]
fn reassembled_datagram_is_queued_whole() {
    for setup in all_setups() {
        let mut pair = TestGatewayPair::without_sas(&setup);
        with(
            &mut pair.left,
            [for_port(setup.policy(Direction::Out, PairDirection::LeftToRight), 9)],
        );
        pair.left.listen([]);
        let plain = datagram(&setup, PairDirection::LeftToRight, 9);
        assert!(pair.left.outbound(packets::fragments(&plain, SIZE)).0.is_empty());
        assert_eq!(pair.left.worker.outward().held, 1);
        pair.add_sas(&setup, uxfrm_testkit::FIRST_SPI);
        let arrived = put_together(&setup, pair.left_to_right(vec![]));
        assert_eq!(arrived.len(), 1, "{setup:?} {:?}", pair.left.reasons());
        assert!(arrived[0].bytes() == plain);
        pair.assert_accounts();
    }
}

/// They were let in as they were, as the policy had tunnel mode then.
#[test]
fn queued_fragments_do_not_leave_in_transport_mode() {
    for family in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Transport, family, family);
        let policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
        let mut tunnel = policy.clone();
        tunnel.templates[0].mode = Mode::Tunnel;
        let mut pair = TestGatewayPair::without_sas(&setup);
        with(&mut pair.left, [tunnel]);
        pair.left.listen([]);
        let fragments = packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), SIZE);
        let count = fragments.len() as u64;
        assert!(pair.left.outbound(fragments).0.is_empty());
        assert_eq!(pair.left.worker.outward().held, count);
        with(&mut pair.left, [policy]);
        pair.add_sas(&setup, uxfrm_testkit::FIRST_SPI);
        assert!(pair.left.outbound(vec![]).0.is_empty());
        assert_eq!(pair.left.reasons(), [(DropReason::OutModeMismatch, count)]);
        pair.assert_accounts();
    }
}

/// What is known of the flow that fragments without ports seem to be of is not what their
/// datagram's policy says.
#[test]
fn port_policy_starts_reassembly_of_cached_flow() {
    let setup = IpsecSetup::tunnel4();
    let fragments = || packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), SIZE);
    for together in [1, fragments().len()] {
        let mut pair = TestGatewayPair::new(&setup);
        let send = |pair: &mut TestGatewayPair| {
            for batch in fragments().chunks(together) {
                let again = |fragment: &PacketBuf| PacketBuf::from_slice(fragment.bytes());
                pair.left.outbound(batch.iter().map(again).collect());
            }
            pair.left.worker.outward().absorbed
        };
        for _ in 0..3 {
            assert_eq!(send(&mut pair), 0, "each by itself");
        }
        let mut elsewhere = for_port(setup.policy(Direction::Out, PairDirection::LeftToRight), 9);
        elsewhere.selector.destination = elsewhere.selector.source;
        pair.left.add_policy(elsewhere);
        assert_eq!(send(&mut pair), fragments().len() as u64 - 1, "in batches of {together}");
        pair.assert_accounts();
    }
}

/// A right gateway that takes in datagrams to port 9 only.
fn pair_that_takes_port_9(setup: &IpsecSetup) -> TestGatewayPair {
    let mut pair = TestGatewayPair::new(setup);
    let own = setup.policy(Direction::In, PairDirection::LeftToRight);
    with(&mut pair.right, [for_port(own, 9)]);
    pair
}

#[test]
fn tunnelled_fragments_pass_by_datagram_port() {
    for inner in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, inner, Family::V4);
        let mut pair = pair_that_takes_port_9(&setup);
        let plain = datagram(&setup, PairDirection::LeftToRight, 9);
        // One by one: each is sealed by itself, as the left side's policy is for all.
        let mut arrived = Vec::new();
        for fragment in packets::fragments(&plain, SIZE) {
            arrived.extend(pair.left_to_right(vec![fragment]));
            pair.assert_accounts();
        }
        assert_eq!(arrived.len(), 1, "{:?}", pair.right.reasons());
        assert!(arrived[0].bytes() == plain);
        let other = datagram(&setup, PairDirection::LeftToRight, 10);
        assert!(pair.left_to_right(packets::fragments(&other, SIZE)).is_empty());
        assert_eq!(pair.right.reasons(), [(DropReason::InNoPolicy, 1)]);
        pair.assert_accounts();
    }
}

/// A router has no whole datagrams: policies `fwd` see fragments without ports, as Linux's do.
#[test]
fn forwarded_fragments_are_checked_without_ports() {
    for inner in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, inner, Family::V4);
        let for_all = setup.policy(Direction::Forward, PairDirection::LeftToRight);
        let allowed = for_port(for_all.clone(), 9);
        let blocked = Policy { action: Action::Block, priority: Priority(1), ..allowed.clone() };
        let fragments =
            || packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), SIZE);
        for (policies, passed) in [(vec![allowed], 0), (vec![blocked, for_all], fragments().len())]
        {
            let mut pair = TestGatewayPair::new(&setup);
            with(&mut pair.right, policies);
            let addresses = [setup.gateways(PairDirection::RightToLeft).0].into_iter().collect();
            let path_mtus = [].into_iter().collect();
            pair.right.database.set_host(HostView { addresses, mtu: 1500, path_mtus });
            assert_eq!(pair.left_to_right(fragments()).len(), passed, "{inner:?}");
            let refused = u64::try_from(fragments().len() - passed).unwrap();
            assert_eq!(pair.right.drops(DropReason::InNoPolicy), refused);
            pair.assert_accounts();
        }
    }
}

#[test]
fn fragments_of_other_origin_are_not_mixed() {
    let setup = IpsecSetup::tunnel4();
    let plain = datagram(&setup, PairDirection::LeftToRight, 9);
    let mut pair = pair_that_takes_port_9(&setup);
    let mut fragments = packets::fragments(&plain, SIZE);
    let clear = fragments.remove(1);
    assert!(pair.left_to_right(fragments).is_empty());
    assert!(pair.right.inbound(vec![clear]).is_empty());
    assert_eq!(pair.right.worker.inward().held, 3);

    let mut pair = pair_that_takes_port_9(&setup);
    let mut fragments = packets::fragments(&plain, SIZE);
    let late = fragments.remove(1);
    assert!(pair.left_to_right(fragments).is_empty());
    // Not the one that takes its place: `fragments_across_rekey.rs`.
    let next = setup.sa(PairDirection::LeftToRight, uxfrm_testkit::FIRST_SPI + 10);
    pair.right.add_sa(SaConfig { reqid: Reqid(2), ..next });
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, uxfrm_testkit::FIRST_SPI + 10));
    assert!(pair.left_to_right(vec![late]).is_empty());
    assert_eq!(pair.right.worker.inward().held, 3);
    pair.assert_accounts();
}

/// Also where no policy asks for ports: the host's own stack would put plain fragments of anybody's
/// among these.
#[test]
fn host_gets_no_fragments_out_of_esp() {
    for setup in all_setups() {
        let plain = datagram(&setup, PairDirection::LeftToRight, 9);
        for backwards in [false, true] {
            let mut pair = TestGatewayPair::new(&setup);
            let mut fragments = packets::fragments(&plain, SIZE);
            if backwards {
                fragments.reverse();
            }
            let evil = packets::fragments(&vec![0xee; plain.len()], SIZE).swap_remove(1);
            let mut arrived = Vec::new();
            for fragment in fragments {
                let mut clear = fragment.bytes().to_vec();
                let tail = clear.len() - 8;
                clear[tail..].copy_from_slice(&evil.bytes()[..8]);
                pair.right.inbound(vec![PacketBuf::from_slice(&clear)]);
                arrived.extend(pair.left_to_right(vec![fragment]));
            }
            assert_eq!(arrived.len(), 1, "{setup:?} {:?}", pair.right.reasons());
            assert!(arrived[0].bytes() == plain, "{setup:?}");
        }
    }
}

/// Identifications sprayed in the clear, to the datagram's own ends and between strangers.
#[test]
fn fragment_flood_starves_no_esp_fragments() {
    for inner in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, inner, Family::V4);
        let mut pair = TestGatewayPair::new(&setup);
        let mut arrived = 0;
        for round in 0..200_u16 {
            let plain = datagram(&setup, PairDirection::LeftToRight, 9);
            let mut fragments = packets::fragments(&plain, SIZE);
            let last = fragments.pop().unwrap();
            arrived += pair.left_to_right(fragments).len();
            for turn in 0..100 {
                let [high, low] = (round * 100 + turn).to_be_bytes();
                let mut sprayed = packets::fragments(&plain, SIZE).swap_remove(0).bytes().to_vec();
                let ident = if inner == Family::V4 { 4 } else { 46 };
                sprayed[ident..ident + 2].copy_from_slice(&[high, low]);
                if inner == Family::V4 {
                    uxfrm_packet::ipv4::fill_checksum(&mut sprayed).unwrap();
                }
                pair.right.inbound(vec![PacketBuf::from_slice(&sprayed)]);
            }
            arrived += pair.left_to_right(vec![last]).len();
        }
        assert_eq!(arrived, 200, "{:?}", pair.right.reasons());
    }
}

/// A datagram with an IPv6 destination options header before UDP.
fn with_options(setup: &IpsecSetup, port: u16) -> Vec<u8> {
    let plain = datagram(setup, PairDirection::LeftToRight, port);
    let ip = IpPacket::parse(&plain).unwrap();
    let options = [&[17, 0, 1, 4, 0, 0, 0, 0], ip.upper(&plain)].concat();
    packets::ip(ip.source, ip.destination, Protocol(60), &options)
}

#[test]
fn fragments_follow_protocol_policy_of_datagram() {
    for outer in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, outer);
        let mut pair = TestGatewayPair::new(&setup);
        let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
        policy.selector.protocol = 17;
        with(&mut pair.left, [policy]);
        let plain = with_options(&setup, 9);
        let arrived = pair.left_to_right(packets::fragments(&plain, SIZE));
        assert_hidden(&pair.last_on_wire);
        let arrived = put_together(&setup, arrived);
        assert_eq!(arrived.len(), 1, "{setup:?} {:?}", pair.left.reasons());
        assert!(arrived[0].bytes() == plain, "{setup:?}");
        pair.assert_accounts();
    }
}

#[test]
fn tunnelled_fragments_pass_by_datagram_protocol() {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let mut pair = TestGatewayPair::new(&setup);
    let mut policy = setup.policy(Direction::In, PairDirection::LeftToRight);
    policy.selector.protocol = 17;
    with(&mut pair.right, [policy]);
    let plain = with_options(&setup, 9);
    let arrived = pair.left_to_right(packets::fragments(&plain, SIZE));
    assert_eq!(arrived.len(), 1, "{:?}", pair.right.reasons());
    assert!(arrived[0].bytes() == plain);
    pair.assert_accounts();
}

/// An IPv6 packet in a fragment header that says it is whole (RFC 6946).
fn atomic(packet: &[u8]) -> Vec<u8> {
    let ip = IpPacket::parse(packet).unwrap();
    let fragment = [&[packet[6], 0, 0, 0, 0, 0, 0, 1], &packet[40..]].concat();
    packets::ip(ip.source, ip.destination, Protocol::FRAGMENT, &fragment)
}

#[test]
fn fragment_of_fragment_does_not_leave_plain() {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V6);
    let mut pair = pair_for_port_9(&setup);
    let (source, destination) = setup.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let short = packets::udp_bytes(&end(source, 7), &end(destination, 9), MARKER);
    let (once, _) = pair.left.outbound(vec![PacketBuf::from_slice(&atomic(&short))]);
    assert_hidden(&once);
    let (twice, _) = pair.left.outbound(vec![PacketBuf::from_slice(&atomic(&atomic(&short)))]);
    assert_hidden(&twice);
    assert_eq!((once.len(), twice.len()), (1, 0));
    assert_eq!(pair.left.reasons(), [(DropReason::OutFragment, 1)]);
    pair.assert_accounts();
}

fn with_ecn(mut fragment: PacketBuf, ecn: Ecn) -> PacketBuf {
    let ip = IpPacket::parse(fragment.bytes()).unwrap();
    ip.set_tos(fragment.bytes_mut(), ecn.in_tos(ip.tos));
    fragment
}

/// What becomes of a datagram whose fragments say this of congestion.
fn congestion(inner: Family, said: [Ecn; 3]) -> Option<Ecn> {
    let setup = IpsecSetup::new(Mode::Tunnel, inner, Family::V4);
    let mut pair = pair_for_port_9(&setup);
    let fragments = packets::fragments(&datagram(&setup, PairDirection::LeftToRight, 9), SIZE);
    let fragments = fragments.into_iter().zip(said).map(|(fragment, ecn)| with_ecn(fragment, ecn));
    let arrived = pair.left_to_right(fragments.collect());
    let lost = if arrived.is_empty() { 3 } else { 0 };
    assert_eq!(pair.left.drops(DropReason::OutFragment), lost);
    pair.assert_accounts();
    Some(IpPacket::parse(arrived.first()?.bytes()).unwrap().ecn())
}

#[test]
fn ce_of_one_fragment_marks_datagram() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    for inner in [Family::V4, Family::V6] {
        assert_eq!(congestion(inner, [Ect0, Ect0, Ce]), Some(Ce));
        assert_eq!(congestion(inner, [Ce, Ect1, Ect0]), Some(Ce));
        assert_eq!(congestion(inner, [Ect1, Ect0, Ect0]), Some(Ect1));
        assert_eq!(congestion(inner, [NotEct; 3]), Some(NotEct));
        assert_eq!(congestion(inner, [NotEct, NotEct, Ce]), None, "only some know ECN");
        assert_eq!(congestion(inner, [Ect0, NotEct, Ect0]), None, "only some know ECN");
    }
}

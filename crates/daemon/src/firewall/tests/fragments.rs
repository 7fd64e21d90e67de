//! Plain fragments: dropped early only if their datagram would be as well.

use proptest::prelude::*;
use uxfrm_engine::{Action, DefaultActions, Direction, Policy, PortMask};
use uxfrm_io::nftables::{RuleVerdict, SamplePacket};

use super::{
    context,
    filters::Watched,
    gateway::Gateway,
    random::{Plain, Request, deeds, packets, policies, requests},
    *,
};

/// The way of a fragment, behind what tells which it takes.
const WAYS: [(ChainKind, &str, &str); 2] =
    [(ChainKind::In, "in-fragments", "in"), (ChainKind::Forward, "fwd-fragments", "fwd")];

/// A later fragment of a datagram, without a mark as it comes before any rule that gives it one.
fn later(whole: &Plain) -> Option<Plain> {
    let mut bytes = whole.bytes.clone();
    if bytes[0] >> 4 == 4 {
        bytes[7] = 9;
    } else {
        // Who comes by others is not cut here.
        let protocol = (bytes[6] != 43).then_some(bytes[6])?;
        bytes[6] = 44;
        bytes.splice(40..40, [protocol, 0, 0, 8 << 3, 0, 0, 0, 1]);
    }
    Some(Plain { bytes, mark: 0, came_by: whole.came_by })
}

fn dropped(gateway: &Gateway, chain: &str, part: ChainKind, packet: &Plain) -> bool {
    gateway.guard.filter.replica.judge(chain, &packet.sample(part)).0 == RuleVerdict::Drop
}

/// Whether fragments tell all that a policy asks for, and none may be of IKE.
fn is_plain(policy: &Policy) -> bool {
    let selector = &policy.selector;
    let is_for_udp = [0, 17].contains(&selector.protocol);
    (selector.source_port.mask, selector.destination_port.mask, policy.mark.mask) == (0, 0, 0)
        // The end of its template may be there.
        && !(is_for_udp && selector.destination.contains(TEMPLATE_END.into()))
        && !(is_for_udp && policy.action == Action::Block)
}

/// What `random` gives to templates.
const TEMPLATE_END: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Whether a policy refuses what a fragment of IPv6 between these addresses may hide: some
/// datagrams that would pass are lost for that.
fn may_hide(gateway: &Gateway, part: ChainKind, packet: &Plain) -> bool {
    let address = |at: usize| {
        let octets: [u8; 16] = packet.bytes[at..at + 16].try_into().unwrap();
        octets.into()
    };
    let refuses = |policy: &Policy| {
        let selector = &policy.selector;
        let asks = selector.protocol != 0
            || selector.source_port.mask | selector.destination_port.mask != 0;
        policy.direction == part.direction()
            && asks
            && conditions::refusal(policy).is_some()
            && selector.source.contains(address(8))
            && selector.destination.contains(address(24))
    };
    packet.bytes[0] >> 4 == 6
        && gateway.database.current().spd.iter().any(|entry| refuses(&entry.policy()))
}

fn check(gateway: &Gateway) -> Result<(), TestCaseError> {
    for whole in &gateway.guard.filter.packets {
        let Some(later) = later(whole) else { continue };
        for (part, early, hook) in WAYS {
            if dropped(gateway, early, part, &later) {
                let is_dropped =
                    dropped(gateway, hook, part, whole) || may_hide(gateway, part, whole);
                prop_assert!(is_dropped, "{early}: a datagram that passes is lost: {whole:?}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn fragments_of_passing_datagram_all_pass(
        first in prop::collection::vec(policies(), 0..60),
        requests in prop::collection::vec(requests(), 1..15),
        packets in prop::collection::vec(packets(), 24),
        inbound in deeds(),
    ) {
        let defaults = DefaultActions { inbound: inbound.0, forward: Action::Allow, ..DefaultActions::default() };
        let mut gateway = Gateway::new(first, defaults, packets);
        check(&gateway)?;
        for request in requests {
            gateway.handle(request);
            check(&gateway)?;
        }
    }

    /// Where no policy asks for ports or marks, a fragment fares as its datagram does.
    #[test]
    fn fragments_are_dropped_early_where_decidable(
        first in prop::collection::vec(policies().prop_filter("plain", is_plain), 0..60),
        requests in prop::collection::vec(requests(), 1..15),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        for request in requests {
            let is_meant = match &request {
                Request::Add(policies) => policies.iter().all(is_plain),
                Request::Update(_, action, ..) => *action == Action::Allow,
                Request::Remove(..) => true,
            };
            if !is_meant {
                continue;
            }
            gateway.handle(request);
            for whole in &gateway.guard.filter.packets {
                let whole = Plain { mark: 0, ..whole.clone() };
                let Some(later) = later(&whole) else { continue };
                for (part, early, hook) in WAYS {
                    let fates = [(early, &later), (hook, &whole)]
                        .map(|(chain, packet)| dropped(&gateway, chain, part, packet));
                    let is_as_its_datagram = fates[0] == fates[1]
                        || (fates[0] && may_hide(&gateway, part, &whole));
                    prop_assert!(is_as_its_datagram, "{early}: {whole:?}");
                }
            }
        }
    }
}

fn udp(source: [u8; 4], destination: [u8; 4]) -> Plain {
    let [source, destination] = [source, destination].map(|octets| Ipv4Addr::from(octets).into());
    Plain { bytes: packet(source, destination, 17, &[0; 8]), mark: 0, came_by: 0 }
}

/// IKE with long certificates comes in fragments, of which only the first has its port.
#[test]
fn udp_to_the_end_of_a_tunnel_passes_under_a_policy_for_that_end() {
    let (peer, end, host) = ([10, 9, 0, 1], [10, 9, 0, 2], [10, 9, 0, 3]);
    let net = |octets: [u8; 4]| Prefix::new(Ipv4Addr::from(octets).into(), 24).unwrap();
    let template = Template {
        source: Ipv4Addr::from(peer).into(),
        destination: Ipv4Addr::from(end).into(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(0),
        level: TemplateLevel::Required,
    };
    let policy = Policy {
        direction: Direction::In,
        selector: Selector {
            source: net(peer),
            destination: net(end),
            ..Selector::any(Family::V4)
        },
        templates: vec![template],
        ..tunnel(0, Action::Allow)
    };
    let mut gateway = Gateway::new(vec![policy], DefaultActions::default(), Vec::new());
    let fate = |gateway: &Gateway, to| {
        dropped(gateway, "in-fragments", ChainKind::In, &later(&udp(peer, to)).unwrap())
    };
    assert!(!fate(&gateway, end) && fate(&gateway, host));
    gateway.handle(Request::Remove(0, 1));
    assert!(!fate(&gateway, host));
    assert_eq!(gateway.guard.filter.replica.replaced, 1, "they come and go by rules of their own");
}

/// It passes as a whole, whatever blocks all else.
#[test]
fn what_may_be_of_ike_passes_under_what_blocks_all() {
    let (host, end) = ([10, 9, 0, 1], [10, 9, 0, 2]);
    let all = Policy {
        direction: Direction::In,
        selector: Selector::any(Family::V4),
        ..tunnel(0, Action::Block)
    };
    let default = DefaultActions { inbound: Action::Block, ..DefaultActions::default() };
    for (policies, defaults) in [(vec![all], DefaultActions::default()), (Vec::new(), default)] {
        let gateway = Gateway::new(policies, defaults, Vec::new());
        let of = |protocol| {
            let [source, destination] = [host, end].map(|octets| Ipv4Addr::from(octets).into());
            let bytes = packet(source, destination, protocol, &[0; 8]);
            later(&Plain { bytes, mark: 0, came_by: 0 }).unwrap()
        };
        let fates =
            [17, 6].map(|protocol| dropped(&gateway, "in-fragments", ChainKind::In, &of(protocol)));
        assert_eq!(fates, [false, true]);
    }
}

/// An older kernel: all else of the guard is there.
#[test]
fn a_kernel_without_routes_in_its_filter_judges_no_fragments() {
    let context = RulesetContext { parts: ChainKind::GUARD, ..context() };
    let guard = Firewall::install(Watched::default(), context, &blocking().current().spd).unwrap();
    let packet = udp([10, 1, 0, 1], [10, 2, 0, 1]);
    let sample = SamplePacket { bytes: &packet.bytes, mark: 0, came_by: 0 };
    assert_eq!(guard.filter.replica.judge("out", &sample).0, RuleVerdict::Drop);
    assert_eq!(guard.filter.replica.rules_of("fragments"), 0);
}

/// A piece of a datagram from `fd01::1` to `fd02::1`, with this next header in its fragment header.
fn piece(next: u8, [high, low]: [u8; 2]) -> Plain {
    let [source, destination] = ["fd01::1", "fd02::1"].map(|text| text.parse().unwrap());
    let bytes = packet(source, destination, 44, &[next, 0, high, low, 0, 0, 0, 1, 17, 1, 30, 12]);
    Plain { bytes, mark: 0, came_by: 0 }
}

/// Receivers join later fragments whatever next header they name, and some take a first one that
/// ends within its extension headers.
#[test]
fn no_fragment_of_ipv6_hides_a_protocol_from_a_policy_that_refuses_it() {
    let any = Selector { protocol: 17, ..Selector::any(Family::V6) };
    let with_port = Selector { destination_port: PortMask::exactly(7000), ..any };
    let (first, second) = ([0, 1], [0, 8]);
    for (part, early, hook) in WAYS {
        for (selector, is_narrow) in [(any, part == ChainKind::In), (with_port, true)] {
            let direction = part.direction();
            let policy = Policy { direction, selector, ..tunnel(0, Action::Block) };
            let gateway = Gateway::new(vec![policy], DefaultActions::default(), Vec::new());
            for next in [0, 43, 44, 60, 6, 50, 99] {
                let is_dropped = !is_narrow || [0, 43, 44, 60].contains(&next);
                let fate = |chain, offset| dropped(&gateway, chain, part, &piece(next, offset));
                let name = format!("{early}, {selector:?}, {next}");
                let passes = part == ChainKind::In && next == 50;
                assert_eq!(fate(early, second), is_dropped && !passes, "{name}");
                assert_eq!(fate(early, first), is_dropped && !passes, "{name}");
                assert_eq!(fate(hook, first), is_dropped && !passes, "{name}");
            }
        }
    }
}

//! Plain fragments: dropped early only if their datagram would be as well.

use proptest::prelude::*;
use uxfrm_engine::{Action, Defaults, Direction, Policy};
use uxfrm_io::nftables::{Sample, Verdict};

use super::{
    around,
    filters::Watched,
    gateway::Gateway,
    random::{Plain, Request, deeds, packets, policies, requests},
    *,
};

/// The way of a fragment, behind what tells which it takes.
const WAYS: [(Part, &str, &str); 2] =
    [(Part::In, "in-fragments", "in"), (Part::Forward, "fwd-fragments", "fwd")];

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

fn dropped(gateway: &Gateway, chain: &str, part: Part, packet: &Plain) -> bool {
    gateway.guard.filter.replica.judge(chain, &packet.sample(part)).0 == Verdict::Drop
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

fn check(gateway: &Gateway) -> Result<(), TestCaseError> {
    for whole in &gateway.guard.filter.packets {
        let Some(later) = later(whole) else { continue };
        for (part, early, hook) in WAYS {
            if dropped(gateway, early, part, &later) {
                let is_dropped = dropped(gateway, hook, part, whole);
                prop_assert!(is_dropped, "{early}: a datagram that passes is lost: {whole:?}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_datagram_that_passes_loses_a_fragment(
        first in prop::collection::vec(policies(), 0..60),
        requests in prop::collection::vec(requests(), 1..15),
        packets in prop::collection::vec(packets(), 24),
        inbound in deeds(),
    ) {
        let defaults = Defaults { inbound: inbound.0, forward: Action::Allow, ..Defaults::default() };
        let mut gateway = Gateway::new(first, defaults, packets);
        check(&gateway)?;
        for request in requests {
            gateway.handle(request);
            check(&gateway)?;
        }
    }

    /// Where no policy asks for ports or marks, a fragment fares as its datagram does.
    #[test]
    fn what_can_be_judged_by_fragments_is(
        first in prop::collection::vec(policies().prop_filter("plain", is_plain), 0..60),
        requests in prop::collection::vec(requests(), 1..15),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, Defaults::default(), packets);
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
                    prop_assert_eq!(fates[0], fates[1], "{}: {:?}", early, whole);
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
        level: Level::Required,
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
    let mut gateway = Gateway::new(vec![policy], Defaults::default(), Vec::new());
    let fate = |gateway: &Gateway, to| {
        dropped(gateway, "in-fragments", Part::In, &later(&udp(peer, to)).unwrap())
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
    let default = Defaults { inbound: Action::Block, ..Defaults::default() };
    for (policies, defaults) in [(vec![all], Defaults::default()), (Vec::new(), default)] {
        let gateway = Gateway::new(policies, defaults, Vec::new());
        let of = |protocol| {
            let [source, destination] = [host, end].map(|octets| Ipv4Addr::from(octets).into());
            let bytes = packet(source, destination, protocol, &[0; 8]);
            later(&Plain { bytes, mark: 0, came_by: 0 }).unwrap()
        };
        let fates =
            [17, 6].map(|protocol| dropped(&gateway, "in-fragments", Part::In, &of(protocol)));
        assert_eq!(fates, [false, true]);
    }
}

/// An older kernel: all else of the guard is there.
#[test]
fn a_kernel_without_routes_in_its_filter_judges_no_fragments() {
    let around = Surroundings { parts: Part::GUARD, ..around() };
    let guard = Guard::install(Watched::default(), around, &blocking().current().spd).unwrap();
    let packet = udp([10, 1, 0, 1], [10, 2, 0, 1]);
    let sample = Sample { bytes: &packet.bytes, mark: 0, came_by: 0 };
    assert_eq!(guard.filter.replica.judge("out", &sample).0, Verdict::Drop);
    assert_eq!(guard.filter.replica.rules_of("fragments"), 0);
}

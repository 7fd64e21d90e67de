//! Which way packets take: by the plan's rules and tables, and else by the chain that marks,
//! against what the first policy says.

use proptest::prelude::*;
use uxfrm_engine::{DefaultActions, Direction, FlowKey, PolicyEntry, PolicyKind, Spd};
use uxfrm_io::nftables::RuleVerdict;

use super::{
    super::{ChainKind, conditions, run::Outcome},
    gateway::Gateway,
    random::{Plain, address, packets, policies, requests},
};
use crate::config::DIVERTED;
use crate::routes::{
    address_plan::{AddressPlan, Lead},
    multicast::MulticastGroups,
};

/// Whether the first policy that fits has uxfrm do something to a packet. Of fragments uxfrm is to
/// see all that may meet a policy that asks for ports.
fn is_uxfrms(spd: &Spd, plain: &Plain) -> bool {
    let flow = plain.flow(ChainKind::Way);
    let first = |kind| {
        let all = spd.iter().filter(|entry| {
            (entry.direction(), entry.kind()) == (Direction::Out, kind) && fits(entry, plain, &flow)
        });
        all.min_by_key(|entry| entry.precedence()).map(|entry| outcome(entry))
    };
    match first(PolicyKind::Sub) {
        Some(Outcome::Divert) => true,
        _ => first(PolicyKind::Main) == Some(Outcome::Divert),
    }
}

fn outcome(entry: &PolicyEntry) -> Outcome {
    conditions::of_policy(ChainKind::Way, &entry.policy()).0
}

fn fits(entry: &PolicyEntry, plain: &Plain, flow: &FlowKey) -> bool {
    let mut policy = entry.policy();
    let selector = &mut policy.selector;
    let asks_for_ports = selector.source_port.mask != 0 || selector.destination_port.mask != 0;
    let is_ipv6 = plain.bytes[0] >> 4 == 6;
    let asks_for_more = asks_for_ports || (is_ipv6 && selector.protocol != 0);
    if !is_fragment(plain) || !asks_for_more || outcome(entry) == Outcome::Pass {
        return entry.matches(flow) && !(is_fragment(plain) && asks_for_ports);
    }
    (selector.source_port.mask, selector.destination_port.mask) = (0, 0);
    // Extension headers may stand before it, in the first fragment alone.
    if is_ipv6 {
        selector.protocol = 0;
    }
    policy.mark.fits(flow.mark) && policy.if_id.0 == flow.if_id && policy.selector.matches(flow)
}

const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

fn is_fragment(plain: &Plain) -> bool {
    match plain.bytes[0] >> 4 {
        4 => (plain.bytes[6] & 0x3f, plain.bytes[7]) != (0, 0),
        _ => plain.bytes[6] == FRAGMENT,
    }
}

/// Where the plan's rules lead: the first table that has a route to there, unless that leads on.
fn is_planned(plan: &AddressPlan, flow: &FlowKey) -> bool {
    let holds = |(net, length): (std::net::IpAddr, u8), address| {
        uxfrm_engine::Prefix::new(net, length).unwrap().contains(address)
    };
    plan.sources.iter().filter(|source| holds(source.net, flow.source)).any(|source| {
        let all = source.leads.iter().filter(|(net, _)| holds(*net, flow.destination));
        all.max_by_key(|((_, length), _)| *length).is_some_and(|(_, lead)| *lead == Lead::Tun)
    })
}

fn fragments() -> impl Strategy<Value = Plain> {
    let offsets = prop::sample::select(&[[0, 0], [0x20, 0], [0x20, 3], [0, 9]][..]);
    (packets(), offsets).prop_map(|(mut plain, offset)| {
        let protocol = plain.bytes[6];
        if plain.bytes[0] >> 4 == 4 {
            plain.bytes[6..8].copy_from_slice(&offset);
        } else if offset[1] != 0 && protocol != ROUTING {
            // Behind destination options, if it says so.
            let next = if offset[0] == 0 { protocol } else { DESTINATION_OPTIONS };
            plain.bytes[6] = FRAGMENT;
            plain.bytes.splice(40..40, [next, 0, 0, offset[1] << 3, 0, 0, 0, 1]);
            let length = u16::try_from(plain.bytes.len() - 40).unwrap();
            plain.bytes[4..6].copy_from_slice(&length.to_be_bytes());
        }
        plain
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Neither more nor less than what policies protect goes to uxfrm.
    #[test]
    fn divert_marks_packets_of_protecting_policy(
        first in prop::collection::vec(policies(), 0..40),
        changes in prop::collection::vec(requests(), 0..6),
        packets in prop::collection::vec(fragments(), 48),
        own in prop::collection::vec((any::<bool>(), any::<u8>()), 0..4),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        let own: Vec<_> = own.into_iter().map(|(is_v4, host)| {
            let family = if is_v4 { uxfrm_engine::Family::V4 } else { uxfrm_engine::Family::V6 };
            address(family, host & 0x33)
        }).collect();
        for requests in std::iter::once(Vec::new()).chain(changes.into_iter().map(|one| vec![one])) {
            gateway.handle_together(requests);
            let spd = &gateway.database.current().spd;
            let plan = AddressPlan::of(spd, &own, &MulticastGroups::default());
            for plain in &gateway.guard.filter.packets {
                let flow = plain.flow(ChainKind::Way);
                let judged = gateway.guard.filter.replica.judge("way", &plain.sample(ChainKind::Way)).0;
                let is_marked = judged == RuleVerdict::Mark(DIVERTED);
                let wanted = is_uxfrms(spd, plain);
                prop_assert_eq!(is_marked, wanted, "the chain: {:?}", flow);
                let is_led = is_planned(&plan, &flow);
                prop_assert!(wanted || !is_led, "the plan alone: {:?} {:?}", flow, plan);
            }
        }
    }
}

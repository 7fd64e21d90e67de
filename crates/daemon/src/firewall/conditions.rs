//! Policies as conditions that packets meet.

mod fragments;
mod quoted;

use std::net::IpAddr;

use uxfrm_engine::{
    Action, Direction, DropReason, Family, IfId, Mark, Policy, PolicyFlags, Prefix, Selector,
    TemplateLevel,
};
use uxfrm_io::{nftables::Condition, rtnetlink};
use uxfrm_packet::Version;

use crate::config::DIVERTED;

use super::{
    chain_kind::ChainKind,
    exempt::AH,
    run::{Alternative, Outcome},
    upper_layer,
};

/// What may stand between a fragment header and the upper layer: hop-by-hop options, routing,
/// fragment and authentication headers, destination options.
const EXTENSIONS: [u8; 5] = [0, 43, 44, AH, 60];

/// What a policy does with plain packets in a part, and those that it is for: none where plain
/// packets never meet it.
pub(super) fn of_policy(part: ChainKind, policy: &Policy) -> (Outcome, Vec<Alternative>) {
    let outcome = match part {
        ChainKind::In | ChainKind::Forward | ChainKind::Out => {
            refusal(policy).map_or(Outcome::Pass, Outcome::Drop)
        }
        ChainKind::WholeIn | ChainKind::WholeForward => Outcome::Pass,
        ChainKind::QuotedIn | ChainKind::QuotedForward | ChainKind::RedirectedForward => {
            quoted::outcome(policy)
        }
        ChainKind::Way => divert_outcome(policy),
    };
    // Plain packets from the wire belong to no XFRM interface.
    let is_met = policy.if_id == IfId(0);
    let alternatives = match part {
        _ if !is_met => Vec::new(),
        ChainKind::WholeIn | ChainKind::WholeForward => fragments::of_policy(part, policy),
        ChainKind::QuotedIn | ChainKind::QuotedForward => quoted::errors(policy, outcome),
        ChainKind::RedirectedForward => quoted::redirects(policy, outcome),
        ChainKind::In | ChainKind::Forward | ChainKind::Out | ChainKind::Way => {
            conditions(part, policy, outcome)
        }
    };
    (outcome, alternatives)
}

/// Why a policy drops packets that came through no state; `None` if it lets them pass.
pub(super) fn refusal(policy: &Policy) -> Option<DropReason> {
    let is_required = |level| match level {
        TemplateLevel::Required => true,
        TemplateLevel::Use => false,
    };
    let [block, protect, held] = match policy.direction {
        Direction::In | Direction::Forward => {
            [DropReason::InPolicyBlock, DropReason::InUnprotected, DropReason::InHeld]
        }
        Direction::Out => {
            [DropReason::OutPolicyBlock, DropReason::OutUnprotected, DropReason::OutHeld]
        }
    };
    match policy.action {
        Action::Block if policy.flags.contains(PolicyFlags::HELD) => Some(held),
        Action::Block => Some(block),
        Action::Allow if policy.templates.iter().any(|template| is_required(template.level)) => {
            Some(protect)
        }
        Action::Allow => None,
    }
}

/// Whether packets go to uxfrm that a policy is for: it has all that is not simply let pass.
fn divert_outcome(policy: &Policy) -> Outcome {
    let passes = policy.action == Action::Allow && policy.templates.is_empty();
    if passes { Outcome::Pass } else { Outcome::Divert }
}

/// What a packet must meet to match a policy: one of the lists.
fn conditions(part: ChainKind, policy: &Policy, outcome: Outcome) -> Vec<Alternative> {
    let selector = &policy.selector;
    let mark = Mark { mask: policy.mark.mask & !DIVERTED, ..policy.mark };
    let version = match selector.family() {
        Family::V4 => Version::V4,
        Family::V6 => Version::V6,
    };
    let common: Vec<_> = [
        Some(Condition::version(version)),
        (mark.mask != 0).then(|| Condition::mark(mark.value, mark.mask)),
        (selector.ifindex != 0).then(|| Condition::came_by_index(selector.ifindex)),
        prefix(selector.source).map(Condition::source),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut all = Vec::new();
    for destination in destinations(part, policy, outcome) {
        let upper = match part {
            ChainKind::In | ChainKind::Forward => upper_to_guard(part, selector, version, outcome),
            ChainKind::WholeIn
            | ChainKind::WholeForward
            | ChainKind::QuotedIn
            | ChainKind::QuotedForward
            | ChainKind::RedirectedForward => upper_layer::alternatives(selector),
            ChainKind::Out if outcome == Outcome::Pass => upper_layer::alternatives(selector),
            ChainKind::Out | ChainKind::Way => upper_to_divert(selector, version, outcome),
        };
        let upper = upper.into_iter();
        let both = common.iter().chain(&destination);
        all.extend(upper.map(|upper| both.clone().copied().chain(upper).collect()));
    }
    all
}

/// What says that a packet goes to a policy's destination. Of IPv6 it may go there by others: Linux
/// asks for policies by where it comes at last when a program has it leave
/// (`net/ipv6/exthdrs.c: fl6_update_dst`), by where it goes next when it is forwarded, and by
/// neither when it has come to its last segment here. So a policy that refuses is for both, and one
/// that lets pass for what goes there by no others.
fn destinations(part: ChainKind, policy: &Policy, outcome: Outcome) -> Vec<Vec<Condition>> {
    let Some(prefix) = prefix(policy.selector.destination) else { return vec![Vec::new()] };
    let directly = Condition::destination(prefix);
    let at_last = Condition::last_segment(prefix);
    match (part, prefix.address()) {
        (ChainKind::Out | ChainKind::In, IpAddr::V6(_)) if outcome == Outcome::Pass => {
            vec![vec![Condition::no_routing_header(), directly]]
        }
        (ChainKind::Out | ChainKind::In, IpAddr::V6(_)) => vec![vec![directly], vec![at_last]],
        // uxfrm judges by where a packet goes next.
        (ChainKind::Out | ChainKind::In, IpAddr::V4(_))
        | (
            ChainKind::Forward
            | ChainKind::WholeIn
            | ChainKind::WholeForward
            | ChainKind::QuotedIn
            | ChainKind::QuotedForward
            | ChainKind::RedirectedForward
            | ChainKind::Way,
            _,
        ) => {
            vec![vec![directly]]
        }
    }
}

/// `None` for all addresses.
fn prefix(prefix: Prefix) -> Option<rtnetlink::RoutePrefix> {
    rtnetlink::RoutePrefix::new(prefix.address(), prefix.prefix_len())
        .filter(|prefix| prefix.length() != 0)
}

/// What a packet must meet besides addresses: one of the lists. In IPv6 a fragment tells its
/// datagram's protocol only if its sender is honest: the next header of a later one is never looked
/// at, and a first one may end before the upper layer. So a policy that refuses a protocol to
/// forwarded packets takes all fragments; one that asks for ports, and one for the host, which
/// joins plain fragments to plain ones alone, those that hide their upper layer.
fn upper_to_guard(
    part: ChainKind,
    selector: &Selector,
    version: Version,
    outcome: Outcome,
) -> Vec<Alternative> {
    let mut all = upper_layer::alternatives(selector);
    let asks_for_ports = selector.source_port.mask | selector.destination_port.mask != 0;
    match (outcome, version) {
        (Outcome::Drop(_), Version::V6) if !asks_for_ports && selector.protocol == 0 => {}
        (Outcome::Drop(_), Version::V6) if !asks_for_ports && part == ChainKind::Forward => {
            all.push(vec![Condition::fragment(Version::V6)]);
        }
        (Outcome::Drop(_), Version::V6) => {
            all.extend(EXTENSIONS.map(|next| vec![Condition::fragment_of(next)]));
        }
        (Outcome::Pass | Outcome::Drop(_) | Outcome::Divert, Version::V4 | Version::V6) => {}
    }
    all
}

/// What a packet must meet besides addresses: one of the lists. Of IPv6 only a first fragment tells
/// the protocol where extension headers stand before it.
fn upper_to_divert(selector: &Selector, version: Version, outcome: Outcome) -> Vec<Alternative> {
    let mut all = upper_layer::alternatives(selector);
    let asks_for_ports = selector.source_port.mask != 0 || selector.destination_port.mask != 0;
    let protocol = (selector.protocol != 0).then(|| Condition::protocol(selector.protocol));
    let fragment = Condition::fragment(version);
    match (outcome, version) {
        (Outcome::Pass, _) if asks_for_ports => {
            all.iter_mut().for_each(|conditions| conditions.push(Condition::whole(version)));
        }
        (Outcome::Drop(_) | Outcome::Divert, Version::V6)
            if asks_for_ports || protocol.is_some() =>
        {
            all.push(vec![fragment]);
        }
        (Outcome::Drop(_) | Outcome::Divert, Version::V4) if asks_for_ports => {
            all.push(protocol.into_iter().chain([fragment]).collect());
        }
        (Outcome::Pass | Outcome::Drop(_) | Outcome::Divert, Version::V4 | Version::V6) => {}
    }
    all
}

//! The guard's table: the policies as rules, in the order in which they decide.
//!
//! ```text
//! in:   exempt → accept · sub policies: drop, or goto in-main · jump in-main · default
//! fwd:  by the TUN → accept · sub policies: drop, or goto fwd-main · jump fwd-main · default
//! out:  by the TUN, our own → accept · sub policies: drop, or goto out-main · jump out-main · default
//! *-main:  main policies: drop, or accept
//! ```
//!
//! So a sub policy that lets pass leaves the word to the main one, and where that has none the packet passes, whatever
//! the default (`net/xfrm/xfrm_policy.c: __xfrm_policy_check`, `xfrm_expand_policies`).

use std::{collections::BTreeSet, net::IpAddr};

use uxfrm_engine::{
    Action, Direction, DropReason, Family, IfId, Level, Mark, Policy, PolicyKind, Prefix, Spd,
};
use uxfrm_io::{
    nftables::{Chain, Condition, Hook, Rule, Set, Table, Verdict},
    rtnetlink,
};
use uxfrm_packet::Version;

use super::{
    REASONS,
    layout::Layout,
    part::Part,
    run::{Alternative, Outcome},
    upper_layer, way,
};

/// What the guard must know of its gateway.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// The TUN: what comes in by it was checked by the engine, and what leaves by it will be.
    pub(super) tun: String,
    /// What our own sockets' packets have: they are protected, or nobody's to protect.
    pub(super) mark: u32,
    /// UDP ports of IKE and of ESP in UDP.
    pub(super) ports: BTreeSet<u16>,
    /// What of the policies the table says.
    pub(super) parts: &'static [Part],
}

const ESP: u8 = 50;
const AH: u8 = 51;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// What tables' names begin with, before that of the TUN.
pub(super) const NAME: &str = "uxfrm-";

/// Router and neighbour solicitation and advertisement, redirect (RFC 4861 §4).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// What a policy does with plain packets in a part, and those that it is for: none where plain packets never meet it.
pub(super) fn of_policy(part: Part, policy: &Policy) -> (Outcome, Vec<Alternative>) {
    let outcome = match part {
        Part::In | Part::Forward | Part::Out => {
            refusal(policy).map_or(Outcome::Pass, Outcome::Drop)
        }
        Part::Way => way::outcome(policy),
    };
    // Plain packets from the wire belong to no XFRM interface.
    let is_met = policy.if_id == IfId(0);
    (outcome, if is_met { conditions(part, policy, outcome) } else { Vec::new() })
}

/// How many rules stand behind the sub policies of a direction: the jump to the main ones, the default.
pub(super) fn tail(spd: &Spd, part: Part) -> usize {
    let has_default = part != Part::Way && spd.defaults().of(part.direction()) == Action::Block;
    1 + usize::from(has_default)
}

/// The table for the policies of `spd`, as they are laid out, with these sets.
pub(super) fn table(around: &Surroundings, spd: &Spd, layout: &Layout, sets: Vec<Set>) -> Table {
    let of_guard = first(around).flat_map(|(part, hook, first)| {
        let default = spd.defaults().of(part.direction());
        chains(layout, default, part, hook, first)
    });
    let of_way = around.parts.contains(&Part::Way).then(|| way::chains(around, layout));
    let chains = of_guard.chain(of_way.into_iter().flatten()).collect();
    Table { sets, ..empty(around, chains) }
}

/// A table that drops all but what is exempt.
pub(super) fn closed(around: &Surroundings) -> Table {
    let of_guard = first(around).flat_map(|(part, hook, mut rules)| {
        let reason = match part.direction() {
            Direction::In | Direction::Forward => DropReason::InTemplateMismatch,
            Direction::Out => DropReason::OutUnprotected,
        };
        rules.push(drop(Vec::new(), reason));
        let [name, main] = names(part);
        [
            Chain { name: main, hook: None, rules: Vec::new() },
            Chain { name, hook: Some(hook), rules },
        ]
    });
    // What has no way into the TUN yet is dropped.
    let nothing = Layout::empty(around.parts);
    let of_way = around.parts.contains(&Part::Way).then(|| way::chains(around, &nothing));
    empty(around, of_guard.chain(of_way.into_iter().flatten()).collect())
}

/// The table's name.
pub(super) fn name(around: &Surroundings) -> String {
    format!("{NAME}{}", around.tun)
}

fn empty(around: &Surroundings, chains: Vec<Chain>) -> Table {
    let counters = REASONS.iter().map(|reason| reason.as_str()).collect();
    Table { name: name(around), counters, sets: Vec::new(), chains }
}

/// What stands before all policies.
fn first(around: &Surroundings) -> impl Iterator<Item = (Part, Hook, Vec<Rule>)> {
    let by_tun = accept(vec![Condition::came_by(&around.tun)]);
    let exempt = std::iter::once(by_tun.clone()).chain(exempt(around)).collect();
    let leaving = leaving(around).collect();
    let all = [
        (Part::In, Hook::Input, exempt),
        (Part::Forward, Hook::Forward, vec![by_tun]),
        (Part::Out, Hook::Postrouting, leaving),
    ];
    all.into_iter().filter(|(part, _hook, _rules)| around.parts.contains(part))
}

/// What reaches the host whatever the policies say.
fn exempt(around: &Surroundings) -> impl Iterator<Item = Rule> {
    let ah_in_v6 = [Condition::version(Version::V6), Condition::network_byte(6, AH)];
    let once = [
        vec![Condition::came_by("lo")],
        vec![Condition::protocol(ESP)],
        vec![Condition::version(Version::V4), Condition::protocol(AH)],
        ah_in_v6.into(),
        // The first fragment has all headers and is judged; without it the others are nothing.
        vec![Condition::version(Version::V6), Condition::later_fragment()],
    ];
    let ports = around
        .ports
        .iter()
        .map(|port| vec![Condition::protocol(UDP), Condition::upper_pair(2, *port, u16::MAX)]);
    once.into_iter().chain(ports).map(accept).chain(discovery())
}

/// What leaves whatever the policies say, what there is most of first. What is forwarded is judged as
/// well: rules that stand before ours may lead it past the TUN.
pub(super) fn leaving(around: &Surroundings) -> impl Iterator<Item = Rule> {
    let ours = Condition::mark(around.mark, u32::MAX);
    let once = [ours, Condition::leaves_by(&around.tun), Condition::leaves_by("lo")];
    once.into_iter().map(|condition| accept(vec![condition])).chain(discovery())
}

fn discovery() -> impl Iterator<Item = Rule> {
    NEIGHBOUR_DISCOVERY.map(|kind| {
        // Hop limit 255: from a neighbour (RFC 4861 §3.1).
        accept(vec![
            Condition::version(Version::V6),
            Condition::protocol(ICMPV6),
            Condition::network_byte(7, 255),
            Condition::upper_byte(0, kind, u8::MAX),
        ])
    })
}

/// The chain of main policies and the one at the hook, which begins with `first`.
fn chains(
    layout: &Layout,
    default: Action,
    part: Part,
    hook: Hook,
    first: Vec<Rule>,
) -> [Chain; 2] {
    let [name, main] = names(part);
    let mut rules = first;
    rules.extend(layout.rules(part, PolicyKind::Sub));
    rules.push(Rule { verdict: Verdict::Jump(main), ..accept(Vec::new()) });
    if default == Action::Block {
        rules.push(drop(Vec::new(), default_reason(part.direction())));
    }
    let main_rules = layout.rules(part, PolicyKind::Main);
    [Chain { name: main, hook: None, rules: main_rules }, Chain { name, hook: Some(hook), rules }]
}

/// The chain of a direction's sub policies, which is the one at the hook, and that of its main ones.
fn names(part: Part) -> [&'static str; 2] {
    [PolicyKind::Sub, PolicyKind::Main].map(|kind| part.chain(kind))
}

/// Why a policy drops packets that came through no state; `None` if it lets them pass.
fn refusal(policy: &Policy) -> Option<DropReason> {
    let is_required = |level| match level {
        Level::Required => true,
        Level::Use => false,
    };
    let [block, protect] = match policy.direction {
        Direction::In | Direction::Forward => {
            [DropReason::InPolicyBlock, DropReason::InTemplateMismatch]
        }
        Direction::Out => [DropReason::OutPolicyBlock, DropReason::OutUnprotected],
    };
    match policy.action {
        Action::Block => Some(block),
        Action::Allow if policy.templates.iter().any(|template| is_required(template.level)) => {
            Some(protect)
        }
        Action::Allow => None,
    }
}

/// Why what no policy is for is dropped, where the default is to block.
const fn default_reason(direction: Direction) -> DropReason {
    match direction {
        Direction::In | Direction::Forward => DropReason::InNoPolicy,
        Direction::Out => DropReason::OutDefaultBlock,
    }
}

/// What a packet must meet to match a policy: one of the lists.
fn conditions(part: Part, policy: &Policy, outcome: Outcome) -> Vec<Alternative> {
    let selector = &policy.selector;
    let mark = Mark { mask: policy.mark.mask & !way::DIVERTED, ..policy.mark };
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
    for destination in destinations(part, policy) {
        let upper = match part {
            Part::In | Part::Forward | Part::Out => upper_layer::alternatives(selector),
            Part::Way => way::upper(selector, version, outcome),
        };
        let upper = upper.into_iter();
        let both = common.iter().chain(&destination);
        all.extend(upper.map(|upper| both.clone().copied().chain(upper).collect()));
    }
    all
}

/// What says that a packet goes to a policy's destination. Of IPv6 it may go there by others: Linux asks for policies by where it comes at last when a
/// program has it leave (`net/ipv6/exthdrs.c: fl6_update_dst`).
fn destinations(part: Part, policy: &Policy) -> Vec<Vec<Condition>> {
    let Some(prefix) = prefix(policy.selector.destination) else { return vec![Vec::new()] };
    let directly = Condition::destination(prefix);
    match (part, prefix.address()) {
        (Part::Out, IpAddr::V6(_)) => vec![
            vec![Condition::no_routing_header(), directly],
            vec![Condition::last_segment(prefix)],
        ],
        // uxfrm judges by where a packet goes next.
        (Part::Out, IpAddr::V4(_)) | (Part::In | Part::Forward | Part::Way, _) => {
            vec![vec![directly]]
        }
    }
}

/// `None` for all addresses.
fn prefix(prefix: Prefix) -> Option<rtnetlink::Prefix> {
    rtnetlink::Prefix::new(prefix.address(), prefix.prefix_len())
        .filter(|prefix| prefix.length() != 0)
}

pub(super) fn accept(conditions: Vec<Condition>) -> Rule {
    Rule { conditions, among: None, counter: None, verdict: Verdict::Accept }
}

fn drop(conditions: Vec<Condition>, reason: DropReason) -> Rule {
    let counter = Some(reason.as_str());
    Rule { conditions, among: None, counter, verdict: Verdict::Drop }
}

#[cfg(test)]
mod tests;

//! The guard's table: the policies as rules, in the order in which they decide.
//!
//! ```text
//! in:   exempt → accept · sub policies: drop, or goto in-main · jump in-main · default
//! fwd:  by the TUN → accept · sub policies: drop, or goto fwd-main · jump fwd-main · default
//! out:  by the TUN, our own, forwarded → accept · sub policies: drop, or goto out-main · jump out-main · default
//! *-main:  main policies: drop, or accept
//! ```
//!
//! So a sub policy that lets pass leaves the word to the main one, and where that has none the packet passes, whatever
//! the default (`net/xfrm/xfrm_policy.c: __xfrm_policy_check`, `xfrm_expand_policies`).

use std::{collections::BTreeSet, sync::Arc};

use uxfrm_engine::{
    Action, Direction, DropReason, Family, IfId, Level, Policy, PolicyEntry, PolicyKind, Prefix,
    Spd,
};
use uxfrm_io::{
    nftables::{Chain, Condition, Hook, Rule, Table, Verdict},
    rtnetlink,
};
use uxfrm_packet::Version;

use super::{REASONS, upper_layer};

/// What the guard must know of its gateway.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// The TUN: what comes in by it was checked by the engine, and what leaves by it will be.
    pub(super) tun: String,
    /// What our own sockets' packets have: they are protected, or nobody's to protect.
    pub(super) mark: u32,
    /// UDP ports of IKE and of ESP in UDP.
    pub(super) ports: BTreeSet<u16>,
}

const ESP: u8 = 50;
const AH: u8 = 51;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Router and neighbour solicitation and advertisement, redirect (RFC 4861 §4).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// The chains that policies stand in.
pub(super) const CHAINS: [(Direction, PolicyKind); 6] = [
    (Direction::In, PolicyKind::Sub),
    (Direction::In, PolicyKind::Main),
    (Direction::Forward, PolicyKind::Sub),
    (Direction::Forward, PolicyKind::Main),
    (Direction::Out, PolicyKind::Sub),
    (Direction::Out, PolicyKind::Main),
];

/// With more policies in all, each plain packet would go along too many of those `out`.
const MANY: usize = 10_000;

/// Whether there are so many policies that those `out` have no rules.
pub(super) const fn are_many(spd: &Spd) -> bool {
    spd.len() > MANY
}

/// The name of the chain of a direction and kind.
pub(super) const fn chain(direction: Direction, kind: PolicyKind) -> &'static str {
    match (direction, kind) {
        (Direction::In, PolicyKind::Sub) => "in",
        (Direction::In, PolicyKind::Main) => "in-main",
        (Direction::Forward, PolicyKind::Sub) => "fwd",
        (Direction::Forward, PolicyKind::Main) => "fwd-main",
        (Direction::Out, PolicyKind::Sub) => "out",
        (Direction::Out, PolicyKind::Main) => "out-main",
    }
}

/// The rules of one policy, in its chain: none where plain packets never meet it.
pub(super) fn of_policy(policy: &Policy) -> Vec<Rule> {
    let pass = match policy.kind {
        PolicyKind::Main => Verdict::Accept,
        PolicyKind::Sub => Verdict::Goto(chain(policy.direction, PolicyKind::Main)),
    };
    rules(policy, pass).collect()
}

/// The policies of one chain, in the order in which they decide.
pub(super) fn of_chain(
    spd: &Spd,
    direction: Direction,
    kind: PolicyKind,
) -> Vec<&Arc<PolicyEntry>> {
    if direction == Direction::Out && are_many(spd) {
        return Vec::new();
    }
    let meant = |entry: &&Arc<PolicyEntry>| entry.kind() == kind && entry.direction() == direction;
    let mut list: Vec<_> = spd.iter().filter(meant).collect();
    list.sort_unstable_by_key(|entry| entry.place());
    list
}

/// How many rules stand behind the sub policies of a direction: the jump to the main ones, the default.
pub(super) fn tail(spd: &Spd, direction: Direction) -> usize {
    1 + usize::from(spd.defaults().of(direction) == Action::Block)
}

/// The table for the policies of `spd`.
pub(super) fn table(around: &Surroundings, spd: &Spd) -> Table {
    let by_tun = accept(vec![Condition::came_by(&around.tun)]);
    let exempt = std::iter::once(by_tun.clone()).chain(exempt(around)).collect();
    let [into, into_main] = chains(spd, Direction::In, Hook::Input, exempt);
    let [through, through_main] = chains(spd, Direction::Forward, Hook::Forward, vec![by_tun]);
    let leaving = leaving(around, spd.defaults().of(Direction::Out)).collect();
    let [out, out_main] = chains(spd, Direction::Out, Hook::Postrouting, leaving);
    Table {
        name: format!("uxfrm-{}", around.tun),
        counters: REASONS.iter().map(|reason| reason.as_str()).collect(),
        chains: vec![into_main, through_main, out_main, into, through, out],
    }
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

/// What leaves whatever the policies say. Of what is forwarded routes bring all to the TUN that a policy is for: no socket of it can name a device. It need
/// not go along all policies, unless what none is for is to be dropped.
fn leaving(around: &Surroundings, default: Action) -> impl Iterator<Item = Rule> {
    let ours = Condition::mark(around.mark, u32::MAX);
    let once = [Condition::leaves_by(&around.tun), Condition::leaves_by("lo"), ours];
    let forwarded = (default == Action::Allow).then(Condition::came_in);
    once.into_iter().chain(forwarded).map(|condition| accept(vec![condition])).chain(discovery())
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

/// The chain at the hook, which begins with `first`, and that of main policies.
fn chains(spd: &Spd, direction: Direction, hook: Hook, first: Vec<Rule>) -> [Chain; 2] {
    let [name, main] = [PolicyKind::Sub, PolicyKind::Main].map(|kind| chain(direction, kind));
    let policies = |kind| {
        let list = of_chain(spd, direction, kind);
        list.into_iter().flat_map(|entry| of_policy(&entry.policy()))
    };
    let mut rules = first;
    rules.extend(policies(PolicyKind::Sub));
    rules.push(Rule { conditions: Vec::new(), counter: None, verdict: Verdict::Jump(main) });
    if spd.defaults().of(direction) == Action::Block {
        rules.push(drop(Vec::new(), default_reason(direction)));
    }
    let main_rules = policies(PolicyKind::Main).collect();
    [Chain { name, hook: Some(hook), rules }, Chain { name: main, hook: None, rules: main_rules }]
}

/// A policy as rules, one for each alternative of its selector; packets that may pass get the verdict `pass`.
fn rules(policy: &Policy, pass: Verdict) -> impl Iterator<Item = Rule> {
    let refusal = refusal(policy);
    // Plain packets from the wire belong to no XFRM interface.
    let alternatives = if policy.if_id == IfId(0) { conditions(policy) } else { Vec::new() };
    alternatives.into_iter().map(move |conditions| match refusal {
        Some(reason) => drop(conditions, reason),
        None => Rule { conditions, counter: None, verdict: pass },
    })
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
fn conditions(policy: &Policy) -> Vec<Vec<Condition>> {
    let selector = &policy.selector;
    let mark = policy.mark;
    let version = match selector.family() {
        Family::V4 => Version::V4,
        Family::V6 => Version::V6,
    };
    let common: Vec<_> = [
        Some(Condition::version(version)),
        (mark.mask != 0).then(|| Condition::mark(mark.value, mark.mask)),
        (selector.ifindex != 0).then(|| Condition::came_by_index(selector.ifindex)),
        prefix(selector.source).map(Condition::source),
        prefix(selector.destination).map(Condition::destination),
    ]
    .into_iter()
    .flatten()
    .collect();
    let alternatives = upper_layer::alternatives(selector).into_iter();
    alternatives.map(|upper| common.iter().copied().chain(upper).collect()).collect()
}

/// `None` for all addresses.
fn prefix(prefix: Prefix) -> Option<rtnetlink::Prefix> {
    rtnetlink::Prefix::new(prefix.address(), prefix.prefix_len())
        .filter(|prefix| prefix.length() != 0)
}

fn accept(conditions: Vec<Condition>) -> Rule {
    Rule { conditions, counter: None, verdict: Verdict::Accept }
}

fn drop(conditions: Vec<Condition>, reason: DropReason) -> Rule {
    Rule { conditions, counter: Some(reason.as_str()), verdict: Verdict::Drop }
}

#[cfg(test)]
mod tests;

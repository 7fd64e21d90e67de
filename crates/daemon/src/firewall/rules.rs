//! The guard's table: the policies as rules, in the order in which they decide.
//!
//! ```text
//! in:   exempt → accept · goto in-sub
//! fwd:  by the TUN → accept · goto fwd-sub
//! *-sub:   sub policies: drop, or goto *-main · jump *-main · default
//! out:  by TUN, our own → accept · sub policies: drop, or goto out-main · jump out-main · default
//! *-main:  main policies: drop, or accept
//! ```
//!
//! So a sub policy that lets pass leaves the word to the main one, and where that has none the
//! packet passes, whatever the default (`net/xfrm/xfrm_policy.c: __xfrm_policy_check`,
//! `xfrm_expand_policies`).

use std::{collections::BTreeSet, net::IpAddr};

use uxfrm_engine::{
    Action, Direction, DropReason, Family, IfId, Mark, Policy, PolicyFlags, PolicyKind, Prefix,
    Spd, TemplateLevel,
};
use uxfrm_io::{
    nftables::{Chain, Condition, Hook, Rule, RuleVerdict, Set, Table},
    rtnetlink,
};
use uxfrm_packet::Version;

use crate::config::DIVERTED;

use super::{
    REASONS,
    chain_kind::ChainKind,
    divert, fragments,
    ruleset_state::RulesetState,
    run::{Alternative, Outcome},
    upper_layer,
};

/// What the ruleset depends on beside policies: the TUN, the mark and the ports.
#[derive(Debug)]
pub(super) struct RulesetContext {
    /// The TUN: what comes in by it was checked by the engine, and what leaves by it will be.
    pub(super) tun: String,
    /// What our own sockets' packets have: they are protected, or nobody's to protect.
    pub(super) mark: u32,
    /// UDP ports of IKE and of ESP in UDP.
    pub(super) ports: BTreeSet<u16>,
    /// The devices of inline mode.
    pub(super) inline: Vec<String>,
    /// What of the policies the table says.
    pub(super) parts: &'static [ChainKind],
}

pub(super) const ESP: u8 = 50;
pub(super) const AH: u8 = 51;
pub(super) const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// What tables' names begin with, before that of the TUN.
pub(super) const NAME: &str = "uxfrm-";

/// Router and neighbour solicitation and advertisement, redirect (RFC 4861 §4).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// What a policy does with plain packets in a part, and those that it is for: none where plain
/// packets never meet it.
pub(super) fn of_policy(part: ChainKind, policy: &Policy) -> (Outcome, Vec<Alternative>) {
    let outcome = match part {
        ChainKind::In | ChainKind::Forward | ChainKind::Out => {
            refusal(policy).map_or(Outcome::Pass, Outcome::Drop)
        }
        ChainKind::WholeIn | ChainKind::WholeForward => Outcome::Pass,
        ChainKind::Way => divert::outcome(policy),
    };
    // Plain packets from the wire belong to no XFRM interface.
    let is_met = policy.if_id == IfId(0);
    let alternatives = match part {
        _ if !is_met => Vec::new(),
        ChainKind::WholeIn | ChainKind::WholeForward => fragments::of_policy(part, policy),
        ChainKind::In | ChainKind::Forward | ChainKind::Out | ChainKind::Way => {
            conditions(part, policy, outcome)
        }
    };
    (outcome, alternatives)
}

/// How many rules stand behind the sub policies of a part.
pub(super) fn tail(spd: &Spd, part: ChainKind) -> usize {
    match part {
        ChainKind::WholeIn | ChainKind::WholeForward => 0,
        ChainKind::Way => 1,
        ChainKind::In | ChainKind::Forward | ChainKind::Out => {
            behind(spd.defaults().of(part.direction()), part).len()
        }
    }
}

/// The table for the policies of `spd`, as they are laid out, with these sets.
pub(super) fn table(
    context: &RulesetContext,
    spd: &Spd,
    layout: &RulesetState,
    sets: Vec<Set>,
) -> Table {
    let of_guard = first(context).flat_map(|(part, hook, first)| {
        let default = spd.defaults().of(part.direction());
        let [main, sub] = policies(layout, default, part);
        entered(hook, first, main, sub)
    });
    let of_way = context.parts.contains(&ChainKind::Way).then(|| divert::chains(context, layout));
    let of_fragments = fragments::chains(context, layout);
    let chains = of_guard.chain(of_way.into_iter().flatten()).chain(of_fragments).collect();
    Table { sets, ..empty(context, chains) }
}

/// A table that drops all but what is exempt.
pub(super) fn closed(context: &RulesetContext) -> Table {
    let of_guard = first(context).flat_map(|(part, hook, first)| {
        let reason = match part.direction() {
            Direction::In | Direction::Forward => DropReason::InTemplateMismatch,
            Direction::Out => DropReason::OutUnprotected,
        };
        let [main, sub] = inner(part, [Vec::new(), vec![drop(Vec::new(), reason)]]);
        entered(hook, first, main, sub)
    });
    // What has no way into the TUN yet is dropped.
    let nothing = RulesetState::empty(context.parts);
    let of_way = context.parts.contains(&ChainKind::Way).then(|| divert::chains(context, &nothing));
    let of_fragments = fragments::chains(context, &nothing);
    empty(context, of_guard.chain(of_way.into_iter().flatten()).chain(of_fragments).collect())
}

/// The table's name.
pub(super) fn name(context: &RulesetContext) -> String {
    format!("{NAME}{}", context.tun)
}

fn empty(context: &RulesetContext, chains: Vec<Chain>) -> Table {
    let counters = REASONS.iter().map(|reason| reason.as_str()).collect();
    Table { name: name(context), counters, sets: Vec::new(), chains }
}

/// What stands before all policies.
fn first(context: &RulesetContext) -> impl Iterator<Item = (ChainKind, Hook, Vec<Rule>)> {
    let by_tun = accept(vec![Condition::came_by(&context.tun)]);
    let exempt = std::iter::once(by_tun.clone()).chain(exempt(context)).collect();
    let leaving = leaving(context).collect();
    let all = [
        (ChainKind::In, Hook::Input, exempt),
        (ChainKind::Forward, Hook::Forward, vec![by_tun]),
        (ChainKind::Out, Hook::Postrouting, leaving),
    ];
    all.into_iter().filter(|(part, _hook, _rules)| context.parts.contains(part))
}

/// What reaches the host whatever the policies say.
fn exempt(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let ah_in_v6 = [Condition::version(Version::V6), Condition::network_byte(6, AH)];
    let once = [
        vec![Condition::came_by("lo")],
        vec![Condition::protocol(ESP)],
        vec![Condition::version(Version::V4), Condition::protocol(AH)],
        ah_in_v6.into(),
        // The first fragment has all headers and is judged; without it the others are nothing.
        vec![Condition::version(Version::V6), Condition::later_fragment()],
    ];
    once.into_iter().chain(ports(context)).map(accept).chain(discovery())
}

/// UDP to IKE's ports and to those of ESP in UDP.
pub(super) fn ports(context: &RulesetContext) -> impl Iterator<Item = Vec<Condition>> {
    let port = |port: &u16| Condition::upper_pair(2, *port, u16::MAX);
    context.ports.iter().map(move |to| vec![Condition::protocol(UDP), port(to)])
}

/// What leaves whatever the policies say, what there is most of first. What is forwarded is judged
/// as well: rules that stand before ours may lead it past the TUN.
pub(super) fn leaving(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let ours = Condition::mark(context.mark, u32::MAX);
    let once = [ours, Condition::leaves_by(&context.tun), Condition::leaves_by("lo")];
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

/// The chains of main and of sub policies.
fn policies(layout: &RulesetState, default: Action, part: ChainKind) -> [Chain; 2] {
    let [main, mut rules] =
        [PolicyKind::Main, PolicyKind::Sub].map(|kind| layout.rules(part, kind));
    rules.extend(behind(default, part));
    inner(part, [main, rules])
}

/// What stands behind sub policies: the jump to the main ones, and the default.
fn behind(default: Action, part: ChainKind) -> Vec<Rule> {
    let main = part.chain(PolicyKind::Main);
    let mut rules = vec![Rule { verdict: RuleVerdict::Jump(main), ..accept(Vec::new()) }];
    if default == Action::Allow {
        return rules;
    }
    if part == ChainKind::In {
        rules.extend(fragments::undecided());
    }
    rules.push(drop(Vec::new(), default_reason(part.direction())));
    rules
}

fn inner(part: ChainKind, [main, sub]: [Vec<Rule>; 2]) -> [Chain; 2] {
    let chain = |(kind, rules)| Chain { name: part.chain(kind), hook: None, rules };
    [(PolicyKind::Main, main), (PolicyKind::Sub, sub)].map(chain)
}

/// The chains of policies and the one at a hook, which begins with `first` and leads to them. What
/// leaves comes to the sub policies nowhere else: they stand at the hook themselves.
fn entered(hook: Hook, mut first: Vec<Rule>, main: Chain, sub: Chain) -> Vec<Chain> {
    let name = match hook {
        Hook::Input => "in",
        Hook::Forward => "fwd",
        Hook::Postrouting
        | Hook::Prerouting
        | Hook::Fragments
        | Hook::BeforeRouting
        | Hook::Rerouting => {
            first.extend(sub.rules);
            return vec![main, Chain { hook: Some(hook), rules: first, ..sub }];
        }
    };
    first.push(Rule { verdict: RuleVerdict::Goto(sub.name), ..accept(Vec::new()) });
    vec![main, sub, Chain { name, hook: Some(hook), rules: first }]
}

/// Why a policy drops packets that came through no state; `None` if it lets them pass.
pub(super) fn refusal(policy: &Policy) -> Option<DropReason> {
    let is_required = |level| match level {
        TemplateLevel::Required => true,
        TemplateLevel::Use => false,
    };
    let [block, protect, held] = match policy.direction {
        Direction::In | Direction::Forward => {
            [DropReason::InPolicyBlock, DropReason::InTemplateMismatch, DropReason::InHeld]
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

/// Why what no policy is for is dropped, where the default is to block.
const fn default_reason(direction: Direction) -> DropReason {
    match direction {
        Direction::In | Direction::Forward => DropReason::InNoPolicy,
        Direction::Out => DropReason::OutDefaultBlock,
    }
}

/// What a packet must meet to match a policy: one of the lists.
pub(super) fn conditions(part: ChainKind, policy: &Policy, outcome: Outcome) -> Vec<Alternative> {
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
            ChainKind::In | ChainKind::Forward => {
                fragments::upper(part, selector, version, outcome)
            }
            ChainKind::WholeIn | ChainKind::WholeForward => upper_layer::alternatives(selector),
            ChainKind::Out if outcome == Outcome::Pass => upper_layer::alternatives(selector),
            ChainKind::Out | ChainKind::Way => divert::upper(selector, version, outcome),
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
        | (ChainKind::Forward | ChainKind::WholeIn | ChainKind::WholeForward | ChainKind::Way, _) =>
        {
            vec![vec![directly]]
        }
    }
}

/// `None` for all addresses.
fn prefix(prefix: Prefix) -> Option<rtnetlink::RoutePrefix> {
    rtnetlink::RoutePrefix::new(prefix.address(), prefix.prefix_len())
        .filter(|prefix| prefix.length() != 0)
}

pub(super) fn accept(conditions: Vec<Condition>) -> Rule {
    Rule { conditions, set_lookup: None, counter: None, verdict: RuleVerdict::Accept }
}

fn drop(conditions: Vec<Condition>, reason: DropReason) -> Rule {
    let counter = Some(reason.as_str());
    Rule { conditions, set_lookup: None, counter, verdict: RuleVerdict::Drop }
}

#[cfg(test)]
mod tests;

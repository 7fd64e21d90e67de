//! The guard's table: the policies as rules, in the order in which they decide.
//!
//! ```text
//! in:   exempt → accept · goto in-sub
//! fwd:  by the TUN → accept · goto fwd-sub
//! *-sub:   sub policies: drop, or goto *-main · jump *-main · default
//! out:  by TUN, our own → accept · ICMP errors, by what they quote: drop
//!       sub policies: drop, or goto out-main · jump out-main · default
//! *-main:  main policies: drop, or accept
//! ```
//!
//! So a sub policy that lets pass leaves the word to the main one, and where that has none the
//! packet passes, whatever the default (`net/xfrm/xfrm_policy.c: __xfrm_policy_check`,
//! `xfrm_expand_policies`).

use uxfrm_engine::{Action, Direction, DropReason, PolicyKind, Spd};
use uxfrm_io::nftables::{Chain, Condition, Hook, Rule, RuleVerdict, Set, Table};

use super::{
    REASONS,
    chain_kind::ChainKind,
    default_rules::{self, drop},
    divert,
    exempt::{self, RulesetContext, accept},
    fragments, quotes,
    ruleset_state::RulesetState,
};

/// What tables' names begin with, before that of the TUN.
pub(super) const NAME: &str = "uxfrm-";

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
    let of_quotes = quotes::chains(context, layout);
    let beside = of_way.into_iter().flatten().chain(of_fragments).chain(of_quotes);
    Table { sets, ..empty(context, of_guard.chain(beside).collect()) }
}

/// A table that drops all but what is exempt.
pub(super) fn closed(context: &RulesetContext) -> Table {
    let of_guard = first(context).flat_map(|(part, hook, first)| {
        let reason = match part.direction() {
            Direction::In | Direction::Forward => DropReason::InUnprotected,
            Direction::Out => DropReason::OutUnprotected,
        };
        let [main, sub] = inner(part, [Vec::new(), vec![drop(Vec::new(), reason)]]);
        entered(hook, first, main, sub)
    });
    // What has no way into the TUN yet is dropped.
    let nothing = RulesetState::empty(context.parts);
    let of_way = context.parts.contains(&ChainKind::Way).then(|| divert::chains(context, &nothing));
    let of_fragments = fragments::chains(context, &nothing);
    let of_quotes = quotes::closed(context);
    let beside = of_way.into_iter().flatten().chain(of_fragments).chain(of_quotes);
    empty(context, of_guard.chain(beside).collect())
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
    let exempt = std::iter::once(by_tun.clone()).chain(exempt::arriving(context)).collect();
    let leaving =
        exempt::unjudged(context).chain(quotes::entry()).chain(exempt::discovery()).collect();
    let all = [
        (ChainKind::In, Hook::Input, exempt),
        (ChainKind::Forward, Hook::Forward, vec![by_tun]),
        (ChainKind::Out, Hook::Postrouting, leaving),
    ];
    all.into_iter().filter(|(part, _hook, _rules)| context.parts.contains(part))
}

/// The chains of main and of sub policies.
fn policies(layout: &RulesetState, default: Action, part: ChainKind) -> [Chain; 2] {
    let [main, mut rules] =
        [PolicyKind::Main, PolicyKind::Sub].map(|kind| layout.rules(part, kind));
    rules.extend(default_rules::rules(default, part));
    inner(part, [main, rules])
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

#[cfg(test)]
mod tests;

//! Which way packets take: what the policies `out` have uxfrm do something to is marked, and a rule
//! leads what is marked into the TUN.
//!
//! ```text
//! way-in   before routing:    jump way
//! way-out  behind routing:    by TUN, loopback, our own, neighbour discovery → accept · jump way
//! way:       sub policies: goto divert, or goto way-main · jump way-main
//! way-main:  main policies: goto divert, or accept
//! divert:    to an own address → accept · mark
//! ```
//!
//! So a packet has the route and the source address that it would have without uxfrm, and only then
//! is asked for policies, as in Linux. What gets the mark on its way out is routed anew by the
//! kernel; what has its way into the TUN from routes already is not looked at.
//!
//! Fragments have ports in the first one alone. Where a policy asks for ports all of them go to the
//! TUN, and uxfrm judges the whole datagram; of IPv6 also where it asks for a protocol.

use uxfrm_engine::PolicyKind;
use uxfrm_io::nftables::{Chain, Condition, Hook, Rule, RuleVerdict};

use crate::config::DIVERTED;

use super::{
    chain_kind::{ChainKind, DIVERT},
    exempt::{self, RulesetContext, accept},
    ruleset_state::RulesetState,
};

/// The chains, with the policies as they are laid out.
pub(super) fn chains(context: &RulesetContext, layout: &RulesetState) -> Vec<Chain> {
    let [way, main] = [PolicyKind::Sub, PolicyKind::Main].map(|kind| ChainKind::Way.chain(kind));
    let jump = |to| Rule { verdict: RuleVerdict::Jump(to), ..accept(Vec::new()) };
    let mut of_sub = layout.rules(ChainKind::Way, PolicyKind::Sub);
    of_sub.push(jump(main));
    let mut leaving: Vec<_> = exempt::leaving(context).collect();
    leaving.push(jump(way));
    let chain = |name, hook, rules| Chain { name, hook, rules };
    vec![
        chain(DIVERT, None, divert()),
        chain(main, None, layout.rules(ChainKind::Way, PolicyKind::Main)),
        chain(way, None, of_sub),
        chain("way-in", Some(Hook::BeforeRouting), vec![jump(way)]),
        chain("way-out", Some(Hook::Rerouting), leaving),
    ]
}

/// The mark of what the host itself takes would be others' to see, and nobody's to use.
fn divert() -> Vec<Rule> {
    let mark = Rule { verdict: RuleVerdict::Mark(DIVERTED), ..accept(Vec::new()) };
    vec![accept(vec![Condition::to_own_address()]), mark]
}

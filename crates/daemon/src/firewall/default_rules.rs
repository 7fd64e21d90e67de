//! The rules behind all sub policies: the jump to the main ones, and what happens to packets that
//! no policy is for.

use uxfrm_engine::{Action, Direction, DropReason, PolicyKind, Spd};
use uxfrm_io::nftables::{Condition, Rule, RuleVerdict};
use uxfrm_packet::Version;

use super::{
    chain_kind::ChainKind,
    exempt::{UDP, accept},
};

/// How many there are.
pub(super) fn count(spd: &Spd, part: ChainKind) -> usize {
    match part {
        ChainKind::WholeIn | ChainKind::WholeForward => 0,
        ChainKind::QuotedIn
        | ChainKind::QuotedForward
        | ChainKind::RedirectedForward
        | ChainKind::Way => 1,
        ChainKind::In | ChainKind::Forward | ChainKind::Out => {
            rules(spd.defaults().of(part.direction()), part).len()
        }
    }
}

/// The rules for a default.
pub(super) fn rules(default: Action, part: ChainKind) -> Vec<Rule> {
    let main = part.chain(PolicyKind::Main);
    let mut rules = vec![Rule { verdict: RuleVerdict::Jump(main), ..accept(Vec::new()) }];
    if default == Action::Allow {
        return rules;
    }
    if part == ChainKind::In {
        rules.extend(undecided());
    }
    rules.push(drop(Vec::new(), default_reason(part.direction())));
    rules
}

/// Before the default to block what comes to the host: of UDP it may be IKE, and it is
/// judged whole.
fn undecided() -> [Rule; 2] {
    [(Version::V4, Condition::later_of_ipv4()), (Version::V6, Condition::later_fragment())].map(
        |(version, later)| {
            accept(vec![Condition::version(version), Condition::protocol(UDP), later])
        },
    )
}

/// Why what no policy is for is dropped, where the default is to block.
const fn default_reason(direction: Direction) -> DropReason {
    match direction {
        Direction::In | Direction::Forward => DropReason::InDefaultBlock,
        Direction::Out => DropReason::OutDefaultBlock,
    }
}

pub(super) fn drop(conditions: Vec<Condition>, reason: DropReason) -> Rule {
    let counter = Some(reason.as_str());
    Rule { conditions, set_lookup: None, counter, verdict: RuleVerdict::Drop }
}

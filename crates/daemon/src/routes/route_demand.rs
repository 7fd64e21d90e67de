//! The routes that an outbound policy needs.

use std::net::IpAddr;

use uxfrm_engine::{Action, Direction, PolicyChange, PolicyEntry};

use super::{
    addresses::{net, source},
    destinations::Destination,
};

/// The route that an outbound policy wants, unless it simply lets pass, and the source address
/// that goes with it.
pub(super) fn wish(
    entry: &PolicyEntry,
    sources: &[IpAddr],
) -> Option<(Destination, Option<IpAddr>)> {
    is_led(entry).then(|| {
        let selector = entry.selector();
        let destination = selector.destination;
        let source = source(selector.source, sources);
        (net(destination), source)
    })
}

/// Whether packets of a policy go to uxfrm.
pub(super) fn is_led(entry: &PolicyEntry) -> bool {
    entry.direction() == Direction::Out && !passes_plain(entry)
}

/// Whether a policy simply lets packets pass.
pub(crate) fn passes_plain(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Allow && entry.templates().len() == 0
}

/// Whether a change is about packets on their way out.
pub(super) fn is_of_out(change: &PolicyChange) -> bool {
    let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = change;
    entry.direction() == Direction::Out
}

/// Whether packets may be uxfrm's no more that were until then.
pub(super) fn lets_go(change: &PolicyChange) -> bool {
    is_of_out(change)
        && match change {
            PolicyChange::Added(entry) => passes_plain(entry),
            PolicyChange::Removed(entry) => !passes_plain(entry),
        }
}

/// Whether a change only has more packets refused. One that leaves some of a destination's packets
/// to other policies is none: those find their way all the time. Nor is one that goes: its
/// neighbours may need routes of their own.
pub(super) fn only_blocks(change: &PolicyChange) -> bool {
    match change {
        PolicyChange::Added(entry) => {
            entry.action() == Action::Block && entry.selector().protocol == 0
        }
        PolicyChange::Removed(_) => false,
    }
}

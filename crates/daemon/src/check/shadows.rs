//! Policies that never decide, as one without ESP goes first for all that they select.

use uxfrm_engine::{Action, PolicyEntry, PortMask};

use super::{Finding, Subject};
use crate::wording;

/// Plain policies that others are compared with, the widest first.
const MOST: usize = 1024;

/// Protecting policies behind one that blocks or lets pass all of theirs.
pub(super) fn behind_plain(subject: &Subject<'_>) -> Vec<Finding> {
    let all = || subject.snapshot.spd.iter().map(|entry| &**entry);
    let mut plain: Vec<_> = all().filter(|entry| entry.templates().len() == 0).collect();
    plain.sort_by_key(|entry| {
        let selector = entry.selector();
        u16::from(selector.source.prefix_len()) + u16::from(selector.destination.prefix_len())
    });
    plain.truncate(MOST);
    let protecting = all().filter(|entry| entry.templates().len() > 0);
    let hidden = protecting.filter_map(|entry| {
        let first = plain.iter().find(|one| hides(one, entry))?;
        Some(finding(entry, first))
    });
    hidden.collect()
}

fn finding(entry: &PolicyEntry, first: &PolicyEntry) -> Finding {
    let (hidden, priority) = (wording::policy(entry), entry.precedence().priority().0);
    let (other, before) = (wording::policy(first), first.precedence().priority().0);
    let does = match first.action() {
        Action::Block => "drops all of its packets",
        Action::Allow => "lets all of its packets pass PLAIN",
    };
    Finding::warning(
        format!(
            "`{hidden} priority {priority}` never decides: `{other} priority {before}` goes first \
             and {does}"
        ),
        "the lower priority goes first, of equal ones the older: change one of them".to_owned(),
    )
}

/// Whether one policy goes before another for all packets that this one selects.
fn hides(one: &PolicyEntry, other: &PolicyEntry) -> bool {
    let (wide, narrow) = (one.selector(), other.selector());
    one.direction() == other.direction()
        && one.kind() == other.kind()
        && one.precedence() < other.precedence()
        && one.if_id() == other.if_id()
        && (one.mark().mask == 0 || one.mark() == other.mark())
        && wide.family() == narrow.family()
        && wide.source.covers(narrow.source)
        && wide.destination.covers(narrow.destination)
        && (wide.protocol == 0 || wide.protocol == narrow.protocol)
        && has_port(wide.source_port, narrow.source_port)
        && has_port(wide.destination_port, narrow.destination_port)
        && (wide.ifindex == 0 || wide.ifindex == narrow.ifindex)
}

/// Whether all ports of `narrow` are in `wide`.
const fn has_port(wide: PortMask, narrow: PortMask) -> bool {
    wide.mask & narrow.mask == wide.mask && wide.fits(narrow.value)
}

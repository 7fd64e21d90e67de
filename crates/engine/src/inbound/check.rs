//! Whether a packet, as it came and through what it came, may pass: `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::sa::config::SaFlags;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Action, Direction, DropReason, FlowKey, Level, Lookup, Mode, PolicyEntry, PolicyKind, Sa,
    Snapshot, Template,
};

/// SAs around a packet at the most (`XFRM_MAX_DEPTH`).
pub(crate) const MAX_DEPTH: usize = 6;

/// The SAs that a packet came through, the outermost first (`struct sec_path`).
pub(crate) type SecPath<'a> = ArrayVec<&'a Sa, MAX_DEPTH>;

/// Checks a plain packet against the states it came through and the policies of its direction.
pub(crate) fn check(
    snapshot: &Snapshot,
    direction: Direction,
    flow: &FlowKey,
    path: &SecPath<'_>,
    bytes: usize,
    now: crate::Moment,
) -> Result<(), DropReason> {
    if !path.iter().all(|sa| carries(sa, flow)) {
        return Err(DropReason::InSelectorMismatch);
    }
    let found = match snapshot.spd.lookup(direction, flow) {
        Lookup::Policy(entry) => entry,
        Lookup::Default(Action::Block) => return Err(DropReason::InNoPolicy),
        Lookup::Default(Action::Allow) if has_tunnel(path) => return Err(DropReason::InNoPolicy),
        Lookup::Default(Action::Allow) => return Ok(()),
    };
    found.charge(1, bytes as u64, now);
    let main = match found.kind() {
        PolicyKind::Sub => snapshot.spd.lookup_kind(PolicyKind::Main, direction, flow),
        PolicyKind::Main => None,
    };
    let deciding = std::iter::once(found).chain(main);
    if deciding.clone().any(|entry| entry.policy().action == Action::Block) {
        return Err(DropReason::InPolicyBlock);
    }
    if satisfies(deciding, path) { Ok(()) } else { Err(DropReason::InTemplateMismatch) }
}

/// Whether a state's selector lets the packet through; ICMP may report errors of any flow where the state says so.
fn carries(sa: &Sa, flow: &FlowKey) -> bool {
    let config = sa.config();
    let icmp = matches!(flow.protocol, 1 | 58) && config.flags.contains(SaFlags::ICMP);
    icmp || config.selector.as_ref().is_none_or(|selector| selector.matches(flow))
}

fn has_tunnel(path: &[&Sa]) -> bool {
    path.iter().any(|sa| sa.config().mode != Mode::Transport)
}

/// Whether the SAs used are those that the templates ask for: from the outermost inward every template finds its SA, and no tunnel is left
/// over that none asked for.
fn satisfies<'a>(deciding: impl Iterator<Item = &'a Arc<PolicyEntry>>, path: &SecPath<'_>) -> bool {
    let mut wanted: ArrayVec<(&Template, u32), { 2 * MAX_TEMPLATES }> = ArrayVec::new();
    for entry in deciding {
        let policy = entry.policy();
        let templates = policy.templates.iter().take(MAX_TEMPLATES);
        wanted.extend(templates.map(|template| (template, policy.if_id.0)));
    }
    let mut next = 0;
    for (template, if_id) in wanted.iter().rev() {
        match met(template, *if_id, path, next) {
            Some(after) => next = after,
            None => return false,
        }
    }
    !has_tunnel(&path[next..])
}

/// The place behind the SA that meets a template, looked for from `start` on up to the first tunnel (`xfrm_policy_ok`).
fn met(template: &Template, if_id: u32, path: &SecPath<'_>, start: usize) -> Option<usize> {
    let unmet = match template.level {
        Level::Use if template.mode == Mode::Transport => return Some(start),
        Level::Use => Some(start),
        Level::Required => None,
    };
    for (place, sa) in path.iter().enumerate().skip(start) {
        if serves(sa, template, if_id) {
            return Some(place + 1);
        }
        if sa.config().mode != Mode::Transport {
            break;
        }
    }
    unmet
}

/// Whether a state is what a template asks for (`xfrm_state_ok`).
fn serves(sa: &Sa, template: &Template, if_id: u32) -> bool {
    let config = sa.config();
    let address = config.mode == Mode::Transport
        || template.source.is_unspecified()
        || template.source == config.source;
    config.id.protocol == template.protocol
        && (template.spi.0 == 0 || template.spi == config.id.spi)
        && (template.reqid.0 == 0 || template.reqid == config.reqid)
        && template.mode == config.mode
        && (if_id == 0 || if_id == config.if_id.0)
        && address
}

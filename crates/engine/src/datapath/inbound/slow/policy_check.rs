//! Whether a packet, as it came and through what it came, may pass: `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

use crate::ids::MAX_DEPTH;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::sa::config::SaFlags;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Action, AnswerId, DeviceId, Direction, DropReason, FlowKey, Level, Lookup, Mode, Moment,
    PolicyCache, PolicyEntry, PolicyFlags, PolicyKind, Ruling, Sa, Snapshot, Template,
};

/// The SAs that a packet came through, the outermost first (`struct sec_path`).
pub(crate) type SecPath<'a> = ArrayVec<&'a Sa, MAX_DEPTH>;

/// What all templates of a policy ask for.
#[derive(Clone, Copy)]
struct Whose {
    if_id: u32,
    device: Option<DeviceId>,
}

/// A plain packet, and how it came.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    /// In, or forwarded.
    pub(crate) direction: Direction,
    pub(crate) flow: FlowKey,
    /// The flow that it reports an error of, if it does.
    pub(crate) reported: Option<FlowKey>,
    pub(crate) path: SecPath<'a>,
    pub(crate) bytes: usize,
    /// The policies of its flow.
    pub(crate) answer: AnswerId,
}

/// Checks a plain packet against the states it came through and the policies of its direction.
pub(crate) fn check(
    snapshot: &Snapshot,
    policies: &mut PolicyCache,
    arrival: &Arrival<'_>,
    now: Moment,
) -> Result<(), DropReason> {
    let judged = check_flow(snapshot, policies, arrival, now);
    judged.or_else(
        |reason| if reports_to_host(snapshot, arrival, now) { Ok(()) } else { Err(reason) },
    )
}

fn check_flow(
    snapshot: &Snapshot,
    policies: &mut PolicyCache,
    arrival: &Arrival<'_>,
    now: Moment,
) -> Result<(), DropReason> {
    let Arrival { direction, flow, path, .. } = arrival;
    if !path.iter().all(|sa| carries(sa, arrival)) {
        return Err(DropReason::InSelectorMismatch);
    }
    policies.count_first(arrival.answer, 1, arrival.bytes as u64);
    let answer = policies.answer(arrival.answer);
    let instead = match answer {
        [_, ..] => None,
        [] => match for_errors(snapshot, arrival) {
            Some(entry) => Some(entry),
            // An answer outlives its policies nowhere; if it did, nothing would come in plain for that.
            None if snapshot.spd.defaults().of(*direction) == Action::Block
                || has_tunnel(path)
                || arrival.answer.ruling() != Ruling::Default =>
            {
                return Err(DropReason::InNoPolicy);
            }
            None => return Ok(()),
        },
    };
    let main = instead
        .filter(|entry| entry.kind() == PolicyKind::Sub)
        .and_then(|_| snapshot.spd.lookup_kind(PolicyKind::Main, *direction, flow));
    let deciding = answer.iter().chain(instead).chain(main);
    if let Some(found) = instead {
        found.charge(1, arrival.bytes as u64, now);
    }
    let mut blocks = deciding.clone().filter(|entry| entry.action() == Action::Block);
    if let Some(first) = blocks.next() {
        let is_held = first.is_held() && blocks.all(|entry| entry.is_held());
        return Err(if is_held { DropReason::InHeld } else { DropReason::InPolicyBlock });
    }
    let on_device = deciding.clone().any(|entry| entry.device().is_some());
    match satisfies(deciding, path) {
        true => Ok(()),
        false if on_device && path.is_empty() => Err(DropReason::InDeviceUnmarked),
        false => Err(DropReason::InTemplateMismatch),
    }
}

/// Whether a state's selector lets the packet through; one with flag `icmp` lets errors through about flows that it would carry.
fn carries(sa: &Sa, arrival: &Arrival<'_>) -> bool {
    let config = sa.config();
    config.selector.as_ref().is_none_or(|selector| {
        let reported = arrival.reported.filter(|_| config.flags.contains(SaFlags::ICMP));
        selector.matches(&arrival.flow) || reported.is_some_and(|flow| selector.matches(&flow))
    })
}

/// The policy with flag `icmp` for the flow that a forwarded error is about (`xfrm_in_fwd_icmp`).
fn for_errors<'a>(snapshot: &'a Snapshot, arrival: &Arrival<'_>) -> Option<&'a Arc<PolicyEntry>> {
    let flow = arrival.reported.filter(|_| arrival.direction == Direction::Forward)?;
    match snapshot.spd.lookup(Direction::Forward, &flow) {
        Lookup::Policy(entry) if entry.flags().contains(PolicyFlags::ICMP) => Some(entry),
        Lookup::Policy(_) | Lookup::Default(_) => None,
    }
}

/// Whether an error for this host, which its own flow's policies refuse, came through a state with flag `icmp`, and those of the flow that it is
/// about let it pass (`net/ipv4/icmp.c: icmp_rcv`, `net/ipv6/icmp.c: icmpv6_rcv`).
fn reports_to_host(snapshot: &Snapshot, arrival: &Arrival<'_>, now: Moment) -> bool {
    let Arrival { direction: Direction::In, reported: Some(flow), path, .. } = arrival else {
        return false;
    };
    let takes_errors = |sa: &&Sa| sa.config().flags.contains(SaFlags::ICMP);
    if !path.last().is_some_and(takes_errors) || !path.iter().all(|sa| carries(sa, arrival)) {
        return false;
    }
    let Lookup::Policy(first) = snapshot.spd.lookup(Direction::In, flow) else {
        return snapshot.spd.defaults().of(Direction::In) == Action::Allow && !has_tunnel(path);
    };
    let main = Some(first)
        .filter(|entry| entry.kind() == PolicyKind::Sub)
        .and_then(|_| snapshot.spd.lookup_kind(PolicyKind::Main, Direction::In, flow));
    let deciding = std::iter::once(first).chain(main);
    first.charge(1, arrival.bytes as u64, now);
    deciding.clone().all(|entry| entry.action() == Action::Allow) && satisfies(deciding, path)
}

fn has_tunnel(path: &[&Sa]) -> bool {
    path.iter().any(|sa| sa.config().mode != Mode::Transport)
}

/// Whether the SAs used are those that the templates ask for: from the outermost inward every template finds its SA, and no tunnel is left
/// over that none asked for.
fn satisfies<'a>(deciding: impl Iterator<Item = &'a Arc<PolicyEntry>>, path: &SecPath<'_>) -> bool {
    let mut wanted: ArrayVec<(Template, Whose), { 2 * MAX_TEMPLATES }> = ArrayVec::new();
    for entry in deciding {
        let templates = entry.templates().take(MAX_TEMPLATES);
        let whose = Whose { if_id: entry.if_id().0, device: entry.device() };
        wanted.extend(templates.map(|template| (template, whose)));
    }
    let mut next = 0;
    for (template, whose) in wanted.iter().rev() {
        match met(template, *whose, path, next) {
            Some(after) => next = after,
            None => return false,
        }
    }
    !has_tunnel(&path[next..])
}

/// The place behind the SA that meets a template, looked for from `start` on up to the first tunnel (`xfrm_policy_ok`).
fn met(template: &Template, whose: Whose, path: &SecPath<'_>, start: usize) -> Option<usize> {
    let unmet = match template.level {
        Level::Use if template.mode == Mode::Transport => return Some(start),
        Level::Use => Some(start),
        Level::Required => None,
    };
    for (place, sa) in path.iter().enumerate().skip(start) {
        if serves(sa, template, whose) {
            return Some(place + 1);
        }
        if sa.config().mode != Mode::Transport {
            break;
        }
    }
    unmet
}

/// Whether a state is what a template asks for (`xfrm_state_ok`). A policy on a device asks for what that device decrypted; others don't
/// mind who did, as policies to forward are on no device.
fn serves(sa: &Sa, template: &Template, Whose { if_id, device }: Whose) -> bool {
    let config = sa.config();
    let address = config.mode == Mode::Transport
        || template.source.is_unspecified()
        || template.source == sa.source();
    sa.id().protocol == template.protocol
        && (template.spi.0 == 0 || template.spi == sa.id().spi)
        && (template.reqid.0 == 0 || template.reqid == sa.reqid())
        && template.mode == config.mode
        && (if_id == 0 || if_id == config.if_id.0)
        && device.is_none_or(|device| sa.packet_device() == Some(device))
        && address
}

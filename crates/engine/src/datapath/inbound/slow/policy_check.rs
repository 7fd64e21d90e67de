//! Policy check of a plain packet and the SAs it came by:
//! `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

use crate::ids::MAX_DEPTH;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::sa::config::SaFlags;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Action, DeviceId, Direction, DropReason, FlowKey, Mode, Moment, PolicyCache, PolicyEntry,
    PolicyFlags, PolicyKind, PolicyLookup, PolicyOutcome, Sa, Snapshot, Template, TemplateLevel,
    VerdictId,
};

/// The SAs that a packet came by, outermost first (`struct sec_path`).
pub(crate) type SecPath<'a> = ArrayVec<&'a Sa, MAX_DEPTH>;

/// What a policy requires besides its templates.
#[derive(Clone, Copy)]
struct TemplateScope {
    if_id: u32,
    device: Option<DeviceId>,
}

/// A plain packet and how it came.
#[derive(Debug)]
pub(crate) struct PlainPacket<'a> {
    /// `in` or `fwd`.
    pub(crate) direction: Direction,
    pub(crate) flow: FlowKey,
    /// The flow that it reports an ICMP error of, if it does.
    pub(crate) reported: Option<FlowKey>,
    pub(crate) path: SecPath<'a>,
    pub(crate) bytes: usize,
    /// Verdict of its flow.
    pub(crate) answer: VerdictId,
}

/// Checks a plain packet against the SAs it came by and the policies of its direction.
pub(crate) fn check(
    snapshot: &Snapshot,
    policies: &mut PolicyCache,
    packet: &PlainPacket<'_>,
    now: Moment,
) -> Result<(), DropReason> {
    let judged = check_flow(snapshot, policies, packet, now);
    judged
        .or_else(|reason| if reports_to_host(snapshot, packet, now) { Ok(()) } else { Err(reason) })
}

fn check_flow(
    snapshot: &Snapshot,
    policies: &mut PolicyCache,
    packet: &PlainPacket<'_>,
    now: Moment,
) -> Result<(), DropReason> {
    let PlainPacket { direction, flow, path, .. } = packet;
    if !path.iter().all(|sa| carries(sa, packet)) {
        return Err(DropReason::InSelectorMismatch);
    }
    policies.count_first(packet.answer, 1, packet.bytes as u64);
    let answer = policies.policies(packet.answer);
    let instead = match answer {
        [_, ..] => None,
        [] => match icmp_policy(snapshot, packet) {
            Some(entry) => Some(entry),
            // Verdicts are invalidated before their policies go. Should one slip through, nothing
            // comes in unprotected.
            None if snapshot.spd.defaults().of(*direction) == Action::Block
                || has_tunnel(path)
                || packet.answer.outcome() != PolicyOutcome::Default =>
            {
                return Err(no_policy_reason(path));
            }
            None => return Ok(()),
        },
    };
    let main = instead
        .filter(|entry| entry.kind() == PolicyKind::Sub)
        .and_then(|_| snapshot.spd.lookup_kind(PolicyKind::Main, *direction, flow));
    let deciding = answer.iter().chain(instead).chain(main);
    if let Some(found) = instead {
        found.record_use(1, packet.bytes as u64, now);
    }
    let mut blocks = deciding.clone().filter(|entry| entry.action() == Action::Block);
    if let Some(first) = blocks.next() {
        let is_held = first.is_held() && blocks.all(|entry| entry.is_held());
        return Err(if is_held { DropReason::InHeld } else { DropReason::InPolicyBlock });
    }
    check_templates(deciding, path)
}

/// Checks the SAs that a packet came by against the templates of its policies, which allow it.
pub(crate) fn check_templates<'a>(
    deciding: impl Iterator<Item = &'a Arc<PolicyEntry>> + Clone,
    path: &SecPath<'_>,
) -> Result<(), DropReason> {
    let on_device = deciding.clone().any(|entry| entry.device().is_some());
    match satisfies(deciding, path) {
        true => Ok(()),
        false if on_device && path.is_empty() => Err(DropReason::InDeviceUnmarked),
        false if path.is_empty() => Err(DropReason::InUnprotected),
        false => Err(DropReason::InOtherState),
    }
}

/// Whether an SA's selector allows the packet. An SA with flag `icmp` also allows errors about
/// flows in its selector.
fn carries(sa: &Sa, packet: &PlainPacket<'_>) -> bool {
    let config = sa.config();
    config.selector.as_ref().is_none_or(|selector| {
        let reported = packet.reported.filter(|_| config.flags.contains(SaFlags::ICMP));
        selector.matches(&packet.flow) || reported.is_some_and(|flow| selector.matches(&flow))
    })
}

/// The policy with flag `icmp` for the flow that a forwarded error is about (`xfrm_in_fwd_icmp`).
fn icmp_policy<'a>(
    snapshot: &'a Snapshot,
    packet: &PlainPacket<'_>,
) -> Option<&'a Arc<PolicyEntry>> {
    let flow = packet.reported.filter(|_| packet.direction == Direction::Forward)?;
    match snapshot.spd.lookup(Direction::Forward, &flow) {
        PolicyLookup::Policy(entry) if entry.flags().contains(PolicyFlags::ICMP) => Some(entry),
        PolicyLookup::Policy(_) | PolicyLookup::Default(_) => None,
    }
}

/// Whether an ICMP error for this host, refused by its own flow's policies, came by an SA with flag
/// `icmp` and is allowed by the policies of the flow it is about (`net/ipv4/icmp.c: icmp_rcv`,
/// `net/ipv6/icmp.c: icmpv6_rcv`).
fn reports_to_host(snapshot: &Snapshot, packet: &PlainPacket<'_>, now: Moment) -> bool {
    let PlainPacket { direction: Direction::In, reported: Some(flow), path, .. } = packet else {
        return false;
    };
    let takes_errors = |sa: &&Sa| sa.config().flags.contains(SaFlags::ICMP);
    if !path.last().is_some_and(takes_errors) || !path.iter().all(|sa| carries(sa, packet)) {
        return false;
    }
    let PolicyLookup::Policy(first) = snapshot.spd.lookup(Direction::In, flow) else {
        return snapshot.spd.defaults().of(Direction::In) == Action::Allow && !has_tunnel(path);
    };
    let main = Some(first)
        .filter(|entry| entry.kind() == PolicyKind::Sub)
        .and_then(|_| snapshot.spd.lookup_kind(PolicyKind::Main, Direction::In, flow));
    let deciding = std::iter::once(first).chain(main);
    first.record_use(1, packet.bytes as u64, now);
    deciding.clone().all(|entry| entry.action() == Action::Allow) && satisfies(deciding, path)
}

/// Why a packet that no policy is for is dropped.
pub(crate) fn no_policy_reason(path: &[&Sa]) -> DropReason {
    if has_tunnel(path) { DropReason::InNoPolicy } else { DropReason::InDefaultBlock }
}

/// Whether one of these SAs has another mode than transport.
pub(crate) fn has_tunnel(path: &[&Sa]) -> bool {
    path.iter().any(|sa| sa.config().mode != Mode::Transport)
}

/// Whether the SAs satisfy the templates: from the outermost inward every template finds its SA,
/// and no tunnel is left over.
fn satisfies<'a>(deciding: impl Iterator<Item = &'a Arc<PolicyEntry>>, path: &SecPath<'_>) -> bool {
    let mut wanted: ArrayVec<(Template, TemplateScope), { 2 * MAX_TEMPLATES }> = ArrayVec::new();
    for entry in deciding {
        let templates = entry.templates().take(MAX_TEMPLATES);
        let scope = TemplateScope { if_id: entry.if_id().0, device: entry.device() };
        wanted.extend(templates.map(|template| (template, scope)));
    }
    let mut next = 0;
    for (template, scope) in wanted.iter().rev() {
        match find_sa_for(template, *scope, path, next) {
            Some(after) => next = after,
            None => return false,
        }
    }
    !has_tunnel(&path[next..])
}

/// Index behind the SA that satisfies a template, searched from `start` up to the first tunnel
/// (`xfrm_policy_ok`).
fn find_sa_for(
    template: &Template,
    scope: TemplateScope,
    path: &SecPath<'_>,
    start: usize,
) -> Option<usize> {
    let unmet = match template.level {
        TemplateLevel::Use if template.mode == Mode::Transport => return Some(start),
        TemplateLevel::Use => Some(start),
        TemplateLevel::Required => None,
    };
    for (place, sa) in path.iter().enumerate().skip(start) {
        if is_acceptable(sa, template, scope) {
            return Some(place + 1);
        }
        if sa.config().mode != Mode::Transport {
            break;
        }
    }
    unmet
}

/// Whether an SA satisfies a template (`xfrm_state_ok`). An offloaded policy requires decryption by
/// its device; other policies accept any, as `fwd` policies are never offloaded.
fn is_acceptable(
    sa: &Sa,
    template: &Template,
    TemplateScope { if_id, device }: TemplateScope,
) -> bool {
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

//! What a flow would meet, in words: the answer behind `uxfrm why`.

mod silence;

use std::{net::IpAddr, sync::Arc, time::Duration};

use uxfrm_engine::{
    Action, Direction, DropReason, FlowKey, IcmpErrorWay, Moment, MssClamp, PolicyEntry,
    PolicyLookup, Prefix, Sa, Settings, Snapshot, Spi,
    explain::{
        inbound::{InboundExplanation, InboundOutcome, ReceivedEsp, StateExplanation},
        outbound::{AcquireStage, OutboundExplanation, OutboundOutcome, ProtectedPath},
        policies::{NearPolicy, PolicyExplanation, PolicyMisfit},
        states::TemplateExplanation,
        too_big::{HostErrorWay, TooBigExplanation},
    },
};
use uxfrm_packet::mss;
use uxfrm_status::{
    drops::DropAdvice,
    explanation::{
        EncapsulationStatus, EspQuery, FlowExplanation, FlowOutcome, FlowQuery, FlowStep, FlowWay,
        LostErrors, SizeErrorWay, StepResult, TooBigStatus,
    },
    protocol::RequestRefusal,
    quantity::{count, span, things},
};

use super::{
    board::ExpiredState,
    peer_drops::{DroppedPackets, PeerDrops},
    peer_errors::PeerErrors,
};
use crate::{clock::now, wording};

/// What happened lately, by which a flow is explained beside the snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lately<'a> {
    pub(super) drops: &'a PeerDrops<'a>,
    /// States that passed their hard limit, the latest last.
    pub(super) expired: &'a [ExpiredState],
    /// What the network says of ESP.
    pub(super) errors: PeerErrors<'a>,
}

/// Explains a flow by a snapshot and what happened lately; `settings` are a worker's.
///
/// # Errors
/// When the query asks for what no packet can be.
pub(super) fn explain(
    snapshot: &Snapshot,
    settings: &Settings,
    query: &FlowQuery,
    lately: Lately<'_>,
) -> Result<FlowExplanation, RequestRefusal> {
    let FlowQuery { source, destination, esp, .. } = *query;
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(RequestRefusal::new("source and destination are of different families"));
    }
    let settings = snapshot
        .host
        .as_ref()
        .map_or_else(|| settings.clone(), |host| settings.clone().with_host(host));
    let flow = flow(query);
    let is_inbound = || esp.is_some() || settings.addresses.holds(destination);
    let way = query.way.unwrap_or_else(|| if is_inbound() { FlowWay::In } else { FlowWay::Out });
    Ok(match way {
        FlowWay::Out => outbound(snapshot, &settings, &flow, lately),
        FlowWay::In => inbound(snapshot, &settings, &flow, esp, lately),
    })
}

fn flow(query: &FlowQuery) -> FlowKey {
    FlowKey {
        source: query.source,
        destination: query.destination,
        protocol: query.protocol.unwrap_or_default(),
        source_port: query.source_port.unwrap_or_default(),
        destination_port: query.destination_port.unwrap_or_default(),
        mark: query.mark.unwrap_or_default(),
        if_id: 0,
        ifindex: 0,
    }
}

fn outbound(
    snapshot: &Snapshot,
    settings: &Settings,
    flow: &FlowKey,
    Lately { drops, expired, errors }: Lately<'_>,
) -> FlowExplanation {
    let explained = OutboundExplanation::of(snapshot, settings, flow, now());
    let mut steps = vec![policy_step(&explained.policies)];
    steps.extend(explained.templates.iter().map(|template| template_step(template, expired)));
    let (outcome, verdict) = match &explained.outcome {
        OutboundOutcome::Plain => {
            (FlowOutcome::LeavesPlain, "leaves PLAIN: no policy protects it".to_owned())
        }
        OutboundOutcome::Protected(path) => {
            steps.push(size_step(path, settings, flow));
            steps.extend(told_step(snapshot, path, errors));
            steps.extend(traffic_step(snapshot, path, drops));
            (FlowOutcome::LeavesProtected, protected_words(path))
        }
        OutboundOutcome::Waits(progress) => (FlowOutcome::Waits, waits_words(*progress)),
        OutboundOutcome::Dropped(reason) => (FlowOutcome::Dropped, dropped_words(*reason)),
    };
    let encapsulation = match &explained.outcome {
        OutboundOutcome::Protected(path) => Some(encapsulation(path, (snapshot, settings), flow)),
        OutboundOutcome::Plain | OutboundOutcome::Waits(_) | OutboundOutcome::Dropped(_) => None,
    };
    let drop = match explained.outcome {
        OutboundOutcome::Dropped(reason) => Some(advice(reason)),
        OutboundOutcome::Waits(AcquireStage::Pending) => Some(unanswered()),
        OutboundOutcome::Waits(AcquireStage::Due)
        | OutboundOutcome::Plain
        | OutboundOutcome::Protected(_) => None,
    };
    FlowExplanation {
        flow: flow.to_string(),
        tun: String::new(),
        direction: Direction::Out.to_string(),
        outcome,
        verdict,
        steps,
        encapsulation,
        drop,
    }
}

fn inbound(
    snapshot: &Snapshot,
    settings: &Settings,
    flow: &FlowKey,
    esp: Option<EspQuery>,
    Lately { drops, expired, .. }: Lately<'_>,
) -> FlowExplanation {
    let esp = esp.map(|esp| received(snapshot, settings, esp, flow));
    let explained = InboundExplanation::of(snapshot, settings, esp, flow);
    let mut steps = Vec::new();
    steps.extend(explained.state.as_ref().map(|state| state_step(state, expired)));
    let sa = explained.state.as_ref().and_then(|state| state.state.as_ref());
    let lately = sa.and_then(|sa| drops.by_state(sa));
    steps.extend(lately.as_ref().map(arrived_step));
    steps.push(arriving_policy_step(&explained));
    let is_checked = explained.state.is_none() || sa.is_some();
    for check in explained.templates.iter().filter(|_| is_checked) {
        let template = wording::template(&check.template);
        let (result, text) = match (&check.misfits, sa) {
            (Some(misfits), Some(_)) if misfits.is_empty() => {
                (StepResult::Passes, format!("`{template}` is satisfied"))
            }
            (Some(misfits), Some(sa)) => {
                let difference = wording::differences(misfits, sa, &check.template);
                (StepResult::Fails, format!("`{template}` is not satisfied: {difference}"))
            }
            (_, _) => (StepResult::Fails, format!("`{template}` asks for ESP; it came plain")),
        };
        steps.push(FlowStep::new("template", text).with_result(result));
    }
    let (outcome, verdict) = match explained.outcome {
        InboundOutcome::Passes => {
            let words = match (esp, &lately) {
                (Some(_), Some(dropped)) if dropped.are_refused() => format!(
                    "comes in, if number and ICV are right: those of the last ones were not ({})",
                    dropped.reason_word()
                ),
                (Some(_), _) => "comes in, if number and ICV are right".to_owned(),
                (None, _) => "comes in plain: no policy asks for ESP".to_owned(),
            };
            (FlowOutcome::ComesIn, words)
        }
        InboundOutcome::Dropped(reason) => (FlowOutcome::Dropped, dropped_words(reason)),
    };
    let reason = match explained.outcome {
        InboundOutcome::Dropped(reason) => Some(reason),
        InboundOutcome::Passes => None,
    };
    FlowExplanation {
        flow: flow.to_string(),
        tun: String::new(),
        direction: explained.policies.direction.to_string(),
        outcome,
        verdict,
        steps,
        encapsulation: None,
        drop: reason.map(advice),
    }
}

/// The ESP packet, with what the query leaves open filled in by the state of its SPI.
fn received(
    snapshot: &Snapshot,
    settings: &Settings,
    esp: EspQuery,
    flow: &FlowKey,
) -> ReceivedEsp {
    let own =
        |sa: &&Arc<Sa>| sa.id().spi.0 == esp.spi && settings.addresses.holds(sa.id().destination);
    let known = snapshot.sad.iter().find(own);
    // Who asks about an SPI that is unknown means the tunnel of the packet's policy.
    let expected = [Direction::In, Direction::Forward].into_iter().find_map(|direction| {
        let PolicyLookup::Policy(entry) = snapshot.spd.lookup(direction, flow) else { return None };
        let ends = entry.templates().map(|template| template.destination);
        ends.into_iter().find(|destination| !destination.is_unspecified())
    });
    let open = flow.destination.is_ipv4();
    let unspecified = if open { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    ReceivedEsp {
        source: esp.source.unwrap_or(unspecified),
        destination: esp
            .destination
            .or_else(|| known.map(|sa| sa.id().destination))
            .or(expected)
            .or_else(|| settings.addresses.like(flow.destination))
            .unwrap_or(unspecified),
        spi: Spi(esp.spi),
        mark: flow.mark,
    }
}

fn policy_step(policies: &PolicyExplanation) -> FlowStep {
    let notes = policies.near.iter().map(near_policy_words).collect();
    let step = match &policies.deciding[..] {
        [] => FlowStep::new(
            "policy",
            format!(
                "no policy `dir {}` matches; the default is to {}",
                policies.direction,
                wording::action(policies.default)
            ),
        ),
        deciding => {
            let words: Vec<_> = deciding.iter().map(|entry| policy_words(entry)).collect();
            FlowStep::new("policy", words.join(", then "))
        }
    };
    let blocks = match &policies.deciding[..] {
        [] => policies.default == Action::Block,
        deciding => deciding.iter().any(|entry| entry.action() == Action::Block),
    };
    let result = if blocks { StepResult::Fails } else { StepResult::Passes };
    step.with_result(result).with_notes(notes)
}

/// The same of a packet that came in: in ESP it needs a policy, whatever the default is.
fn arriving_policy_step(explained: &InboundExplanation) -> FlowStep {
    let step = policy_step(&explained.policies);
    match explained.outcome {
        InboundOutcome::Dropped(DropReason::InNoPolicy) if step.result == StepResult::Passes => {
            let direction = explained.policies.direction;
            let text =
                format!("no policy `dir {direction}` matches, and what came in ESP needs one");
            FlowStep { text, ..step }.with_result(StepResult::Fails)
        }
        InboundOutcome::Dropped(_) | InboundOutcome::Passes => step,
    }
}

/// What came by a state since it last took a packet. The state refuses all, as far as is known,
/// where there are some.
fn arrived_step(dropped: &DroppedPackets) -> FlowStep {
    let result = match dropped.are_refused() {
        true => StepResult::Fails,
        false => StepResult::Doubtful,
    };
    let step = FlowStep::new("path", dropped.state_words()).with_result(result);
    step.with_notes(dropped.advice())
}

/// A policy with what it does.
fn policy_words(entry: &PolicyEntry) -> String {
    let (policy, index) = (wording::policy(entry), entry.index().0);
    let priority = entry.precedence().priority().0;
    let templates: Vec<_> = entry.templates().map(|one| wording::template(&one)).collect();
    let does = match (entry.action(), &templates[..]) {
        (Action::Block, _) if entry.is_held() => "blocks, held from the last run".to_owned(),
        (Action::Block, _) => "blocks".to_owned(),
        (Action::Allow, []) => "allows it plain".to_owned(),
        (Action::Allow, templates) => templates.join(", "),
    };
    format!("`{policy} priority {priority}` (index {index}): {does}")
}

fn near_policy_words(near: &NearPolicy) -> String {
    let policy = wording::policy(&near.entry);
    let priority = near.entry.precedence().priority().0;
    let why = match near.misfit {
        PolicyMisfit::BehindSubPolicy => "a sub policy goes first",
        PolicyMisfit::BehindDevice => "a policy that a device has goes first",
        PolicyMisfit::BehindPriority => "a lower priority value goes first",
        PolicyMisfit::BehindOlder => "of equal priority the older one goes first",
        PolicyMisfit::Direction => {
            "it is for the other direction: dir in is for this host's own addresses, dir fwd for all \
             others"
        }
        PolicyMisfit::WayBack => "it is for the way back: source and destination are swapped",
        PolicyMisfit::Source => "the source is not in it",
        PolicyMisfit::Destination => "the destination is not in it",
        PolicyMisfit::Protocol => "the protocol is another",
        PolicyMisfit::SourcePort => "the source port is another",
        PolicyMisfit::DestinationPort => "the destination port is another",
        PolicyMisfit::Interface => "it is for one interface",
        PolicyMisfit::Mark => "the mark is another",
        PolicyMisfit::IfId => "the XFRM interface is another",
    };
    format!("not `{policy} priority {priority}`: {why}")
}

fn template_step(explained: &TemplateExplanation, expired: &[ExpiredState]) -> FlowStep {
    let template = wording::template(&explained.template);
    match &explained.state {
        Some(sa) => FlowStep::new("state", format!("`{}`, for `{template}`", wording::state(sa))),
        None => {
            let result = match explained.template.level {
                uxfrm_engine::TemplateLevel::Required => StepResult::Fails,
                uxfrm_engine::TemplateLevel::Use => StepResult::Doubtful,
            };
            let near = explained.near.iter().map(|near| {
                let (state, template) = (wording::state(&near.sa), &explained.template);
                format!("nearest: `{state}`, but {}", wording::difference(near, template))
            });
            let peer = explained.ends.1;
            let gone = expired.iter().rev().find(|gone| gone.id.destination == peer);
            let gone = gone.map(|gone| {
                let ago = span(now().since(gone.at).as_secs());
                format!("state {} to {peer} reached a hard limit {ago} ago", gone.id.spi)
            });
            FlowStep::new("state", format!("no state fits `{template}`"))
                .with_result(result)
                .with_notes(near.chain(gone).collect())
        }
    }
}

fn state_step(explained: &StateExplanation, expired: &[ExpiredState]) -> FlowStep {
    let id = explained.id;
    match &explained.state {
        Some(sa) => match sa.receives() {
            Ok(()) => FlowStep::new("state", format!("`{}`", wording::state(sa))),
            Err(reason) => {
                FlowStep::new("state", format!("`{}`: {}", wording::state(sa), reason.meaning()))
                    .with_result(StepResult::Fails)
            }
        },
        None => {
            let near = explained.near.iter().map(|near| {
                let words = wording::inbound_differences(near, id);
                format!("nearest: `{}`, but {words}", wording::state(&near.sa))
            });
            let gone = expired.iter().rev().find(|gone| gone.id == id);
            let gone = gone.map(|gone| {
                let ago = span(now().since(gone.at).as_secs());
                format!("that state expired {ago} ago: it reached a hard limit, and was deleted")
            });
            FlowStep::new("state", format!("no state has dst {} spi {}", id.destination, id.spi))
                .with_result(StepResult::Fails)
                .with_notes(gone.into_iter().chain(near).collect())
        }
    }
}

fn size_step(path: &ProtectedPath, settings: &Settings, flow: &FlowKey) -> FlowStep {
    let ProtectedPath { path_mtu, inner_mtu, limit, ends, .. } = path;
    let fits = wording::size(*path_mtu, (*inner_mtu, *limit), ends.1);
    let text = match flow.destination {
        IpAddr::V4(_) => format!("{fits}; larger ones with DF are answered by ICMP"),
        IpAddr::V6(_) => format!("{fits}; larger ones are answered by ICMP"),
    };
    let mss = match clamped_mss(path, settings, flow) {
        Some(mss) => format!("TCP's SYNs announce {mss} bytes at most: `[host] clamp_mss` is on"),
        None => "TCP's SYNs stay as they are: `[host] clamp_mss` is off".to_owned(),
    };
    FlowStep::new("size", text).with_notes(vec![mss])
}

/// What SYNs announce at most, if they are changed.
fn clamped_mss(path: &ProtectedPath, settings: &Settings, flow: &FlowKey) -> Option<u16> {
    match settings.clamp_mss {
        MssClamp::On => Some(mss::fitting(flow.version(), path.inner_mtu)),
        MssClamp::Off => None,
    }
}

/// What the counters and dropped packets say of the path: a tunnel that only sends.
fn traffic_step(
    snapshot: &Snapshot,
    path: &ProtectedPath,
    drops: &PeerDrops<'_>,
) -> Option<FlowStep> {
    let out = path.states.last()?;
    if let Some(step) = refused_step(snapshot, path, out, drops) {
        return Some(step);
    }
    let back = way_back(snapshot, path, out);
    let sent = out.usage().packets();
    let Some(back) = back else {
        let text = format!("no state for answers from {}: nothing can come back", path.ends.1);
        let unknown = drops.by_unknown_spi((path.ends.1, path.ends.0), Moment(0));
        let words = unknown.map(|dropped| dropped.unknown_spi_words(path.ends.1));
        let step = FlowStep::new("path", text).with_result(StepResult::Doubtful);
        return Some(step.with_notes(words.into_iter().collect()));
    };
    let (received, failures) = (back.usage().packets(), back.usage().failures());
    let spi = back.id().spi;
    if failures.integrity_failed > 0 {
        let forged = things(failures.integrity_failed.into(), "packet", "packets");
        let text = format!(
            "{forged} that came by {spi} had a wrong ICV: the keys or algorithms of both ends \
             differ, or `flag esn` does"
        );
        return Some(FlowStep::new("path", text).with_result(StepResult::Doubtful));
    }
    if let Some(step) = dropped_step(path, back, drops) {
        return Some(step);
    }
    let silence = back.usage().last_used().map(|last| now().since(last));
    let sends = out.usage().last_used().is_some_and(|last| now().since(last) < SILENCE);
    let (is_silent, since) = match silence {
        None => (sent >= ENOUGH, String::new()),
        Some(silence) => (sends && silence >= SILENCE, format!(" for {} s", silence.as_secs())),
    };
    if !is_silent {
        let sent = things(sent, "packet", "packets");
        let text = format!("sent {sent}, received {} by {spi}", count(received));
        return Some(FlowStep::new("path", text));
    }
    let sent = things(sent, "packet", "packets");
    let text = format!("sent {sent} and received none by {spi}{since}");
    let suspects = silence::suspects(snapshot, path, out, back);
    Some(FlowStep::new("path", text).with_result(StepResult::Doubtful).with_notes(suspects))
}

/// The state by which the peer answers.
fn way_back<'a>(snapshot: &'a Snapshot, path: &ProtectedPath, out: &Sa) -> Option<&'a Arc<Sa>> {
    snapshot.sad.iter().find(|sa| {
        sa.source() == path.ends.1
            && sa.id().destination == path.ends.0
            && sa.reqid() == out.reqid()
            && sa.config().mode == out.config().mode
    })
}

/// What the peer or a router says of the packets, since the peer was heard.
fn told_step(
    snapshot: &Snapshot,
    path: &ProtectedPath,
    errors: PeerErrors<'_>,
) -> Option<FlowStep> {
    let out = path.states.last()?;
    let (own, peer) = path.ends;
    let back = way_back(snapshot, path, out);
    let heard = back.and_then(|back| back.usage().last_used()).unwrap_or_default();
    let told = errors.since(peer, heard, out.usage().last_used()?);
    let (latest, others) = told.split_first()?;
    let notes = others.iter().map(|one| one.words(own, peer)).collect();
    let step = FlowStep::new("path", latest.words(own, peer)).with_result(StepResult::Doubtful);
    Some(step.with_notes(notes))
}

/// What this host's kernel refused to send. Where that is not known of its records, it was this
/// peer's only if no other peer was sent to at that time.
fn refused_step(
    snapshot: &Snapshot,
    path: &ProtectedPath,
    out: &Sa,
    drops: &PeerDrops<'_>,
) -> Option<FlowStep> {
    let (own, peer) = path.ends;
    let refused = drops.refused_since(out.usage().last_used()?, peer)?;
    let is_other = |sa: &Arc<Sa>| {
        sa.id().destination != peer
            && sa.id().destination != own
            && sa.usage().last_used().is_some_and(|used| refused.may_be_of(used))
    };
    let (result, doubt) = match !refused.has_state() && snapshot.sad.iter().any(is_other) {
        true => (StepResult::Doubtful, ", of this peer or of others"),
        false => (StepResult::Fails, ""),
    };
    let step = FlowStep::new("path", refused.refused_words() + doubt).with_result(result);
    Some(step.with_notes(refused.advice()))
}

/// What came from the peer since it was last heard, and was dropped here.
fn dropped_step(path: &ProtectedPath, back: &Sa, drops: &PeerDrops<'_>) -> Option<FlowStep> {
    let (own, peer) = path.ends;
    let heard = back.added().max(back.usage().last_used().unwrap_or_default());
    let by_state = drops.by_state(back).map(|dropped| (dropped.state_words(), dropped));
    let by_none = || {
        let dropped = drops.by_unknown_spi((peer, own), heard)?;
        let known = format!("; the state for it has {}", back.id().spi);
        Some((dropped.unknown_spi_words(peer) + &known, dropped))
    };
    let (text, dropped): (_, DroppedPackets) = by_state.or_else(by_none)?;
    let step = FlowStep::new("path", text).with_result(StepResult::Doubtful);
    Some(step.with_notes(dropped.advice()))
}

/// Packets from which on silence means something, where nothing ever came.
const ENOUGH: u64 = 3;
/// How long a peer that answered before may be silent while we send.
const SILENCE: Duration = Duration::from_secs(30);

fn encapsulation(
    path: &ProtectedPath,
    (snapshot, settings): (&Snapshot, &Settings),
    flow: &FlowKey,
) -> EncapsulationStatus {
    EncapsulationStatus {
        source: path.ends.0,
        destination: path.ends.1,
        spis: path.states.iter().map(|sa| sa.id().spi.to_string()).collect(),
        udp_port: path.encap.map(|encap| encap.destination_port),
        path_mtu: path.path_mtu,
        path_mtu_origin: None,
        path_mtu_expires: None,
        inner_mtu: path.limit as u64,
        overhead: path.overhead as u64,
        tun_mtu: None,
        fixed_tun_mtu: None,
        clamped_mss: clamped_mss(path, settings, flow),
        too_big: Some(too_big(&TooBigExplanation::of(snapshot, settings, flow), flow.source)),
        offloaded: path.device.is_some(),
    }
}

/// Who hears that a packet of `sender` is too large.
fn too_big(explained: &TooBigExplanation, sender: IpAddr) -> TooBigStatus {
    let lost = explained.host.iter().filter_map(|(from, way)| {
        let from = *from;
        let (cause, taken) = match way {
            HostErrorWay::Plain => return None,
            HostErrorWay::IntoTunnel(entry) => {
                (format!("`{}` takes it into its tunnel", wording::policy(entry)), Some(entry))
            }
            HostErrorWay::Blocked(Some(entry)) => {
                (format!("`{}` blocks it", wording::policy(entry)), Some(entry))
            }
            HostErrorWay::Blocked(None) => ("the default of `dir out` blocks it".to_owned(), None),
        };
        let net = taken.map(|entry| entry.selector().source);
        let net = net.filter(|net| net.prefix_len() > 0 && net.contains(sender));
        let (source, destination) =
            net.map_or_else(|| (Prefix::host(from), Prefix::host(sender)), |net| (net, net));
        Some(LostErrors { from, cause, mend: wording::plain_between(source, destination) })
    });
    TooBigStatus {
        uxfrm: match explained.engine {
            IcmpErrorWay::FromHost => SizeErrorWay::FromHost,
            IcmpErrorWay::ThroughHostPort => SizeErrorWay::FromDestination,
            IcmpErrorWay::Withheld => SizeErrorWay::Withheld,
        },
        comes_by_tunnel: explained.comes_by_tunnel,
        lost: lost.collect(),
    }
}

fn protected_words(path: &ProtectedPath) -> String {
    let spis: Vec<_> = path.states.iter().map(|sa| sa.id().spi.to_string()).collect();
    let udp = path
        .encap
        .map_or_else(String::new, |encap| format!(" in UDP to port {}", encap.destination_port));
    let (from, to) = path.ends;
    format!("leaves in ESP{udp}, {from} -> {to}, spi {}", spis.join(" "))
}

fn waits_words(progress: AcquireStage) -> String {
    match progress {
        AcquireStage::Due => "waits: it would have an IKE daemon asked for a state",
        AcquireStage::Pending => {
            "waits: an IKE daemon has been asked for a state, and packets wait for it"
        }
    }
    .to_owned()
}

/// What keeps packets waiting once a key manager has been asked.
fn unanswered() -> DropAdvice {
    DropAdvice {
        reason: DropReason::OutNoState.as_str().to_owned(),
        cause: "A key manager is asked for a state and has not answered: see its log.".to_owned(),
        next: "Compare proposals, secrets and identities at both ends: `swanctl --log`.".to_owned(),
    }
}

fn dropped_words(reason: DropReason) -> String {
    format!("is dropped: {}", reason.as_str())
}

fn advice(reason: DropReason) -> DropAdvice {
    DropAdvice {
        reason: reason.as_str().to_owned(),
        cause: reason.cause().to_owned(),
        next: reason.next_step().to_owned(),
    }
}

//! Templates that no state fits.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use uxfrm_engine::{
    Action, Direction, FlowKey, PolicyEntry, Sa, Sad, Template, TemplateLevel,
    explain::{
        outbound::{OutboundExplanation, OutboundOutcome},
        states::{TemplateExplanation, satisfies_inbound},
    },
};

use super::{Finding, MOST, Subject};
use crate::{clock::now, wording};

/// Required templates without a state: packets are dropped, or wait for an IKE daemon.
pub(super) fn without_state(subject: &Subject<'_>) -> Vec<Finding> {
    let states = StateIndex::of(&subject.snapshot.sad);
    let all = subject.snapshot.spd.iter().filter(|entry| entry.action() == Action::Allow);
    let mut missing: Vec<_> = all
        .filter(|entry| !has_states(subject, &states, entry))
        .flat_map(|entry| explained(subject, entry).into_iter().map(move |one| (entry, one)))
        .filter(|(_, explained)| {
            explained.state.is_none() && explained.template.level == TemplateLevel::Required
        })
        // What a rule tells is bounded, and so is what it looks for.
        .take(MOST * 10)
        .map(|(entry, explained)| finding(entry, &explained))
        .collect();
    missing.sort_by_key(|finding| finding.severity);
    missing
}

/// Templates whose only states are for packets of the other family: IPv4 through a tunnel between
/// IPv6 addresses, or the other way round. What comes in by them is dropped.
pub(super) fn of_another_family(subject: &Subject<'_>) -> Vec<Finding> {
    let states = StateIndex::of(&subject.snapshot.sad);
    let all = subject
        .snapshot
        .spd
        .iter()
        .filter(|entry| entry.action() == Action::Allow && entry.direction() != Direction::Out);
    let mut told = HashSet::new();
    let of_entry = |entry: &PolicyEntry| {
        let family = entry.family();
        let other = |sa: &Sa| sa.config().selector.is_some_and(|own| own.family() != family);
        entry.templates().find_map(|template| {
            let fits = |sa: &&Arc<Sa>| satisfies_inbound(sa, entry, &template);
            let mut fitting = states.candidates(&template).filter(fits);
            let first = fitting.next()?;
            (other(first) && fitting.all(|sa| other(sa))).then(|| Arc::clone(first))
        })
    };
    let mut findings = Vec::new();
    for entry in all {
        if let Some(sa) = of_entry(entry).filter(|sa| told.insert(sa.id())) {
            findings.push(Finding::warning(
                format!(
                    "`{}` is for packets of its own family alone, and `{}` for those of the other: \
                     what comes in is dropped",
                    wording::state(&sa),
                    wording::policy(entry)
                ),
                "add `flag af-unspec` to the state, at both ends".to_owned(),
            ));
        }
    }
    findings
}

/// States by their destination: explaining looks at all of them, for each policy.
struct StateIndex<'a>(HashMap<IpAddr, Vec<&'a Arc<Sa>>>);

impl<'a> StateIndex<'a> {
    fn of(sad: &'a Sad) -> Self {
        let mut by_destination: HashMap<_, Vec<_>> = HashMap::new();
        for sa in sad.iter() {
            by_destination.entry(sa.id().destination).or_default().push(sa);
        }
        Self(by_destination)
    }

    /// States that a template may mean, which names their destination or leaves it to the packet.
    fn candidates(&self, template: &Template) -> impl Iterator<Item = &Arc<Sa>> {
        let named = !template.destination.is_unspecified();
        let one = self.0.get(&template.destination).filter(|_| named).into_iter();
        let all = self.0.values().filter(move |_| !named);
        one.chain(all).flatten().copied()
    }
}

/// Whether a policy plainly has what it needs.
fn has_states(subject: &Subject<'_>, states: &StateIndex<'_>, entry: &PolicyEntry) -> bool {
    match entry.direction() {
        Direction::Out if leaves_ends_to_packets(entry) => {
            let selector = entry.selector();
            let is_for_some = |sa: &Sa, template: &Template| {
                let is_its = sa.reqid() == template.reqid && sa.config().mode == template.mode;
                is_its && selector.destination.contains(sa.id().destination)
            };
            entry
                .templates()
                .all(|template| states.candidates(&template).any(|sa| is_for_some(sa, &template)))
        }
        Direction::Out => {
            let flow = sample(entry);
            let snapshot = subject.snapshot;
            let (_, outcome) = OutboundOutcome::of(snapshot, subject.settings, &flow, now());
            matches!(outcome, OutboundOutcome::Protected(_))
        }
        Direction::In | Direction::Forward => entry.templates().all(|template| {
            states.candidates(&template).any(|sa| satisfies_inbound(sa, entry, &template))
        }),
    }
}

/// In transport mode, for more than one host: each has states of its own, and no sample packet
/// stands for all.
fn leaves_ends_to_packets(entry: &PolicyEntry) -> bool {
    let destination = entry.selector().destination;
    destination.prefix_len() < destination.family().bits()
        && entry.templates().any(|template| template.destination.is_unspecified())
}

/// The templates of a policy, each with its state.
fn explained(subject: &Subject<'_>, entry: &PolicyEntry) -> Vec<TemplateExplanation> {
    let snapshot = subject.snapshot;
    match entry.direction() {
        Direction::Out => {
            let flow = sample(entry);
            let found = OutboundExplanation::of(snapshot, subject.settings, &flow, now());
            // Another policy that goes first is the one to look at.
            let decides = found.policies.deciding.iter().any(|one| **one == *entry);
            if decides { found.templates } else { Vec::new() }
        }
        Direction::In | Direction::Forward => {
            let templates = entry.templates();
            templates
                .map(|template| TemplateExplanation::of_inbound(&snapshot.sad, entry, template))
                .collect()
        }
    }
}

/// A packet that the policy selects.
fn sample(entry: &PolicyEntry) -> FlowKey {
    let selector = entry.selector();
    FlowKey {
        source: selector.source.address(),
        destination: selector.destination.address(),
        protocol: selector.protocol,
        source_port: selector.source_port.value,
        destination_port: selector.destination_port.value,
        mark: entry.mark().value,
        if_id: entry.if_id().0,
        ifindex: selector.ifindex,
    }
}

fn finding(entry: &PolicyEntry, explained: &TemplateExplanation) -> Finding {
    let (policy, template) = (wording::policy(entry), wording::template(&explained.template));
    match explained.near.first() {
        Some(near) => Finding::warning(
            format!("no state fits `{template}` of `{policy}`"),
            format!(
                "nearest: `{}`, but {}",
                wording::state(&near.sa),
                wording::difference(near, &explained.template)
            ),
        ),
        None => Finding::note(
            format!("no state fits `{template}` of `{policy}`"),
            "an IKE daemon has to make one, or add it with `uxfrm xfrm state add`".to_owned(),
        ),
    }
}

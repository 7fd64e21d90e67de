//! Templates that no state fits.

use uxfrm_engine::{
    Action, Direction, FlowKey, PolicyEntry, TemplateLevel,
    explain::{outbound::OutboundExplanation, states::TemplateExplanation},
};

use super::{Finding, MOST, Subject};
use crate::{clock::now, wording};

/// Required templates without a state: packets are dropped, or wait for an IKE daemon.
pub(super) fn without_state(subject: &Subject<'_>) -> Vec<Finding> {
    let all = subject.snapshot.spd.iter().filter(|entry| entry.action() == Action::Allow);
    let mut missing: Vec<_> = all
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

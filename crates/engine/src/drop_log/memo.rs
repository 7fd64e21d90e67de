//! Finds out whose a dropped packet was. The latest answers are remembered, so that a flood of one
//! flow or SPI costs a comparison for each packet.

use super::DropView;
use super::headers::Headers;
use super::site::DropSite;
use super::subject::DropSubject;
use crate::sa::subject::SaSubject;
use crate::{
    Action, DeviceId, Direction, DropReason, FlowKey, PolicyEntry, PolicyIndex, PolicyKind,
    PolicyLookup, SaId, SaProtocol, Spd,
};

/// The latest look-ups.
#[derive(Debug, Default)]
pub(super) struct Memos {
    sa: Memo<(SaId, u32), Option<SaSubject>>,
    policy: Memo<(Direction, FlowKey, Decider), Option<PolicyMatch>>,
}

/// An answer, valid for one generation of the databases.
#[derive(Debug)]
struct Memo<K, V>(Option<(u64, K, V)>);

/// What is known of a policy that decided.
#[derive(Clone, Copy, Debug)]
struct PolicyMatch {
    index: PolicyIndex,
    device: Option<DeviceId>,
}

/// Which of a flow's policies decided: a sub policy lets the main one decide too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decider {
    First,
    FirstThatBlocks,
}

impl Memos {
    /// Whose the packet was: what the site knows, and what can be looked up.
    pub(super) fn subject(
        &mut self,
        reason: DropReason,
        site: &DropSite<'_>,
        headers: &Headers,
        view: DropView<'_>,
    ) -> DropSubject {
        let sa = site.known.sa.or_else(|| self.find_sa(site, headers, view));
        let policy = match site.known.policy {
            Some(index) => Some(PolicyMatch { index, device: None }),
            None => self.find_policy(reason, headers, view),
        };
        let by_sa = sa.and_then(|sa| sa.device);
        let device =
            site.known.device.or(by_sa).or_else(|| policy.and_then(|policy| policy.device));
        DropSubject { sa, policy: policy.map(|policy| policy.index), device }
    }

    /// The SA of an ESP packet.
    fn find_sa(
        &mut self,
        site: &DropSite<'_>,
        headers: &Headers,
        view: DropView<'_>,
    ) -> Option<SaSubject> {
        let (esp, packet) = (headers.esp.as_ref()?, site.packet.as_ref()?);
        let (destination, spi, protocol) = (esp.ends.destination, esp.ends.spi, SaProtocol::Esp);
        let key = (SaId { destination, spi, protocol }, packet.mark);
        self.sa.recall(view.snapshot.generation, key, || {
            let sa = view.snapshot.sad.inbound(destination, spi, protocol, packet.mark);
            sa.map(|sa| SaSubject::from(&**sa))
        })
    }

    /// The policy that decided over a plain packet.
    fn find_policy(
        &mut self,
        reason: DropReason,
        headers: &Headers,
        view: DropView<'_>,
    ) -> Option<PolicyMatch> {
        let flow = headers.flow.as_ref().filter(|_| is_by_policy(reason))?;
        let direction = if reason.is_outbound() {
            Direction::Out
        } else if view.settings.addresses.holds(flow.destination) {
            Direction::In
        } else {
            Direction::Forward
        };
        let decider = decider(reason);
        let generation = view.snapshot.generation;
        self.policy.recall(generation, (direction, *flow, decider), || {
            let entry = deciding(&view.snapshot.spd, direction, flow, decider)?;
            Some(PolicyMatch { index: entry.index(), device: entry.device() })
        })
    }
}

/// Whether the headers tell more of whose the packet was than the site knows.
pub(super) fn needs_headers(reason: DropReason, site: &DropSite<'_>) -> bool {
    site.known.sa.is_none() || site.known.policy.is_none() && is_by_policy(reason)
}

/// Whether a policy decided over the packet, to drop it or to protect it.
const fn is_by_policy(reason: DropReason) -> bool {
    match reason.is_outbound() {
        false => matches!(
            reason,
            DropReason::InUnprotected
                | DropReason::InOtherState
                | DropReason::InPolicyBlock
                | DropReason::InHeld
                | DropReason::InDeviceUnmarked
        ),
        // Before the look-up, after the last policy has gone, or for another destination.
        true => !matches!(
            reason,
            DropReason::OutMalformed
                | DropReason::OutSuper
                | DropReason::OutFragment
                | DropReason::OutDefaultBlock
                | DropReason::OutPolicyGone
                | DropReason::OutUnprotected
                | DropReason::OutQuotesProtected
                | DropReason::OutQueueStands
                | DropReason::OutPortFull
        ),
    }
}

const fn decider(reason: DropReason) -> Decider {
    let blocks = matches!(
        reason,
        DropReason::InPolicyBlock
            | DropReason::InHeld
            | DropReason::OutPolicyBlock
            | DropReason::OutHeld
    );
    if blocks { Decider::FirstThatBlocks } else { Decider::First }
}

fn deciding<'a>(
    spd: &'a Spd,
    direction: Direction,
    flow: &FlowKey,
    decider: Decider,
) -> Option<&'a PolicyEntry> {
    let PolicyLookup::Policy(first) = spd.lookup(direction, flow) else { return None };
    let main = || spd.lookup_kind(PolicyKind::Main, direction, flow);
    match (decider, first.action()) {
        (Decider::First, _) | (Decider::FirstThatBlocks, Action::Block) => Some(first),
        (Decider::FirstThatBlocks, Action::Allow) => main().map(|entry| &**entry),
    }
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: PartialEq, V: Copy> Memo<K, V> {
    /// The answer for a key; `look` finds it if it is not the one remembered.
    fn recall(&mut self, generation: u64, key: K, look: impl FnOnce() -> V) -> V {
        match &self.0 {
            Some((then, known, answer)) if *then == generation && *known == key => *answer,
            Some(_) | None => {
                let answer = look();
                self.0 = Some((generation, key, answer));
                answer
            }
        }
    }
}

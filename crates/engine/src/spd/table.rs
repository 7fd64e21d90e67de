//! The SPD as workers see it: immutable, with look-up by flow.

use std::sync::Arc;

use uxfrm_classify::LOOKUP_BATCH;

use super::change_log::PolicyChangeLog;
use super::fragment_rules::FragmentRules;
use super::quote_rules::QuoteRules;
use super::rules::{Best, Classifier, Footprint, PendingDelta, Rebuild, RebuiltIndex, policy_of};
use super::scope::InvalidationScope;
use crate::{Action, Direction, Family, FlowKey, PolicyEntry, PolicyKind};

/// All policies of one generation, and the default actions.
#[derive(Clone, Debug, Default)]
pub struct Spd {
    classifier: Classifier,
    defaults: DefaultActions,
    change_log: PolicyChangeLog,
    fragment_rules: FragmentRules,
    quote_rules: QuoteRules,
    /// Number of IPv6 `out` policies that forbid plaintext.
    v6_plaintext_blockers: usize,
}

/// `ip xfrm policy setdefault`: actions for packets that match no policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultActions {
    /// Packets to this host.
    pub inbound: Action,
    /// Forwarded packets.
    pub forward: Action,
    /// Outbound packets.
    pub outbound: Action,
}

/// Result of [`Spd::lookup`].
#[derive(Clone, Copy, Debug)]
pub enum PolicyLookup<'a> {
    /// The policy that decides.
    Policy(&'a Arc<PolicyEntry>),
    /// No match: the default action of the direction.
    Default(Action),
}

impl Spd {
    /// Finds the policy that decides: the first match among sub policies, else among main ones
    /// (`xfrm_policy_lookup`). A sub policy that allows is combined with the main one: see
    /// [`Spd::lookup_kind`] (`xfrm_expand_policies`).
    #[must_use]
    pub fn lookup(&self, direction: Direction, flow: &FlowKey) -> PolicyLookup<'_> {
        let default = PolicyLookup::Default(self.defaults.of(direction));
        policy_of(&self.first(direction, flow)).map_or(default, PolicyLookup::Policy)
    }

    /// [`Spd::lookup`] of each flow, in order, into `found`. Overlaps the cache misses of many
    /// packets.
    pub fn lookup_batch<'a>(
        &'a self,
        direction: Direction,
        flows: &[FlowKey],
        found: &mut Vec<PolicyLookup<'a>>,
    ) {
        for flows in flows.chunks(LOOKUP_BATCH) {
            let default = PolicyLookup::Default(self.defaults.of(direction));
            let mut bests = [Best::NONE; LOOKUP_BATCH];
            self.find_each(direction, flows, &mut bests);
            let bests = bests.iter().take(flows.len());
            found.extend(bests.map(|best| policy_of(best).map_or(default, PolicyLookup::Policy)));
        }
    }

    /// Finds the policies that decide over at most [`LOOKUP_BATCH`] flows, into `main`, which must
    /// be empty matches.
    #[inline]
    pub(crate) fn find_each<'a>(
        &'a self,
        direction: Direction,
        flows: &[FlowKey],
        main: &mut [Best<'a>; LOOKUP_BATCH],
    ) {
        if let [flow] = flows {
            main[0] = self.first(direction, flow);
            return;
        }
        self.classifier.find_each(PolicyKind::Main, direction, flows, main);
        if self.has_subs(direction) {
            let mut subs = [Best::NONE; LOOKUP_BATCH];
            self.classifier.find_each(PolicyKind::Sub, direction, flows, &mut subs);
            for (main, sub) in main.iter_mut().zip(&subs) {
                *main = sub.or(*main);
            }
        }
    }

    /// The policy that decides, if any.
    fn first(&self, direction: Direction, flow: &FlowKey) -> Best<'_> {
        if self.has_subs(direction) {
            let sub = self.classifier.first(PolicyKind::Sub, direction, flow);
            if sub.entry().is_some() {
                return sub;
            }
        }
        self.classifier.first(PolicyKind::Main, direction, flow)
    }

    /// Whether there are policies `in` or `fwd`.
    pub(crate) fn judges_arrivals(&self) -> bool {
        [Direction::In, Direction::Forward].into_iter().any(|direction| {
            self.has_subs(direction) || self.classifier.has(PolicyKind::Main, direction)
        })
    }

    /// Whether a direction has sub policies.
    #[inline]
    pub(crate) fn has_subs(&self, direction: Direction) -> bool {
        self.classifier.has(PolicyKind::Sub, direction)
    }

    /// The first match among policies of one kind: offloaded ones first, then by priority, then the
    /// older.
    #[must_use]
    pub fn lookup_kind(
        &self,
        kind: PolicyKind,
        direction: Direction,
        flow: &FlowKey,
    ) -> Option<&Arc<PolicyEntry>> {
        policy_of(&self.classifier.first(kind, direction, flow))
    }

    /// The policies that decide about a flow: the first match, and the main policy behind a sub
    /// policy that allows (`xfrm_expand_policies`).
    pub fn deciding(
        &self,
        direction: Direction,
        flow: &FlowKey,
    ) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        let first = match self.lookup(direction, flow) {
            PolicyLookup::Policy(entry) => Some(entry),
            PolicyLookup::Default(_) => None,
        };
        let main = first
            .filter(|entry| entry.kind() == PolicyKind::Sub && entry.action() == Action::Allow)
            .and_then(|_| self.lookup_kind(PolicyKind::Main, direction, flow));
        first.into_iter().chain(main)
    }

    /// All policies in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        let mut all = Vec::with_capacity(self.classifier.len());
        self.classifier.each(&mut |entry| all.push(entry));
        all.into_iter()
    }

    /// Number of policies.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.classifier.len()
    }

    /// Whether there are no policies.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rises with each policy change.
    #[must_use]
    #[inline]
    pub const fn generation(&self) -> u64 {
        self.change_log.changes()
    }

    /// Scopes of the changes since a generation; `None` if no longer known.
    pub(crate) fn scopes_since(
        &self,
        generation: u64,
    ) -> Option<impl Iterator<Item = InvalidationScope>> {
        self.change_log.since(generation)
    }

    /// Whether some policy of a direction needs whole datagrams.
    #[inline]
    pub(crate) const fn needs_whole_datagrams(&self, direction: Direction) -> bool {
        self.classifier.asks_for_whole(direction)
    }

    /// Whether a flow may not leave in the clear.
    pub(crate) fn forbids_plaintext(&self, flow: &FlowKey) -> bool {
        let kinds = [PolicyKind::Sub, PolicyKind::Main];
        let mut found =
            kinds.into_iter().filter_map(|kind| self.lookup_kind(kind, Direction::Out, flow));
        match found.next() {
            None => self.defaults.outbound == Action::Block,
            Some(first) => blocks_plaintext(first) || found.any(|entry| blocks_plaintext(entry)),
        }
    }

    /// Whether any IPv6 flow may not leave in the clear.
    pub(crate) fn forbids_any_v6_plaintext(&self) -> bool {
        self.v6_plaintext_blockers != 0 || self.defaults.outbound == Action::Block
    }

    pub(crate) const fn fragment_rules(&self) -> &FragmentRules {
        &self.fragment_rules
    }

    pub(crate) const fn quote_rules(&self) -> &QuoteRules {
        &self.quote_rules
    }

    /// Number of policies of a direction and family, without interface id, if they are few enough
    /// for a linear comparison.
    pub(crate) fn linear_len(&self, direction: Direction, family: Family) -> Option<usize> {
        self.classifier.linear_len(direction, family)
    }

    /// Estimated cost of a look-up within a batch, in tenths of a cycle, without cache misses.
    #[must_use]
    pub fn estimate_cost(&self, direction: Direction, flow: &FlowKey) -> usize {
        self.classifier.estimate_cost(direction, flow)
    }

    /// Memory and depth of the look-up structures.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.classifier.footprint()
    }

    /// Actions for packets that match no policy.
    #[must_use]
    pub const fn defaults(&self) -> DefaultActions {
        self.defaults
    }

    pub(crate) fn set_defaults(&mut self, defaults: DefaultActions) {
        self.defaults = defaults;
        self.change_log.record(InvalidationScope::All);
    }

    /// Brings this older copy of `newer` up to it, given the policies that changed; shares with it
    /// only what is new.
    pub(crate) fn sync_from(&mut self, newer: &Self, changed: &[Arc<PolicyEntry>]) {
        self.classifier.follow(&newer.classifier, changed);
        (self.defaults, self.change_log) = (newer.defaults, newer.change_log.clone());
        self.fragment_rules.clone_from(&newer.fragment_rules);
        self.quote_rules.clone_from(&newer.quote_rules);
        self.v6_plaintext_blockers = newer.v6_plaintext_blockers;
    }

    pub(crate) fn insert_all(&mut self, entries: &[Arc<PolicyEntry>]) {
        self.classifier.insert_all(entries);
        for entry in entries {
            self.fragment_rules.insert(entry);
            self.quote_rules.insert(entry);
            self.v6_plaintext_blockers += usize::from(blocks_v6_plaintext(entry));
        }
        self.change_log.record_all(entries.iter().map(|entry| InvalidationScope::of(entry)));
    }

    /// Inserts one policy; [`Spd::prepare`] must be called before the next change.
    pub(crate) fn insert_deferred(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.insert_one(entry);
        self.fragment_rules.insert(entry);
        self.quote_rules.insert(entry);
        self.v6_plaintext_blockers += usize::from(blocks_v6_plaintext(entry));
        self.change_log.record(InvalidationScope::of(entry));
    }

    /// Prepares for another policy at the same place. Look-ups are unaffected.
    pub(crate) fn prepare(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.prepare(entry);
    }

    /// Whether so many policies came and went one by one that a rebuild may pay.
    pub(crate) fn needs_rebuild(&self) -> bool {
        self.classifier.is_outgrown()
    }

    /// Copies of the bins to be rebuilt.
    pub(crate) fn start_rebuild(&self) -> Rebuild {
        self.classifier.revision()
    }

    /// Installs rebuilt bins. Look-ups are unaffected.
    pub(crate) fn install(&mut self, revised: RebuiltIndex, moved: &[PendingDelta]) {
        self.classifier.adopt(revised, moved);
    }

    /// Removes a policy that is present.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.remove(entry);
        self.fragment_rules.remove(entry);
        self.quote_rules.remove(entry);
        self.v6_plaintext_blockers -= usize::from(blocks_v6_plaintext(entry));
        self.change_log.record(InvalidationScope::of(entry));
    }
}

/// Whether an `out` policy forbids plaintext, if there are SAs for it.
fn blocks_plaintext(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Block || entry.templates().len() > 0
}

fn blocks_v6_plaintext(entry: &PolicyEntry) -> bool {
    (entry.direction(), entry.family()) == (Direction::Out, Family::V6) && blocks_plaintext(entry)
}

impl DefaultActions {
    /// Default action of a direction.
    #[must_use]
    pub const fn of(self, direction: Direction) -> Action {
        match direction {
            Direction::In => self.inbound,
            Direction::Forward => self.forward,
            Direction::Out => self.outbound,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

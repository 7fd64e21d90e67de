//! The security policy database as workers see it: immutable; which policy decides over a packet.

use std::sync::Arc;

use super::change_log::PolicyChangeLog;
use super::classifier::{BestMatch, Classifier, Footprint, LOOKUP_BATCH, Moved, Revised, Revision};
use super::fragment_rules::FragmentRules;
use super::scope::InvalidationScope;
use crate::{Action, Direction, Family, FlowKey, PolicyEntry, PolicyKind};

/// All policies of one generation, and what happens to packets that match none.
#[derive(Clone, Debug, Default)]
pub struct Spd {
    classifier: Classifier,
    defaults: Defaults,
    change_log: PolicyChangeLog,
    fragment_rules: FragmentRules,
    /// Policies `out` of IPv6 that let nothing leave plain.
    v6_plaintext_blockers: usize,
}

/// `ip xfrm policy setdefault`: what happens to packets that match no policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// For packets to this host.
    pub inbound: Action,
    /// For packets through this host.
    pub forward: Action,
    /// For packets leaving.
    pub outbound: Action,
}

/// The answer to [`Spd::lookup`].
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// The policy that decides.
    Policy(&'a Arc<PolicyEntry>),
    /// None matches; this is the default of the direction.
    Default(Action),
}

impl Spd {
    /// The policy that decides: the first match among sub policies, else among main ones (`xfrm_policy_lookup`). To a sub policy that
    /// allows belongs the main one as well: [`Spd::lookup_kind`] finds it (`xfrm_expand_policies`).
    #[must_use]
    pub fn lookup(&self, direction: Direction, flow: &FlowKey) -> Lookup<'_> {
        let default = Lookup::Default(self.defaults.of(direction));
        self.first(direction, flow).entry().map_or(default, Lookup::Policy)
    }

    /// As [`Spd::lookup`] of each flow, in their order, into `found`. Waits for memory once for many packets where that waits for each.
    pub fn lookup_each<'a>(
        &'a self,
        direction: Direction,
        flows: &[FlowKey],
        found: &mut Vec<Lookup<'a>>,
    ) {
        for flows in flows.chunks(LOOKUP_BATCH) {
            let default = Lookup::Default(self.defaults.of(direction));
            let mut bests = [BestMatch::NONE; LOOKUP_BATCH];
            self.find_each(direction, flows, &mut bests);
            let bests = bests.iter().take(flows.len());
            found.extend(bests.map(|best| best.entry().map_or(default, Lookup::Policy)));
        }
    }

    /// The policies that decide, of [`LOOKUP_BATCH`] flows at the most, into `main`, where none are.
    #[inline]
    pub(crate) fn find_each<'a>(
        &'a self,
        direction: Direction,
        flows: &[FlowKey],
        main: &mut [BestMatch<'a>; LOOKUP_BATCH],
    ) {
        if let [flow] = flows {
            main[0] = self.first(direction, flow);
            return;
        }
        self.classifier.find_each(PolicyKind::Main, direction, flows, main);
        if self.has_subs(direction) {
            let mut subs = [BestMatch::NONE; LOOKUP_BATCH];
            self.classifier.find_each(PolicyKind::Sub, direction, flows, &mut subs);
            for (main, sub) in main.iter_mut().zip(&subs) {
                *main = sub.or(*main);
            }
        }
    }

    /// The policy that decides, if any does.
    fn first(&self, direction: Direction, flow: &FlowKey) -> BestMatch<'_> {
        if self.has_subs(direction) {
            let sub = self.classifier.first(PolicyKind::Sub, direction, flow);
            if sub.entry().is_some() {
                return sub;
            }
        }
        self.classifier.first(PolicyKind::Main, direction, flow)
    }

    /// Whether there may be sub policies in a direction.
    #[inline]
    pub(crate) fn has_subs(&self, direction: Direction) -> bool {
        self.classifier.has(PolicyKind::Sub, direction)
    }

    /// The first match among policies of one kind: offloaded ones, then by priority, then the older.
    #[must_use]
    pub fn lookup_kind(
        &self,
        kind: PolicyKind,
        direction: Direction,
        flow: &FlowKey,
    ) -> Option<&Arc<PolicyEntry>> {
        self.classifier.first(kind, direction, flow).entry()
    }

    /// All policies, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        let mut all = Vec::with_capacity(self.classifier.len());
        self.classifier.each(&mut |entry| all.push(entry));
        all.into_iter()
    }

    /// How many policies there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.classifier.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rises with every change of policies.
    #[must_use]
    #[inline]
    pub const fn generation(&self) -> u64 {
        self.change_log.changes()
    }

    /// Whom the changes since a generation may concern; `None` when nobody knows any more.
    pub(crate) fn concerned_since(
        &self,
        generation: u64,
    ) -> Option<impl Iterator<Item = InvalidationScope>> {
        self.change_log.since(generation)
    }

    /// Whether some policy of a direction can be found or carried out for whole datagrams only.
    #[inline]
    pub(crate) const fn asks_for_whole(&self, direction: Direction) -> bool {
        self.classifier.asks_for_whole(direction)
    }

    /// Whether a packet of a flow may not leave plain.
    pub(crate) fn keeps_from(&self, flow: &FlowKey) -> bool {
        let kinds = [PolicyKind::Sub, PolicyKind::Main];
        let mut found =
            kinds.into_iter().filter_map(|kind| self.lookup_kind(kind, Direction::Out, flow));
        match found.next() {
            None => self.defaults.outbound == Action::Block,
            Some(first) => blocks_plaintext(first) || found.any(|entry| blocks_plaintext(entry)),
        }
    }

    /// Whether there is any flow of IPv6 of which no packet may leave plain.
    pub(crate) fn keeps_any_v6(&self) -> bool {
        self.v6_plaintext_blockers != 0 || self.defaults.outbound == Action::Block
    }

    pub(crate) const fn fragment_rules(&self) -> &FragmentRules {
        &self.fragment_rules
    }

    /// How many policies without interface id of a direction and family are compared one by one; `None` when there are too many for that.
    pub(crate) fn linear_len(&self, direction: Direction, family: Family) -> Option<usize> {
        self.classifier.linear_len(direction, family)
    }

    /// What finding a flow's policy costs among others, as far as it can be foretold, in tenths of a cycle; however much memory it waits for.
    #[must_use]
    pub fn weigh(&self, direction: Direction, flow: &FlowKey) -> usize {
        self.classifier.estimate_cost(direction, flow)
    }

    /// What finding policies takes up.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.classifier.footprint()
    }

    /// What happens to packets that match none.
    #[must_use]
    pub const fn defaults(&self) -> Defaults {
        self.defaults
    }

    pub(crate) fn set_defaults(&mut self, defaults: Defaults) {
        self.defaults = defaults;
        self.change_log.record(InvalidationScope::All);
    }

    /// Becomes what `newer` is, of which it was a copy before some policies came or went; shares with it only what is new.
    pub(crate) fn follow(&mut self, newer: &Self, changed: &[Arc<PolicyEntry>]) {
        self.classifier.follow(&newer.classifier, changed);
        (self.defaults, self.change_log) = (newer.defaults, newer.change_log.clone());
        self.fragment_rules.clone_from(&newer.fragment_rules);
        self.v6_plaintext_blockers = newer.v6_plaintext_blockers;
    }

    pub(crate) fn insert_all(&mut self, entries: &[Arc<PolicyEntry>]) {
        self.classifier.insert_all(entries);
        for entry in entries {
            self.fragment_rules.insert(entry);
            self.v6_plaintext_blockers += usize::from(blocks_v6_plaintext(entry));
        }
        self.change_log.record_all(entries.iter().map(|entry| InvalidationScope::of(entry)));
    }

    /// One alone, which [`Spd::prepare`] is to be called for before the next change.
    pub(crate) fn insert_one(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.insert_one(entry);
        self.fragment_rules.insert(entry);
        self.v6_plaintext_blockers += usize::from(blocks_v6_plaintext(entry));
        self.change_log.record(InvalidationScope::of(entry));
    }

    /// Makes ready for another policy where one came. Every look-up finds what it found before.
    pub(crate) fn prepare(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.prepare(entry);
    }

    /// Whether so many policies came and went one by one that another plan of all may be better.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.classifier.is_outgrown()
    }

    /// Those to be planned anew.
    pub(crate) fn revision(&self) -> Revision {
        self.classifier.revision()
    }

    /// Puts in what was planned anew. Every look-up finds what it found before.
    pub(crate) fn adopt(&mut self, revised: Revised, moved: &[Moved]) {
        self.classifier.adopt(revised, moved);
    }

    /// Takes a policy out that is in.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        self.classifier.remove(entry);
        self.fragment_rules.remove(entry);
        self.v6_plaintext_blockers -= usize::from(blocks_v6_plaintext(entry));
        self.change_log.record(InvalidationScope::of(entry));
    }
}

/// Whether nothing leaves plain by a policy `out`, if there are states for it.
fn blocks_plaintext(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Block || entry.templates().len() > 0
}

fn blocks_v6_plaintext(entry: &PolicyEntry) -> bool {
    (entry.direction(), entry.family()) == (Direction::Out, Family::V6) && blocks_plaintext(entry)
}

impl Defaults {
    /// The default of a direction.
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

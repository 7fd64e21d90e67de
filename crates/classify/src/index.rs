//! The index: entries in match order, and the first that a key matches.

use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::Node;
use crate::replanning::{PlanScope, ReplanTiming};
use crate::rule::{Best, Rule};
use crate::{LOOKUP_BATCH, cost_model};

/// Entries that match keys of some words. Clones share memory: readers see an immutable one, and a
/// change copies one path.
#[derive(Clone, Debug)]
#[expect(private_bounds, reason = "keys are of two or of five words")]
pub struct Index<W: Words, E: Entry>(Node<W, E>);

impl<W: Words, E: Entry> Default for Index<W, E> {
    fn default() -> Self {
        Self(Node::default())
    }
}

#[expect(private_bounds, reason = "keys are of two or of five words")]
impl<W: Words, E: Entry> Index<W, E> {
    /// The first match of a key, if any.
    #[must_use]
    #[inline]
    pub fn lookup(&self, key: &Key<W>) -> Best<'_, E> {
        self.0.first(key)
    }

    /// Offers the first match of each key; at most [`LOOKUP_BATCH`] keys.
    #[inline]
    pub fn lookup_batch<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a, E>; LOOKUP_BATCH]) {
        self.0.find_each(keys, bests);
    }

    /// Inserts an entry.
    pub fn insert(&mut self, entry: &E, timing: ReplanTiming) {
        self.0.insert(Rule::of(entry), timing);
    }

    /// Inserts entries. Plans all anew if these are the majority, which is much faster than single
    /// insertions.
    pub fn insert_all(&mut self, entries: &[E]) -> PlanScope {
        self.0.insert_all(entries.iter().map(Rule::of).collect())
    }

    /// Prepares for another entry at the same place, where the next one mostly comes: unshares the
    /// path and replans what has outgrown its plan.
    pub fn prepare(&mut self, entry: &E) {
        self.0.prepare(&Rule::of(entry));
    }

    /// Removes an entry that is present.
    pub fn remove(&mut self, entry: &E) {
        self.0.remove(&Rule::of(entry));
    }

    /// Copies the path of an entry from `newer`. Other parts may differ in shape, but hold the same
    /// entries.
    pub fn follow(&mut self, newer: &Self, entry: &E) {
        self.0.follow(&newer.0, &Rule::of(entry));
    }

    /// The same entries, planned as a whole; does not depend on the order of insertion.
    #[must_use]
    pub fn replanned(&self) -> Self {
        Self(self.0.replanned())
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries, if they are few enough for a linear or one-block comparison.
    #[must_use]
    pub fn linear_len(&self) -> Option<usize> {
        self.0.linear_len()
    }

    /// Visits all entries in no order.
    pub fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        self.0.each(visit);
    }

    /// Bytes on the heap, without the entries.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    /// Cuts on the longest path.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.depth()
    }

    /// Estimated cost of a key in a batch, in tenths of a cycle, without cache misses.
    #[must_use]
    pub fn estimate_cost(&self, key: &Key<W>) -> usize {
        cost_model::estimate_packet(&self.0, key)
    }
}

//! The index: entries in match order, and the first that a key matches.

use crate::compact_rule::CompactRules;
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::{Node, cut_counts};
use crate::plan::FEW;
use crate::replanning::{PlanScope, ReplanTiming};
use crate::rule::{Best, Rule};
use crate::simd_leaf::count;
use crate::{LOOKUP_BATCH, batch, cost_model, linear_leaf, root_cuts};

/// Up to this many rules are searched key by key.
const ALONE: usize = 32;

/// Entries that match keys of some words. Clones share memory: readers see an immutable one, and a
/// change copies one path.
#[derive(Clone, Debug)]
#[expect(private_bounds, reason = "keys are of two or of five words")]
pub struct Index<W: Words, E: Entry>(pub(crate) Node<W, E>);

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
        let mut best = Best::NONE;
        match &self.0 {
            Node::Linear { rules, .. } => linear_leaf::find(rules, &key.words, key, &mut best),
            Node::Empty { .. }
            | Node::Compact { .. }
            | Node::Simd { .. }
            | Node::ByteBits { .. }
            | Node::FieldBits { .. }
            | Node::Cut { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => {
                self.0.find(key, &mut best);
            }
        }
        best
    }

    /// Offers the first match of each key; at most [`LOOKUP_BATCH`] keys.
    #[inline]
    pub fn lookup_batch<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a, E>; LOOKUP_BATCH]) {
        match &self.0 {
            Node::Cut { nodes, .. } if cut_counts(nodes).0 > ALONE => {
                batch::find_each(&self.0, keys, bests)
            }
            Node::TupleSpace { space, .. } => batch::find_each_tuples(space, keys, bests),
            Node::Linear { rules, .. } => {
                linear_leaf::find_each(rules, |key| key.words, keys, bests)
            }
            Node::Compact { far, rules, .. } => {
                linear_leaf::find_each(
                    rules,
                    |key| W::Compact::<E>::far_first(&key.words, *far),
                    keys,
                    bests,
                );
            }
            Node::ByteBits { bits, .. } => bits.find_each(keys, bests),
            Node::FieldBits { bits, .. } => bits.find_each(keys, bests),
            Node::Empty { .. } | Node::Simd { .. } | Node::Cut { .. } | Node::Counts { .. } => {
                keys.iter().zip(bests).for_each(|(key, best)| self.0.find(key, best));
            }
        }
    }

    /// Inserts an entry.
    pub fn insert(&mut self, entry: &E, timing: ReplanTiming) {
        self.0.insert(Rule::of(entry), timing);
    }

    /// Inserts entries. Plans all anew if these are the majority, which is much faster than single
    /// insertions.
    pub fn insert_all(&mut self, entries: &[E]) -> PlanScope {
        if entries.len() < self.len().max(FEW) {
            entries.iter().for_each(|entry| self.insert(entry, ReplanTiming::Now));
            return PlanScope::Incremental;
        }
        let mut rules = self.0.rules();
        rules.extend(entries.iter().map(Rule::of));
        self.0 = root_cuts::best_root(rules);
        PlanScope::Whole
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

    /// The same entries, planned as a whole. Sorted first, as plans use samples and must not depend
    /// on the order of insertion.
    #[must_use]
    pub fn replanned(&self) -> Self {
        let mut rules = self.0.rules();
        rules.sort_by_cached_key(|rule| rule.entry.precedence());
        Self(root_cuts::best_root(rules))
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
    #[inline]
    pub fn linear_len(&self) -> Option<usize> {
        match &self.0 {
            Node::Empty { .. } => Some(0),
            Node::Linear { rules, .. } => Some(rules.len()),
            Node::Compact { rules, .. } => Some(rules.len()),
            Node::Simd { blocks, .. } if blocks.len() == 1 => Some(count::<W, E>(blocks)),
            Node::Simd { .. }
            | Node::ByteBits { .. }
            | Node::FieldBits { .. }
            | Node::Cut { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => None,
        }
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

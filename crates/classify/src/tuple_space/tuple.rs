//! A tuple: the rules that match all bits of a mask, hashed by the masked value.

use std::sync::Arc;

use super::bucket::Bucket;
use super::rank16::Rank16;
use crate::entry::Entry;
use crate::key::Words;
use crate::prefilter_table::PrefilterTable;
use crate::replanning::ReplanTiming;
use crate::rule::{MatchRule, Rule};

/// A hash table of rules.
#[derive(Clone, Debug)]
pub(crate) struct Tuple<W: Words, E: Entry> {
    mask: W,
    prefilter: PrefilterTable,
    /// In chunks, so that a change copies little.
    buckets: Arc<[BucketChunk<W, E>]>,
    /// Log2 of the prefilter slots per bucket.
    shift: u32,
}

/// Adjacent buckets.
type BucketChunk<W, E> = Arc<[Bucket<W, E>]>;

/// Log2 of the buckets per chunk: few chunks, so that their table stays in the first-level cache.
const CHUNK: u32 = 11;
/// Log2 limits: buckets, which should fit the second-level cache; and prefilter slots, which a
/// change may have to copy.
const MAX_BUCKETS: u32 = 14;
const MAX_SLOTS: u32 = 16;
/// Larger buckets are not rescanned after a removal.
const MAX_RESCAN: usize = 64;
/// Prefilter slots per value: with fewer, collisions are frequent.
const SLOTS_PER_VALUE: usize = 4;

impl<W: Words, E: Entry> Tuple<W, E> {
    /// Builds it of rules that it accepts.
    pub(super) fn of(mask: W, rank16: Rank16, rules: Vec<&Rule<W, E>>) -> Self {
        let mut different: Vec<_> = rules.iter().map(|rule| rule.value.masked(&mask)).collect();
        different.sort_unstable();
        different.dedup();
        let bits = |count: usize| count.next_power_of_two().ilog2();
        let buckets = bits(different.len()).clamp(CHUNK, MAX_BUCKETS);
        let mut prefilter = PrefilterTable::of(
            mask.all(),
            bits(different.len() * SLOTS_PER_VALUE).clamp(buckets, MAX_SLOTS),
        );
        let shift = prefilter.len().ilog2() - buckets;
        let mut sets = Vec::new();
        sets.resize_with(1 << buckets, Vec::new);
        for rule in rules {
            let hash = prefilter.hash(rule.value.all());
            prefilter.insert(hash, rank16.of(rule.rank()));
            sets[prefilter.slot(hash) >> shift].push(rule);
        }
        let buckets: Vec<_> = sets.into_iter().map(Bucket::of).collect();
        let buckets = buckets.chunks(1 << CHUNK).map(Arc::from).collect();
        Self { mask, prefilter, buckets, shift }
    }

    /// Whether a rule belongs in a tuple with this mask.
    pub(super) fn accepts(mask: &W, rule: &Rule<W, E>) -> bool {
        rule.mask.masked(mask) == *mask
    }

    pub(super) const fn mask(&self) -> &W {
        &self.mask
    }

    #[inline]
    pub(crate) const fn prefilter(&self) -> &PrefilterTable {
        &self.prefilter
    }

    /// The bucket of a prefilter slot.
    #[inline]
    pub(crate) fn bucket(&self, slot: usize) -> Option<&Bucket<W, E>> {
        let at = slot >> self.shift;
        self.buckets.get(at >> CHUNK)?.get(at % (1 << CHUNK))
    }

    pub(super) fn insert(&mut self, rule: Rule<W, E>, rank16: Rank16, timing: ReplanTiming) {
        let hash = self.prefilter.hash(rule.value.all());
        self.prefilter.insert(hash, rank16.of(rule.rank()));
        self.bucket_mut(self.prefilter.slot(hash)).insert(rule, timing);
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W, E>) {
        self.bucket_mut(self.slot(rule)).prepare(rule);
    }

    pub(super) fn remove(&mut self, rule: &Rule<W, E>, rank16: Rank16) {
        let hash = self.prefilter.hash(rule.value.all());
        let slot = self.prefilter.slot(hash);
        self.bucket_mut(slot).remove(rule);
        if self.prefilter.rank(hash) == rank16.of(rule.rank()) {
            self.refresh_slot(slot, rank16);
        }
    }

    /// Updates a slot after a removal. For large buckets the first rank suffices: a rank that is
    /// too low costs a visit, a rescan costs more.
    fn refresh_slot(&mut self, slot: usize, rank16: Rank16) {
        let Some(bucket) = self.bucket(slot) else { return };
        if bucket.len() > MAX_RESCAN {
            let first = rank16.of(bucket.first());
            return self.prefilter.raise_rank(slot, first);
        }
        let rules = bucket.rules();
        self.prefilter.clear(slot);
        for rule in rules {
            let hash = self.prefilter.hash(rule.value.all());
            if self.prefilter.slot(hash) == slot {
                self.prefilter.insert(hash, rank16.of(rule.rank()));
            }
        }
    }

    /// Whether both have the same plan.
    pub(super) fn has_same_plan(&self, other: &Self) -> bool {
        (self.mask, self.prefilter.len(), self.shift)
            == (other.mask, other.prefilter.len(), other.shift)
    }

    /// Copies the place of a rule from `newer`.
    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W, E>) {
        let slot = self.slot(rule);
        self.prefilter.sync_slot(&newer.prefilter, slot);
        if let Some(newer) = newer.bucket(slot) {
            self.bucket_mut(slot).follow(newer, rule);
        }
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket<W, E>> {
        self.buckets.iter().flat_map(|chunk| chunk.iter())
    }

    pub(super) fn memory(&self) -> usize {
        let buckets =
            self.buckets().map(|bucket| size_of_val(bucket) + bucket.memory()).sum::<usize>();
        size_of::<Self>() + self.prefilter.memory() + size_of_val(&*self.buckets) + buckets
    }

    fn slot(&self, rule: &Rule<W, E>) -> usize {
        self.prefilter.slot(self.prefilter.hash(rule.value.all()))
    }

    fn bucket_mut(&mut self, slot: usize) -> &mut Bucket<W, E> {
        let at = slot >> self.shift;
        &mut Arc::make_mut(&mut Arc::make_mut(&mut self.buckets)[at >> CHUNK])[at % (1 << CHUNK)]
    }
}

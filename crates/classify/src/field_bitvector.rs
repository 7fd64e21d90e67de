//! Aggregated bit vectors by fields, for rules that overlap in many ways.
//!
//! Like a [`ByteBitvector`](super::byte_bitvector), but with one row per field instead of one per
//! byte. The row is found by a search among interval ends, or for IPv6 addresses by a Patricia
//! trie. Adjacent rules that differ only in one port, such as those of a port range, share a bit
//! and are compared one by one when it is found.
//!
//! Rows are immutable. Removed rules are masked out, and new ones are compared apart, until
//! there are so many that all is replanned.

pub(super) mod choice;
mod intervals;
mod rule_group;

use std::hint::select_unpredictable;
use std::sync::Arc;

use intervals::key_fields;
use rule_group::{RuleGroup, groups};

use crate::LOOKUP_BATCH;
use crate::bitvector::{BitLine, FieldRows};
use crate::entry::Entry;
use crate::key::{Key, UNUSED_BITS, Words};
use crate::rule::{Best, Rank, RankedEntry, Rule, fits_extra};
use crate::simd_leaf::{self, RuleBlock, SimdLeaf};
use crate::ternary_block::TernaryBlock;

/// Rules in match order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct FieldBitvector<W: Words, E: Entry> {
    rows: FieldRows,
    /// Rules that share each bit.
    groups: Arc<[RuleGroup]>,
    /// Last words of each group: values, then masks.
    uppers: Arc<[u64]>,
    /// Rules that have a bit.
    rules: Arc<[RankedEntry<E>]>,
    /// Whether a found bit is a match without further comparison: no bit is shared and no mask has
    /// gaps.
    is_exact: bool,
    /// Bits with rules that are still present.
    live: Vec<BitLine>,
    /// Rules without a bit yet.
    recent: SimdLeaf<W, E>,
    /// Number of rules.
    len: usize,
    /// Number of rules when it was planned.
    pub(super) planned: usize,
}

/// Upper limit of rules that are compared apart.
const MAX_RECENT: usize = simd_leaf::MAX_RULES;
/// Up to this many are no reason to replan early.
const FEW_RECENT: usize = MAX_RECENT * 3 / 4;
/// Longer rows take too long to intersect.
const MAX_BITS: usize = 2048;

impl<W: Words, E: Entry> FieldBitvector<W, E> {
    /// Builds it of rules in match order; `None` if they are too many.
    pub(super) fn of(rules: &[&Rule<W, E>]) -> Option<Self> {
        let groups = groups(rules);
        if groups.len() > MAX_BITS {
            return None;
        }
        let words = groups.len().div_ceil(64);
        let (key_fields, is_plain) = key_fields(rules, &groups, words);
        let rows = FieldRows::of(words, &key_fields)?;
        let is_exact = is_plain && groups.len() == rules.len();
        let mut live = vec![BitLine::default(); rows.width()];
        for bit in 0..groups.len() {
            live[bit / 512].0[bit / 64 % 8] |= 1 << (bit % 64);
        }
        Some(Self {
            rows,
            is_exact,
            uppers: groups.iter().flat_map(|group| group.uppers(rules)).collect(),
            groups: groups.into(),
            rules: rules.iter().map(|rule| RankedEntry::of(rule)).collect(),
            live,
            recent: SimdLeaf::<W, E>::default(),
            len: rules.len(),
            planned: rules.len(),
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Offers the first match.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        self.find_each(std::slice::from_ref(key), std::slice::from_mut(best));
    }

    /// Offers the first match of each key. All rows are searched before the first rule is read.
    pub(super) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a, E>]) {
        let mut found = [0; LOOKUP_BATCH];
        for (keys, bests) in keys.chunks(LOOKUP_BATCH).zip(bests.chunks_mut(LOOKUP_BATCH)) {
            W::find_first_batch(&self.rows, keys, &self.live, &mut found);
            if !self.recent.is_empty() {
                let each = keys.iter().zip(&mut *bests);
                each.for_each(|(key, best)| simd_leaf::find(&self.recent, key, best));
            }
            if self.is_exact {
                let each = keys.iter().zip(bests).zip(&found);
                each.for_each(|((key, best), bit)| self.consider(*bit, *bit as usize, key, best));
            } else {
                self.consider_each(keys, &found, bests);
            }
        }
    }

    /// Offers the first matching rule of each key's bit.
    fn consider_each<'a>(
        &'a self,
        keys: &[Key<W>],
        found: &[u32; LOOKUP_BATCH],
        bests: &mut [Best<'a, E>],
    ) {
        let mut fits = [0; LOOKUP_BATCH];
        let pairs = keys.iter().zip(found).map(|(key, bit)| (self.block(*bit), upper(key)));
        crate::ternary_block::match_blocks(pairs, !UNUSED_BITS, &mut fits);
        for (((key, best), bit), fits) in keys.iter().zip(bests).zip(found).zip(&fits) {
            let group = self.groups.get(*bit as usize).copied().unwrap_or_default();
            self.consider(*bit, group.rule(*fits), key, best);
        }
    }

    /// Last words of the rules of a bit.
    #[inline]
    fn block(&self, bit: u32) -> TernaryBlock<'_> {
        let group = self.groups.get(bit as usize).copied().unwrap_or_default();
        let words = self.uppers.get(group.words()).unwrap_or_default();
        TernaryBlock { words, lanes: group.lanes() }
    }

    /// Offers a rule of a bit, or that of the next bit if it fails on the extra bits.
    /// Branch-free over whether there is a match, which is unpredictable.
    #[inline]
    fn consider<'a>(&'a self, mut bit: u32, mut at: usize, key: &Key<W>, best: &mut Best<'a, E>) {
        loop {
            let nothing_fits = bit as usize >= self.groups.len();
            let ranked_entry = self.rules.get(select_unpredictable(nothing_fits, 0, at));
            if let Some(RankedEntry { rank, tag_bits, entry }) = ranked_entry
                && (!tag_bits.has_extra() || nothing_fits || fits_extra(entry, key))
            {
                return best.consider(rank.or_last_if(nothing_fits), *tag_bits, entry);
            }
            if nothing_fits {
                return;
            }
            // Rules that match extra bits share no bit.
            (bit, at) = self.next(bit, key);
        }
    }

    /// The next matching bit, and the first match among its rules.
    #[cold]
    fn next(&self, bit: u32, key: &Key<W>) -> (u32, usize) {
        let next = self.rows.find_first_from(key.words.all(), &self.live, bit as usize + 1);
        let Some(bit) = next else { return (u32::MAX, 0) };
        let mut fits = [0];
        crate::ternary_block::match_blocks(
            [(self.block(bit), upper(key))].into_iter(),
            !UNUSED_BITS,
            &mut fits,
        );
        let group = self.groups.get(bit as usize).copied().unwrap_or_default();
        (bit, group.rule(fits[0]))
    }

    /// Whether another rule can be inserted.
    pub(super) fn has_room(&self) -> bool {
        simd_leaf::count::<W, E>(&self.recent) < MAX_RECENT
    }

    /// Whether several rules can be inserted.
    pub(super) fn is_ready(&self) -> bool {
        simd_leaf::count::<W, E>(&self.recent) <= FEW_RECENT
    }

    /// Inserts a rule, for which there is [room](Self::has_room).
    pub(super) fn insert(&mut self, rule: Rule<W, E>) {
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::<E>::rules).collect();
        let before = |other: &Rule<W, E>| other.entry.precedence() < rule.entry.precedence();
        recent.insert(recent.partition_point(before), rule);
        self.len += 1;
        self.recent = simd_leaf::build(&recent);
    }

    /// Removes a rule, if present.
    pub(super) fn remove(&mut self, rule: &Rule<W, E>) {
        let place = rule.entry.precedence();
        if let Ok(at) = self.rules.binary_search_by_key(&place, |rule| rule.entry.precedence())
            && self.remove_at(at)
        {
            self.len -= 1;
            return;
        }
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::<E>::rules).collect();
        let before = recent.len();
        recent.retain(|other| other.entry.precedence() != place);
        self.len -= before - recent.len();
        self.recent = simd_leaf::build(&recent);
    }

    /// Removes the rule with this number; false if it was removed before.
    fn remove_at(&mut self, at: usize) -> bool {
        let bit = self.groups.partition_point(|group| group.entry(0) <= at) - 1;
        let group = &mut Arc::make_mut(&mut self.groups)[bit];
        let lane = 1 << (at - group.entry(0));
        if group.live & lane == 0 {
            return false;
        }
        group.live &= !lane;
        if group.live == 0 {
            self.live[bit / 512].0[bit / 64 % 8] &= !(1 << (bit % 64));
        }
        true
    }

    /// Rank of the first rule.
    pub(super) fn first(&self) -> Rank {
        let mut first = Rank::LAST;
        self.each(&mut |entry| first = first.min(entry.rank()));
        first
    }

    /// Visits all rules in no order.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        for group in &*self.groups {
            let live = (0..group.lanes()).filter(|lane| group.live >> lane & 1 != 0);
            let rules = live.filter_map(|lane| self.rules.get(group.entry(lane)));
            rules.for_each(|rule| visit(&rule.entry));
        }
        simd_leaf::each::<W, E>(&self.recent, visit);
    }

    /// Whether look-ups use AVX-512.
    pub(super) const fn is_fast(&self) -> bool {
        self.rows.uses_avx512()
    }

    /// Cache lines of rows read per look-up.
    pub(super) fn lines(&self) -> usize {
        self.rows.rows_read() * self.rows.width()
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.memory()
            + size_of_val(&*self.groups)
            + size_of_val(&*self.uppers)
            + size_of_val(&*self.rules)
            + self.live.capacity() * size_of::<BitLine>()
            + size_of_val(&*self.recent)
    }
}

/// A key's last word.
#[inline]
fn upper<W: Words>(key: &Key<W>) -> &[u64; 1] {
    key.words.all().last_chunk().unwrap_or(&[0])
}

#[cfg(test)]
mod tests;

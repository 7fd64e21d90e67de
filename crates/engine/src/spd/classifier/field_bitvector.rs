//! Policies that overlap in many ways, all compared at once: which of them each field of a packet fits, as rows of bits.
//!
//! What a [matrix](super::byte_bitvector) does byte by byte, but few rows are read for a packet: one for each field, whichever of an address's bytes count.
//! Which row it is takes a search among the values that policies tell apart, or for addresses of IPv6 a walk down a Patricia trie of them. Policies that
//! follow each other and ask the same but of one port, as those of a range of ports do, share a bit, and are compared one by one when it is found.
//!
//! Rows are never changed. Who leaves is no longer among those looked for, and who comes is compared apart, until there are so many that all is
//! planned anew.

pub(super) mod choice;
mod intervals;
mod rule_group;

use std::hint::select_unpredictable;
use std::sync::Arc;

use uxfrm_packet::{Block, Line};

use super::TOGETHER;
use super::rule::{Best, Brief, Comparable, Rank, Rule, fits_more};
use super::simd_leaf::{self, EightOf, Several};
use super::ternary::{Key, NOTHING, Words};
use crate::PolicyEntry;
use intervals::axes;
use rule_group::{Group, groups};

/// Policies in their order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct Grid<W: Words> {
    rows: uxfrm_packet::Grid,
    /// Who shares each bit.
    groups: Arc<[Group]>,
    /// Of each group the last word of its policies' values, then of their masks.
    uppers: Arc<[u64]>,
    /// Policies that have a bit.
    policies: Arc<[Column]>,
    /// Whether a bit that is found needs no second look: no two policies share one, and no mask has gaps.
    is_exact: bool,
    /// Bits with policies that are still in.
    left: Vec<Line>,
    /// Policies that have none yet.
    recent: Several<W>,
    /// How many are in.
    len: usize,
    /// How many there were when it was planned.
    pub(super) planned: usize,
}

#[derive(Clone, Debug)]
struct Column {
    rank: Rank,
    brief: Brief,
    entry: Arc<PolicyEntry>,
}

/// So many are compared apart.
const RECENT: usize = simd_leaf::MOST;
/// So many are no reason to make ready for more.
const FEW_RECENT: usize = RECENT * 3 / 4;
/// More bits make rows that take too long to compare.
const MOST_BITS: usize = 2048;

impl<W: Words> Grid<W> {
    /// Of rules in their order; none if they are too many.
    pub(super) fn of(rules: &[&Rule<W>]) -> Option<Self> {
        let groups = groups(rules);
        if groups.len() > MOST_BITS {
            return None;
        }
        let words = groups.len().div_ceil(64);
        let (axes, is_plain) = axes(rules, &groups, words);
        let rows = uxfrm_packet::Grid::of(words, &axes)?;
        let is_exact = is_plain && groups.len() == rules.len();
        let column = |rule: &&Rule<W>| Column {
            rank: rule.rank(),
            brief: rule.brief(),
            entry: Arc::clone(&rule.entry),
        };
        let mut left = vec![Line::default(); rows.width()];
        for bit in 0..groups.len() {
            left[bit / 512].0[bit / 64 % 8] |= 1 << (bit % 64);
        }
        Some(Self {
            rows,
            is_exact,
            uppers: groups.iter().flat_map(|group| group.uppers(rules)).collect(),
            groups: groups.into(),
            policies: rules.iter().map(column).collect(),
            left,
            recent: Several::<W>::default(),
            len: rules.len(),
            planned: rules.len(),
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Considers the first that fits.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        self.find_each(std::slice::from_ref(key), std::slice::from_mut(best));
    }

    /// Considers the first that fits, for each key. All are searched for before the first of the policies is waited for.
    pub(super) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a>]) {
        let mut found = [0; TOGETHER];
        for (keys, bests) in keys.chunks(TOGETHER).zip(bests.chunks_mut(TOGETHER)) {
            W::first_of_each(&self.rows, keys, &self.left, &mut found);
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

    /// Considers the first policies of some keys' bits that fit.
    fn consider_each<'a>(
        &'a self,
        keys: &[Key<W>],
        found: &[u32; TOGETHER],
        bests: &mut [Best<'a>],
    ) {
        let mut fits = [0; TOGETHER];
        let pairs = keys.iter().zip(found).map(|(key, bit)| (self.block(*bit), upper(key)));
        uxfrm_packet::fit_each(pairs, !NOTHING, &mut fits);
        for (((key, best), bit), fits) in keys.iter().zip(bests).zip(found).zip(&fits) {
            let group = self.groups.get(*bit as usize).copied().unwrap_or_default();
            self.consider(*bit, group.policy(*fits), key, best);
        }
    }

    /// What the policies of a bit ask of upper layers.
    #[inline]
    fn block(&self, bit: u32) -> Block<'_> {
        let group = self.groups.get(bit as usize).copied().unwrap_or_default();
        let words = self.uppers.get(group.words()).unwrap_or_default();
        Block { words, lanes: group.lanes() }
    }

    /// Considers a policy of a bit, if there is one, or that of the next bit if it asks for more than the packet has. Whether there is any bit is no
    /// branch: nobody could foretell it.
    #[inline]
    fn consider<'a>(&'a self, mut bit: u32, mut at: usize, key: &Key<W>, best: &mut Best<'a>) {
        loop {
            let nothing_fits = bit as usize >= self.groups.len();
            let column = self.policies.get(select_unpredictable(nothing_fits, 0, at));
            if let Some(Column { rank, brief, entry }) = column
                && (!brief.asks_more() || nothing_fits || fits_more(entry, key))
            {
                return best.consider(rank.unless(nothing_fits), *brief, entry);
            }
            if nothing_fits {
                return;
            }
            // No other policy shares a bit with one that asks for more.
            (bit, at) = self.next(bit, key);
        }
    }

    /// The next bit behind one that a packet has, and the first of its policies that fits.
    #[cold]
    fn next(&self, bit: u32, key: &Key<W>) -> (u32, usize) {
        let next = self.rows.first_from(key.words.all(), &self.left, bit as usize + 1);
        let Some(bit) = next else { return (u32::MAX, 0) };
        let mut fits = [0];
        uxfrm_packet::fit_each([(self.block(bit), upper(key))].into_iter(), !NOTHING, &mut fits);
        let group = self.groups.get(bit as usize).copied().unwrap_or_default();
        (bit, group.policy(fits[0]))
    }

    /// Whether one more may come.
    pub(super) fn has_room(&self) -> bool {
        simd_leaf::count::<W>(&self.recent) < RECENT
    }

    /// Whether many more may.
    pub(super) fn is_ready(&self) -> bool {
        simd_leaf::count::<W>(&self.recent) <= FEW_RECENT
    }

    /// Takes one more, for which there is [room](Self::has_room).
    pub(super) fn insert(&mut self, rule: Rule<W>) {
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::Eight::rules).collect();
        let before = |other: &Rule<W>| other.entry.place() < rule.entry.place();
        recent.insert(recent.partition_point(before), rule);
        self.len += 1;
        self.recent = simd_leaf::several(&recent);
    }

    /// Takes a policy out; one that is not in is no error.
    pub(super) fn remove(&mut self, rule: &Rule<W>) {
        let place = rule.entry.place();
        if let Ok(at) = self.policies.binary_search_by_key(&place, |policy| policy.entry.place())
            && self.leave(at)
        {
            self.len -= 1;
            return;
        }
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::Eight::rules).collect();
        let before = recent.len();
        recent.retain(|other| other.entry.place() != place);
        self.len -= before - recent.len();
        self.recent = simd_leaf::several(&recent);
    }

    /// Lets the policy at a place go; whether it was still in.
    fn leave(&mut self, at: usize) -> bool {
        let bit = self.groups.partition_point(|group| group.entry(0) <= at) - 1;
        let group = &mut Arc::make_mut(&mut self.groups)[bit];
        let lane = 1 << (at - group.entry(0));
        if group.left & lane == 0 {
            return false;
        }
        group.left &= !lane;
        if group.left == 0 {
            self.left[bit / 512].0[bit / 64 % 8] &= !(1 << (bit % 64));
        }
        true
    }

    /// The rank of the first.
    pub(super) fn first(&self) -> Rank {
        let mut first = Rank::LAST;
        self.each(&mut |entry| first = first.min(Rank::of(entry)));
        first
    }

    /// Shows each policy, in no order.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        for group in &*self.groups {
            let left = (0..group.lanes()).filter(|lane| group.left >> lane & 1 != 0);
            let policies = left.filter_map(|lane| self.policies.get(group.entry(lane)));
            policies.for_each(|policy| visit(&policy.entry));
        }
        simd_leaf::each::<W>(&self.recent, visit);
    }

    /// Whether the processor has what the quickest way to look up needs.
    pub(super) const fn is_fast(&self) -> bool {
        self.rows.is_fast()
    }

    /// How many lines of rows a look-up reads.
    pub(super) fn lines(&self) -> usize {
        self.rows.read() * self.rows.width()
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.memory()
            + size_of_val(&*self.groups)
            + size_of_val(&*self.uppers)
            + size_of_val(&*self.policies)
            + self.left.capacity() * size_of::<Line>()
            + size_of_val(&*self.recent)
    }
}

/// A packet's last word.
#[inline]
fn upper<W: Words>(key: &Key<W>) -> &[u64; 1] {
    key.words.all().last_chunk().unwrap_or(&[0])
}

#[cfg(test)]
mod tests;

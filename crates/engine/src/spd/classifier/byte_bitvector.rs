//! Policies that no cut tells apart, all compared at once: which of them each byte of a packet fits, as rows of bits.
//!
//! A selector asks something of every byte on its own, so the policies that fit a packet are those that fit all of its
//! bytes: one row of bits for each, and their intersection. The bits are in order, so the first one set is the answer. Values that
//! no policy tells apart share a row, and a byte that none asks for has no rows: what is read is little, and read without a branch.
//!
//! Rows are never changed. Who leaves is no longer among those looked for, and who comes is compared apart, until there are so many of either
//! that the rows are made anew.

mod classes;

use std::hint::select_unpredictable;
use std::sync::Arc;

use uxfrm_packet::{Line, NOTHING, Rows};

use super::TOGETHER;
use super::rule::{Best, Brief, Comparable, Rank, Rule, fits_more};
use super::simd_leaf::{self, EightOf, Several};
use super::ternary::{Key, Words};
use crate::PolicyEntry;

/// Policies in their order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct Matrix<W: Words> {
    rows: Rows,
    /// Policies that have a bit.
    policies: Arc<[Column]>,
    /// Which of them are still in.
    left: Vec<Line>,
    /// Policies that have none yet.
    recent: Several<W>,
    /// How many are in.
    len: usize,
    /// How many policies there were when it was decided that this is the way to compare them.
    pub(crate) planned: usize,
}

#[derive(Clone, Debug)]
struct Column {
    rank: Rank,
    brief: Brief,
    entry: Arc<PolicyEntry>,
}

/// Words that are compared together in long rows.
const BLOCK: usize = 8;
/// So many are compared apart.
const RECENT: usize = 32;
/// So many are no reason to make ready for more.
const FEW_RECENT: usize = 8;

/// How many bytes may be looked up where these bits are asked for: all of the words that have some of them.
pub(crate) fn bytes<W: Words>(asked: &W) -> usize {
    let asked = asked.under(&W::COUNTING);
    let bytes = |at: usize| if at == W::COUNT - 1 { 8 - NOTHING } else { 8 };
    (0..W::COUNT).filter(|at| asked.word(*at) != 0).map(bytes).sum()
}

/// Words in a row of so many bits.
pub(crate) const fn width(policies: usize) -> usize {
    let words = policies.div_ceil(64);
    if words <= BLOCK { words.next_power_of_two() } else { words.next_multiple_of(2 * BLOCK) }
}

impl<W: Words> Matrix<W> {
    /// Of rules in their order.
    pub(crate) fn of(rules: &[Rule<W>]) -> Self {
        let width = width(rules.len());
        let column = |rule: &Rule<W>| Column {
            rank: rule.rank(),
            brief: rule.brief(),
            entry: Arc::clone(&rule.entry),
        };
        Self {
            rows: Rows::of(W::COUNT, width, &classes::fields(rules, width)),
            policies: rules.iter().map(column).collect(),
            left: all(rules.len(), width.div_ceil(BLOCK)),
            recent: Several::<W>::default(),
            len: rules.len(),
            planned: rules.len(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Considers the first that fits.
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        self.consider(self.first_bit(key), key, best);
    }

    /// The place of the first that fits and has one; beyond all if there is none.
    pub(super) fn first_bit(&self, key: &Key<W>) -> u32 {
        self.rows.first(key, &self.left)
    }

    /// Considers the first that fits, for each key. All are searched for before the first of the policies is waited for.
    pub(crate) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a>]) {
        let mut found = [0; TOGETHER];
        for (keys, bests) in keys.chunks(TOGETHER).zip(bests.chunks_mut(TOGETHER)) {
            self.rows.first_of_each(keys, &self.left, &mut found);
            for ((key, best), found) in keys.iter().zip(bests).zip(&found) {
                self.consider(*found, key, best);
            }
        }
    }

    /// Considers the policy at a place, if there is one, or the next that fits if it asks for more than the packet has. Whether there is any is no
    /// branch: nobody could foretell it.
    #[inline(always)]
    pub(super) fn consider<'a>(&'a self, found: u32, key: &Key<W>, best: &mut Best<'a>) {
        let nothing_fits = found as usize >= self.policies.len();
        let at = select_unpredictable(nothing_fits, 0, found as usize);
        match self.policies.get(at) {
            Some(policy) if self.recent.is_empty() & !policy.brief.asks_more() => {
                best.consider(policy.rank.unless(nothing_fits), policy.brief, &policy.entry);
            }
            Some(_) | None => self.consider_closely(found, key, best),
        }
    }

    /// The same, where some have no place, or a policy may ask for more.
    #[inline(never)]
    fn consider_closely<'a>(&'a self, mut found: u32, key: &Key<W>, best: &mut Best<'a>) {
        simd_leaf::find(&self.recent, key, best);
        while let Some(policy) = self.policies.get(found as usize) {
            if !policy.brief.asks_more() || fits_more(&policy.entry, key) {
                return best.consider(policy.rank, policy.brief, &policy.entry);
            }
            let next = self.rows.first_from(key.words.all(), &self.left, found as usize + 1);
            found = next.unwrap_or(u32::MAX);
        }
    }

    pub(crate) fn insert(&mut self, rule: Rule<W>) {
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::Eight::rules).collect();
        recent.push(rule);
        self.len += 1;
        self.keep(recent);
        if simd_leaf::count::<W>(&self.recent) > RECENT {
            self.renew();
        }
    }

    /// Makes ready for more.
    pub(crate) fn prepare(&mut self) {
        if simd_leaf::count::<W>(&self.recent) > FEW_RECENT {
            self.renew();
        }
    }

    /// Takes a policy out; one that is not in is no error.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let place = rule.entry.place();
        let at = self.policies.binary_search_by_key(&place, |policy| policy.entry.place());
        if let Ok(at) = at
            && is_left(&self.left, at)
        {
            self.left[at / 512].0[at / 64 % BLOCK] &= !(1 << (at % 64));
            self.len -= 1;
            if self.policies.len() > 2 * self.len + RECENT {
                self.renew();
            }
            return;
        }
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::Eight::rules).collect();
        let before = recent.len();
        recent.retain(|other| other.entry.place() != place);
        self.len -= before - recent.len();
        self.keep(recent);
    }

    /// The rank of the first.
    pub(crate) fn first(&self) -> Rank {
        let mut first = Rank::LAST;
        self.each(&mut |entry| first = first.min(Rank::of(entry)));
        first
    }

    /// Shows each policy, in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        let left = self.policies.iter().enumerate().filter(|(at, _)| is_left(&self.left, *at));
        left.for_each(|(_, policy)| visit(&policy.entry));
        simd_leaf::each::<W>(&self.recent, visit);
    }

    /// How many rows a look-up reads.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.read()
    }

    /// How many lines these are.
    pub(crate) fn lines(&self) -> usize {
        self.bytes() * width(self.policies.len()).div_ceil(BLOCK)
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.memory()
            + size_of_val(&*self.policies)
            + self.left.capacity() * size_of::<Line>()
            + size_of_val(&*self.recent)
    }

    /// These are the recent ones.
    fn keep(&mut self, mut recent: Vec<Rule<W>>) {
        recent.sort_by_key(|rule| rule.entry.place());
        self.recent = simd_leaf::several(&recent);
    }

    /// Gives each policy a bit.
    fn renew(&mut self) {
        let mut rules = Vec::with_capacity(self.len);
        self.each(&mut |entry| rules.push(Rule::of(entry)));
        rules.sort_by_key(|rule| rule.entry.place());
        let planned = self.planned;
        *self = Self { planned, ..Self::of(&rules) };
    }
}

/// So many bits, in so many lines.
fn all(bits: usize, lines: usize) -> Vec<Line> {
    let word = |first: usize| {
        let bits = u32::try_from(bits.saturating_sub(first).min(64)).unwrap_or(64);
        u64::MAX.checked_shr(64 - bits).unwrap_or(0)
    };
    let line = |at: usize| Line(std::array::from_fn(|of| word((at * BLOCK + of) * 64)));
    (0..lines).map(line).collect()
}

/// Whether a policy is still in.
fn is_left(left: &[Line], at: usize) -> bool {
    left.get(at / 512).is_some_and(|line| line.0[at / 64 % BLOCK] >> (at % 64) & 1 != 0)
}

#[cfg(test)]
pub(super) mod tests;

//! Aggregated bit vectors by bytes, for rules that no cut separates: one row of bits for each
//! value class of each byte.
//!
//! A rule matches each byte on its own, so the matching rules are the intersection of one
//! row per byte. Bits are in match order: the first set bit is the result. Values that no rule
//! separates share a row, and bytes that no rule matches have none, so that little is read, and
//! without branches.
//!
//! Rows are immutable. Removed rules are masked out, and new ones are compared apart, until
//! there are so many of either that the rows are rebuilt.

mod classes;

use std::hint::select_unpredictable;
use std::sync::Arc;

use crate::LOOKUP_BATCH;
use crate::bitvector::{BitLine, ByteRows, UNUSED_BYTES};
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::rule::{Best, Rank, RankedEntry, Rule, fits_extra};
use crate::simd_leaf::{self, RuleBlock, SimdLeaf};

/// Rules in match order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct ByteBitvector<W: Words, E: Entry> {
    rows: ByteRows,
    /// Rule of each bit.
    rules: Arc<[RankedEntry<E>]>,
    /// Bits of rules that are still present.
    live: Vec<BitLine>,
    /// Rules without a bit yet.
    recent: SimdLeaf<W, E>,
    /// Number of rules.
    len: usize,
    /// Number of rules when this node was planned.
    pub(crate) planned: usize,
}

/// Words per line of a row.
const BLOCK: usize = 8;
/// Upper limit of rules that are compared apart.
const MAX_RECENT: usize = 32;
/// Up to this many are no reason to rebuild rows early.
const FEW_RECENT: usize = 8;

/// Upper limit of bytes that have rows if rules match these bits: all bytes of the words touched.
pub(crate) fn bytes<W: Words>(asked: &W) -> usize {
    let asked = asked.masked(&W::SIGNIFICANT);
    let bytes = |at: usize| if at == W::COUNT - 1 { 8 - UNUSED_BYTES } else { 8 };
    (0..W::COUNT).filter(|at| asked.word(*at) != 0).map(bytes).sum()
}

/// Words of a row for `rules` bits.
pub(crate) const fn width(rules: usize) -> usize {
    let words = rules.div_ceil(64);
    if words <= BLOCK { words.next_power_of_two() } else { words.next_multiple_of(2 * BLOCK) }
}

impl<W: Words, E: Entry> ByteBitvector<W, E> {
    /// Builds it of rules in match order.
    pub(crate) fn of(rules: &[Rule<W, E>]) -> Self {
        let width = width(rules.len());
        Self {
            rows: ByteRows::of(W::COUNT, width, &classes::fields(rules, width)),
            rules: rules.iter().map(RankedEntry::of).collect(),
            live: all_ones(rules.len(), width.div_ceil(BLOCK)),
            recent: SimdLeaf::<W, E>::default(),
            len: rules.len(),
            planned: rules.len(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Offers the first match.
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        self.consider(self.find_first_bit(key), key, best);
    }

    /// The first matching bit; beyond all if there is none.
    pub(super) fn find_first_bit(&self, key: &Key<W>) -> u32 {
        self.rows.find_first(key, &self.live)
    }

    /// Offers the first match of each key. All rows are searched before the first rule is read.
    pub(crate) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a, E>]) {
        let mut found = [0; LOOKUP_BATCH];
        for (keys, bests) in keys.chunks(LOOKUP_BATCH).zip(bests.chunks_mut(LOOKUP_BATCH)) {
            self.rows.find_first_batch(keys, &self.live, &mut found);
            for ((key, best), found) in keys.iter().zip(bests).zip(&found) {
                self.consider(*found, key, best);
            }
        }
    }

    /// Offers the rule of a bit, or the next match if it fails on the extra bits. Branch-free
    /// over whether there is a match, which is unpredictable.
    #[inline(always)]
    pub(super) fn consider<'a>(&'a self, found: u32, key: &Key<W>, best: &mut Best<'a, E>) {
        let nothing_fits = found as usize >= self.rules.len();
        let at = select_unpredictable(nothing_fits, 0, found as usize);
        match self.rules.get(at) {
            Some(rule) if self.recent.is_empty() & !rule.tag_bits.has_extra() => {
                best.consider(rule.rank.or_last_if(nothing_fits), rule.tag_bits, &rule.entry);
            }
            Some(_) | None => self.consider_closely(found, key, best),
        }
    }

    /// [`Self::consider`] if some rules have no bit, or the extra bits must be compared.
    #[inline(never)]
    fn consider_closely<'a>(&'a self, mut found: u32, key: &Key<W>, best: &mut Best<'a, E>) {
        simd_leaf::find(&self.recent, key, best);
        while let Some(rule) = self.rules.get(found as usize) {
            if !rule.tag_bits.has_extra() || fits_extra(&rule.entry, key) {
                return best.consider(rule.rank, rule.tag_bits, &rule.entry);
            }
            let next = self.rows.find_first_from(key.words.all(), &self.live, found as usize + 1);
            found = next.unwrap_or(u32::MAX);
        }
    }

    pub(crate) fn insert(&mut self, rule: Rule<W, E>) {
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::<E>::rules).collect();
        recent.push(rule);
        self.len += 1;
        self.set_recent(recent);
        if simd_leaf::count::<W, E>(&self.recent) > MAX_RECENT {
            self.rebuild_rows();
        }
    }

    /// Rebuilds rows early, to make room for insertions.
    pub(crate) fn prepare(&mut self) {
        if simd_leaf::count::<W, E>(&self.recent) > FEW_RECENT {
            self.rebuild_rows();
        }
    }

    /// Removes a rule, if present.
    pub(crate) fn remove(&mut self, rule: &Rule<W, E>) {
        let place = rule.entry.precedence();
        let at = self.rules.binary_search_by_key(&place, |rule| rule.entry.precedence());
        if let Ok(at) = at
            && is_live(&self.live, at)
        {
            self.live[at / 512].0[at / 64 % BLOCK] &= !(1 << (at % 64));
            self.len -= 1;
            if self.rules.len() > 2 * self.len + MAX_RECENT {
                self.rebuild_rows();
            }
            return;
        }
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::<E>::rules).collect();
        let before = recent.len();
        recent.retain(|other| other.entry.precedence() != place);
        self.len -= before - recent.len();
        self.set_recent(recent);
    }

    /// Rank of the first rule.
    pub(crate) fn first(&self) -> Rank {
        let mut first = Rank::LAST;
        self.each(&mut |entry| first = first.min(entry.rank()));
        first
    }

    /// Visits all rules in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        let live = self.rules.iter().enumerate().filter(|(at, _)| is_live(&self.live, *at));
        live.for_each(|(_, rule)| visit(&rule.entry));
        simd_leaf::each::<W, E>(&self.recent, visit);
    }

    /// Rows read per look-up.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.rows_read()
    }

    /// Cache lines of these rows.
    pub(crate) fn lines(&self) -> usize {
        self.bytes() * width(self.rules.len()).div_ceil(BLOCK)
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.memory()
            + size_of_val(&*self.rules)
            + self.live.capacity() * size_of::<BitLine>()
            + size_of_val(&*self.recent)
    }

    /// Replaces the rules without a bit.
    fn set_recent(&mut self, mut recent: Vec<Rule<W, E>>) {
        recent.sort_by_key(|rule| rule.entry.precedence());
        self.recent = simd_leaf::build(&recent);
    }

    /// Rebuilds the rows, with a bit for each rule.
    fn rebuild_rows(&mut self) {
        let mut rules = Vec::with_capacity(self.len);
        self.each(&mut |entry| rules.push(Rule::of(entry)));
        rules.sort_by_key(|rule| rule.entry.precedence());
        let planned = self.planned;
        *self = Self { planned, ..Self::of(&rules) };
    }
}

/// `bits` ones in `lines` lines.
fn all_ones(bits: usize, lines: usize) -> Vec<BitLine> {
    let word = |first: usize| {
        let bits = u32::try_from(bits.saturating_sub(first).min(64)).unwrap_or(64);
        u64::MAX.checked_shr(64 - bits).unwrap_or(0)
    };
    let line = |at: usize| BitLine(std::array::from_fn(|of| word((at * BLOCK + of) * 64)));
    (0..lines).map(line).collect()
}

/// Whether the rule of a bit is still present.
fn is_live(live: &[BitLine], at: usize) -> bool {
    live.get(at / 512).is_some_and(|line| line.0[at / 64 % BLOCK] >> (at % 64) & 1 != 0)
}

#[cfg(test)]
pub(super) mod tests;

//! Aggregated bit vectors by bytes, for policies that no cut separates: one row of bits for each
//! value class of each byte.
//!
//! A selector matches each byte on its own, so the matching policies are the intersection of one
//! row per byte. Bits are in match order: the first set bit is the result. Values that no policy
//! separates share a row, and bytes that no policy matches have none, so that little is read, and
//! without branches.
//!
//! Rows are immutable. Removed policies are masked out, and new ones are compared apart, until
//! there are so many of either that the rows are rebuilt.

mod classes;

use std::hint::select_unpredictable;
use std::sync::Arc;

use uxfrm_classify::{BitLine, ByteRows, UNUSED_BYTES};

use super::LOOKUP_BATCH;
use super::rule::{Best, MatchRule, Rank, Rule, VerdictBits, fits_extra};
use super::simd_leaf::{self, RuleBlock, SimdLeaf};
use super::ternary::{Key, Words};
use crate::PolicyEntry;

/// Policies in match order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct ByteBitvector<W: Words> {
    rows: ByteRows,
    /// Policy of each bit.
    policies: Arc<[RankedEntry]>,
    /// Bits of policies that are still present.
    live: Vec<BitLine>,
    /// Policies without a bit yet.
    recent: SimdLeaf<W>,
    /// Number of policies.
    len: usize,
    /// Number of policies when this node was planned.
    pub(crate) planned: usize,
}

#[derive(Clone, Debug)]
struct RankedEntry {
    rank: Rank,
    verdict_bits: VerdictBits,
    entry: Arc<PolicyEntry>,
}

/// Words per line of a row.
const BLOCK: usize = 8;
/// Upper limit of policies that are compared apart.
const MAX_RECENT: usize = 32;
/// Up to this many are no reason to rebuild rows early.
const FEW_RECENT: usize = 8;

/// Upper limit of bytes that have rows if rules match these bits: all bytes of the words touched.
pub(crate) fn bytes<W: Words>(asked: &W) -> usize {
    let asked = asked.masked(&W::SIGNIFICANT);
    let bytes = |at: usize| if at == W::COUNT - 1 { 8 - UNUSED_BYTES } else { 8 };
    (0..W::COUNT).filter(|at| asked.word(*at) != 0).map(bytes).sum()
}

/// Words of a row for `policies` bits.
pub(crate) const fn width(policies: usize) -> usize {
    let words = policies.div_ceil(64);
    if words <= BLOCK { words.next_power_of_two() } else { words.next_multiple_of(2 * BLOCK) }
}

impl<W: Words> ByteBitvector<W> {
    /// Builds it of rules in match order.
    pub(crate) fn of(rules: &[Rule<W>]) -> Self {
        let width = width(rules.len());
        let ranked_entry = |rule: &Rule<W>| RankedEntry {
            rank: rule.rank(),
            verdict_bits: rule.verdict_bits(),
            entry: Arc::clone(&rule.entry),
        };
        Self {
            rows: ByteRows::of(W::COUNT, width, &classes::fields(rules, width)),
            policies: rules.iter().map(ranked_entry).collect(),
            live: all_ones(rules.len(), width.div_ceil(BLOCK)),
            recent: SimdLeaf::<W>::default(),
            len: rules.len(),
            planned: rules.len(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Offers the first match.
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        self.consider(self.find_first_bit(key), key, best);
    }

    /// The first matching bit; beyond all if there is none.
    pub(super) fn find_first_bit(&self, key: &Key<W>) -> u32 {
        self.rows.find_first(key, &self.live)
    }

    /// Offers the first match of each key. All rows are searched before the first policy is read.
    pub(crate) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a>]) {
        let mut found = [0; LOOKUP_BATCH];
        for (keys, bests) in keys.chunks(LOOKUP_BATCH).zip(bests.chunks_mut(LOOKUP_BATCH)) {
            self.rows.find_first_batch(keys, &self.live, &mut found);
            for ((key, best), found) in keys.iter().zip(bests).zip(&found) {
                self.consider(*found, key, best);
            }
        }
    }

    /// Offers the policy of a bit, or the next match if it fails on mark or interface. Branch-free
    /// over whether there is a match, which is unpredictable.
    #[inline(always)]
    pub(super) fn consider<'a>(&'a self, found: u32, key: &Key<W>, best: &mut Best<'a>) {
        let nothing_fits = found as usize >= self.policies.len();
        let at = select_unpredictable(nothing_fits, 0, found as usize);
        match self.policies.get(at) {
            Some(policy) if self.recent.is_empty() & !policy.verdict_bits.has_extra() => {
                best.consider(
                    policy.rank.or_last_if(nothing_fits),
                    policy.verdict_bits,
                    &policy.entry,
                );
            }
            Some(_) | None => self.consider_closely(found, key, best),
        }
    }

    /// [`Self::consider`] if some policies have no bit, or mark and interface must be compared.
    #[inline(never)]
    fn consider_closely<'a>(&'a self, mut found: u32, key: &Key<W>, best: &mut Best<'a>) {
        simd_leaf::find(&self.recent, key, best);
        while let Some(policy) = self.policies.get(found as usize) {
            if !policy.verdict_bits.has_extra() || fits_extra(&policy.entry, key) {
                return best.consider(policy.rank, policy.verdict_bits, &policy.entry);
            }
            let next = self.rows.find_first_from(key.words.all(), &self.live, found as usize + 1);
            found = next.unwrap_or(u32::MAX);
        }
    }

    pub(crate) fn insert(&mut self, rule: Rule<W>) {
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::rules).collect();
        recent.push(rule);
        self.len += 1;
        self.set_recent(recent);
        if simd_leaf::count::<W>(&self.recent) > MAX_RECENT {
            self.rebuild_rows();
        }
    }

    /// Rebuilds rows early, to make room for insertions.
    pub(crate) fn prepare(&mut self) {
        if simd_leaf::count::<W>(&self.recent) > FEW_RECENT {
            self.rebuild_rows();
        }
    }

    /// Removes a policy, if present.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let place = rule.entry.precedence();
        let at = self.policies.binary_search_by_key(&place, |policy| policy.entry.precedence());
        if let Ok(at) = at
            && is_live(&self.live, at)
        {
            self.live[at / 512].0[at / 64 % BLOCK] &= !(1 << (at % 64));
            self.len -= 1;
            if self.policies.len() > 2 * self.len + MAX_RECENT {
                self.rebuild_rows();
            }
            return;
        }
        let mut recent: Vec<_> = self.recent.iter().flat_map(W::RuleBlock8::rules).collect();
        let before = recent.len();
        recent.retain(|other| other.entry.precedence() != place);
        self.len -= before - recent.len();
        self.set_recent(recent);
    }

    /// Rank of the first policy.
    pub(crate) fn first(&self) -> Rank {
        let mut first = Rank::LAST;
        self.each(&mut |entry| first = first.min(Rank::of(entry)));
        first
    }

    /// Visits all policies in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        let live = self.policies.iter().enumerate().filter(|(at, _)| is_live(&self.live, *at));
        live.for_each(|(_, policy)| visit(&policy.entry));
        simd_leaf::each::<W>(&self.recent, visit);
    }

    /// Rows read per look-up.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.rows_read()
    }

    /// Cache lines of these rows.
    pub(crate) fn lines(&self) -> usize {
        self.bytes() * width(self.policies.len()).div_ceil(BLOCK)
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.memory()
            + size_of_val(&*self.policies)
            + self.live.capacity() * size_of::<BitLine>()
            + size_of_val(&*self.recent)
    }

    /// Replaces the policies without a bit.
    fn set_recent(&mut self, mut recent: Vec<Rule<W>>) {
        recent.sort_by_key(|rule| rule.entry.precedence());
        self.recent = simd_leaf::build(&recent);
    }

    /// Rebuilds the rows, with a bit for each policy.
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

/// Whether the policy of a bit is still present.
fn is_live(live: &[BitLine], at: usize) -> bool {
    live.get(at / 512).is_some_and(|line| line.0[at / 64 % BLOCK] >> (at % 64) & 1 != 0)
}

#[cfg(test)]
pub(super) mod tests;

//! A policy as the classifier compares it, and the best match so far.

use std::hint::select_unpredictable;
use std::sync::Arc;

use super::linear_leaf;
use super::ternary::{Key, Ternary, Words};
use crate::{PolicyEntry, VerdictId};

/// A policy with its selector, so that the policy itself is read only if it matches.
#[derive(Clone, Debug)]
pub(crate) struct Rule<W> {
    /// Selector value. The lowest 24 bits, unused in packets, hold the rank.
    pub(crate) value: W,
    /// Selector mask. The lowest 24 bits hold the [`VerdictBits`].
    pub(crate) mask: W,
    pub(crate) entry: Arc<PolicyEntry>,
}

/// A rule of a linear leaf.
pub(crate) trait MatchRule<W: Words> {
    /// Its rank.
    fn rank(&self) -> Rank;
    /// Whether a packet's words match the rule's own words.
    fn fits(&self, words: &W) -> bool;
    /// Whether a packet that matches so far matches all of the rule.
    fn fits_rest(&self, words: &W, key: &Key<W>) -> bool;
    /// Which of five to eight rules match by their own words, as bits.
    fn fitting_up_to_eight(policies: &[Self], words: &W) -> u32
    where
        Self: Sized;
    /// Its compact verdict and flags.
    fn verdict_bits(&self) -> VerdictBits;
    /// The policy.
    fn entry(&self) -> &Arc<PolicyEntry>;
}

/// Match order: offloaded policies first, then by priority, as far as 22 bits tell. Ties are
/// resolved by [`Place`](crate::Place).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u32);

/// Compact verdict of a policy, if it fits, kept beside its selector; the last bit tells whether it
/// also matches mark or interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerdictBits(u32);

/// The best match so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best<'a> {
    rank: Rank,
    verdict_bits: VerdictBits,
    entry: Option<&'a Arc<PolicyEntry>>,
}

const EXTRA_BIT: u32 = 1;
/// Position of the verdict bits in the last mask word.
const VERDICT_MASK: u64 = 0xff_ffff;
/// Position of the rank in the last value word.
const RANK_MASK: u64 = 0xff_fffe;
/// All priorities from here on share a rank.
const LAST_PRIORITY: u32 = (1 << 22) - 1;

impl Rank {
    /// Behind all policies.
    pub(crate) const LAST: Self = Self(u32::MAX - 1);

    /// Reads the rank from the last value word.
    #[inline]
    pub(crate) const fn from_value_word(value: u64) -> Self {
        Self(((value & RANK_MASK) >> 1) as u32)
    }

    /// The rank, or [`LAST`](Rank::LAST) if nothing matches. Branch-free.
    #[inline]
    pub(crate) fn or_last_if(self, nothing_fits: bool) -> Self {
        Self(self.0 | u32::from(nothing_fits).wrapping_neg())
    }

    /// The rank as a number.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        let place = entry.precedence();
        Self(u32::from(place.is_software()) << 22 | place.priority().0.min(LAST_PRIORITY))
    }
}

impl<W: Words> Rule<W> {
    pub(crate) fn of(entry: &Arc<PolicyEntry>) -> Self {
        let Ternary { value, mask } = Ternary::<W>::of(entry);
        let extra = if mask.extra == 0 { 0 } else { EXTRA_BIT };
        let verdict_bits = VerdictBits(entry.verdict().compact() << 1 | extra);
        Self::new(value.words, mask.words, Rank::of(entry), verdict_bits, Arc::clone(entry))
    }

    /// A rule from its parts.
    pub(crate) fn new(
        value: W,
        mask: W,
        rank: Rank,
        verdict_bits: VerdictBits,
        entry: Arc<PolicyEntry>,
    ) -> Self {
        let (value, mask) =
            (value.or_last_word(u64::from(rank.0) << 1), mask.or_last_word(verdict_bits.0.into()));
        Self { value, mask, entry }
    }
}

impl<W: Words> MatchRule<W> for Rule<W> {
    #[inline]
    fn rank(&self) -> Rank {
        Rank::from_value_word(self.value.word(W::COUNT - 1))
    }

    #[inline]
    fn fits(&self, words: &W) -> bool {
        words.difference(&self.value, &self.mask) == 0
    }

    #[inline]
    fn fits_rest(&self, _: &W, key: &Key<W>) -> bool {
        !self.verdict_bits().has_extra() || fits_extra(&self.entry, key)
    }

    /// Uncompressed rules are rarely more than four, and then replanned soon.
    #[inline]
    fn fitting_up_to_eight(policies: &[Self], words: &W) -> u32 {
        linear_leaf::fitting::<W, Self, 8>(policies, words)
    }

    #[inline]
    fn verdict_bits(&self) -> VerdictBits {
        VerdictBits::from_mask_word(self.mask.word(W::COUNT - 1))
    }

    #[inline]
    fn entry(&self) -> &Arc<PolicyEntry> {
        &self.entry
    }
}

impl VerdictBits {
    /// No policy: reads as a verdict that does not fit.
    const NONE: Self = Self(VerdictId::NONE.compact() << 1);

    /// Reads the bits from the last mask word.
    #[inline]
    pub(crate) const fn from_mask_word(mask: u64) -> Self {
        Self((mask & VERDICT_MASK) as u32)
    }

    /// Whether the policy also matches mark or interface.
    #[inline]
    pub(crate) const fn has_extra(self) -> bool {
        self.0 & EXTRA_BIT != 0
    }
}

/// Whether a packet has the mark and interface that a policy demands.
#[inline(never)]
pub(crate) fn fits_extra<W: Words>(entry: &PolicyEntry, key: &Key<W>) -> bool {
    let Ternary { value, mask } = Ternary::<W>::of(entry);
    (key.extra ^ value.extra) & mask.extra == 0
}

impl<'a> Best<'a> {
    /// No match yet.
    pub(crate) const NONE: Self =
        Self { rank: Rank::LAST, verdict_bits: VerdictBits::NONE, entry: None };

    /// The policy, if any.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<&'a Arc<PolicyEntry>> {
        self.entry
    }

    /// The verdict where this policy decides alone; rarely read from the policy itself, which is
    /// not cached.
    #[inline]
    pub(crate) fn answer(&self) -> VerdictId {
        let verdict_bits = VerdictId::from_compact(self.verdict_bits.0 >> 1);
        verdict_bits.unwrap_or_else(|| self.entry.map_or(VerdictId::NONE, |entry| entry.verdict()))
    }

    /// This match, or `other` if there is none.
    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        if self.entry.is_some() { self } else { other }
    }

    /// Its rank.
    #[inline]
    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it precedes all policies from `rank` on.
    #[inline]
    pub(crate) fn precedes(&self, rank: Rank) -> bool {
        self.rank < rank
    }

    /// Offers another match, [or none](Rank::or_last_if). Branch-free: the outcome is
    /// unpredictable.
    #[inline(always)]
    pub(crate) fn consider(
        &mut self,
        rank: Rank,
        verdict_bits: VerdictBits,
        entry: &'a Arc<PolicyEntry>,
    ) {
        let first = if rank == self.rank { self.is_preceded_by(entry) } else { rank < self.rank };
        self.rank = select_unpredictable(first, rank, self.rank);
        self.verdict_bits = select_unpredictable(first, verdict_bits, self.verdict_bits);
        self.entry = select_unpredictable(first, Some(entry), self.entry);
    }

    /// Whether a policy of equal rank precedes it.
    #[cold]
    fn is_preceded_by(&self, entry: &PolicyEntry) -> bool {
        self.entry.is_some_and(|best| entry.precedence() < best.precedence())
    }
}

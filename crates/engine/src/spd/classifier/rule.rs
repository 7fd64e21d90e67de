//! A policy as the classifier compares it, and the first of those that fit.

use std::hint::select_unpredictable;
use std::sync::Arc;

use super::linear_leaf;
use super::ternary::{KeyWords, PacketKey, Ternary};
use crate::{AnswerId, PolicyEntry};

/// A policy with its selector beside it, so that only one that fits is looked at itself.
#[derive(Clone, Debug)]
pub(crate) struct Rule<W> {
    /// Its lowest 24 bits, which are nothing in packets, hold the rank.
    pub(crate) value: W,
    /// Its lowest 24 bits hold the [`VerdictBits`].
    pub(crate) mask: W,
    pub(crate) entry: Arc<PolicyEntry>,
}

/// A policy that packets are compared with on its own.
pub(crate) trait MatchRule<W: KeyWords> {
    /// Its rank.
    fn rank(&self) -> Rank;
    /// Whether a packet's words fit as far as its own tell.
    fn fits(&self, words: &W) -> bool;
    /// Whether a packet that fits so far does altogether.
    fn fits_rest(&self, words: &W, key: &PacketKey<W>) -> bool;
    /// Which of more than four fit as far as their own words tell, as bits.
    fn fitting_up_to_eight(policies: &[Self], words: &W) -> u32
    where
        Self: Sized;
    /// What is kept beside what it asks.
    fn verdict_bits(&self) -> VerdictBits;
    /// The policy itself.
    fn entry(&self) -> &Arc<PolicyEntry>;
}

/// Device policies first, then by priority as far as 22 bits tell. Equal ranks are told apart by what only the policy knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u32);

/// What is wanted of nearly every policy that is found, kept where it is compared: its answer, if it is short enough, and in the last bit whether
/// it asks for a mark or an interface too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerdictBits(u32);

/// The first of the policies seen so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BestMatch<'a> {
    rank: Rank,
    verdict_bits: VerdictBits,
    entry: Option<&'a Arc<PolicyEntry>>,
}

const EXTRA_BIT: u32 = 1;
/// Where the brief stands in a mask.
const VERDICT_MASK: u64 = 0xff_ffff;
/// Where the rank stands in a value.
const RANK_MASK: u64 = 0xff_fffe;
/// The rank of the last priorities.
const LAST_PRIORITY: u32 = (1 << 22) - 1;

impl Rank {
    /// Behind all policies.
    pub(crate) const LAST: Self = Self(u32::MAX - 1);

    /// That which stands in the last word of a value.
    #[inline]
    pub(crate) const fn from_value_word(value: u64) -> Self {
        Self(((value & RANK_MASK) >> 1) as u32)
    }

    /// It, but behind [all](Rank::LAST) where nothing fits.
    #[inline]
    pub(crate) fn or_last_if(self, nothing_fits: bool) -> Self {
        Self(self.0 | u32::from(nothing_fits).wrapping_neg())
    }

    /// As a number.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        let place = entry.place();
        Self(u32::from(place.is_software()) << 22 | place.priority().0.min(LAST_PRIORITY))
    }
}

impl<W: KeyWords> Rule<W> {
    pub(crate) fn of(entry: &Arc<PolicyEntry>) -> Self {
        let Ternary { value, mask } = Ternary::<W>::of(entry);
        let extra = if mask.extra == 0 { 0 } else { EXTRA_BIT };
        let verdict_bits = VerdictBits(entry.answer().compact() << 1 | extra);
        Self::new(value.words, mask.words, Rank::of(entry), verdict_bits, Arc::clone(entry))
    }

    /// A policy with what it asks of packets.
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

impl<W: KeyWords> MatchRule<W> for Rule<W> {
    #[inline]
    fn rank(&self) -> Rank {
        Rank::from_value_word(self.value.word(W::COUNT - 1))
    }

    #[inline]
    fn fits(&self, words: &W) -> bool {
        words.difference(&self.value, &self.mask) == 0
    }

    #[inline]
    fn fits_rest(&self, _: &W, key: &PacketKey<W>) -> bool {
        !self.verdict_bits().has_extra() || fits_extra(&self.entry, key)
    }

    /// Seldom more than four are whole, and then soon planned anew.
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
    /// That of no policy: as of one whose answer is not short enough.
    const NONE: Self = Self(AnswerId::NONE.compact() << 1);

    /// That which stands in the last word of a mask.
    #[inline]
    pub(crate) const fn from_mask_word(mask: u64) -> Self {
        Self((mask & VERDICT_MASK) as u32)
    }

    /// Whether the policy asks for a mark or an interface.
    #[inline]
    pub(crate) const fn has_extra(self) -> bool {
        self.0 & EXTRA_BIT != 0
    }
}

/// Whether a packet has the mark and the interface that a policy asks for.
#[inline(never)]
pub(crate) fn fits_extra<W: KeyWords>(entry: &PolicyEntry, key: &PacketKey<W>) -> bool {
    let Ternary { value, mask } = Ternary::<W>::of(entry);
    (key.extra ^ value.extra) & mask.extra == 0
}

impl<'a> BestMatch<'a> {
    /// None yet.
    pub(crate) const NONE: Self =
        Self { rank: Rank::LAST, verdict_bits: VerdictBits::NONE, entry: None };

    /// It, if there is any.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<&'a Arc<PolicyEntry>> {
        self.entry
    }

    /// What the policy comes to where it decides alone; seldom read from the policy itself, which is far away.
    #[inline]
    pub(crate) fn answer(&self) -> AnswerId {
        let verdict_bits = AnswerId::from_compact(self.verdict_bits.0 >> 1);
        verdict_bits.unwrap_or_else(|| self.entry.map_or(AnswerId::NONE, |entry| entry.answer()))
    }

    /// It, or another if there is none.
    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        if self.entry.is_some() { self } else { other }
    }

    /// Its rank.
    #[inline]
    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it stands before all policies from a rank on.
    #[inline]
    pub(crate) fn precedes(&self, rank: Rank) -> bool {
        self.rank < rank
    }

    /// One more that fits, [or not](Rank::or_last_if). Whether it is the first is no branch: nobody could foretell it.
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

    /// Whether one of the same rank stands before it.
    #[cold]
    fn is_preceded_by(&self, entry: &PolicyEntry) -> bool {
        self.entry.is_some_and(|best| entry.place() < best.place())
    }
}

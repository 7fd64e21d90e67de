//! A policy as the classifier compares it, and the first of those that fit.

use std::hint::select_unpredictable;
use std::sync::Arc;

use super::linear_leaf;
use super::ternary::{Key, Ternary, Words};
use crate::{AnswerId, PolicyEntry};

/// A policy with its selector beside it, so that only one that fits is looked at itself.
#[derive(Clone, Debug)]
pub(crate) struct Rule<W> {
    /// Its lowest 24 bits, which are nothing in packets, hold the rank.
    pub(crate) value: W,
    /// Its lowest 24 bits hold the [`Brief`].
    pub(crate) mask: W,
    pub(crate) entry: Arc<PolicyEntry>,
}

/// A policy that packets are compared with on its own.
pub(crate) trait Comparable<W: Words> {
    /// Its rank.
    fn rank(&self) -> Rank;
    /// Whether a packet's words fit as far as its own tell.
    fn fits(&self, words: &W) -> bool;
    /// Whether a packet that fits so far does altogether.
    fn fits_rest(&self, words: &W, key: &Key<W>) -> bool;
    /// Which of more than four fit as far as their own words tell, as bits.
    fn fitting_more(policies: &[Self], words: &W) -> u32
    where
        Self: Sized;
    /// What is kept beside what it asks.
    fn brief(&self) -> Brief;
    /// The policy itself.
    fn entry(&self) -> &Arc<PolicyEntry>;
}

/// Device policies first, then by priority as far as 22 bits tell. Equal ranks are told apart by what only the policy knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u32);

/// What is wanted of nearly every policy that is found, kept where it is compared: its answer, if it is short enough, and in the last bit whether
/// it asks for a mark or an interface too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Brief(u32);

/// The first of the policies seen so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best<'a> {
    rank: Rank,
    brief: Brief,
    entry: Option<&'a Arc<PolicyEntry>>,
}

const MORE: u32 = 1;
/// Where the brief stands in a mask.
const BRIEF: u64 = 0xff_ffff;
/// Where the rank stands in a value.
const RANK: u64 = 0xff_fffe;
/// The rank of the last priorities.
const LAST_PRIORITY: u32 = (1 << 22) - 1;

impl Rank {
    /// Behind all policies.
    pub(crate) const LAST: Self = Self(u32::MAX - 1);

    /// That which stands in the last word of a value.
    #[inline]
    pub(crate) const fn beside(value: u64) -> Self {
        Self(((value & RANK) >> 1) as u32)
    }

    /// It, but behind [all](Rank::LAST) where nothing fits.
    #[inline]
    pub(crate) fn unless(self, nothing_fits: bool) -> Self {
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

impl<W: Words> Rule<W> {
    pub(crate) fn of(entry: &Arc<PolicyEntry>) -> Self {
        let Ternary { value, mask } = Ternary::<W>::of(entry);
        let more = if mask.extra == 0 { 0 } else { MORE };
        let brief = Brief(entry.answer().brief() << 1 | more);
        Self::new(value.words, mask.words, Rank::of(entry), brief, Arc::clone(entry))
    }

    /// A policy with what it asks of packets.
    pub(crate) fn new(
        value: W,
        mask: W,
        rank: Rank,
        brief: Brief,
        entry: Arc<PolicyEntry>,
    ) -> Self {
        let (value, mask) = (value.or_last(u64::from(rank.0) << 1), mask.or_last(brief.0.into()));
        Self { value, mask, entry }
    }
}

impl<W: Words> Comparable<W> for Rule<W> {
    #[inline]
    fn rank(&self) -> Rank {
        Rank::beside(self.value.word(W::COUNT - 1))
    }

    #[inline]
    fn fits(&self, words: &W) -> bool {
        words.difference(&self.value, &self.mask) == 0
    }

    #[inline]
    fn fits_rest(&self, _: &W, key: &Key<W>) -> bool {
        !self.brief().asks_more() || fits_more(&self.entry, key)
    }

    /// Seldom more than four are whole, and then soon planned anew.
    #[inline]
    fn fitting_more(policies: &[Self], words: &W) -> u32 {
        linear_leaf::fitting::<W, Self, 8>(policies, words)
    }

    #[inline]
    fn brief(&self) -> Brief {
        Brief::beside(self.mask.word(W::COUNT - 1))
    }

    #[inline]
    fn entry(&self) -> &Arc<PolicyEntry> {
        &self.entry
    }
}

impl Brief {
    /// That of no policy: as of one whose answer is not short enough.
    const NONE: Self = Self(AnswerId::NONE.brief() << 1);

    /// That which stands in the last word of a mask.
    #[inline]
    pub(crate) const fn beside(mask: u64) -> Self {
        Self((mask & BRIEF) as u32)
    }

    /// Whether the policy asks for a mark or an interface.
    #[inline]
    pub(crate) const fn asks_more(self) -> bool {
        self.0 & MORE != 0
    }
}

/// Whether a packet has the mark and the interface that a policy asks for.
#[inline(never)]
pub(crate) fn fits_more<W: Words>(entry: &PolicyEntry, key: &Key<W>) -> bool {
    let Ternary { value, mask } = Ternary::<W>::of(entry);
    (key.extra ^ value.extra) & mask.extra == 0
}

impl<'a> Best<'a> {
    /// None yet.
    pub(crate) const NONE: Self = Self { rank: Rank::LAST, brief: Brief::NONE, entry: None };

    /// It, if there is any.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<&'a Arc<PolicyEntry>> {
        self.entry
    }

    /// What the policy comes to where it decides alone; seldom read from the policy itself, which is far away.
    #[inline]
    pub(crate) fn answer(&self) -> AnswerId {
        let brief = AnswerId::of_brief(self.brief.0 >> 1);
        brief.unwrap_or_else(|| self.entry.map_or(AnswerId::NONE, |entry| entry.answer()))
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
    pub(crate) fn stands_before(&self, rank: Rank) -> bool {
        self.rank < rank
    }

    /// One more that fits, [or not](Rank::unless). Whether it is the first is no branch: nobody could foretell it.
    #[inline(always)]
    pub(crate) fn consider(&mut self, rank: Rank, brief: Brief, entry: &'a Arc<PolicyEntry>) {
        let first = if rank == self.rank { self.gives_way(entry) } else { rank < self.rank };
        self.rank = select_unpredictable(first, rank, self.rank);
        self.brief = select_unpredictable(first, brief, self.brief);
        self.entry = select_unpredictable(first, Some(entry), self.entry);
    }

    /// Whether one of the same rank stands before it.
    #[cold]
    fn gives_way(&self, entry: &PolicyEntry) -> bool {
        self.entry.is_some_and(|best| entry.place() < best.place())
    }
}

//! A policy as the classifier compares it, and the first of those that fit.

use std::sync::Arc;

use super::ternary::{Key, Ternary, Words};
use crate::PolicyEntry;

/// A policy with its selector beside it, so that only one that fits is looked at itself.
#[derive(Clone, Debug)]
pub(crate) struct Rule<W> {
    /// Its lowest 24 bits, which are nothing in packets, hold the rank.
    pub(crate) value: W,
    /// Its last bit says that the policy asks for a mark or an interface too.
    pub(crate) mask: W,
    pub(crate) entry: Arc<PolicyEntry>,
}

/// Device policies first, then by priority as far as 22 bits tell. Equal ranks are told apart by what only the policy knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u32);

/// The first of the policies seen so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best<'a> {
    pub(crate) rank: Rank,
    pub(crate) entry: Option<&'a Arc<PolicyEntry>>,
}

/// Always 0 in packets and in values.
const MORE: u64 = 1;
/// Where the rank stands in a value; no mask asks for these bits.
const RANK: u64 = 0xff_fffe;
/// The rank of the last priorities.
const LAST_PRIORITY: u32 = (1 << 22) - 1;

impl Rank {
    /// Behind all policies.
    pub(crate) const LAST: Self = Self(u32::MAX);

    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        let place = entry.place();
        Self(u32::from(place.is_software()) << 22 | place.priority().0.min(LAST_PRIORITY))
    }
}

impl<W: Words> Rule<W> {
    pub(crate) fn of(entry: &Arc<PolicyEntry>) -> Self {
        let Ternary { value, mask } = Ternary::<W>::of(entry);
        let more = if mask.extra == 0 { 0 } else { MORE };
        Self {
            value: value.words.or_last(u64::from(Rank::of(entry).0) << 1),
            mask: mask.words.or_last(more),
            entry: Arc::clone(entry),
        }
    }

    /// Its rank.
    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        Rank(((self.value.word(W::COUNT - 1) & RANK) >> 1) as u32)
    }

    /// Whether a packet's words fit; when [`Rule::asks_more`], that is not all.
    #[inline]
    pub(crate) fn fits(&self, words: &W) -> bool {
        words.difference(&self.value, &self.mask) == 0
    }

    /// Whether the policy asks for a mark or an interface.
    #[inline]
    pub(crate) fn asks_more(&self) -> bool {
        self.mask.word(W::COUNT - 1) & MORE != 0
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
    pub(crate) const NONE: Self = Self { rank: Rank::LAST, entry: None };

    /// One more that fits.
    #[inline]
    pub(crate) fn consider(&mut self, rank: Rank, entry: &'a Arc<PolicyEntry>) {
        let first = match self.entry {
            None => true,
            Some(best) => rank < self.rank || rank == self.rank && entry.place() < best.place(),
        };
        if first {
            *self = Self { rank, entry: Some(entry) };
        }
    }
}

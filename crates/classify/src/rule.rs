//! A rule as it is compared, and the best match so far.

use std::hint::select_unpredictable;

use crate::entry::{Entry, Ternary};
use crate::key::{Key, Words};
use crate::linear_leaf;

/// Values and masks of an entry, so that the entry itself is read only if it matches.
#[derive(Clone, Debug)]
pub(crate) struct Rule<W, E> {
    /// The lowest 24 bits, unused in keys, hold the rank.
    pub(crate) value: W,
    /// The lowest 24 bits hold the [`TagBits`].
    pub(crate) mask: W,
    pub(crate) entry: E,
}

/// A rule of a linear leaf.
pub(crate) trait MatchRule<W: Words, E: Entry> {
    /// Its rank.
    fn rank(&self) -> Rank;
    /// Whether a key's words match the rule's own words.
    fn fits(&self, words: &W) -> bool;
    /// Whether a key that matches so far matches all of the rule.
    fn fits_rest(&self, words: &W, key: &Key<W>) -> bool;
    /// Which of five to eight rules match by their own words, as bits.
    fn fitting_up_to_eight(rules: &[Self], words: &W) -> u32
    where
        Self: Sized;
    /// Its tag.
    fn tag_bits(&self) -> TagBits;
    /// Its entry.
    fn entry(&self) -> &E;
}

/// Match order as far as 23 bits tell. Ties are resolved by [`Entry::precedence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(u32);

/// Tag of an entry, kept beside its words; the last bit tells whether it also matches the extra
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TagBits(u32);

/// The best match so far.
#[derive(Debug)]
pub struct Best<'a, E> {
    rank: Rank,
    tag_bits: TagBits,
    entry: Option<&'a E>,
}

const EXTRA_BIT: u32 = 1;
/// Position of the tag bits in the last mask word.
const TAG_MASK: u64 = 0xff_ffff;
/// Position of the rank in the last value word.
const RANK_MASK: u64 = 0xff_fffe;

impl Rank {
    /// Behind all rules.
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

    /// Rank by a number of at most 23 bits; the lowest is matched first.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        debug_assert!(number < 1 << 23, "more would overwrite the protocol");
        Self(number)
    }
}

impl<W: Words, E: Entry> Rule<W, E> {
    pub(crate) fn of(entry: &E) -> Self {
        let Ternary { value, mask } = entry.ternary();
        let (value, mask) = (Key::<W>::of(&value), Key::<W>::of(&mask));
        let extra = if mask.extra == 0 { 0 } else { EXTRA_BIT };
        let value = value.words.masked(&mask.words);
        let tag_bits = TagBits(entry.tag() << 1 | extra);
        Self::new(value, mask.words, entry.rank(), tag_bits, entry.clone())
    }

    /// A rule from its parts.
    pub(crate) fn new(value: W, mask: W, rank: Rank, tag_bits: TagBits, entry: E) -> Self {
        let (value, mask) =
            (value.or_last_word(u64::from(rank.0) << 1), mask.or_last_word(tag_bits.0.into()));
        Self { value, mask, entry }
    }
}

impl<W: Words, E: Entry> MatchRule<W, E> for Rule<W, E> {
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
        !self.tag_bits().has_extra() || fits_extra(&self.entry, key)
    }

    /// Uncompressed rules are rarely more than four, and then replanned soon.
    #[inline]
    fn fitting_up_to_eight(rules: &[Self], words: &W) -> u32 {
        linear_leaf::fitting::<W, E, Self, 8>(rules, words)
    }

    #[inline]
    fn tag_bits(&self) -> TagBits {
        TagBits::from_mask_word(self.mask.word(W::COUNT - 1))
    }

    #[inline]
    fn entry(&self) -> &E {
        &self.entry
    }
}

/// A rule's entry, with what is compared of its order.
#[derive(Clone, Debug)]
pub(crate) struct RankedEntry<E> {
    pub(crate) rank: Rank,
    pub(crate) tag_bits: TagBits,
    pub(crate) entry: E,
}

impl<E: Entry> RankedEntry<E> {
    pub(crate) fn of<W: Words>(rule: &Rule<W, E>) -> Self {
        Self { rank: rule.rank(), tag_bits: rule.tag_bits(), entry: rule.entry.clone() }
    }
}

impl TagBits {
    /// Reads the bits from the last mask word.
    #[inline]
    pub(crate) const fn from_mask_word(mask: u64) -> Self {
        Self((mask & TAG_MASK) as u32)
    }

    /// Whether the rule also matches the extra bits.
    #[inline]
    pub(crate) const fn has_extra(self) -> bool {
        self.0 & EXTRA_BIT != 0
    }
}

/// Whether a key has the extra bits that an entry demands.
#[inline(never)]
pub(crate) fn fits_extra<W, E: Entry>(entry: &E, key: &Key<W>) -> bool {
    let Ternary { value, mask } = entry.ternary();
    (key.extra ^ value.extra) & mask.extra == 0
}

impl<E> Clone for Best<'_, E> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Best<'_, E> {}

impl<'a, E: Entry> Best<'a, E> {
    /// No match yet.
    pub const NONE: Self =
        Self { rank: Rank::LAST, tag_bits: TagBits(E::NO_TAG << 1), entry: None };

    /// The entry, if any.
    #[must_use]
    #[inline]
    pub const fn entry(&self) -> Option<&'a E> {
        self.entry
    }

    /// Its [`Entry::tag`], without reading the entry, which is rarely cached; [`Entry::NO_TAG`] if
    /// there is none.
    #[must_use]
    #[inline]
    pub const fn tag(&self) -> u32 {
        self.tag_bits.0 >> 1
    }

    /// This match, or `other` if there is none.
    #[must_use]
    #[inline]
    pub fn or(self, other: Self) -> Self {
        if self.entry.is_some() { self } else { other }
    }

    /// Its rank.
    #[inline]
    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it precedes all rules from `rank` on.
    #[inline]
    pub(crate) fn precedes(&self, rank: Rank) -> bool {
        self.rank < rank
    }

    /// Offers another match, [or none](Rank::or_last_if). Branch-free: the outcome is
    /// unpredictable.
    #[inline(always)]
    pub(crate) fn consider(&mut self, rank: Rank, tag_bits: TagBits, entry: &'a E) {
        let first = if rank == self.rank { self.is_preceded_by(entry) } else { rank < self.rank };
        self.rank = select_unpredictable(first, rank, self.rank);
        self.tag_bits = select_unpredictable(first, tag_bits, self.tag_bits);
        self.entry = select_unpredictable(first, Some(entry), self.entry);
    }

    /// Whether a rule of equal rank precedes it.
    #[cold]
    fn is_preceded_by(&self, entry: &E) -> bool {
        self.entry.is_some_and(|best| entry.precedence() < best.precedence())
    }
}

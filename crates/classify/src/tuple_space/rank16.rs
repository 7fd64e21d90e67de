//! Ranks scaled to 16 bits.

use crate::rule::Rank;

/// Monotonic map of ranks to 16 bits, as exact as the span of the initial ranks allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank16 {
    base: u32,
    shift: u32,
}

/// Ranks beyond the range are clamped to this one.
const LAST: u32 = crate::prefilter_table::NO_RANK - 1;

impl Rank16 {
    /// A scale that spans these ranks.
    pub(super) fn spanning(ranks: impl Iterator<Item = Rank> + Clone) -> Self {
        let numbers = ranks.map(Rank::number);
        let base = numbers.clone().min().unwrap_or(0);
        let span = numbers.max().unwrap_or(0) - base;
        Self { base, shift: (u32::BITS - span.leading_zeros()).saturating_sub(u16::BITS) }
    }

    /// The scaled rank. A rule with a higher one does not precede a rule of this rank.
    #[inline]
    pub(crate) fn of(self, rank: Rank) -> u32 {
        (rank.number().saturating_sub(self.base) >> self.shift).min(LAST)
    }
}

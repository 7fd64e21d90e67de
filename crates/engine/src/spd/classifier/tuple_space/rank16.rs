//! Ranks in 16 bits.

use crate::spd::classifier::rule::Rank;

/// Numbers in the order of ranks, as far as 16 bits tell those apart that there were at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::spd::classifier) struct Rank16 {
    base: u32,
    shift: u32,
}

/// Those behind all policies, and behind what slots can tell, are as the last.
const LAST: u32 = uxfrm_packet::NO_RANK - 1;

impl Rank16 {
    /// That tell such ranks apart.
    pub(super) fn spanning(ranks: impl Iterator<Item = Rank> + Clone) -> Self {
        let numbers = ranks.map(Rank::number);
        let base = numbers.clone().min().unwrap_or(0);
        let span = numbers.max().unwrap_or(0) - base;
        Self { base, shift: (u32::BITS - span.leading_zeros()).saturating_sub(u16::BITS) }
    }

    /// What has a higher one does not stand before a policy of this rank.
    #[inline]
    pub(in crate::spd::classifier) fn of(self, rank: Rank) -> u32 {
        (rank.number().saturating_sub(self.base) >> self.shift).min(LAST)
    }
}

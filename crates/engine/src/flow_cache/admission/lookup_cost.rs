//! What finding a policy takes without a cache: how much a hit gains, and beside how many flows.

use super::hit_rate::HitBenefit;
use crate::Family;
use crate::flow_cache::LookupContext;

/// What finding a policy takes without a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupCost {
    /// As much as a hit in a small table: a few are compared, or in IPv6 some more.
    Glance,
    /// As much as one in a middling table: a few more are.
    Short,
    /// The same, but for more misses that hits make good.
    Middling,
    /// More than any hit.
    Long,
    /// So much more that few hits make good many misses.
    Far,
}

/// Flows that a cache begins with.
pub(crate) const SMALLEST: usize = 2048;
/// Room among fewer policies than [`MANY`]: a larger table is slower than they are.
const ALWAYS: usize = 1 << 17;
/// So few policies are compared in no more time than a hit takes out of the second-level cache.
const FEW: usize = 4;
/// Room beside these.
const WITH_FEW: usize = SMALLEST;
/// Policies from which on finding one costs more than a hit does that waits for memory.
pub(crate) const MANY: usize = 1 << 12;
/// Policies from which on finding one costs so much that half of all packets may miss.
const VERY_MANY: usize = 1 << 18;

impl LookupCost {
    pub(crate) fn of<const N: usize>(lookup: &LookupContext<'_>) -> Self {
        let LookupContext { spd, direction, .. } = *lookup;
        let family = if N == 2 { Family::V4 } else { Family::V6 };
        match spd.linear_len(direction, family) {
            Some(0..=FEW) => Self::Glance,
            Some(_) => Self::Short,
            None if spd.len() < MANY => Self::Middling,
            None if spd.len() < VERY_MANY => Self::Long,
            None => Self::Far,
        }
    }

    /// How many flows there may be room for, so that a hit is no slower.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Glance => WITH_FEW,
            Self::Short | Self::Middling => ALWAYS,
            Self::Long | Self::Far => usize::MAX,
        }
    }

    /// What is gained by a hit.
    pub(crate) const fn worth(self) -> HitBenefit {
        match self {
            Self::Glance | Self::Short => HitBenefit::Little,
            Self::Middling | Self::Long => HitBenefit::Some,
            Self::Far => HitBenefit::Much,
        }
    }
}

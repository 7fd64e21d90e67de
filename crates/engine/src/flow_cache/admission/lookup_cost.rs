//! Cost of a look-up without the cache: how much a hit gains, and up to how many flows.

use super::hit_rate::HitBenefit;
use crate::Family;
use crate::flow_cache::LookupContext;

/// Cost class of a look-up without the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupCost {
    /// As much as a hit in a small table: a few policies are compared, some more in IPv6.
    Glance,
    /// As much as a hit in a medium table: some policies are compared.
    Short,
    /// The same, but hits make up for more misses.
    Middling,
    /// More than any hit.
    Long,
    /// So much more that few hits make up for many misses.
    Far,
}

/// Initial number of flows.
pub(crate) const SMALLEST: usize = 2048;
/// Largest table with fewer than [`MANY`] policies: a larger one is slower than a look-up.
const ALWAYS: usize = 1 << 17;
/// Up to this many policies are compared as fast as a hit in the second-level cache.
const FEW: usize = 4;
/// Largest table with that few policies.
const WITH_FEW: usize = SMALLEST;
/// Policies from which on a look-up costs more than a hit that misses all CPU caches.
pub(crate) const MANY: usize = 1 << 12;
/// Policies from which on half of all packets may miss.
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

    /// Largest table in which a hit is no slower than a look-up.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Glance => WITH_FEW,
            Self::Short | Self::Middling => ALWAYS,
            Self::Long | Self::Far => usize::MAX,
        }
    }

    /// Benefit of a hit.
    pub(crate) const fn worth(self) -> HitBenefit {
        match self {
            Self::Glance | Self::Short => HitBenefit::Little,
            Self::Middling | Self::Long => HitBenefit::Some,
            Self::Far => HitBenefit::Much,
        }
    }
}

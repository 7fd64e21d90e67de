//! Lifetime limits of states and policies (RFC 4301 §4.4.2.1, `struct xfrm_lifetime_cfg`).

use std::time::Duration;

use crate::Moment;

/// Soft and hard limit of one quantity; the default is "none". A limit is passed when the count
/// *reaches* it, as in `net/xfrm/xfrm_state.c: xfrm_state_check_expire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftHardLimit {
    /// At this count the SA is to be rekeyed: an event, once.
    pub soft: u64,
    /// At this count it stops working: an event, and every later packet is dropped.
    pub hard: u64,
}

impl SoftHardLimit {
    /// No limit (`XFRM_INF`).
    pub const NONE: u64 = u64::MAX;
}

impl Default for SoftHardLimit {
    fn default() -> Self {
        Self { soft: Self::NONE, hard: Self::NONE }
    }
}

/// All limits of a state or policy.
///
/// ```
/// use uxfrm_engine::{LifetimeLimits, SoftHardLimit};
///
/// // Rekey after 50 minutes, stop after an hour or 2^30 packets.
/// let limits = LifetimeLimits {
///     added_seconds: SoftHardLimit { soft: 3000, hard: 3600 },
///     packets: SoftHardLimit { soft: SoftHardLimit::NONE, hard: 1 << 30 },
///     ..LifetimeLimits::default()
/// };
/// assert_eq!(limits.bytes.hard, SoftHardLimit::NONE);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LifetimeLimits {
    /// Bytes of IP packets before encapsulation, after decapsulation, as the kernel counts.
    pub bytes: SoftHardLimit,
    /// Packets.
    pub packets: SoftHardLimit,
    /// Seconds since it was added; [`SoftHardLimit::NONE`] or 0 is no limit.
    pub added_seconds: SoftHardLimit,
    /// Seconds since the first use; [`SoftHardLimit::NONE`] or 0 is no limit.
    pub used_seconds: SoftHardLimit,
}

/// Result of checking time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ageing {
    /// A hard limit is reached.
    pub(crate) hard: bool,
    /// A soft limit is reached.
    pub(crate) soft: bool,
    /// When the next limit may be reached; for limits since the first use, the earliest time.
    pub(crate) next: Option<Moment>,
}

impl LifetimeLimits {
    /// Whether there are only time limits.
    #[inline]
    pub(crate) const fn are_of_time(&self) -> bool {
        let Self { bytes, packets, .. } = self;
        let none = bytes.soft & bytes.hard & packets.soft & packets.hard;
        none == SoftHardLimit::NONE
    }

    /// Checks the time limits at `now`: `net/xfrm/xfrm_state.c: xfrm_timer_handler`.
    pub(crate) fn age(&self, added: Moment, used: Option<Moment>, now: Moment) -> Ageing {
        let since_use = used.unwrap_or(now);
        let hard = [due(added, self.added_seconds.hard), due(since_use, self.used_seconds.hard)];
        let soft = [due(added, self.added_seconds.soft), due(since_use, self.used_seconds.soft)];
        let reached = |due: &Option<Moment>| due.is_some_and(|due| due <= now);
        let next = hard.iter().chain(&soft).flatten().filter(|due| **due > now).min();
        Ageing {
            hard: hard.iter().any(reached),
            soft: soft.iter().any(reached),
            next: next.copied(),
        }
    }
}

fn due(from: Moment, seconds: u64) -> Option<Moment> {
    let limited = seconds != 0 && seconds != SoftHardLimit::NONE;
    limited.then(|| from.plus(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Option<u64> = None;

    /// Limits (add soft, add hard, use soft, use hard), used at, now; then soft, hard, next. Added
    /// at 100 s.
    #[test]
    #[rustfmt::skip]
    fn time_limits_by_table() {
        let table = [
            // limits            used       now   soft   hard   next
            ([0, 0, 0, 0],       NO,        999, (false, false, NO)),
            ([u64::MAX; 4],      Some(100), 999, (false, false, NO)),
            ([10, 20, 0, 0],     NO,        100, (false, false, Some(110))),
            ([10, 20, 0, 0],     NO,        109, (false, false, Some(110))),
            ([10, 20, 0, 0],     NO,        110, (true,  false, Some(120))),
            ([10, 20, 0, 0],     NO,        120, (true,  true,  NO)),
            ([0, 0, 10, 20],     NO,        500, (false, false, Some(510))),
            ([0, 0, 10, 20],     Some(495), 500, (false, false, Some(505))),
            ([0, 0, 10, 20],     Some(490), 500, (true,  false, Some(510))),
            ([0, 0, 10, 20],     Some(480), 500, (true,  true,  NO)),
            ([0, 50, 0, 20],     Some(105), 110, (false, false, Some(125))),
            ([u64::MAX - 1, 5, 0, 0], NO,   101, (false, false, Some(105))),
        ];
        for (row, ([add_soft, add_hard, use_soft, use_hard], used, now, expected)) in table.into_iter().enumerate() {
            let limits = LifetimeLimits {
                added_seconds: SoftHardLimit { soft: add_soft, hard: add_hard },
                used_seconds: SoftHardLimit { soft: use_soft, hard: use_hard },
                ..LifetimeLimits::default()
            };
            let age = limits.age(Moment::from_secs(100), used.map(Moment::from_secs), Moment::from_secs(now));
            assert_eq!((age.soft, age.hard, age.next.map(Moment::as_secs)), expected, "row {row}");
        }
    }
}

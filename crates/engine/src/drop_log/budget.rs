//! How many drops of each reason are recorded: a token bucket for each, so that a flood of one
//! reason does not push out the records of another.

use crate::{DropReason, Moment};

/// Records of one reason that may be made at once.
const BURST: u64 = 16;
/// Time in which a reason may have one record more, in nanoseconds: 16 a second.
const REFILL: u64 = 1_000_000_000 / 16;

/// The buckets of all reasons.
#[derive(Debug)]
pub(super) struct DropBudget(Box<[Bucket; DropReason::ALL.len()]>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u64,
    /// When the newest token came.
    filled: Moment,
    /// Packets dropped since the latest record.
    unrecorded: u64,
}

impl Default for DropBudget {
    fn default() -> Self {
        let full = Bucket { tokens: BURST, filled: Moment(0), unrecorded: 0 };
        Self(Box::new([full; DropReason::ALL.len()]))
    }
}

impl DropBudget {
    /// Takes a token. Returns for how many packets the record stands: those that were dropped for
    /// this reason since the record before it. `None` if there is no token.
    pub(super) fn take(&mut self, reason: DropReason, packets: u64, now: Moment) -> Option<u64> {
        let bucket = &mut self.0[reason as usize];
        bucket.unrecorded += packets;
        bucket.refill(now);
        bucket.tokens = bucket.tokens.checked_sub(1)?;
        Some(std::mem::take(&mut bucket.unrecorded))
    }
}

impl Bucket {
    fn refill(&mut self, now: Moment) {
        if self.tokens == BURST {
            self.filled = now;
            return;
        }
        let more = now.0.saturating_sub(self.filled.0) / REFILL;
        self.tokens = BURST.min(self.tokens.saturating_add(more));
        self.filled =
            if self.tokens == BURST { now } else { Moment(self.filled.0 + more * REFILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_sixteen_a_second_and_all_packets_are_accounted_for() {
        let (mut budget, mut recorded) = (DropBudget::default(), Vec::new());
        let mut now = Moment::from_secs(100);
        for _ in 0..100_000 {
            recorded.extend(budget.take(DropReason::InReplay, 2, now));
            now = Moment(now.0 + 20_000);
        }
        // Two seconds.
        assert_eq!(recorded.len(), 16 + 31, "{recorded:?}");
        let stood_for: u64 = recorded.iter().sum();
        assert!(stood_for <= 200_000 && stood_for > 190_000, "{stood_for}");
        let other = budget.take(DropReason::InForged, 1, now);
        assert_eq!(other, Some(1), "a flood of one reason takes no token of another");
    }
}

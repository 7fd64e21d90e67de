//! Receive reservation of an SA of kind *packet*: sequence numbers are recorded as reserved before
//! they are accepted, as for sending.

use std::ops::RangeInclusive;

use uxfrm_engine::{DropReason, is_before_restart};

/// Sequence numbers that an SA may receive; all without an owner that reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveLimit {
    /// Numbers up to this one may have been received before a restart; 0 for none.
    before: u64,
    /// Highest acceptable number.
    last: u64,
    /// From here on the owner should reserve more.
    near: u64,
    /// Highest authentic number refused.
    wanted: u64,
}

/// Position of an authentic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitProximity {
    /// Well within the reservation.
    Far,
    /// The owner should reserve more; reported once until it has.
    Near,
    /// Beyond the reservation, and dropped.
    Beyond,
}

impl Default for ReceiveLimit {
    fn default() -> Self {
        Self { before: 0, last: u64::MAX, near: u64::MAX, wanted: 0 }
    }
}

impl ReceiveLimit {
    /// Accepts only `numbers` from now on; lower ones may have been received before. `head` is the
    /// highest so far.
    pub(super) fn reserve(&mut self, numbers: &RangeInclusive<u64>, head: u64) {
        let last = *numbers.end();
        self.before = numbers.start().saturating_sub(1);
        if last != self.last {
            self.near = head.saturating_add(last.saturating_sub(head) / 2);
            self.last = last;
        }
    }

    /// Classifies the number of an authentic packet.
    pub(super) fn check_proximity(&mut self, number: u64) -> LimitProximity {
        if number <= self.near {
            return LimitProximity::Far;
        }
        if number > self.last {
            self.wanted = self.wanted.max(number);
            return LimitProximity::Beyond;
        }
        self.near = self.last;
        LimitProximity::Near
    }

    /// Refines the reason of a refused number.
    pub(super) fn explain(&self, low: u32, reason: DropReason) -> DropReason {
        if is_before_restart(low, self.before) { DropReason::InBeforeRestart } else { reason }
    }

    pub(super) const fn wanted(&self) -> u64 {
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_limit_is_reported_once_and_enforced() {
        let mut edge = ReceiveLimit::default();
        assert_eq!(edge.check_proximity(u64::MAX), LimitProximity::Far, "nobody keeps numbers");
        edge.reserve(&(101..=200), 100);
        assert_eq!([150, 151, 152, 200].map(|number| edge.check_proximity(number)), {
            [LimitProximity::Far, LimitProximity::Near, LimitProximity::Far, LimitProximity::Far]
        });
        assert_eq!((edge.check_proximity(201), edge.check_proximity(230), edge.wanted()), {
            (LimitProximity::Beyond, LimitProximity::Beyond, 230)
        });
        edge.reserve(&(101..=200), 200);
        assert_eq!(edge.check_proximity(200), LimitProximity::Far, "the same again is no news");
        edge.reserve(&(101..=300), 200);
        assert_eq!(
            (edge.check_proximity(230), edge.check_proximity(260)),
            (LimitProximity::Far, LimitProximity::Near)
        );
    }

    #[test]
    fn numbers_before_a_restart_have_a_reason_of_their_own() {
        let mut edge = ReceiveLimit::default();
        edge.reserve(&(101..=200), 100);
        assert_eq!(edge.explain(100, DropReason::InReplay), DropReason::InBeforeRestart);
        assert_eq!(edge.explain(101, DropReason::InReplay), DropReason::InReplay);
    }
}

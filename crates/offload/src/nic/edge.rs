//! Up to where a state of kind *packet* may receive: numbers are written down as reserved before they are accepted, as those to send are.

use std::ops::RangeInclusive;

use uxfrm_engine::{DropReason, is_before_restart};

/// What a state may receive. Without an owner who keeps that, everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    /// Numbers up to this one may have been received before a restart; 0 for none.
    before: u64,
    /// None above it is accepted.
    last: u64,
    /// From here on the owner is to reserve more.
    near: u64,
    /// The highest authentic number that was refused.
    wanted: u64,
}

/// How near an authentic number comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Approach {
    /// There is enough.
    Far,
    /// The owner is to reserve more; said once until it has.
    Near,
    /// It is beyond, and dropped.
    Beyond,
}

impl Default for Edge {
    fn default() -> Self {
        Self { before: 0, last: u64::MAX, near: u64::MAX, wanted: 0 }
    }
}

impl Edge {
    /// From now on only `numbers` are accepted; those below them may have been before. `head` is the highest so far.
    pub(super) fn reserve(&mut self, numbers: &RangeInclusive<u64>, head: u64) {
        let last = *numbers.end();
        self.before = numbers.start().saturating_sub(1);
        if last != self.last {
            self.near = head.saturating_add(last.saturating_sub(head) / 2);
            self.last = last;
        }
    }

    /// An authentic packet has this number.
    pub(super) fn approach(&mut self, number: u64) -> Approach {
        if number <= self.near {
            return Approach::Far;
        }
        if number > self.last {
            self.wanted = self.wanted.max(number);
            return Approach::Beyond;
        }
        self.near = self.last;
        Approach::Near
    }

    /// Why a number that is refused is refused.
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
    fn owner_is_told_once_and_nothing_above_the_edge_passes() {
        let mut edge = Edge::default();
        assert_eq!(edge.approach(u64::MAX), Approach::Far, "nobody keeps numbers");
        edge.reserve(&(101..=200), 100);
        assert_eq!([150, 151, 152, 200].map(|number| edge.approach(number)), {
            [Approach::Far, Approach::Near, Approach::Far, Approach::Far]
        });
        assert_eq!((edge.approach(201), edge.approach(230), edge.wanted()), {
            (Approach::Beyond, Approach::Beyond, 230)
        });
        edge.reserve(&(101..=200), 200);
        assert_eq!(edge.approach(200), Approach::Far, "the same again is no news");
        edge.reserve(&(101..=300), 200);
        assert_eq!((edge.approach(230), edge.approach(260)), (Approach::Far, Approach::Near));
    }

    #[test]
    fn numbers_before_a_restart_have_a_reason_of_their_own() {
        let mut edge = Edge::default();
        edge.reserve(&(101..=200), 100);
        assert_eq!(edge.explain(100, DropReason::InReplay), DropReason::InBeforeRestart);
        assert_eq!(edge.explain(101, DropReason::InReplay), DropReason::InReplay);
    }
}

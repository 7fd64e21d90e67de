//! How much of what states have received lately was dropped behind them, by which a tunnel that
//! opens packets and lets none through is told from one that carries them.
//!
//! States count all packets that they open, and workers count which of those are dropped
//! afterwards, for a policy or a selector. Both are looked at about once a second, for states that
//! have such drops alone.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use uxfrm_engine::{DropReason, DropTallies, Moment, SaId, Snapshot};

use super::{state::StateCounts, survey::ReadAt};

/// From so many packets on a verdict means something.
const ENOUGH: u64 = 3;
/// How long a verdict looks back at the least, once there is so much to look back at.
const WINDOW: Duration = Duration::from_secs(30);
/// Drops that are older tell nothing of today.
const RECENT: Duration = Duration::from_secs(300);

/// The states of which packets were dropped behind them.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<SaId, Watched, RandomState>);

/// What a state received and what was dropped of it, since some time ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefusedPackets {
    /// Why most of them were dropped.
    pub(super) reason: DropReason,
    pub(super) received: u64,
    pub(super) dropped: u64,
    /// About when the last one was.
    pub(super) at: Moment,
}

/// Counts since a state began.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Moment,
    received: u64,
    dropped: u64,
}

/// One state.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Since when it is judged.
    base: Sample,
    /// The next base.
    middle: Sample,
    latest: Sample,
    reason: DropReason,
    dropped_at: Moment,
}

impl Refusals {
    /// Takes the counts of now.
    pub(super) fn note(&mut self, snapshot: &Snapshot, tallies: &DropTallies, read: &ReadAt<'_>) {
        let behind = dropped_behind(tallies);
        self.0.retain(|id, _| behind.contains_key(id));
        for (id, dropped) in behind {
            self.take(snapshot, id, dropped, read);
        }
    }

    /// Takes what was dropped of one state's packets, and why.
    pub(super) fn take(
        &mut self,
        snapshot: &Snapshot,
        id: SaId,
        (dropped, reason): (u64, DropReason),
        read: &ReadAt<'_>,
    ) {
        let Some(sa) = snapshot.sad.with_id(id).next() else {
            self.0.remove(&id);
            return;
        };
        let received = StateCounts::of(sa, read).packets;
        let sample = Sample { at: read.now, received, dropped };
        let watched = self.0.entry(id).or_insert_with(|| Watched::new(sample, reason));
        watched.take(sample, reason);
    }

    /// Whether no state has any.
    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// What a state received and did not let through, if that is nearly all of it.
    pub(super) fn of(&self, id: SaId, now: Moment) -> Option<RefusedPackets> {
        let watched = self.0.get(&id)?;
        let refused = watched.refused();
        let is_bad = refused.dropped >= ENOUGH && is_nearly_all(refused.dropped, refused.received);
        (is_bad && now.since(watched.dropped_at) < RECENT).then_some(refused)
    }
}

impl Watched {
    fn new(first: Sample, reason: DropReason) -> Self {
        // What it carried before packets were dropped is not of now.
        let base = match is_nearly_all(first.dropped, first.received) {
            true => Sample { received: 0, dropped: 0, ..first },
            false => first,
        };
        Self { base, middle: first, latest: first, reason, dropped_at: first.at }
    }

    fn take(&mut self, sample: Sample, reason: DropReason) {
        if sample.received < self.latest.received || sample.dropped < self.latest.dropped {
            // Another state has the name.
            *self = Self::new(sample, reason);
            return;
        }
        if sample.dropped > self.latest.dropped {
            (self.dropped_at, self.reason) = (sample.at, reason);
        }
        let is_full = sample.received - self.middle.received >= ENOUGH;
        if is_full && sample.at.since(self.middle.at) >= WINDOW {
            (self.base, self.middle) = (self.middle, sample);
        }
        self.latest = sample;
    }

    const fn refused(&self) -> RefusedPackets {
        RefusedPackets {
            reason: self.reason,
            received: self.latest.received - self.base.received,
            dropped: self.latest.dropped - self.base.dropped,
            at: self.dropped_at,
        }
    }
}

impl RefusedPackets {
    /// Of two states of a tunnel together.
    pub(super) fn plus(self, other: Self) -> Self {
        let (received, dropped) = (self.received + other.received, self.dropped + other.dropped);
        let later = if other.at > self.at { other } else { self };
        Self { received, dropped, ..later }
    }
}

/// Nine in ten: the tallies are up to a second behind.
const fn is_nearly_all(dropped: u64, received: u64) -> bool {
    dropped.saturating_mul(10) >= received.saturating_mul(9)
}

/// What was dropped of packets that a state had opened, and the reason of most.
fn dropped_behind(tallies: &DropTallies) -> HashMap<SaId, (u64, DropReason), RandomState> {
    let mut behind: HashMap<SaId, (u64, DropReason), RandomState> = HashMap::default();
    let mut most: HashMap<SaId, u64, RandomState> = HashMap::default();
    for tally in tallies.tallies().iter().filter(|tally| is_behind(tally.reason)) {
        let Some(sa) = &tally.subject.sa else { continue };
        let (packets, reason) = behind.entry(sa.id).or_insert((0, tally.reason));
        *packets += tally.packets;
        let highest = most.entry(sa.id).or_default();
        if tally.packets > *highest {
            (*highest, *reason) = (tally.packets, tally.reason);
        }
    }
    behind
}

/// Whether packets that are dropped for it were authentic, and were meant to pass. A policy that
/// blocks them is somebody's will.
pub(super) const fn is_behind(reason: DropReason) -> bool {
    use DropReason as R;
    matches!(
        reason,
        R::InModeMismatch
            | R::InSelectorMismatch
            | R::InUnprotected
            | R::InOtherState
            | R::InNoPolicy
            | R::InDefaultBlock
            | R::InHeld
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: DropReason = DropReason::InNoPolicy;

    fn sample(seconds: u64, received: u64, dropped: u64) -> Sample {
        Sample { at: Moment::from_secs(seconds), received, dropped }
    }

    /// Whether the state is bad after the last of these samples, and the packets it is judged by.
    fn judged(samples: &[(u64, u64, u64)], seconds: u64) -> Option<(u64, u64)> {
        let id = SaId {
            destination: [192, 0, 2, 1].into(),
            spi: uxfrm_engine::Spi(1),
            protocol: uxfrm_engine::SaProtocol::Esp,
        };
        let mut refusals = Refusals::default();
        for (seconds, received, dropped) in samples {
            let sample = sample(*seconds, *received, *dropped);
            let watched = refusals.0.entry(id).or_insert_with(|| Watched::new(sample, WHY));
            watched.take(sample, WHY);
        }
        let refused = refusals.of(id, Moment::from_secs(seconds))?;
        assert_eq!(refused.reason, WHY);
        Some((refused.dropped, refused.received))
    }

    #[test]
    fn state_that_lets_nothing_through_is_bad_and_one_that_drops_some_is_not() {
        for (samples, seconds, bad) in [
            (&[(100, 49, 49)][..], 101, Some((49, 49))),
            (&[(100, 2, 2)], 101, None),
            (&[(100, 49, 49)], 401, None),
            (&[(100, 1000, 40), (101, 1100, 80)], 101, None),
            (&[(100, 1000, 1), (110, 1009, 10)], 110, Some((9, 9))),
            (&[(100, 49, 48)], 101, Some((48, 49))),
            // Mended: what comes now passes.
            (&[(100, 49, 49), (110, 60, 49)], 110, None),
            // One broken after half an hour that was well, for longer than two windows.
            (&[(100, 1000, 1), (131, 1010, 1), (162, 1020, 10), (193, 1030, 20)], 193, {
                Some((10, 10))
            }),
            // The name is another state's now.
            (&[(100, 49, 49), (110, 5, 0)], 110, None),
        ] {
            assert_eq!(judged(samples, seconds), bad, "{samples:?}");
        }
    }

    #[test]
    fn states_of_a_tunnel_add_up() {
        let one = RefusedPackets { reason: WHY, received: 5, dropped: 4, at: Moment(7) };
        let other = RefusedPackets { received: 3, dropped: 3, at: Moment(9), ..one };
        let both = RefusedPackets { received: 8, dropped: 7, at: Moment(9), ..one };
        assert_eq!((one.plus(other), other.plus(one)), (both, both));
    }
}

//! Timers of states and policies: time limits and keepalives.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{Moment, PolicyEntry, Sa};

/// Timers allowed before dead ones are looked for.
const ROOM: usize = 1024;
/// Timers per state or policy: three of its own, and those of the first generation, whose counters
/// an updated state has.
const MAX_TIMERS_EACH: usize = 6;

/// A queue of timers. It holds weak references: a timer for something removed is skipped. But the
/// memory stays until the timer fires, which may take hours, so dead timers are swept when there
/// are too many.
#[derive(Debug)]
pub(super) struct Timers {
    due: BTreeMap<(Moment, u64), TimerTarget>,
    serial: u64,
    /// With so many timers, dead ones are swept.
    room: usize,
}

#[derive(Debug)]
enum TimerTarget {
    Sa(Weak<Sa>),
    Limits(Weak<Sa>),
    Nat(Weak<Sa>),
    Policy(Weak<PolicyEntry>),
    Release,
    Revision,
}

/// The first timer of a [`Database`](crate::Database).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// When it is due.
    pub at: Moment,
    /// What it is for, in words for logs and tests.
    pub reason: &'static str,
}

/// Target of a timer that fired.
#[derive(Debug)]
pub(super) enum DueTimer {
    Sa(Arc<Sa>),
    /// A state with new limits: its counters may have reached them already.
    Limits(Arc<Sa>),
    Nat(Arc<Sa>),
    Policy(Arc<PolicyEntry>),
    /// Removed entries.
    Release,
    /// Rebuild of policies.
    Revision,
}

impl Default for Timers {
    fn default() -> Self {
        Self { due: BTreeMap::new(), serial: 0, room: ROOM }
    }
}

impl Timers {
    pub(super) fn wake_sa(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, TimerTarget::Sa(Arc::downgrade(sa)));
    }

    /// For new limits of a used state.
    pub(super) fn wake_limits(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, TimerTarget::Limits(Arc::downgrade(sa)));
    }

    /// For a state's NAT keepalives.
    pub(super) fn wake_nat(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, TimerTarget::Nat(Arc::downgrade(sa)));
    }

    pub(super) fn wake_policy(&mut self, at: Moment, entry: &Arc<PolicyEntry>) {
        self.add(at, TimerTarget::Policy(Arc::downgrade(entry)));
    }

    pub(super) fn wake_release(&mut self, at: Moment) {
        self.add(at, TimerTarget::Release);
    }

    pub(super) fn wake_rebuild(&mut self, at: Moment) {
        self.add(at, TimerTarget::Revision);
    }

    /// Time and reason of the first timer.
    pub(super) fn first(&self) -> Option<Timeout> {
        let (&(at, _), target) = self.due.first_key_value()?;
        let reason = match target {
            TimerTarget::Sa(_) => "time limit of a state",
            TimerTarget::Limits(_) => "new limits of a state",
            TimerTarget::Nat(_) => "keepalive of a state",
            TimerTarget::Policy(_) => "time limit of a policy",
            TimerTarget::Release => "keys and copies of what is gone",
            TimerTarget::Revision => "plan of policies that came one by one",
        };
        Some(Timeout { at, reason })
    }

    /// Removes the next timer due at `now`.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<DueTimer> {
        loop {
            let first = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
            let woken = match first.remove() {
                TimerTarget::Sa(sa) => sa.upgrade().map(DueTimer::Sa),
                TimerTarget::Limits(sa) => sa.upgrade().map(DueTimer::Limits),
                TimerTarget::Nat(sa) => sa.upgrade().map(DueTimer::Nat),
                TimerTarget::Policy(entry) => entry.upgrade().map(DueTimer::Policy),
                TimerTarget::Release => Some(DueTimer::Release),
                TimerTarget::Revision => Some(DueTimer::Revision),
            };
            if woken.is_some() {
                return woken;
            }
        }
    }

    /// To be called after removals, when `left` states and policies are left.
    pub(super) fn release_old(&mut self, left: usize) {
        if self.due.len() > ROOM.max(left.saturating_mul(MAX_TIMERS_EACH)) {
            self.sweep();
        }
    }

    /// Allows twice as many timers as are left before the next sweep, so each is visited only a few
    /// times.
    fn sweep(&mut self) {
        self.due.retain(|_, sleeper| sleeper.is_there());
        self.room = ROOM.max(2 * self.due.len());
    }

    fn add(&mut self, at: Moment, sleeper: TimerTarget) {
        if self.due.len() >= self.room {
            self.sweep();
        }
        self.serial += 1;
        self.due.insert((at, self.serial), sleeper);
    }
}

impl TimerTarget {
    fn is_there(&self) -> bool {
        match self {
            Self::Sa(sa) | Self::Limits(sa) | Self::Nat(sa) => sa.strong_count() > 0,
            Self::Policy(entry) => entry.strong_count() > 0,
            Self::Release | Self::Revision => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::{SharedSaConfig, sa::sample};

    fn state() -> Arc<Sa> {
        let config = sample("10.0.0.2", 1);
        Sa::new(&config, Arc::new(SharedSaConfig::of(&config, Backend::Portable)), Moment(0))
    }

    #[test]
    fn dead_timers_are_swept() {
        let (mut timers, stays) = (Timers::default(), state());
        timers.wake_sa(Moment::from_secs(2), &stays);
        timers.wake_release(Moment::from_secs(3));
        for hour in 1..10_000 {
            timers.wake_sa(Moment::from_secs(3600 * hour), &state());
            assert!(timers.due.len() <= ROOM);
        }
        timers.release_old(1);
        assert!(timers.due.len() <= ROOM, "too few to look");
        let many: Vec<_> = (0..2 * ROOM).map(|_| state()).collect();
        many.iter().for_each(|sa| timers.wake_sa(Moment::from_secs(3600), sa));
        timers.release_old(many.len() + 1);
        assert!(timers.due.len() > 2 * ROOM);
        drop(many);
        timers.release_old(1);
        assert_eq!(timers.due.len(), 2);
        let woken = timers.take_due(Moment::from_secs(2));
        assert!(matches!(woken, Some(DueTimer::Sa(sa)) if Arc::ptr_eq(&sa, &stays)));
        assert!(matches!(timers.take_due(Moment::from_secs(3)), Some(DueTimer::Release)));
    }
}

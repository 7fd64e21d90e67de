//! When time limits of states and policies, and keepalives, are due.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{Moment, PolicyEntry, Sa};

/// As many wake-ups as there may be before any is looked at that may be for something gone.
const ROOM: usize = 1024;
/// Wake-ups that a state or policy has at the most: three of its own, and those of the first generation whose counts an updated state has.
const EACH: usize = 6;

/// A queue of wake-ups. It keeps nothing in use: what is gone when its time comes is passed over. But its memory stays as long as its wake-up, which
/// may be hours, so wake-ups for what is gone go when there are too many.
#[derive(Debug)]
pub(super) struct Timers {
    due: BTreeMap<(Moment, u64), Sleeper>,
    serial: u64,
    /// With so many, those for what is gone are looked for.
    room: usize,
}

#[derive(Debug)]
enum Sleeper {
    Sa(Weak<Sa>),
    Limits(Weak<Sa>),
    Nat(Weak<Sa>),
    Policy(Weak<PolicyEntry>),
    Gone,
    Revision,
}

/// What is to be looked at.
#[derive(Debug)]
pub(super) enum Woken {
    Sa(Arc<Sa>),
    /// A state whose limits are others: its counts may have reached them already.
    Limits(Arc<Sa>),
    Nat(Arc<Sa>),
    Policy(Arc<PolicyEntry>),
    /// What is no longer there.
    Gone,
    /// Whether policies are to be planned anew.
    Revision,
}

impl Default for Timers {
    fn default() -> Self {
        Self { due: BTreeMap::new(), serial: 0, room: ROOM }
    }
}

impl Timers {
    pub(super) fn wake_sa(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, Sleeper::Sa(Arc::downgrade(sa)));
    }

    /// For new limits of a state that has counts.
    pub(super) fn wake_limits(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, Sleeper::Limits(Arc::downgrade(sa)));
    }

    /// For the NAT that a state is kept open through.
    pub(super) fn wake_nat(&mut self, at: Moment, sa: &Arc<Sa>) {
        self.add(at, Sleeper::Nat(Arc::downgrade(sa)));
    }

    pub(super) fn wake_policy(&mut self, at: Moment, entry: &Arc<PolicyEntry>) {
        self.add(at, Sleeper::Policy(Arc::downgrade(entry)));
    }

    pub(super) fn wake_gone(&mut self, at: Moment) {
        self.add(at, Sleeper::Gone);
    }

    pub(super) fn wake_revision(&mut self, at: Moment) {
        self.add(at, Sleeper::Revision);
    }

    /// When the first is due, and what for.
    pub(super) fn first(&self) -> Option<(Moment, &'static str)> {
        let ((at, _), sleeper) = self.due.first_key_value()?;
        let why = match sleeper {
            Sleeper::Sa(_) => "time limit of a state",
            Sleeper::Limits(_) => "new limits of a state",
            Sleeper::Nat(_) => "keepalive of a state",
            Sleeper::Policy(_) => "time limit of a policy",
            Sleeper::Gone => "keys and copies of what is gone",
            Sleeper::Revision => "plan of policies that came one by one",
        };
        Some((*at, why))
    }

    /// Takes out the next one due at `now`.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Woken> {
        loop {
            let first = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
            let woken = match first.remove() {
                Sleeper::Sa(sa) => sa.upgrade().map(Woken::Sa),
                Sleeper::Limits(sa) => sa.upgrade().map(Woken::Limits),
                Sleeper::Nat(sa) => sa.upgrade().map(Woken::Nat),
                Sleeper::Policy(entry) => entry.upgrade().map(Woken::Policy),
                Sleeper::Gone => Some(Woken::Gone),
                Sleeper::Revision => Some(Woken::Revision),
            };
            if woken.is_some() {
                return woken;
            }
        }
    }

    /// To be called when something has gone and `left` states and policies are left.
    pub(super) fn let_go(&mut self, left: usize) {
        if self.due.len() > ROOM.max(left.saturating_mul(EACH)) {
            self.sweep();
        }
    }

    /// Twice as many as are left may come before the next time, so each is looked at a few times at the most.
    fn sweep(&mut self) {
        self.due.retain(|_, sleeper| sleeper.is_there());
        self.room = ROOM.max(2 * self.due.len());
    }

    fn add(&mut self, at: Moment, sleeper: Sleeper) {
        if self.due.len() >= self.room {
            self.sweep();
        }
        self.serial += 1;
        self.due.insert((at, self.serial), sleeper);
    }
}

impl Sleeper {
    fn is_there(&self) -> bool {
        match self {
            Self::Sa(sa) | Self::Limits(sa) | Self::Nat(sa) => sa.strong_count() > 0,
            Self::Policy(entry) => entry.strong_count() > 0,
            Self::Gone | Self::Revision => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::{SaWords, sa::sample};

    fn state() -> Arc<Sa> {
        let config = sample("10.0.0.2", 1);
        Sa::new(&config, Arc::new(SaWords::of(&config, Backend::Portable)), Moment(0))
    }

    #[test]
    fn what_is_gone_does_not_wait_for_its_time() {
        let (mut timers, stays) = (Timers::default(), state());
        timers.wake_sa(Moment::from_secs(2), &stays);
        timers.wake_gone(Moment::from_secs(3));
        for hour in 1..10_000 {
            timers.wake_sa(Moment::from_secs(3600 * hour), &state());
            assert!(timers.due.len() <= ROOM);
        }
        timers.let_go(1);
        assert!(timers.due.len() <= ROOM, "too few to look");
        let many: Vec<_> = (0..2 * ROOM).map(|_| state()).collect();
        many.iter().for_each(|sa| timers.wake_sa(Moment::from_secs(3600), sa));
        timers.let_go(many.len() + 1);
        assert!(timers.due.len() > 2 * ROOM);
        drop(many);
        timers.let_go(1);
        assert_eq!(timers.due.len(), 2);
        let woken = timers.take_due(Moment::from_secs(2));
        assert!(matches!(woken, Some(Woken::Sa(sa)) if Arc::ptr_eq(&sa, &stays)));
        assert!(matches!(timers.take_due(Moment::from_secs(3)), Some(Woken::Gone)));
    }
}

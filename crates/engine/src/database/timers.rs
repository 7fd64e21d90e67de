//! When time limits of states and policies, and keepalives, are due.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{Moment, PolicyEntry, Sa};

/// A queue of wake-ups. It keeps nothing alive: what is gone when its time comes is passed over.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<(Moment, u64), Sleeper>,
    serial: u64,
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

    fn add(&mut self, at: Moment, sleeper: Sleeper) {
        self.serial += 1;
        self.due.insert((at, self.serial), sleeper);
    }
}

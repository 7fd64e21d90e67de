//! When policies that were inserted or removed one by one are rebuilt.
//!
//! Not while many change: a set that is being loaded outgrows each plan at once.

use std::sync::Arc;
use std::time::Duration;

use crate::PolicyEntry;
use crate::spd::rules::PendingDelta;

/// State of a rebuild.
#[derive(Debug, Default)]
pub(super) enum RebuildState {
    /// None needed.
    #[default]
    Idle,
    /// One is needed; `moved` policies changed since the timer was set.
    Awaited { moved: usize },
    /// Ready to be taken.
    Due,
    /// Under way; these policies changed meanwhile.
    Taken { moved: Vec<PendingDelta> },
    /// Under way, but too much has changed for its result.
    Stale,
}

/// Period in which few policies must have changed.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// Few: at most one in so many.
const FEW: usize = 64;
/// With more changes, replaying them costs more than a new rebuild.
const MOST: usize = 4096;

impl RebuildState {
    /// A policy was inserted.
    pub(super) fn inserted(&mut self, entry: &Arc<PolicyEntry>) {
        self.record(|| PendingDelta::Inserted(Arc::clone(entry)));
    }

    /// A policy was removed.
    pub(super) fn removed(&mut self, entry: &Arc<PolicyEntry>) {
        self.record(|| PendingDelta::Removed(Arc::clone(entry)));
    }

    /// Requests a rebuild. Returns whether to set a timer.
    pub(super) fn request(&mut self) -> bool {
        let is_first = matches!(self, Self::Idle);
        if is_first {
            *self = Self::Awaited { moved: 0 };
        }
        is_first
    }

    /// Requests a rebuild at once, unless one is under way.
    pub(super) fn request_now(&mut self) {
        if matches!(self, Self::Idle | Self::Awaited { .. }) {
            *self = Self::Due;
        }
    }

    /// The timer fired, with so many policies. Returns whether to set it again.
    pub(super) fn wake(&mut self, policies: usize) -> bool {
        let Self::Awaited { moved } = self else { return false };
        if *moved * FEW > policies {
            *moved = 0;
            return true;
        }
        *self = Self::Due;
        false
    }

    /// Takes a due rebuild.
    pub(super) fn take(&mut self) -> bool {
        let is_due = matches!(self, Self::Due);
        if is_due {
            *self = Self::Taken { moved: Vec::new() };
        }
        is_due
    }

    /// A rebuild is done: returns the changes meanwhile, if its result is of use.
    pub(super) fn end(&mut self) -> Option<Vec<PendingDelta>> {
        match std::mem::take(self) {
            Self::Taken { moved } => Some(moved),
            Self::Idle | Self::Awaited { .. } | Self::Due | Self::Stale => None,
        }
    }

    fn record(&mut self, moved: impl FnOnce() -> PendingDelta) {
        match self {
            Self::Idle | Self::Due | Self::Stale => {}
            Self::Awaited { moved } => *moved += 1,
            Self::Taken { moved: all } if all.len() == MOST => *self = Self::Stale,
            Self::Taken { moved: all } => all.push(moved()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uxfrm_crypto::Backend;

    use super::{MOST, QUIET};
    use crate::database::double_buffer::tests::{check, net, together};
    use crate::{Database, Footprint, Moment, PolicyEntry, Rebuild};

    const SECOND: u64 = 1_000_000_000;

    fn apart(numbers: std::ops::Range<u16>) -> (Database, Vec<Arc<PolicyEntry>>) {
        let mut database = Database::new(Backend::Portable, 1);
        let model = numbers.map(|number| add(&mut database, number, Moment(0))).collect();
        (database, model)
    }

    fn add(database: &mut Database, number: u16, now: Moment) -> Arc<PolicyEntry> {
        database.apply(now, |change| change.add_policy(net(number))).unwrap()
    }

    /// Fires all timers that are due; returns a rebuild if one is.
    fn taken_at(database: &mut Database, seconds: u64) -> Option<Rebuild> {
        database.handle_timeout(Moment(seconds * SECOND), &mut Vec::new());
        database.take_rebuild()
    }

    fn footprint(database: &Database) -> Footprint {
        database.snapshot().spd.footprint()
    }

    #[test]
    fn rebuild_equals_bulk_insertion() {
        let (mut database, model) = apart(0..1500);
        let generation = database.snapshot().spd.generation();
        let due = database.poll_timeout().unwrap();
        assert_eq!(due.at, Moment(0).plus(QUIET));
        assert!(taken_at(&mut database, 1).is_none(), "many have come in this second");
        let revised = taken_at(&mut database, 2).map(Rebuild::build);
        assert!(revised.is_some() && database.take_rebuild().is_none(), "once");
        database.install_rebuilt(revised, Moment(2 * SECOND));
        assert_eq!(footprint(&database), together(1500).spd.footprint());
        assert_eq!(database.snapshot().spd.generation(), generation, "answers stay what they are");
        check(&database.snapshot(), &model);
        assert!(taken_at(&mut database, 9).is_none() && database.poll_timeout().is_none());
    }

    #[test]
    fn bulk_insertion_is_rebuilt_after_an_eighth_changes() {
        let mut database = Database::new(Backend::Portable, 1);
        database.apply(Moment(0), |change| {
            (0..800).for_each(|number| drop(change.add_policy(net(number)).unwrap()));
        });
        let mut number = 800;
        while database.poll_timeout().is_none() {
            add(&mut database, number, Moment(0));
            number += 1;
        }
        // Of those without interface id, which are ten of eleven.
        assert!((900..=930).contains(&number), "{number}");
    }

    /// At once, and also for policies inserted together, which are not rebuilt otherwise.
    #[test]
    fn requested_rebuild_is_returned_at_once_and_once() {
        let (mut database, model) = apart(0..700);
        database.request_rebuild();
        let revision = database.take_rebuild().unwrap();
        database.request_rebuild();
        assert!(database.take_rebuild().is_none(), "somebody plans");
        database.install_rebuilt(Some(revision.build()), Moment(1));
        assert_eq!(footprint(&database), together(700).spd.footprint());
        check(&database.snapshot(), &model);
        assert!(taken_at(&mut database, 9).is_none(), "what it was awaited for is done");
        database.request_rebuild();
        assert!(database.take_rebuild().is_some());
    }

    #[test]
    fn changes_during_rebuild_are_replayed() {
        let (mut database, mut model) = apart(0..700);
        assert!(taken_at(&mut database, 1).is_none());
        let revision = taken_at(&mut database, 2).unwrap();
        model.extend((700..760).map(|number| add(&mut database, number, Moment(SECOND))));
        for at in [3, 7, 700, 300] {
            let gone = model.remove(at);
            database.apply(Moment(SECOND), |change| change.delete_policy(&gone.key())).unwrap();
        }
        check(&database.snapshot(), &model);
        database.install_rebuilt(Some(revision.build()), Moment(SECOND));
        check(&database.snapshot(), &model);
        assert!(footprint(&database).depth <= together(760).spd.footprint().depth + 1);
    }

    #[test]
    fn rebuild_waits_while_many_policies_change() {
        let (mut database, _) = apart(0..600);
        for second in 1..4 {
            let first = 600 + u16::try_from(second).unwrap() * 20;
            for number in first..first + 20 {
                add(&mut database, number, Moment(second * SECOND - 1));
            }
            assert!(taken_at(&mut database, second).is_none(), "{second}");
        }
        add(&mut database, 999, Moment(3 * SECOND + 1));
        assert!(taken_at(&mut database, 4).is_some(), "one in a second is not many");
    }

    #[test]
    fn outdated_rebuild_is_discarded_and_repeated() {
        let (mut database, mut model) = apart(0..200);
        assert!(taken_at(&mut database, 1).is_none());
        let revised = taken_at(&mut database, 2).map(Rebuild::build);
        for number in 0..u16::try_from(MOST).unwrap() / 2 + 1 {
            let gone = model.pop().unwrap();
            database.apply(Moment(SECOND), |change| change.delete_policy(&gone.key())).unwrap();
            model.push(add(&mut database, 1000 + number, Moment(SECOND)));
        }
        let before = footprint(&database);
        database.install_rebuilt(revised, Moment(SECOND));
        assert_eq!(footprint(&database), before);
        check(&database.snapshot(), &model);
        let again = taken_at(&mut database, 3).map(Rebuild::build);
        assert!(again.is_some());
        database.install_rebuilt(again, Moment(3 * SECOND));
        check(&database.snapshot(), &model);
    }

    #[test]
    fn failed_rebuild_is_repeated() {
        let (mut database, _) = apart(0..100);
        let taken = [1, 2].map(|second| taken_at(&mut database, second).is_some());
        assert_eq!(taken, [false, true]);
        database.install_rebuilt(None, Moment(2 * SECOND));
        assert!(database.take_rebuild().is_none());
        assert!(taken_at(&mut database, 3).is_some());
    }
}

//! States, or policies, to be changed that no snapshot shares.
//!
//! A change copies the nodes on its way down that a snapshot has too, and a copy counts on every part that it shares. At a million policies
//! that was most of the time of a change, and it took from readers the very lines that they look at. So there are a few of each that share
//! little: while one is published, the youngest that nobody reads any more takes in what has changed since and becomes the next. When all are read, or when
//! much has changed, the published one is copied as far as need be.

use std::sync::Arc;

use crate::{PolicyEntry, Sa, Sad, Spd};

/// What was published before, and what has changed since then.
#[derive(Debug)]
pub(super) struct DoubleBuffer<T: ReplayChanges> {
    /// The oldest first.
    before: Vec<OldCopy<T>>,
    /// Somebody reads these, or nobody can use them. They are freed here, not by a reader.
    read: Vec<Arc<T>>,
    /// What came last, alone: where the next one mostly comes, too.
    came: Option<Arc<T::Part>>,
}

/// What can become another of which it was a copy.
pub(super) trait ReplayChanges: Clone {
    /// What comes or goes.
    type Part: std::fmt::Debug;

    /// Becomes what `newer` is, of which it was a copy before these parts came or went.
    fn follow(&mut self, newer: &Self, changed: &[Arc<Self::Part>]);

    /// Makes up for what was put off when this came alone.
    fn prepare(&mut self, came: &Arc<Self::Part>);
}

/// What was published once.
#[derive(Debug)]
struct OldCopy<T: ReplayChanges> {
    whole: Arc<T>,
    /// What came or went until the next one's time.
    changed: Vec<Arc<T::Part>>,
}

/// What became of copies that are of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReleasedCopies {
    /// Some were freed.
    pub(super) freed: bool,
    /// Somebody reads some yet.
    pub(super) is_read: bool,
}

/// So many may be read still while one is free: readers look at the two newest.
const MAX_COPIES: usize = 3;
/// With more changes than these there is more to catch up with than to copy.
const MOST: usize = 4096;

impl<T: ReplayChanges> Default for DoubleBuffer<T> {
    fn default() -> Self {
        Self { before: Vec::new(), read: Vec::new(), came: None }
    }
}

impl<T: ReplayChanges> DoubleBuffer<T> {
    /// What is to be changed. Whoever has `newest` now keeps it as it is.
    pub(super) fn part<'a>(&mut self, newest: &'a mut Arc<T>) -> &'a mut T {
        if Arc::get_mut(newest).is_none() {
            self.read.retain(|whole| Arc::strong_count(whole) > 1);
            let published = Arc::clone(newest);
            if let Some(old) = self.reclaim(&published) {
                *newest = Arc::new(old);
            }
            self.before.push(OldCopy { whole: published, changed: Vec::new() });
            if self.before.len() > MAX_COPIES {
                self.read.push(self.before.remove(0).whole);
            }
        }
        let whole = Arc::make_mut(newest);
        if let Some(came) = self.came.take() {
            whole.prepare(&came);
        }
        whole
    }

    /// Something came alone, and was put in so that it did not take long.
    pub(super) fn record_insert(&mut self, part: &Arc<T::Part>) {
        self.came = Some(Arc::clone(part));
    }

    /// Something came or went.
    pub(super) fn note(&mut self, part: &Arc<T::Part>) {
        if let Some(last) = self.before.last_mut()
            && last.changed.len() <= MOST
        {
            last.changed.push(Arc::clone(part));
        }
    }

    /// Lets go of all that was published before, and so of what is no longer there.
    pub(super) fn release_old(&mut self) {
        *self = Self::default();
    }

    /// Frees what is too far behind to become the newest again, as far as nobody reads it.
    pub(super) fn release_outdated(&mut self) -> ReleasedCopies {
        let mut behind = 0;
        let is_far = |older: &OldCopy<T>| {
            behind += older.changed.len();
            behind > MOST
        };
        if let Some(at) = self.before.iter().rposition(is_far) {
            self.set_aside(at);
        }
        let before = self.read.len();
        self.read.retain(|whole| Arc::strong_count(whole) > 1);
        ReleasedCopies { freed: self.read.len() < before, is_read: !self.read.is_empty() }
    }

    /// The one at `at` and those before it can't be used any more.
    fn set_aside(&mut self, at: usize) {
        self.read.extend(self.before.drain(..=at).map(|older| older.whole));
    }

    /// The youngest that nobody reads any more, as the newest is.
    fn reclaim(&mut self, newest: &T) -> Option<T> {
        let mut behind = 0;
        for at in (0..self.before.len()).rev() {
            behind += self.before[at].changed.len();
            if behind > MOST {
                self.set_aside(at);
                return None;
            }
            if Arc::strong_count(&self.before[at].whole) == 1 {
                return self.replay(at, newest);
            }
        }
        None
    }

    fn replay(&mut self, at: usize, newest: &T) -> Option<T> {
        let OldCopy { whole, changed } = self.before.remove(at);
        let mut whole = Arc::try_unwrap(whole).ok()?;
        whole.follow(newest, &changed);
        for later in &self.before[at..] {
            whole.follow(newest, &later.changed);
        }
        if let Some(earlier) = at.checked_sub(1) {
            self.before[earlier].changed.extend(changed);
        }
        Some(whole)
    }
}

impl ReplayChanges for Spd {
    type Part = PolicyEntry;

    fn follow(&mut self, newer: &Self, changed: &[Arc<PolicyEntry>]) {
        Self::follow(self, newer, changed);
    }

    fn prepare(&mut self, came: &Arc<PolicyEntry>) {
        Self::prepare(self, came);
    }
}

impl ReplayChanges for Sad {
    type Part = Sa;

    fn follow(&mut self, newer: &Self, changed: &[Arc<Sa>]) {
        Self::follow(self, newer, changed);
    }

    fn prepare(&mut self, _: &Arc<Sa>) {}
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use uxfrm_crypto::Backend;

    use crate::{
        Database, Direction, FlowKey, IfId, Lookup, Moment, Policy, PolicyEntry, PolicyIndex,
        Prefix, Revision, Snapshot, spd::table::tests::policy,
    };
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    /// Which networks get a policy, or lose it; whether this publication is kept; whether a revision is taken, or one that was taken adopted.
    type Step = (Vec<u16>, bool, bool);

    pub(in crate::database) fn net(number: u16) -> Policy {
        let [high, low] = number.to_be_bytes();
        let mut policy = policy(Direction::Out, u32::from(number) % 3);
        let len = if number.is_multiple_of(7) { 16 } else { 24 };
        let address = Ipv4Addr::new(10, high, low, 0).into();
        policy.selector.destination = Prefix::new(address, len).unwrap();
        policy.if_id = IfId(u32::from(number.is_multiple_of(11)));
        policy
    }

    fn to(number: u16, if_id: u32) -> FlowKey {
        let [high, low] = number.to_be_bytes();
        let ends = FlowKey::between(
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv4Addr::new(10, high, low, 9).into(),
        );
        FlowKey { if_id, ..ends }
    }

    pub(in crate::database) fn check(snapshot: &Snapshot, model: &[Arc<PolicyEntry>]) {
        let indexes = |entries: &mut dyn Iterator<Item = &Arc<PolicyEntry>>| {
            entries.map(|entry| entry.index()).collect::<BTreeSet<PolicyIndex>>()
        };
        assert_eq!(indexes(&mut snapshot.spd.iter()), indexes(&mut model.iter()));
        assert_eq!(snapshot.spd.len(), model.len());
        for number in (0..2048).step_by(13) {
            for if_id in 0..2 {
                let flow = to(number, if_id);
                let fits = model.iter().filter(|entry| entry.matches(&flow));
                let first = fits.min_by_key(|entry| entry.place()).map(|entry| entry.index());
                let found = match snapshot.spd.lookup(Direction::Out, &flow) {
                    Lookup::Policy(entry) => Some(entry.index()),
                    Lookup::Default(_) => None,
                };
                assert_eq!(found, first, "{flow:?}");
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let many = prop::collection::vec(0_u16..2048, 0..400);
        let few = prop::collection::vec(0_u16..2048, 0..6);
        let (keep, revise) = (prop::bool::weighted(0.3), prop::bool::weighted(0.3));
        prop::collection::vec((prop_oneof![1 => many, 4 => few], keep, revise), 1..30)
    }

    #[test]
    fn policies_that_come_one_by_one_are_found_whether_made_ready_for_or_not() {
        for prepares in [false, true] {
            let mut database = Database::new(Backend::Portable, 1);
            let mut model = Vec::new();
            for number in 0..1500 {
                model.push(
                    database.apply(Moment(0), |change| change.add_policy(net(number))).unwrap(),
                );
                if prepares {
                    database.prepare();
                }
                if number % 299 == 0 {
                    check(&database.snapshot(), &model);
                }
            }
            let [one_by_one, together] = [database.snapshot(), together(1500)];
            let [one_by_one, together] = [&one_by_one, &together].map(|all| all.spd.footprint());
            assert!(one_by_one.depth <= together.depth + 2, "{one_by_one:?}, {together:?}");
            assert!(one_by_one.bytes <= 3 * together.bytes, "{one_by_one:?}, {together:?}");
        }
    }

    #[test]
    fn copies_of_many_policies_that_went_are_freed_once_nobody_reads_them() {
        let mut database = Database::new(Backend::Portable, 1);
        let all: Vec<_> = database.apply(Moment(0), |change| {
            (0..6000).map(|number| change.add_policy(net(number)).unwrap()).collect()
        });
        let reader = database.snapshot();
        database.apply(Moment(0), |change| {
            all.iter().for_each(|entry| drop(change.delete_policy(&entry.key()).unwrap()));
        });
        let one = Arc::downgrade(&all[17]);
        drop(all);
        let mut pass = |seconds| {
            let (due, _) = database.poll_timeout().unwrap();
            assert!(due <= Moment::from_secs(seconds));
            database.handle_timeout(Moment::from_secs(seconds), &mut Vec::new());
            database.take_freed()
        };
        assert!(!pass(1) && one.strong_count() > 0, "a worker has them");
        drop(reader);
        assert!(one.strong_count() > 0, "they are not freed by a worker");
        assert!(pass(2) && one.strong_count() == 0);
        assert!(!database.take_freed(), "it is told once");
        assert_eq!(database.poll_timeout(), None);
    }

    pub(in crate::database) fn together(count: u16) -> Arc<Snapshot> {
        let mut database = Database::new(Backend::Portable, 1);
        database.apply(Moment(0), |change| {
            (0..count).for_each(|number| drop(change.add_policy(net(number)).unwrap()));
        });
        database.snapshot()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn snapshots_stay_as_they_were_whoever_reads_them(steps in steps()) {
            let mut database = Database::new(Backend::Portable, 1);
            let mut model: Vec<Arc<PolicyEntry>> = Vec::new();
            let mut kept = Vec::new();
            let mut planned = None;
            let mut now = Moment(0);
            for (numbers, keep, revise) in steps {
                database.apply(Moment(0), |change| {
                    for number in numbers {
                        match change.add_policy(net(number)) {
                            Ok(entry) => model.push(entry),
                            Err(_) => {
                                let name = net(number).selector;
                                let at = model.iter().position(|entry| entry.selector() == name);
                                let gone = model.remove(at.unwrap());
                                change.delete_policy(&gone.key()).unwrap();
                            }
                        }
                    }
                });
                check(&database.snapshot(), &model);
                if revise {
                    let taken = planned.take();
                    if taken.is_some() {
                        database.adopt(taken, now);
                    } else {
                        now = now.plus(Duration::from_secs(2));
                        database.handle_timeout(now, &mut Vec::new());
                        planned = database.take_revision().map(Revision::plan);
                    }
                    check(&database.snapshot(), &model);
                }
                if model.len().is_multiple_of(2) {
                    database.prepare();
                    check(&database.snapshot(), &model);
                }
                if keep {
                    kept.push((database.snapshot(), model.clone()));
                }
                if kept.len() > 3 {
                    let (snapshot, model) = kept.remove(0);
                    check(&snapshot, &model);
                }
            }
            for (snapshot, model) in kept {
                check(&snapshot, &model);
            }
        }
    }
}

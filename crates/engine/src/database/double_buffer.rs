//! Copies of states or policies that a change can modify without sharing nodes with a snapshot.
//!
//! A change copies the nodes on its path that a snapshot shares, and increments the reference count
//! of all their children. At a million policies that was most of a change's time, and it took cache
//! lines from readers. So there are a few copies that share little: while one is published, the
//! youngest one without readers replays the changes since and becomes the next. If all have
//! readers, or much has changed, the published one is copied as far as needed.

use std::sync::Arc;

use crate::{PolicyEntry, Sa, Sad, Spd};

/// Earlier copies, and the changes since then.
#[derive(Debug)]
pub(super) struct DoubleBuffer<T: ReplayChanges> {
    /// The oldest first.
    before: Vec<OldCopy<T>>,
    /// Copies with readers, or of no more use. They are freed here, not by a reader.
    in_use: Vec<Arc<T>>,
    /// The latest single insertion: the next one is probably nearby.
    last_insert: Option<Arc<T::Part>>,
}

/// A structure of which an older copy can be brought up to date.
pub(super) trait ReplayChanges: Clone {
    /// An entry that is inserted or removed.
    type Part: std::fmt::Debug;

    /// Becomes equal to `newer`, of which it was a copy before these entries changed.
    fn sync_from(&mut self, newer: &Self, changed: &[Arc<Self::Part>]);

    /// Completes what was deferred when this entry was inserted alone.
    fn prepare(&mut self, last_insert: &Arc<Self::Part>);
}

/// A copy that was published once.
#[derive(Debug)]
struct OldCopy<T: ReplayChanges> {
    whole: Arc<T>,
    /// Changes until the next copy was published.
    changed: Vec<Arc<T::Part>>,
}

/// What became of outdated copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReleasedCopies {
    /// Some were freed.
    pub(super) freed: bool,
    /// Some still have readers.
    pub(super) is_read: bool,
}

/// Copies that may have readers while one is free: readers hold the two newest.
const MAX_COPIES: usize = 3;
/// With more changes, copying is cheaper than replaying them.
const MOST: usize = 4096;

impl<T: ReplayChanges> Default for DoubleBuffer<T> {
    fn default() -> Self {
        Self { before: Vec::new(), in_use: Vec::new(), last_insert: None }
    }
}

impl<T: ReplayChanges> DoubleBuffer<T> {
    /// The structure to modify. Snapshots of `newest` do not change.
    pub(super) fn part<'a>(&mut self, newest: &'a mut Arc<T>) -> &'a mut T {
        if Arc::get_mut(newest).is_none() {
            self.in_use.retain(|whole| Arc::strong_count(whole) > 1);
            let published = Arc::clone(newest);
            if let Some(old) = self.reclaim(&published) {
                *newest = Arc::new(old);
            }
            self.before.push(OldCopy { whole: published, changed: Vec::new() });
            if self.before.len() > MAX_COPIES {
                self.in_use.push(self.before.remove(0).whole);
            }
        }
        let whole = Arc::make_mut(newest);
        if let Some(last_insert) = self.last_insert.take() {
            whole.prepare(&last_insert);
        }
        whole
    }

    /// Records a single insertion that was deferred in part.
    pub(super) fn record_insert(&mut self, part: &Arc<T::Part>) {
        self.last_insert = Some(Arc::clone(part));
    }

    /// Records an inserted or removed entry.
    pub(super) fn record_change(&mut self, part: &Arc<T::Part>) {
        if let Some(last) = self.before.last_mut()
            && last.changed.len() <= MOST
        {
            last.changed.push(Arc::clone(part));
        }
    }

    /// Releases all earlier copies, and so all removed entries.
    pub(super) fn release_old(&mut self) {
        *self = Self::default();
    }

    /// Frees copies that are too far behind to be brought up to date, unless they have readers.
    pub(super) fn release_outdated(&mut self) -> ReleasedCopies {
        let mut behind = 0;
        let is_far = |older: &OldCopy<T>| {
            behind += older.changed.len();
            behind > MOST
        };
        if let Some(at) = self.before.iter().rposition(is_far) {
            self.retire(at);
        }
        let before = self.in_use.len();
        self.in_use.retain(|whole| Arc::strong_count(whole) > 1);
        ReleasedCopies { freed: self.in_use.len() < before, is_read: !self.in_use.is_empty() }
    }

    /// The copies up to index `at` are of no more use.
    fn retire(&mut self, at: usize) {
        self.in_use.extend(self.before.drain(..=at).map(|older| older.whole));
    }

    /// The youngest copy without readers, brought up to date.
    fn reclaim(&mut self, newest: &T) -> Option<T> {
        let mut behind = 0;
        for at in (0..self.before.len()).rev() {
            behind += self.before[at].changed.len();
            if behind > MOST {
                self.retire(at);
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
        whole.sync_from(newest, &changed);
        for later in &self.before[at..] {
            whole.sync_from(newest, &later.changed);
        }
        if let Some(earlier) = at.checked_sub(1) {
            self.before[earlier].changed.extend(changed);
        }
        Some(whole)
    }
}

impl ReplayChanges for Spd {
    type Part = PolicyEntry;

    fn sync_from(&mut self, newer: &Self, changed: &[Arc<PolicyEntry>]) {
        Self::sync_from(self, newer, changed);
    }

    fn prepare(&mut self, last_insert: &Arc<PolicyEntry>) {
        Self::prepare(self, last_insert);
    }
}

impl ReplayChanges for Sad {
    type Part = Sa;

    fn sync_from(&mut self, newer: &Self, changed: &[Arc<Sa>]) {
        Self::sync_from(self, newer, changed);
    }

    fn prepare(&mut self, _: &Arc<Sa>) {}
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use uxfrm_crypto::Backend;

    use crate::{
        Database, Direction, FlowKey, IfId, Moment, Policy, PolicyEntry, PolicyIndex, PolicyLookup,
        Prefix, Rebuild, Snapshot, spd::table::tests::policy,
    };
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    /// Networks whose policies are toggled; whether the snapshot is kept; whether a rebuild is
    /// taken, or a taken one installed.
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
                let first = fits.min_by_key(|entry| entry.precedence()).map(|entry| entry.index());
                let found = match snapshot.spd.lookup(Direction::Out, &flow) {
                    PolicyLookup::Policy(entry) => Some(entry.index()),
                    PolicyLookup::Default(_) => None,
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
    fn single_insertions_are_found_prepared_or_not() {
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
    fn copies_of_removed_policies_are_freed_without_readers() {
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
            let due = database.poll_timeout().unwrap().at;
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
        fn snapshots_never_change(steps in steps()) {
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
                        database.install_rebuilt(taken, now);
                    } else {
                        now = now.plus(Duration::from_secs(2));
                        database.handle_timeout(now, &mut Vec::new());
                        planned = database.take_rebuild().map(Rebuild::build);
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

//! A store in memory.

use std::collections::BTreeMap;

use super::{KeyChange, Stay, StoreOperation, StoreRevision, StoreTransaction, Stored};

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// etcd's model in memory. Time comes as milliseconds.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    revision: StoreRevision,
    keys: BTreeMap<String, Held>,
    /// Until when each lives.
    leases: BTreeMap<LeaseId, u64>,
    /// All changes, for watches.
    history: Vec<(StoreRevision, KeyChange)>,
}

#[derive(Clone, Debug)]
struct Held {
    stored: Stored,
    lease: Option<LeaseId>,
}

impl MemoryStore {
    /// The last change.
    #[must_use]
    pub const fn revision(&self) -> StoreRevision {
        self.revision
    }

    /// What a key holds.
    #[must_use]
    pub fn read(&self, key: &str) -> Option<&Stored> {
        self.keys.get(key).map(|held| &held.stored)
    }

    /// What all keys hold that begin so.
    pub fn read_all<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Stored)> + 'a {
        let from = self.keys.range(prefix.to_owned()..);
        let own = from.take_while(move |(key, _)| key.starts_with(prefix));
        own.map(|(key, held)| (key.as_str(), &held.stored))
    }

    /// All changes after a revision to keys that begin so.
    pub fn changes_after<'a>(
        &'a self,
        revision: StoreRevision,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a (StoreRevision, KeyChange)> + 'a {
        let first = self.history.partition_point(|(at, _)| *at <= revision);
        self.history[first..].iter().filter(move |(_, change)| change.key.starts_with(prefix))
    }

    /// Begins a lease that lives until a time.
    pub fn grant(&mut self, lease: LeaseId, until: u64) {
        self.leases.insert(lease, until);
    }

    /// Lets a lease live until a time; whether it still lived.
    pub fn keep_alive(&mut self, lease: LeaseId, until: u64) -> bool {
        self.leases.get_mut(&lease).is_some_and(|end| {
            *end = until.max(*end);
            true
        })
    }

    /// Ends the leases whose time is over, and deletes their keys.
    pub fn expire(&mut self, now: u64) {
        let over: Vec<_> =
            self.leases.iter().filter(|(_, end)| **end <= now).map(|(lease, _)| *lease).collect();
        for lease in over {
            self.leases.remove(&lease);
            let is_own = |held: &&Held| held.lease == Some(lease);
            let keys: Vec<_> = self
                .keys
                .iter()
                .filter(|(_, held)| is_own(held))
                .map(|(key, _)| StoreOperation::Delete { key: key.clone() })
                .collect();
            self.change(&keys, None);
        }
    }

    /// Does a transaction; whether it was done. What is leased is so under `lease`: where that does
    /// not live, nothing is done.
    pub fn commit(&mut self, transaction: &StoreTransaction, lease: Option<LeaseId>) -> bool {
        let holds = transaction.conditions.iter().all(|condition| {
            self.keys.get(&condition.key).map(|held| held.stored.revision) == condition.written
        });
        let is_leased = |operation: &StoreOperation| match operation {
            StoreOperation::Put { stay, .. } => *stay == Stay::Leased,
            StoreOperation::Delete { .. } => false,
        };
        let lives = lease.is_some_and(|lease| self.leases.contains_key(&lease));
        if !holds || !lives && transaction.operations.iter().any(is_leased) {
            return false;
        }
        self.change(&transaction.operations, lease);
        true
    }

    fn change(&mut self, operations: &[StoreOperation], lease: Option<LeaseId>) {
        if operations.is_empty() {
            return;
        }
        self.revision.0 += 1;
        for operation in operations {
            let stored = match operation {
                StoreOperation::Put { key, value, stay } => {
                    let stored = Stored { value: value.clone(), revision: self.revision };
                    let lease = lease.filter(|_| *stay == Stay::Leased);
                    self.keys.insert(key.clone(), Held { stored: stored.clone(), lease });
                    Some(stored)
                }
                StoreOperation::Delete { key } => match self.keys.remove(key) {
                    Some(_) => None,
                    None => continue,
                },
            };
            let change = KeyChange { key: operation.key().to_owned(), stored };
            self.history.push((self.revision, change));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::StoreCondition, *};

    fn put(key: &str, stay: Stay) -> StoreOperation {
        StoreOperation::Put { key: key.to_owned(), value: vec![1], stay }
    }

    fn transaction(written: Option<StoreRevision>, operation: StoreOperation) -> StoreTransaction {
        let conditions = vec![StoreCondition { key: operation.key().to_owned(), written }];
        StoreTransaction { conditions, operations: vec![operation] }
    }

    #[test]
    fn of_two_that_saw_the_same_one_wins() {
        let mut store = MemoryStore::default();
        let write = transaction(None, put("a", Stay::Forever));
        assert!(store.commit(&write, None));
        assert!(!store.commit(&write, None));
        let seen = store.read("a").unwrap().revision;
        assert!(store.commit(&transaction(Some(seen), put("a", Stay::Forever)), None));
        assert!(!store.commit(&transaction(Some(seen), put("a", Stay::Forever)), None));
    }

    #[test]
    fn what_is_leased_goes_with_its_lease() {
        let mut store = MemoryStore::default();
        let lease = LeaseId(7);
        assert!(!store.commit(&transaction(None, put("a/1", Stay::Leased)), Some(lease)));
        store.grant(lease, 1_000);
        assert!(store.commit(&transaction(None, put("a/1", Stay::Leased)), Some(lease)));
        assert!(store.commit(&transaction(None, put("a/2", Stay::Forever)), Some(lease)));
        assert!(store.keep_alive(lease, 2_000));
        store.expire(1_999);
        assert_eq!(store.read_all("a/").count(), 2);
        let before = store.revision();
        store.expire(2_000);
        assert_eq!(store.read_all("a/").map(|(key, _)| key).collect::<Vec<_>>(), ["a/2"]);
        let gone: Vec<_> = store.changes_after(before, "a/").collect();
        assert!(matches!(gone[..], [(_, KeyChange { stored: None, .. })]));
        assert!(!store.keep_alive(lease, 3_000));
    }

    #[test]
    fn a_watch_tells_what_begins_with_its_prefix() {
        let mut store = MemoryStore::default();
        for key in ["a/1", "b/1", "a/2"] {
            assert!(store.commit(&transaction(None, put(key, Stay::Forever)), None));
        }
        let keys = |from| {
            let changes = store.changes_after(StoreRevision(from), "a/");
            changes.map(|(_, change)| change.key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys(0), ["a/1", "a/2"]);
        assert_eq!(keys(1), ["a/2"]);
        assert!(keys(3).is_empty());
    }
}

//! States by a key, shared between snapshots page by page: adding one to a million copies a page and the forks above it.
//!
//! Many states may have one key (all that go to one peer with one reqid), so those with one key have a tree of their own
//! when there are many: no change costs more because others are like it.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use arrayvec::ArrayVec;

use super::tree::{Page, Tree};
use crate::Sa;

/// States by a key.
#[derive(Clone, Debug)]
pub(super) struct Index<K> {
    tree: Tree<Leaf<(K, Run)>>,
    hasher: foldhash::fast::RandomState,
}

/// A state with its turn: of two, the one put in later has the higher.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) turn: u64,
    pub(super) sa: Arc<Sa>,
}

/// States with one key, in no order.
#[derive(Clone, Debug)]
enum Run {
    One(Entry),
    Few(Arc<[Entry]>),
    Many(Arc<Crowd>),
}

/// Very many states with one key, by their turn.
#[derive(Clone, Debug, Default)]
struct Crowd {
    tree: Tree<Leaf<Entry>>,
    len: usize,
}

/// Items with their hashes; more than fit only where no hash tells them apart.
#[derive(Clone, Debug)]
struct Leaf<T> {
    items: ArrayVec<(u64, T), WIDTH>,
    more: Vec<(u64, T)>,
}

const WIDTH: usize = 16;
/// More states than this with one key stand in a tree.
const FEW: usize = 32;

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { tree: Tree::default(), hasher: foldhash::fast::RandomState::default() }
    }
}

impl<K: Hash + Eq + Clone> Index<K> {
    /// Shows each state with a key, in no order.
    #[inline]
    pub(super) fn each<'a>(&'a self, key: &K, visit: &mut impl FnMut(&'a Entry)) {
        if let Some(run) = self.run(key) {
            run.each(visit);
        }
    }

    /// The youngest state with a key that fits.
    #[inline]
    pub(super) fn youngest(&self, key: &K, fits: impl Fn(&Sa) -> bool) -> Option<&Arc<Sa>> {
        let mut youngest: Option<&Entry> = None;
        self.each(key, &mut |entry| {
            if fits(&entry.sa) && youngest.is_none_or(|other| other.turn < entry.turn) {
                youngest = Some(entry);
            }
        });
        youngest.map(|entry| &entry.sa)
    }

    /// All states, in no order.
    pub(super) fn all(&self) -> Vec<&Entry> {
        let mut all = Vec::new();
        self.tree.each(&mut |leaf| {
            leaf.iter().for_each(|(_, (_, run))| run.each(&mut |entry| all.push(entry)));
        });
        all
    }

    pub(super) fn insert(&mut self, key: K, entry: Entry) {
        let hash = self.hasher.hash_one(&key);
        self.tree.add(hash, |leaf| match leaf.find(hash, |(other, _)| *other == key) {
            Some((_, run)) => run.insert(entry),
            None => leaf.push(hash, (key, Run::One(entry))),
        });
    }

    /// Takes the entry with that turn out; none is no error.
    pub(super) fn remove(&mut self, key: &K, turn: u64) {
        let hash = self.hasher.hash_one(key);
        self.tree.take(hash, |leaf| {
            let found = leaf.find(hash, |(other, _)| other == key);
            if found.is_some_and(|(_, run)| run.remove(turn)) {
                leaf.drop(hash, |(other, _)| other == key);
            }
        });
    }

    /// Puts another generation of the state in the entry with that turn.
    pub(super) fn replace(&mut self, key: &K, turn: u64, sa: &Arc<Sa>) {
        let hash = self.hasher.hash_one(key);
        self.tree.take(hash, |leaf| {
            if let Some((_, run)) = leaf.find(hash, |(other, _)| other == key) {
                run.replace(turn, sa);
            }
        });
    }

    #[inline]
    fn run(&self, key: &K) -> Option<&Run> {
        let hash = self.hasher.hash_one(key);
        let leaf = self.tree.page(hash)?;
        leaf.iter()
            .find(|(other, (name, _))| *other == hash && name == key)
            .map(|(_, (_, run))| run)
    }
}

impl Run {
    #[inline]
    fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Entry)) {
        match self {
            Self::One(entry) => visit(entry),
            Self::Few(entries) => entries.iter().for_each(visit),
            Self::Many(crowd) => {
                crowd.tree.each(&mut |leaf| leaf.iter().for_each(|(_, entry)| visit(entry)));
            }
        }
    }

    fn insert(&mut self, entry: Entry) {
        match self {
            Self::One(one) => *self = Self::Few([one.clone(), entry].into()),
            Self::Few(entries) if entries.len() < FEW => {
                *entries = entries.iter().cloned().chain([entry]).collect();
            }
            Self::Few(entries) => {
                let mut crowd = Crowd::default();
                entries.iter().cloned().chain([entry]).for_each(|entry| crowd.insert(entry));
                *self = Self::Many(Arc::new(crowd));
            }
            Self::Many(crowd) => Arc::make_mut(crowd).insert(entry),
        }
    }

    /// True when none is left.
    fn remove(&mut self, turn: u64) -> bool {
        match self {
            Self::One(one) => return one.turn == turn,
            Self::Few(entries) => {
                *entries = entries.iter().filter(|entry| entry.turn != turn).cloned().collect();
            }
            Self::Many(crowd) => {
                let crowd = Arc::make_mut(crowd);
                crowd.remove(turn);
                // Half of what makes a crowd, so that changes at the border stay cheap.
                if crowd.len <= FEW / 2 {
                    let mut few = Vec::new();
                    crowd.tree.each(&mut |leaf| few.extend(leaf.iter().map(|(_, e)| e.clone())));
                    *self = Self::Few(few.into());
                }
            }
        }
        if let Self::Few(entries) = self
            && let [only] = &**entries
        {
            *self = Self::One(only.clone());
        }
        false
    }

    fn replace(&mut self, turn: u64, sa: &Arc<Sa>) {
        let renew = |entry: &mut Entry| {
            if entry.turn == turn {
                entry.sa = Arc::clone(sa);
            }
        };
        match self {
            Self::One(entry) => renew(entry),
            Self::Few(entries) => Arc::make_mut(entries).iter_mut().for_each(renew),
            Self::Many(crowd) => {
                let hash = hash_of(turn);
                Arc::make_mut(crowd).tree.take(hash, |leaf| {
                    if let Some(entry) = leaf.find(hash, |_| true) {
                        renew(entry);
                    }
                });
            }
        }
    }
}

impl Crowd {
    fn insert(&mut self, entry: Entry) {
        let hash = hash_of(entry.turn);
        self.tree.add(hash, |leaf| leaf.push(hash, entry));
        self.len += 1;
    }

    fn remove(&mut self, turn: u64) {
        let hash = hash_of(turn);
        let removed = self.tree.take(hash, |leaf| {
            let before = leaf.len();
            leaf.drop(hash, |_| true);
            leaf.len() < before
        });
        self.len -= usize::from(removed == Some(true));
    }
}

/// Turns are counted, so their own bits spread them over a tree: no two have one hash.
const fn hash_of(turn: u64) -> u64 {
    turn
}

impl<T> Default for Leaf<T> {
    fn default() -> Self {
        Self { items: ArrayVec::new(), more: Vec::new() }
    }
}

impl<T> Leaf<T> {
    #[inline]
    fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.items.iter().chain(&self.more)
    }

    fn find(&mut self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        let mut all = self.items.iter_mut().chain(&mut self.more);
        all.find(|(other, item)| *other == hash && is(item)).map(|(_, item)| item)
    }

    fn push(&mut self, hash: u64, item: T) {
        if let Err(full) = self.items.try_push((hash, item)) {
            self.more.push(full.element());
        }
    }

    fn drop(&mut self, hash: u64, is: impl Fn(&T) -> bool) {
        let meant = |(other, item): &(u64, T)| *other == hash && is(item);
        match self.items.iter().position(meant) {
            Some(at) => {
                self.items.swap_remove(at);
                self.items.extend(self.more.pop());
            }
            None => self.more.retain(|item| !meant(item)),
        }
    }
}

impl<T: Clone> Page for Leaf<T> {
    const FEW: usize = WIDTH / 2;

    fn is_full(&self) -> bool {
        self.items.is_full()
    }

    fn len(&self) -> usize {
        self.items.len() + self.more.len()
    }

    fn split(&mut self, bit: u32) -> Self {
        let (mut low, mut high) = (Self::default(), Self::default());
        for (hash, item) in self.items.drain(..).chain(self.more.drain(..)) {
            let half = if hash >> bit & 1 == 0 { &mut low } else { &mut high };
            half.push(hash, item);
        }
        *self = low;
        high
    }

    fn join(&mut self, other: &Self) {
        other.iter().for_each(|(hash, item)| self.push(*hash, item.clone()));
    }
}

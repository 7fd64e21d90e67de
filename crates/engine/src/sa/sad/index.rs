//! States by a key that each state says itself: an index holds nothing but references, and compares keys where the states are.

use std::{
    hash::{BuildHasher, Hash},
    marker::PhantomData,
    sync::Arc,
};

use super::{
    leaf::Level,
    tree::{States, TOGETHER, Tree},
};
use crate::Sa;

/// By what states are found.
pub(super) trait Key: Hash + Eq {
    /// The key of a state.
    fn of(sa: &Sa) -> Self;
}

/// States by a key. Cloning shares all that does not change afterwards.
#[derive(Debug)]
pub(super) struct Index<K> {
    tree: Tree,
    hasher: foldhash::fast::RandomState,
    key: PhantomData<fn() -> K>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        let hasher = foldhash::fast::RandomState::default();
        Self { tree: Tree::default(), hasher, key: PhantomData }
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        let (tree, hasher) = (self.tree.clone(), self.hasher.clone());
        Self { tree, hasher, key: PhantomData }
    }
}

impl<K: Key> Index<K> {
    /// Shows each state with a key, in no order.
    #[inline]
    pub(super) fn each<'a>(&'a self, key: &K, visit: &mut impl FnMut(&'a Arc<Sa>)) {
        let hash = self.hash(key);
        let Some(leaf) = self.tree.leaf(hash) else { return };
        leaf.each(hash, &mut |sa| {
            if K::of(sa) == *key {
                visit(sa);
            }
        });
    }

    /// The youngest state with a key that fits.
    #[inline]
    pub(super) fn youngest(&self, key: &K, fits: impl Fn(&Sa) -> bool) -> Option<&Arc<Sa>> {
        let mut youngest: Option<&Arc<Sa>> = None;
        self.each(key, &mut |sa| {
            if fits(sa) && youngest.is_none_or(|other| other.turn() < sa.turn()) {
                youngest = Some(sa);
            }
        });
        youngest
    }

    /// Brings the states with these keys, [`TOGETHER`] at the most, into the processor's cache, and all on the way to them.
    #[inline]
    pub(super) fn fetch(&self, keys: &[K]) {
        let mut hashes = [0; TOGETHER];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
        }
        let hashes = &hashes[..keys.len().min(TOGETHER)];
        for (leaf, hash) in self.tree.leaves(hashes).zip(hashes) {
            leaf.iter().for_each(|leaf| leaf.fetch(*hash));
        }
    }

    /// All states, in no order.
    pub(super) fn states(&self) -> States<'_> {
        self.tree.states()
    }

    pub(super) fn insert(&mut self, sa: &Arc<Sa>) {
        self.tree.add(self.hash(&K::of(sa)), sa, Level::Key);
    }

    /// Takes a state out that is in.
    pub(super) fn remove(&mut self, sa: &Sa) {
        let hash = self.hash(&K::of(sa));
        self.tree.change(hash, &mut |leaf| leaf.remove(hash, sa.turn()));
    }

    /// Puts `new` in the place of an older generation of itself with the same key and turn.
    pub(super) fn replace(&mut self, new: &Arc<Sa>) {
        let hash = self.hash(&K::of(new));
        self.tree.change(hash, &mut |leaf| leaf.replace(hash, new));
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "half a hash is enough")]
    fn hash(&self, key: &K) -> u32 {
        self.hasher.hash_one(key) as u32
    }
}

//! States by a key that each state says itself: an index holds nothing but references, and compares keys where the states are.

use std::{marker::PhantomData, sync::Arc};

use arrayvec::ArrayVec;

use super::hash::Seed;
use super::page::{Page, Spread};
use super::page_table::Directory;
use crate::Sa;

/// By what states are found.
pub(super) trait Key {
    /// The key of a state.
    fn of(sa: &Sa) -> Self;

    /// Whether it is a state's key.
    fn is_of(&self, sa: &Sa) -> bool;

    /// A hash of all of itself.
    fn hash(&self, seed: Seed) -> u64;

    /// Asks for what a look-up reads of a state.
    fn fetch(sa: &Sa);
}

/// States by a key. Cloning shares all that does not change afterwards.
#[derive(Debug)]
pub(super) struct Index<K> {
    directory: Directory,
    seed: Seed,
    key: PhantomData<fn() -> K>,
}

/// Spreads states by their keys.
struct Keys<K> {
    seed: Seed,
    key: PhantomData<fn() -> K>,
}

/// The way to the states with a key, as far as it is known without waiting for memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trail<'a> {
    hash: u64,
    page: Option<&'a Page>,
}

/// Keys that are looked up at a time.
pub(super) const TOGETHER: usize = 64;

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { directory: Directory::default(), seed: Seed::default(), key: PhantomData }
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { directory: self.directory.clone(), seed: self.seed, key: PhantomData }
    }
}

impl<K: Key> Index<K> {
    /// Goes through the states with a key, in no order.
    #[inline]
    pub(super) fn fold<'a, A>(&'a self, key: &K, from: A, step: impl Fn(A, &'a Arc<Sa>) -> A) -> A {
        self.trail(key).fold(key, from, step)
    }

    /// The youngest state with a key that fits.
    #[inline]
    pub(super) fn youngest(&self, key: &K, fits: impl Fn(&Sa) -> bool) -> Option<&Arc<Sa>> {
        self.trail(key).youngest(key, fits)
    }

    /// Brings the states with these keys into the processor's cache, and all on the way to them, together; up to [`TOGETHER`]: the ways there.
    #[inline]
    pub(super) fn trails(&self, keys: impl Iterator<Item = K>) -> ArrayVec<Trail<'_>, TOGETHER> {
        let mut trails = ArrayVec::new();
        for key in keys.take(TOGETHER) {
            let trail = self.trail(&key);
            trail.prepare();
            trails.push(trail);
        }
        trails.iter().for_each(Trail::fetch::<K>);
        trails
    }

    /// As [`Index::trails`], for any number.
    #[inline]
    pub(super) fn fetch(&self, mut keys: impl Iterator<Item = K>) {
        while self.trails(keys.by_ref()).is_full() {}
    }

    /// All states, in no order.
    pub(super) fn states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.directory.states()
    }

    pub(super) fn insert(&mut self, sa: &Arc<Sa>) {
        let spread = self.spread();
        self.directory.add(spread.hash(sa), sa, &spread);
    }

    /// Takes a state out that is in.
    pub(super) fn remove(&mut self, sa: &Sa) {
        let spread = self.spread();
        let hash = spread.hash(sa);
        self.directory.change(hash, &spread, &mut |page| page.remove(hash, sa.turn(), &spread));
    }

    /// Puts `new` in the place of an older generation of itself with the same key and turn.
    pub(super) fn replace(&mut self, new: &Arc<Sa>) {
        let spread = self.spread();
        let hash = spread.hash(new);
        self.directory.change(hash, &spread, &mut |page| page.replace(hash, new));
    }

    /// Becomes what `newer` is, of which it was a copy before, as far as this state came, went or changed.
    pub(super) fn follow(&mut self, newer: &Self, sa: &Sa) {
        self.directory.follow(&newer.directory, self.spread().hash(sa));
    }

    #[inline]
    fn trail(&self, key: &K) -> Trail<'_> {
        let hash = key.hash(self.seed);
        Trail { hash, page: self.directory.page(hash) }
    }

    fn spread(&self) -> Keys<K> {
        Keys { seed: self.seed, key: PhantomData }
    }
}

impl<'a> Trail<'a> {
    /// As [`Index::fold`].
    #[inline]
    pub(super) fn fold<K: Key, A>(self, key: &K, from: A, step: impl Fn(A, &'a Arc<Sa>) -> A) -> A {
        let Some(page) = self.page else { return from };
        page.fold(
            self.hash,
            from,
            |so_far, sa| {
                if key.is_of(sa) { step(so_far, sa) } else { so_far }
            },
        )
    }

    /// As [`Index::youngest`].
    #[inline]
    pub(super) fn youngest<K: Key>(
        self,
        key: &K,
        fits: impl Fn(&Sa) -> bool,
    ) -> Option<&'a Arc<Sa>> {
        self.fold(key, None, |youngest: Option<&Arc<Sa>>, sa| {
            let is_younger = || youngest.is_none_or(|other| other.turn() < sa.turn());
            if fits(sa) && is_younger() { Some(sa) } else { youngest }
        })
    }

    /// Asks for what [`Trail::fetch`] reads.
    #[inline]
    fn prepare(&self) {
        self.page.inspect(|page| page.prepare(self.hash));
    }

    /// Asks for the states.
    #[inline]
    fn fetch<K: Key>(&self) {
        self.page.inspect(|page| page.for_each_in_buckets(self.hash, |sa| K::fetch(sa)));
    }
}

impl<K: Key> Spread for Keys<K> {
    fn hash(&self, sa: &Sa) -> u64 {
        K::of(sa).hash(self.seed)
    }
}

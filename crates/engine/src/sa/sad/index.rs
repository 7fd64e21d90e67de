//! States by a key that each state says itself: an index holds nothing but references, and compares keys where the states are.

use std::{
    hash::{BuildHasher, Hasher},
    marker::PhantomData,
    sync::Arc,
};

use arrayvec::ArrayVec;
use foldhash::fast::RandomState;

use super::{
    directory::Directory,
    page::{Page, Spread},
};
use crate::Sa;

/// By what states are found.
pub(super) trait Key {
    /// The key of a state.
    fn of(sa: &Sa) -> Self;

    /// Whether it is a state's key.
    fn is_of(&self, sa: &Sa) -> bool;

    /// Gives all of itself to a hasher.
    fn feed(&self, hasher: &mut impl Hasher);
}

/// States by a key. Cloning shares all that does not change afterwards.
#[derive(Debug)]
pub(super) struct Index<K> {
    directory: Directory,
    hasher: RandomState,
    key: PhantomData<fn() -> K>,
}

/// Spreads states by their keys.
struct Keys<'a, K> {
    hasher: &'a RandomState,
    key: PhantomData<fn() -> K>,
}

/// Keys that are looked up at a time.
const TOGETHER: usize = 64;

impl<K> Default for Index<K> {
    fn default() -> Self {
        let hasher = RandomState::default();
        Self { directory: Directory::default(), hasher, key: PhantomData }
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        let (directory, hasher) = (self.directory.clone(), self.hasher.clone());
        Self { directory, hasher, key: PhantomData }
    }
}

impl<K: Key> Index<K> {
    /// Shows each state with a key, in no order.
    #[inline]
    pub(super) fn each<'a>(&'a self, key: &K, visit: &mut impl FnMut(&'a Arc<Sa>)) {
        let hash = self.hash_of(key);
        let Some(page) = self.directory.page(hash) else { return };
        page.each(hash, &mut |sa| {
            if key.is_of(sa) {
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

    /// Brings the states with these keys into the processor's cache, and all on the way to them; [`TOGETHER`] wait for memory at a time.
    #[inline]
    pub(super) fn fetch(&self, mut keys: impl Iterator<Item = K>) {
        let mut pages: ArrayVec<(u64, &Page), TOGETHER> = ArrayVec::new();
        let mut more = true;
        while more {
            more = false;
            for key in keys.by_ref().take(TOGETHER) {
                more = true;
                let hash = self.hash_of(&key);
                if let Some(page) = self.directory.page(hash) {
                    page.prepare(hash);
                    pages.push((hash, page));
                }
            }
            pages.drain(..).for_each(|(hash, page)| page.fetch(hash));
        }
    }

    /// All states, in no order.
    pub(super) fn states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.directory.states()
    }

    pub(super) fn insert(&mut self, sa: &Arc<Sa>) {
        let Self { directory, hasher, .. } = self;
        let spread = Keys::<K>::by(hasher);
        directory.add(spread.hash(sa), sa, &spread);
    }

    /// Takes a state out that is in.
    pub(super) fn remove(&mut self, sa: &Sa) {
        let Self { directory, hasher, .. } = self;
        let spread = Keys::<K>::by(hasher);
        let hash = spread.hash(sa);
        directory.change(hash, &spread, &mut |page| page.remove(hash, sa.turn(), &spread));
    }

    /// Puts `new` in the place of an older generation of itself with the same key and turn.
    pub(super) fn replace(&mut self, new: &Arc<Sa>) {
        let Self { directory, hasher, .. } = self;
        let spread = Keys::<K>::by(hasher);
        let hash = spread.hash(new);
        directory.change(hash, &spread, &mut |page| page.replace(hash, new));
    }

    /// Becomes what `newer` is, of which it was a copy before, as far as this state came, went or changed.
    pub(super) fn follow(&mut self, newer: &Self, sa: &Sa) {
        let hash = Keys::<K>::by(&self.hasher).hash(sa);
        self.directory.follow(&newer.directory, hash);
    }

    #[inline]
    fn hash_of(&self, key: &K) -> u64 {
        hash(&self.hasher, key)
    }
}

impl<'a, K> Keys<'a, K> {
    fn by(hasher: &'a RandomState) -> Self {
        Self { hasher, key: PhantomData }
    }
}

impl<K: Key> Spread for Keys<'_, K> {
    fn hash(&self, sa: &Sa) -> u64 {
        hash(self.hasher, &K::of(sa))
    }
}

#[inline]
fn hash(hasher: &RandomState, key: &impl Key) -> u64 {
    let mut hasher = hasher.build_hasher();
    key.feed(&mut hasher);
    hasher.finish()
}

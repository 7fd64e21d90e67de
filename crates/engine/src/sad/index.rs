//! SAs by a key that is read from the SA: an index holds references only, and compares keys in the
//! SAs.

use std::{marker::PhantomData, sync::Arc};

use arrayvec::ArrayVec;

use super::hash::HashSeed;
use super::page::{HashSource, Page};
use super::page_table::PageTable;
use crate::Sa;

/// Key of an index.
pub(super) trait IndexKey {
    /// Key of an SA.
    fn of(sa: &Sa) -> Self;

    /// Whether it is the key of an SA.
    fn is_of(&self, sa: &Sa) -> bool;

    /// Hash of all of its fields.
    fn hash(&self, seed: HashSeed) -> u64;

    /// Prefetches what a look-up reads of an SA.
    fn fetch(sa: &Sa);
}

/// SAs by key. Clones share all that does not change afterwards.
#[derive(Debug)]
pub(super) struct Index<K> {
    page_table: PageTable,
    seed: HashSeed,
    key: PhantomData<fn() -> K>,
}

/// Hashes SAs by their keys.
struct KeyHasher<K> {
    seed: HashSeed,
    key: PhantomData<fn() -> K>,
}

/// A started look-up: the page of a key, without waiting for memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexProbe<'a> {
    hash: u64,
    page: Option<&'a Page>,
}

/// Keys looked up at a time.
pub(super) const LOOKUP_BATCH: usize = 64;

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { page_table: PageTable::default(), seed: HashSeed::default(), key: PhantomData }
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { page_table: self.page_table.clone(), seed: self.seed, key: PhantomData }
    }
}

impl<K: IndexKey> Index<K> {
    /// Folds over the SAs with a key, in no order.
    #[inline]
    pub(super) fn fold<'a, A>(&'a self, key: &K, from: A, step: impl Fn(A, &'a Arc<Sa>) -> A) -> A {
        self.probe(key).fold(key, from, step)
    }

    /// The youngest SA with a key for which `fits` holds.
    #[inline]
    pub(super) fn youngest(&self, key: &K, fits: impl Fn(&Sa) -> bool) -> Option<&Arc<Sa>> {
        self.probe(key).youngest(key, fits)
    }

    /// Starts look-ups of up to [`LOOKUP_BATCH`] keys, and prefetches the SAs and all on the way to
    /// them.
    #[inline]
    pub(super) fn probes(
        &self,
        keys: impl Iterator<Item = K>,
    ) -> ArrayVec<IndexProbe<'_>, LOOKUP_BATCH> {
        let mut probes = ArrayVec::new();
        for key in keys.take(LOOKUP_BATCH) {
            let probe = self.probe(&key);
            probe.prefetch();
            probes.push(probe);
        }
        probes.iter().for_each(IndexProbe::fetch::<K>);
        probes
    }

    /// Prefetches the SAs of any number of keys.
    #[inline]
    pub(super) fn fetch(&self, mut keys: impl Iterator<Item = K>) {
        while self.probes(keys.by_ref()).is_full() {}
    }

    /// All SAs in no order.
    pub(super) fn states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.page_table.states()
    }

    pub(super) fn insert(&mut self, sa: &Arc<Sa>) {
        let hash_source = self.hash_source();
        self.page_table.add(hash_source.hash(sa), sa, &hash_source);
    }

    /// Removes an SA that is present.
    pub(super) fn remove(&mut self, sa: &Sa) {
        let hash_source = self.hash_source();
        let hash = hash_source.hash(sa);
        self.page_table.change(hash, &hash_source, &mut |page| {
            page.remove(hash, sa.insertion_seq(), &hash_source)
        });
    }

    /// Replaces an older generation with the same key and insertion number.
    pub(super) fn replace(&mut self, new: &Arc<Sa>) {
        let hash_source = self.hash_source();
        let hash = hash_source.hash(new);
        self.page_table.change(hash, &hash_source, &mut |page| page.replace(hash, new));
    }

    /// Brings this older copy of `newer` up to it, as far as this SA changed.
    pub(super) fn follow(&mut self, newer: &Self, sa: &Sa) {
        self.page_table.follow(&newer.page_table, self.hash_source().hash(sa));
    }

    #[inline]
    fn probe(&self, key: &K) -> IndexProbe<'_> {
        let hash = key.hash(self.seed);
        IndexProbe { hash, page: self.page_table.page(hash) }
    }

    fn hash_source(&self) -> KeyHasher<K> {
        KeyHasher { seed: self.seed, key: PhantomData }
    }
}

impl<'a> IndexProbe<'a> {
    /// See [`Index::fold`].
    #[inline]
    pub(super) fn fold<K: IndexKey, A>(
        self,
        key: &K,
        from: A,
        step: impl Fn(A, &'a Arc<Sa>) -> A,
    ) -> A {
        let Some(page) = self.page else { return from };
        page.fold(
            self.hash,
            from,
            |so_far, sa| {
                if key.is_of(sa) { step(so_far, sa) } else { so_far }
            },
        )
    }

    /// See [`Index::youngest`].
    #[inline]
    pub(super) fn youngest<K: IndexKey>(
        self,
        key: &K,
        fits: impl Fn(&Sa) -> bool,
    ) -> Option<&'a Arc<Sa>> {
        self.fold(key, None, |youngest: Option<&Arc<Sa>>, sa| {
            let is_younger =
                || youngest.is_none_or(|other| other.insertion_seq() < sa.insertion_seq());
            if fits(sa) && is_younger() { Some(sa) } else { youngest }
        })
    }

    /// Prefetches what [`IndexProbe::fetch`] reads.
    #[inline]
    fn prefetch(&self) {
        self.page.inspect(|page| page.prefetch(self.hash));
    }

    /// Prefetches the SAs.
    #[inline]
    fn fetch<K: IndexKey>(&self) {
        self.page.inspect(|page| page.for_each_in_buckets(self.hash, |sa| K::fetch(sa)));
    }
}

impl<K: IndexKey> HashSource for KeyHasher<K> {
    fn hash(&self, sa: &Sa) -> u64 {
        K::of(sa).hash(self.seed)
    }
}

//! A page: some SAs whose hashes share bits; the unit that a change copies.

use std::{slice, sync::Arc};

use super::bucket::{Bucket, OverflowKind, WIDTH};
use super::page_tree::PageTree;
use crate::Sa;

/// SAs in buckets by other bits of their hashes. A full bucket spills into the next. SAs with *one*
/// hash, as all to one peer have in the outbound index, are kept in a tree of their own if many, so
/// that no change costs more because of equal hashes.
#[derive(Debug, Default)]
pub(super) struct Page {
    buckets: [Bucket; BUCKETS],
    #[expect(clippy::box_collection, reason = "a word in every page for what few have")]
    groups: Option<Box<Vec<SameHashGroup>>>,
}

/// More than [`MAX_SAME_HASH`] SAs with one hash, by insertion number.
#[derive(Clone, Debug)]
struct SameHashGroup {
    hash: u64,
    len: usize,
    tree: PageTree,
}

/// Iterator over a page's SAs.
#[derive(Debug)]
pub(super) struct States<'a> {
    bucket: slice::Iter<'a, Option<Arc<Sa>>>,
    buckets: slice::Iter<'a, Bucket>,
}

/// Hash function of a tree.
pub(super) trait HashSource {
    /// Hash of an SA.
    fn hash(&self, sa: &Sa) -> u64;
}

/// Hashes SAs by their insertion number, which is unique.
struct ByInsertionSeq;

const BUCKETS: usize = 4;
/// Up to this many SAs with one hash stay in buckets.
const MAX_SAME_HASH: usize = 4;

impl Page {
    /// Pages with at most this many items together are joined: fewer than two buckets hold.
    pub(super) const JOIN_MAX: usize = 10;

    /// Whether there is room for another SA with a hash.
    pub(super) fn has_room(&self, hash: u64) -> bool {
        let home = home(hash);
        [home, next(home)].iter().any(|at| self.buckets[*at].len() < WIDTH)
    }

    /// Number of items; a group counts as one.
    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(Bucket::len).sum::<usize>() + self.all_groups().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its SAs, without groups.
    pub(super) fn states(&self) -> States<'_> {
        States { bucket: [].iter(), buckets: self.buckets.iter() }
    }

    /// Its groups.
    pub(super) fn groups(&self) -> impl Iterator<Item = &PageTree> {
        self.all_groups().iter().map(|group| &group.tree)
    }

    /// Its SAs, including groups.
    pub(super) fn all_states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.states().chain(self.groups().flat_map(PageTree::states))
    }

    /// Folds over the SAs with a hash, and possibly others.
    #[inline]
    pub(super) fn fold<'a, A>(
        &'a self,
        hash: u64,
        from: A,
        step: impl Fn(A, &'a Arc<Sa>) -> A,
    ) -> A {
        let home = &self.buckets[home(hash)];
        let so_far = home.tagged(tag(hash)).fold(from, &step);
        if home.has_overflow() { self.fold_overflow(hash, so_far, &step) } else { so_far }
    }

    /// Visits those in buckets only: groups may be of any size.
    #[inline]
    pub(super) fn for_each_in_buckets<'a>(&'a self, hash: u64, step: impl Fn(&'a Arc<Sa>)) {
        let home = &self.buckets[home(hash)];
        home.tagged(tag(hash)).for_each(&step);
        if home.has(OverflowKind::Spilled) {
            self.buckets[next_of(hash)].tagged(tag(hash)).for_each(&step);
        }
    }

    /// Prefetches what [`Page::fold`] reads before any SA.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.buckets[home(hash)].prefetch();
    }

    /// Inserts an SA.
    pub(super) fn add(&mut self, hash: u64, sa: &Arc<Sa>, hash_source: &dyn HashSource) {
        if let Some(group) = self.group(hash) {
            return group.add(sa);
        }
        let alike = |sa: &Arc<Sa>| hash_source.hash(sa) == hash;
        let count = self.fold(hash, 0, |count, sa| count + usize::from(alike(sa)));
        if count < MAX_SAME_HASH && self.push(hash, Arc::clone(sa)).is_ok() {
            return;
        }
        let mut group = SameHashGroup { hash, len: 0, tree: PageTree::default() };
        while let Some(sa) = self.take(hash, hash_source, &|sa| hash_source.hash(sa) == hash) {
            group.add(&sa);
        }
        group.add(sa);
        self.add_group(group);
    }

    /// Removes the SA with a hash and an insertion number, if present.
    pub(super) fn remove(&mut self, hash: u64, seq: u64, hash_source: &dyn HashSource) {
        if self.take(hash, hash_source, &|sa| sa.insertion_seq() == seq).is_some() {
            return;
        }
        let Some(groups) = &mut self.groups else { return };
        let Some(at) = groups.iter().position(|group| group.hash == hash) else { return };
        groups[at].remove(seq);
        // Half the limit, so that changes at the limit stay cheap.
        if groups[at].len > MAX_SAME_HASH / 2 {
            return;
        }
        let group = groups.swap_remove(at);
        if groups.is_empty() {
            self.groups = None;
        }
        self.mark_groups();
        for sa in group.tree.states() {
            if self.push(hash, Arc::clone(sa)).is_err() {
                // No room: the group stays.
                while self.take(hash, hash_source, &|sa| hash_source.hash(sa) == hash).is_some() {}
                return self.add_group(group);
            }
        }
    }

    /// Replaces the SA with a hash and an insertion number by another generation.
    pub(super) fn replace(&mut self, hash: u64, new: &Arc<Sa>) {
        let seq = new.insertion_seq();
        let both = [home(hash), next_of(hash)];
        for at in both {
            if let Some(sa) = self.buckets[at].states_mut().find(|sa| sa.insertion_seq() == seq) {
                *sa = Arc::clone(new);
                return;
            }
        }
        if let Some(group) = self.group(hash) {
            let hash = ByInsertionSeq.hash(new);
            group.tree.change(hash, &ByInsertionSeq, &mut |page| page.replace(hash, new));
        }
    }

    /// Splits by a bit of the hash: clear, set.
    pub(super) fn split(&self, bit: u32, hash_source: &dyn HashSource) -> (Self, Self) {
        let (mut low, mut high) = (Self::default(), Self::default());
        for sa in self.states() {
            let hash = hash_source.hash(sa);
            let half = if is_high(hash, bit) { &mut high } else { &mut low };
            half.add(hash, sa, hash_source);
        }
        for group in self.all_groups() {
            let half = if is_high(group.hash, bit) { &mut high } else { &mut low };
            half.add_group(group.clone());
        }
        (low, high)
    }

    /// Merges another page.
    pub(super) fn join(&mut self, other: &Self, hash_source: &dyn HashSource) {
        other.states().for_each(|sa| self.add(hash_source.hash(sa), sa, hash_source));
        other.all_groups().iter().for_each(|group| self.add_group(group.clone()));
    }

    #[inline(never)]
    fn fold_overflow<'a, A>(
        &'a self,
        hash: u64,
        from: A,
        step: &impl Fn(A, &'a Arc<Sa>) -> A,
    ) -> A {
        let home = &self.buckets[home(hash)];
        let mut so_far = from;
        if home.has(OverflowKind::Spilled) {
            so_far = self.buckets[next_of(hash)].tagged(tag(hash)).fold(so_far, step);
        }
        if home.has(OverflowKind::Grouped) {
            let same = self.all_groups().iter().filter(|group| group.hash == hash);
            so_far = same.flat_map(|group| group.tree.states()).fold(so_far, step);
        }
        so_far
    }

    fn all_groups(&self) -> &[SameHashGroup] {
        self.groups.as_ref().map_or(&[], |groups| groups)
    }

    fn group(&mut self, hash: u64) -> Option<&mut SameHashGroup> {
        self.groups.as_mut()?.iter_mut().find(|group| group.hash == hash)
    }

    fn add_group(&mut self, group: SameHashGroup) {
        self.buckets[home(group.hash)].set_flag(OverflowKind::Grouped);
        self.groups.get_or_insert_default().push(group);
    }

    /// Updates the buckets' flags after a group was removed.
    fn mark_groups(&mut self) {
        self.buckets.iter_mut().for_each(|bucket| bucket.clear_flag(OverflowKind::Grouped));
        let Self { buckets, groups } = self;
        for group in groups.iter().flat_map(|groups| groups.iter()) {
            buckets[home(group.hash)].set_flag(OverflowKind::Grouped);
        }
    }

    fn push(&mut self, hash: u64, sa: Arc<Sa>) -> Result<(), Arc<Sa>> {
        let home = home(hash);
        self.buckets[home].push(tag(hash), sa).or_else(|sa| {
            self.buckets[next(home)].push(tag(hash), sa)?;
            self.buckets[home].set_flag(OverflowKind::Spilled);
            Ok(())
        })
    }

    fn take(
        &mut self,
        hash: u64,
        hash_source: &dyn HashSource,
        is_meant: &dyn Fn(&Sa) -> bool,
    ) -> Option<Arc<Sa>> {
        let (home, next) = (home(hash), next_of(hash));
        if let Some(sa) = self.buckets[home].take(tag(hash), is_meant) {
            return Some(sa);
        }
        let taken = self.buckets[next].take(tag(hash), is_meant)?;
        let is_ours = |sa: &Arc<Sa>| self::home(hash_source.hash(sa)) == home;
        if !self.buckets[next].states().iter().flatten().any(is_ours) {
            self.buckets[home].clear_flag(OverflowKind::Spilled);
        }
        Some(taken)
    }
}

impl<'a> Iterator for States<'a> {
    type Item = &'a Arc<Sa>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(sa) = self.bucket.by_ref().flatten().next() {
                return Some(sa);
            }
            self.bucket = self.buckets.next()?.states().iter();
        }
    }
}

/// Reference counting writes to scattered SAs: all are prefetched first.
impl Clone for Page {
    fn clone(&self) -> Self {
        self.states().for_each(|sa| sa.fetch());
        Self { buckets: self.buckets.clone(), groups: self.groups.clone() }
    }
}

impl SameHashGroup {
    fn add(&mut self, sa: &Arc<Sa>) {
        self.tree.add(ByInsertionSeq.hash(sa), sa, &ByInsertionSeq);
        self.len += 1;
    }

    /// Removes the SA with an insertion number, which is present.
    fn remove(&mut self, seq: u64) {
        let hash = hash_seq(seq);
        self.tree
            .change(hash, &ByInsertionSeq, &mut |page| page.remove(hash, seq, &ByInsertionSeq));
        self.len -= 1;
    }
}

impl HashSource for ByInsertionSeq {
    fn hash(&self, sa: &Sa) -> u64 {
        hash_seq(sa.insertion_seq())
    }
}

/// A bijection: multiplication by an odd number.
const fn hash_seq(seq: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
const fn tag(hash: u64) -> u8 {
    hash.to_le_bytes()[7]
}

#[inline]
fn home(hash: u64) -> usize {
    usize::from(hash.to_le_bytes()[6]) * BUCKETS / 256
}

#[inline]
fn next_of(hash: u64) -> usize {
    next(home(hash))
}

#[inline]
const fn next(bucket: usize) -> usize {
    (bucket + 1) % BUCKETS
}

fn is_high(hash: u64, bit: u32) -> bool {
    hash >> bit & 1 == 1
}

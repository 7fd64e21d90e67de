//! Batched look-up in a tuple space. Each key probes the prefilters of all tuples, visits the
//! bucket with the best rank, then the other buckets that may hold a better match. The residue is
//! searched first, or after the first bucket.

use arrayvec::ArrayVec;

use super::{BatchWalk, CUT, EMPTY, MAX_VISITS, Visit, kind, kind_unless_beaten};
use crate::LOOKUP_BATCH;
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::Node;
use crate::prefilter_table::{PrefilterProbe, ProbeTargets};
use crate::rule::Best;
use crate::tuple_space::{Bucket, SearchOrder, TupleSpace};

/// Keys and the buckets that they visit.
type Buckets<'a, W, E> = ArrayVec<(usize, &'a Bucket<W, E>), MAX_VISITS>;

/// Offers the first match of each key; at most [`LOOKUP_BATCH`] keys. Not inlined, as it takes
/// pages of stack.
#[inline(never)]
pub(crate) fn find_each_tuples<'a, W: Words, E: Entry>(
    space: &'a TupleSpace<W, E>,
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    let mut batch = BatchWalk::of(keys, bests);
    if space.search_order() == SearchOrder::ResidueFirst {
        batch.end(space.residue());
    }
    let (mut probe, mut targets) = (PrefilterProbe::default(), ProbeTargets::default());
    let mut columns = W::NO_COLUMNS;
    W::columns(batch.keys, &mut columns);
    let count = batch.keys.len();
    space.tuples().iter().for_each(|tuple| probe.query(tuple.prefilter(), columns.as_ref()));
    probe.best_targets(count, &batch.rank_limits(space), &mut targets);
    batch.visit_buckets(space, &probe, &targets);
    if space.search_order() == SearchOrder::TuplesFirst {
        batch.visit_residue(space.residue());
    }
    probe.other_targets(count, &batch.rank_limits(space), &mut targets);
    batch.visit_buckets(space, &probe, &targets);
}

impl<'a, W: Words, E: Entry> BatchWalk<'a, '_, W, E> {
    /// Highest 16-bit rank that can still be better, for each key.
    fn rank_limits(&self, space: &TupleSpace<W, E>) -> [u32; LOOKUP_BATCH] {
        std::array::from_fn(|at| space.rank16(self.bests[at].rank()))
    }

    /// Searches the residue for keys whose match does not precede all of it; for all keys if
    /// nearly all need it.
    #[inline(never)]
    fn visit_residue(&mut self, last: &'a Node<W, E>) {
        let first = last.best_rank();
        let (mut key_indices, mut count) = ([0; LOOKUP_BATCH], 0);
        for (key_index, best) in self.bests[..self.keys.len()].iter().enumerate() {
            key_indices[count % LOOKUP_BATCH] = key_index;
            count += usize::from(!best.precedes(first));
        }
        if 4 * count > 3 * self.keys.len() {
            return self.end(last);
        }
        let key_indices = &key_indices[..count];
        let keys: ArrayVec<_, LOOKUP_BATCH> =
            key_indices.iter().map(|key_index| self.keys[*key_index]).collect();
        let mut bests = [Best::NONE; LOOKUP_BATCH];
        key_indices
            .iter()
            .zip(&mut bests)
            .for_each(|(key_index, best)| *best = self.bests[*key_index]);
        BatchWalk::of(&keys, &mut bests).end(last);
        key_indices.iter().zip(&bests).for_each(|(key_index, best)| self.bests[*key_index] = *best);
    }

    /// Visits buckets. All are prefetched before the first is read, and then all that they refer
    /// to.
    #[inline(never)]
    fn visit_buckets(
        &mut self,
        space: &'a TupleSpace<W, E>,
        probe: &PrefilterProbe,
        targets: &ProbeTargets,
    ) {
        let mut buckets = Buckets::new();
        self.list_buckets(space, probe, targets, &mut buckets);
        // Branch-free partition: numbers of leaves from the front, of trees from the back.
        let mut order = [0; MAX_VISITS];
        let (mut leaves, mut others) = (0, 0);
        for (number, (_, bucket)) in (0_u8..).zip(&buckets) {
            bucket.leaf().prefetch();
            order[leaves % MAX_VISITS] = number;
            order[(MAX_VISITS - 1 - others) % MAX_VISITS] = number;
            leaves += usize::from(bucket.is_leaf());
            others += usize::from(!bucket.is_leaf());
        }
        self.ready.iter_mut().for_each(ArrayVec::clear);
        for number in &order[MAX_VISITS - others..] {
            let Some((key_index, bucket)) = buckets.get(usize::from(*number)) else { continue };
            bucket.tree().prefetch();
            // No list is longer than `buckets`.
            self.ready[kind(bucket.tree())]
                .push(Visit { key_index: *key_index, node: bucket.tree() });
        }
        self.compare_leaves(&buckets, &order[..leaves]);
        if others > 0 {
            self.visit_trees();
        }
    }

    /// Prefetches and lists the buckets.
    #[inline(always)]
    fn list_buckets(
        &mut self,
        space: &'a TupleSpace<W, E>,
        probe: &PrefilterProbe,
        targets: &ProbeTargets,
        buckets: &mut Buckets<'a, W, E>,
    ) {
        for (tuple, key_index) in targets.iter() {
            let slot = probe.slot(tuple, key_index);
            if let Some(bucket) = space.tuples().get(tuple).and_then(|tuple| tuple.bucket(slot)) {
                uxfrm_packet::prefetch(bucket);
                if buckets.try_push((key_index, bucket)).is_err()
                    && let Some(key) = self.keys.get(key_index)
                {
                    bucket.find(key, &mut self.bests[key_index % LOOKUP_BATCH]);
                }
            }
        }
    }

    /// Compares keys with the leaves of the numbered buckets.
    #[inline(never)]
    fn compare_leaves(&mut self, buckets: &[(usize, &'a Bucket<W, E>)], numbers: &[u8]) {
        let Self { keys, bests, .. } = self;
        let none = Key { words: W::ZERO, extra: 0 };
        let key = |key_index: usize| keys.get(key_index).unwrap_or(&none);
        let some = numbers.iter().filter_map(|number| buckets.get(usize::from(*number)));
        let pairs =
            some.clone().map(|(key_index, bucket)| (bucket.leaf().block(), &key(*key_index).words));
        let mut fits = [0; MAX_VISITS];
        W::match_blocks(pairs, &mut fits);
        for ((key_index, bucket), fits) in some.zip(&fits) {
            bucket.leaf().consider(*fits, key(*key_index), &mut bests[key_index % LOOKUP_BATCH]);
        }
    }

    /// Searches the trees of large buckets.
    #[inline(never)]
    fn visit_trees(&mut self) {
        self.ready[EMPTY].clear();
        if !self.ready[CUT].is_empty() {
            self.descend_to_the_end(kind_unless_beaten);
            self.fetch();
        }
        self.compare();
    }
}

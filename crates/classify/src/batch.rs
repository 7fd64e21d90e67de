//! Batched look-up in a decision tree. All keys pass the root cuts, down to what the last one
//! leaves: the widest rules, which give most keys a match to compare with. Then the branches
//! of a few root cuts at a time are followed level by level, so that cache misses overlap, and
//! keys with a better match drop out. Finally leaves are compared grouped by kind, for the sake
//! of branch prediction.

mod tuple_batch;

use std::hint::select_unpredictable;

use arrayvec::ArrayVec;

use crate::compact_rule::CompactRules;
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::Node;
use crate::rule::Best;
use crate::simd_leaf::{self, RuleBlock as _};
use crate::window::Window;
use crate::{LOOKUP_BATCH, linear_leaf};

pub(super) use tuple_batch::find_each_tuples;

/// A key and a node that it has reached.
#[derive(Debug)]
struct Visit<'a, W: Words, E: Entry> {
    key_index: usize,
    node: &'a Node<W, E>,
}

impl<W: Words, E: Entry> Clone for Visit<'_, W, E> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Words, E: Entry> Copy for Visit<'_, W, E> {}

/// State of a batch.
struct BatchWalk<'a, 'k, W: Words, E: Entry> {
    keys: &'k [Key<W>],
    bests: &'k mut [Best<'a, E>; LOOKUP_BATCH],
    /// Whether any key may have a match.
    has_compared: bool,
    /// Nodes being prefetched.
    fetching: Visits<'a, W, E>,
    /// Prefetched nodes by kind.
    ready: [Visits<'a, W, E>; KINDS],
}

type Visits<'a, W, E> = ArrayVec<Visit<'a, W, E>, MAX_VISITS>;
/// Cuts that every key passes, from the root on.
type RootCuts<'a, W, E> = ArrayVec<(Window, &'a [Node<W, E>]), MAX_ROOT_CUTS>;

/// Upper limit of visits per kind; keys beyond are looked up singly.
const MAX_VISITS: usize = 128;
/// Upper limit of root cuts; the tree behind them is searched singly.
const MAX_ROOT_CUTS: usize = 16;
/// Root cuts followed together: enough to overlap cache misses, few enough that matches prune the
/// next ones.
pub(super) const CUTS_PER_STAGE: usize = 2;
const KINDS: usize = 6;
// In the order of [`Node`]'s variants, so that the kind is the discriminant.
const EMPTY: usize = 0;
const LINEAR: usize = 1;
const COMPACT: usize = 2;
const SIMD: usize = 3;
const BITVECTOR: usize = 4;
const CUT: usize = 5;

// Steps are not inlined, so that each has all registers.

/// Offers the first match of each key; at most [`LOOKUP_BATCH`] keys.
pub(super) fn find_each<'a, W: Words, E: Entry>(
    root: &'a Node<W, E>,
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    let mut batch = BatchWalk::of(keys, bests);
    let root_cuts = batch.descend_root_cuts(root);
    for cuts in root_cuts.rchunks(CUTS_PER_STAGE) {
        if batch.has_compared {
            batch.visit_branches(cuts, kind_unless_beaten);
        } else {
            batch.visit_branches(cuts, |node, _| kind(node));
        }
    }
}

impl<'a, 'k, W: Words, E: Entry> BatchWalk<'a, 'k, W, E> {
    fn of(keys: &'k [Key<W>], bests: &'k mut [Best<'a, E>; LOOKUP_BATCH]) -> Self {
        Self {
            keys: &keys[..keys.len().min(LOOKUP_BATCH)],
            bests,
            has_compared: false,
            fetching: ArrayVec::new(),
            ready: std::array::from_fn(|_| ArrayVec::new()),
        }
    }
}

impl<'a, W: Words, E: Entry> BatchWalk<'a, '_, W, E> {
    /// Descends through the rests, which every key passes, to the last one; returns the cuts
    /// passed.
    #[inline(never)]
    fn descend_root_cuts(&mut self, root: &'a Node<W, E>) -> RootCuts<'a, W, E> {
        let mut cuts = RootCuts::new();
        let mut root_cuts = root;
        while let Node::Cut { window, rest, nodes, .. } = root_cuts
            && cuts.try_push((*window, &**nodes)).is_ok()
        {
            let ([.., rest_node, _], true) = (&**nodes, *rest) else { return cuts };
            root_cuts = rest_node;
        }
        self.has_compared = true;
        self.end(root_cuts);
        cuts
    }

    /// Compares all keys with what the root cuts end in.
    fn end(&mut self, node: &'a Node<W, E>) {
        let Self { keys, bests, .. } = self;
        match node {
            Node::ByteBits { bits, .. } => bits.find_each(keys, &mut **bests),
            Node::FieldBits { bits, .. } => bits.find_each(keys, &mut **bests),
            Node::Empty { .. }
            | Node::Linear { .. }
            | Node::Compact { .. }
            | Node::Simd { .. }
            | Node::Cut { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => {
                keys.iter().zip(&mut **bests).for_each(|(key, best)| node.find(key, best));
            }
        }
    }

    /// Follows the branches of some cuts for all keys that `kind_of` admits, and compares
    /// leaves.
    #[inline]
    fn visit_branches(&mut self, cuts: &[(Window, &'a [Node<W, E>])], kind_of: impl KindOf<W, E>) {
        self.ready.iter_mut().for_each(ArrayVec::clear);
        cuts.iter().rev().for_each(|(window, nodes)| self.split(*window, nodes, kind_of));
        self.descend_to_the_end(kind_of);
        self.fetch();
        self.compare();
        self.has_compared = true;
    }

    /// Descends until no cut is left.
    #[inline]
    fn descend_to_the_end(&mut self, kind_of: impl KindOf<W, E>) {
        while !self.ready[CUT].is_empty() {
            self.descend();
            self.sort_fetched(kind_of);
        }
    }

    /// Moves all keys from one cut to its children.
    #[inline(never)]
    fn split(&mut self, window: Window, nodes: &'a [Node<W, E>], kind_of: impl KindOf<W, E>) {
        for (key_index, key) in self.keys.iter().enumerate() {
            let Some(node) = nodes.get(window.value_in(&key.words)) else { continue };
            let visit = Visit { key_index, node };
            if self.ready[kind_of(node, &self.bests[key_index % LOOKUP_BATCH])]
                .try_push(visit)
                .is_err()
            {
                find_single(visit, self.keys, self.bests);
            }
        }
        self.ready[EMPTY].clear();
    }

    /// Descends from each cut to the child and the rest.
    #[inline(never)]
    fn descend(&mut self) {
        let Self { keys, bests, fetching, ready, .. } = self;
        fetching.clear();
        for visit in &ready[CUT] {
            if let Node::Cut { window, rest, nodes, .. } = visit.node
                && let Some(key) = keys.get(visit.key_index)
                && let Some(node) = nodes.get(window.value_in(&key.words))
            {
                let mut push = |visit: Visit<'a, W, E>| {
                    uxfrm_packet::prefetch(visit.node);
                    if fetching.try_push(visit).is_err() {
                        find_single(visit, keys, bests);
                    }
                };
                push(Visit { node, ..*visit });
                if *rest && let [.., rest, _] = &**nodes {
                    push(Visit { node: rest, ..*visit });
                }
            }
        }
        ready[CUT].clear();
    }

    /// Sorts prefetched nodes by kind.
    #[inline(never)]
    fn sort_fetched(&mut self, kind_of: impl KindOf<W, E>) {
        for visit in &self.fetching {
            let kind_of = kind_of(visit.node, &self.bests[visit.key_index % LOOKUP_BATCH]);
            if self.ready[kind_of].try_push(*visit).is_err() {
                find_single(*visit, self.keys, self.bests);
            }
        }
        self.ready[EMPTY].clear();
    }

    /// Prefetches leaves.
    fn fetch(&self) {
        let [_, linear, compact, simd, bitvectors, _] = &self.ready;
        linear.iter().for_each(|visit| visit.node.prefetch());
        compact.iter().for_each(|visit| visit.node.prefetch());
        simd.iter().for_each(|visit| visit.node.prefetch());
        bitvectors.iter().for_each(|visit| visit.node.prefetch());
    }

    /// Compares leaves.
    fn compare(&mut self) {
        let Self { keys, bests, ready: [_, linear, compact, simd, bitvectors, _], .. } = self;
        compare_linear(linear, keys, bests);
        compare_compact(compact, keys, bests);
        compare_simd(simd, keys, bests);
        compare_bitvectors(bitvectors, keys, bests);
    }
}

#[inline(never)]
fn compare_linear<'a, W: Words, E: Entry>(
    linear: &[Visit<'a, W, E>],
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    for visit in linear {
        if let (Node::Linear { rules, .. }, Some(key)) = (visit.node, keys.get(visit.key_index)) {
            linear_leaf::find(rules, &key.words, key, &mut bests[visit.key_index % LOOKUP_BATCH]);
        }
    }
}

#[inline(never)]
fn compare_compact<'a, W: Words, E: Entry>(
    compact: &[Visit<'a, W, E>],
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    for visit in compact {
        if let (Node::Compact { far, rules, .. }, Some(key)) =
            (visit.node, keys.get(visit.key_index))
        {
            let far_first = W::Compact::<E>::far_first(&key.words, *far);
            linear_leaf::find(rules, &far_first, key, &mut bests[visit.key_index % LOOKUP_BATCH]);
        }
    }
}

#[inline(never)]
fn compare_simd<'a, W: Words, E: Entry>(
    simd: &[Visit<'a, W, E>],
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    let none = Key { words: W::ZERO, extra: 0 };
    let key = |visit: &Visit<'a, W, E>| keys.get(visit.key_index).unwrap_or(&none);
    let blocks = |visit: &Visit<'a, W, E>| match visit.node {
        Node::Simd { blocks, .. } => &**blocks,
        Node::Empty { .. }
        | Node::Linear { .. }
        | Node::Compact { .. }
        | Node::ByteBits { .. }
        | Node::FieldBits { .. }
        | Node::Cut { .. }
        | Node::TupleSpace { .. }
        | Node::Counts { .. } => &[],
    };
    for visits in simd.chunks(LOOKUP_BATCH) {
        let mut fits = [0; LOOKUP_BATCH];
        let pairs = visits.iter().map(|visit| (blocks(visit), &key(visit).words));
        W::RuleBlock8::<E>::fitting_each(pairs, &mut fits);
        for (visit, fits) in visits.iter().zip(&fits) {
            let best = &mut bests[visit.key_index % LOOKUP_BATCH];
            simd_leaf::consider(blocks(visit), *fits, key(visit), best);
        }
    }
}

/// All rows are searched before the first rule is read.
#[inline(never)]
fn compare_bitvectors<'a, W: Words, E: Entry>(
    bitvectors: &[Visit<'a, W, E>],
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    for visits in bitvectors.chunks(LOOKUP_BATCH) {
        let mut found = [u32::MAX; LOOKUP_BATCH];
        for (visit, found) in visits.iter().zip(&mut found) {
            if let (Node::ByteBits { bits, .. }, Some(key)) =
                (visit.node, keys.get(visit.key_index))
            {
                *found = bits.find_first_bit(key);
            }
        }
        for (visit, found) in visits.iter().zip(&found) {
            if let (Node::ByteBits { bits, .. }, Some(key)) =
                (visit.node, keys.get(visit.key_index))
            {
                bits.consider(*found, key, &mut bests[visit.key_index % LOOKUP_BATCH]);
            }
        }
    }
}

#[cold]
fn find_single<'a, W: Words, E: Entry>(
    visit: Visit<'a, W, E>,
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>; LOOKUP_BATCH],
) {
    if let Some(key) = keys.get(visit.key_index) {
        visit.node.find(key, &mut bests[visit.key_index % LOOKUP_BATCH]);
    }
}

/// Kind of a node, given the key's match so far.
trait KindOf<W: Words, E: Entry>: Fn(&Node<W, E>, &Best<'_, E>) -> usize + Copy {}

impl<W: Words, E: Entry, F: Fn(&Node<W, E>, &Best<'_, E>) -> usize + Copy> KindOf<W, E> for F {}

/// Kind of a node. Branch-free.
#[inline]
const fn kind<W: Words, E: Entry>(node: &Node<W, E>) -> usize {
    match node {
        Node::Empty { .. } | Node::Counts { .. } => EMPTY,
        Node::Linear { .. } => LINEAR,
        Node::Compact { .. } => COMPACT,
        Node::Simd { .. } => SIMD,
        Node::ByteBits { .. } => BITVECTOR,
        Node::Cut { .. } | Node::FieldBits { .. } | Node::TupleSpace { .. } => CUT,
    }
}

/// [`kind`], but empty if no rule of the node can precede the match.
#[inline]
fn kind_unless_beaten<W: Words, E: Entry>(node: &Node<W, E>, best: &Best<'_, E>) -> usize {
    select_unpredictable(best.precedes(node.best_rank()), EMPTY, kind(node))
}

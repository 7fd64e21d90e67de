//! Estimates the cost of look-ups in a tree by simulating keys, one for each sampled rule,
//! with random bits where the rule does not match.
//!
//! The simulation counts cuts, leaves and bit vectors visited, without those that a match prunes.
//! The cost of each was fitted to 761 trees of 35 sets of 1,000 to 20,000 rules, of four shapes
//! and of ClassBench. With these rounded constants the mean error is some 13 %: enough to recognise
//! much better trees, but not to rank good ones.

use arrayvec::ArrayVec;

use crate::batch::CUTS_PER_STAGE;
use crate::entry::Entry;
use crate::key::{Key, Words, mix};
use crate::node::Node;
use crate::rule::{Best, Rule};
use crate::tuple_space::{Bucket, SearchOrder, Tuple, TupleSpace};
use crate::window::Window;

/// Simulated keys for some rules.
pub(super) struct CostModel<W>(Vec<Key<W>>);

/// Upper limit of keys: trees that they cannot separate are equally good.
const MODEL_KEYS: usize = 512;

// All costs are in tenths of a cycle.

/// Per key, and per root cut.
const PACKET: usize = 115;
const ROOT_CUT: usize = 50;
/// Per cut of a branch, and for also following its rest.
const CUT: usize = 115;
const REST: usize = 160;
/// Per leaf of a branch, including the mispredicted kind.
const LINEAR: usize = 260;
const SIMD: usize = 275;
const BITVECTOR: usize = 410;
/// Per tuple; for selecting keys for the residue; per small bucket; for entering the tree of a
/// large bucket; per line of the residue's bit vector beyond that of a tree; and for a tree as
/// residue.
const TUPLE: usize = 45;
const PICK: usize = 25;
const LEAF: usize = 400;
const BUCKET_TREE: usize = 200;
const FAR_LINE_BEHIND: usize = 5;
const TREE_BEHIND: usize = 300;
/// For what the root cuts end in, which all keys compare.
const LAST_LEAF: usize = 150;
const LAST_BYTE_BITVECTOR: usize = 60;
/// Per row, and per line of rows beyond the first-level cache.
const ROW: usize = 7;
const FAR_LINE: usize = 3;
const NEAR: usize = 40_000;
/// For a field bit vector instead of a tree, and per line of its rows: IPv4, IPv6. For IPv6, where
/// trees are underestimated, fitted to both for 63 sets of 64 to 1,900 rules.
const LAST_FIELD_BITVECTOR: [usize; 2] = [385, 290];
const FIELD_LINE: [usize; 2] = [3, 10];
/// Divisor: cost per line read in branches grows with the memory that they span, in bytes.
const SCATTERED: usize = 277_000;
/// Beyond this, memory makes no difference.
const MOST_SCATTERED: usize = 4_000_000;

/// A root cut and its children.
type RootCut<'a, W, E> = (Window, &'a [Node<W, E>]);

/// More than any tree has.
const MAX_ROOT_CUTS: usize = 64;

/// Simulation of one key.
struct Walk<'a, 'k, W: Words, E: Entry> {
    key: &'k Key<W>,
    /// The match at the start of the stage, which prunes.
    before: Best<'a, E>,
    best: Best<'a, E>,
    work: usize,
    /// Cache lines read in branches.
    lines: usize,
}

impl<W: Words> CostModel<W> {
    /// Samples keys for some rules.
    pub(super) fn of<E: Entry>(rules: &[Rule<W, E>]) -> Self {
        let mut seed = 0_u64;
        let mut next = move || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(seed, 0xd6e8_feb8_6659_fd93)
        };
        let met = rules.iter().step_by(rules.len().div_ceil(MODEL_KEYS).max(1));
        Self(met.map(|rule| random_key(rule, &mut next)).collect())
    }

    /// Mean cost per key in a tree.
    pub(super) fn estimate<E: Entry>(&self, tree: &Node<W, E>) -> usize {
        let (root_cuts, last) = root_cuts(tree);
        let (mut work, mut lines) = (PACKET * self.0.len(), 0);
        for key in &self.0 {
            let mut walk = Walk::of(key);
            walk.walk_tree(&root_cuts, last);
            work += walk.work;
            lines += walk.lines;
        }
        let far = lines * tree.memory().min(MOST_SCATTERED) / SCATTERED;
        (work + far) / self.0.len().max(1)
    }

    /// Mean cost per key in a tuple space; for equal estimates it is faster than a tree.
    pub(super) fn estimate_tuple_space<E: Entry>(&self, space: &TupleSpace<W, E>) -> usize {
        let each = PACKET + TUPLE * space.tuples().len();
        let walked = self.0.iter().map(|key| {
            let mut walk = Walk::of(key);
            walk.walk_tuple_space(space);
            (walk.work, walk.lines)
        });
        let (work, lines) = walked.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let far = lines * space.memory().min(MOST_SCATTERED) / SCATTERED;
        each + (work + far) / self.0.len().max(1)
    }

    /// The keys.
    pub(super) fn keys(&self) -> &[Key<W>] {
        &self.0
    }
}

/// Estimated cost of one key in a batch, without cache misses.
pub(super) fn estimate_packet<W: Words, E: Entry>(root: &Node<W, E>, key: &Key<W>) -> usize {
    let mut walk = Walk::of(key);
    if let Node::TupleSpace { space, .. } = root {
        walk.work += TUPLE * space.tuples().len();
        walk.walk_tuple_space(space);
    } else {
        let (root_cuts, last) = root_cuts(root);
        walk.walk_tree(&root_cuts, last);
    }
    PACKET + walk.work
}

/// Cuts that every key passes, and what the last one leaves.
fn root_cuts<W: Words, E: Entry>(
    tree: &Node<W, E>,
) -> (ArrayVec<RootCut<'_, W, E>, MAX_ROOT_CUTS>, &Node<W, E>) {
    let mut root_cuts = ArrayVec::new();
    let mut last = tree;
    while let Node::Cut { window, nodes, .. } = last
        && let [parts @ .., rest, _] = &**nodes
        && root_cuts.try_push((*window, parts)).is_ok()
    {
        last = rest;
    }
    (root_cuts, last)
}

/// A random key that matches a rule.
fn random_key<W: Words, E: Entry>(rule: &Rule<W, E>, next: &mut impl FnMut() -> u64) -> Key<W> {
    let words = W::each(|at| {
        let mask = rule.mask.word(at);
        (rule.value.word(at) & mask | next() & !mask) & W::SIGNIFICANT.word(at)
    });
    Key { words, extra: 0 }
}

impl<'a, 'k, W: Words, E: Entry> Walk<'a, 'k, W, E> {
    const fn of(key: &'k Key<W>) -> Self {
        Self { key, before: Best::NONE, best: Best::NONE, work: 0, lines: 0 }
    }

    /// Compares the end of the root cuts, then follows their branches.
    fn walk_tree(&mut self, root_cuts: &[RootCut<'a, W, E>], last: &'a Node<W, E>) {
        self.visit_last(last);
        for stage in root_cuts.rchunks(CUTS_PER_STAGE) {
            self.before = self.best;
            for (window, parts) in stage.iter().rev() {
                self.work += ROOT_CUT;
                let part = parts.get(window.value_in(&self.key.words));
                part.into_iter().for_each(|node| self.visit_branch(node));
            }
        }
    }

    /// Compares what the root cuts end in.
    fn visit_last(&mut self, last: &'a Node<W, E>) {
        self.work += match last {
            Node::Empty { .. }
            | Node::Counts { .. }
            | Node::Cut { .. }
            | Node::TupleSpace { .. } => 0,
            Node::Linear { .. } | Node::Compact { .. } | Node::Simd { .. } => LAST_LEAF,
            Node::ByteBits { bits, .. } => {
                let far = if bits.memory() > NEAR { FAR_LINE * bits.lines() } else { 0 };
                LAST_BYTE_BITVECTOR + ROW * bits.bytes() + far
            }
            Node::FieldBits { bits, .. } => {
                let family = usize::from(W::COUNT != 2);
                LAST_FIELD_BITVECTOR[family] + FIELD_LINE[family] * bits.lines()
            }
        };
        last.find(self.key, &mut self.best);
    }

    /// Compares the residue of a tuple space.
    fn visit_residue(&mut self, last: &'a Node<W, E>) {
        match last {
            Node::Cut { .. } => {
                self.work += TREE_BEHIND;
                self.visit_branch(last);
            }
            Node::ByteBits { bits, .. } => {
                self.work += FAR_LINE_BEHIND * bits.lines();
                self.visit_last(last);
            }
            Node::Empty { .. }
            | Node::Linear { .. }
            | Node::Compact { .. }
            | Node::Simd { .. }
            | Node::FieldBits { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => self.visit_last(last),
        }
    }

    /// Visits the bucket with the best rank, then those that may hold a better match, and the
    /// residue in its turn.
    fn walk_tuple_space(&mut self, space: &'a TupleSpace<W, E>) {
        if space.search_order() == SearchOrder::ResidueFirst {
            self.visit_residue(space.residue());
        }
        let probe = |tuple: &'a Tuple<W, E>| {
            let hash = tuple.prefilter().hash(self.key.words.all());
            Some((tuple.prefilter().rank(hash), tuple.bucket(tuple.prefilter().slot(hash))?))
        };
        // Workers estimate keys, too: nothing is allocated.
        let probe = || space.tuples().iter().filter_map(probe).enumerate();
        let first = probe().min_by_key(|(_, (rank16, _))| *rank16);
        let of_first = first.map(|(at, _)| at);
        self.visit_buckets(space, first.into_iter().map(|(_, part)| part));
        if space.search_order() == SearchOrder::TuplesFirst {
            self.work += PICK;
            if !self.best.precedes(space.residue().best_rank()) {
                self.visit_residue(space.residue());
            }
        }
        let others = probe().filter(|(at, _)| Some(*at) != of_first);
        self.visit_buckets(space, others.map(|(_, part)| part));
    }

    /// Visits buckets that may hold a better match.
    fn visit_buckets(
        &mut self,
        space: &TupleSpace<W, E>,
        parts: impl Iterator<Item = (u32, &'a Bucket<W, E>)>,
    ) {
        let rank16 = space.rank16(self.best.rank());
        self.before = self.best;
        let some = parts.filter(|(first, _)| *first <= rank16);
        some.for_each(|(_, part)| self.visit_bucket(part));
    }

    /// Visits a bucket.
    fn visit_bucket(&mut self, bucket: &'a Bucket<W, E>) {
        let few = bucket.leaf().entries().len();
        if few > 0 {
            self.work += LEAF;
            self.lines += 1 + few * W::COUNT / 4;
            return bucket.find(self.key, &mut self.best);
        }
        self.work += BUCKET_TREE;
        self.visit_branch(bucket.tree());
    }

    /// Follows a branch.
    fn visit_branch(&mut self, node: &'a Node<W, E>) {
        if self.before.precedes(node.best_rank()) {
            return;
        }
        let (work, lines) = match node {
            Node::Empty { .. }
            | Node::FieldBits { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => {
                return;
            }
            Node::Linear { .. } => (LINEAR, W::COUNT),
            Node::Compact { rules, .. } => (LINEAR, size_of_val(&**rules).div_ceil(64)),
            Node::Simd { blocks, .. } => (SIMD, blocks.len() * (2 * W::COUNT + 1)),
            Node::ByteBits { bits, .. } => (BITVECTOR, 2 * bits.bytes()),
            Node::Cut { window, rest, nodes, .. } => {
                self.work += CUT;
                self.lines += 1;
                if *rest && let [.., rest, _] = &**nodes {
                    self.work += REST;
                    self.visit_branch(rest);
                }
                return nodes
                    .get(window.value_in(&self.key.words))
                    .into_iter()
                    .for_each(|node| self.visit_branch(node));
            }
        };
        self.work += work;
        self.lines += lines;
        node.find(self.key, &mut self.best);
    }
}

#[cfg(test)]
mod tests;

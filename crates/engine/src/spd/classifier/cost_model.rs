//! What packets cost in a tree, found by sending some down it. Each meets a policy, and what that leaves open is drawn.
//!
//! Of a tree that stands it is known what packets come by: how many cuts, leaves and matrices, those left out that stand behind the best found. What
//! each costs was fitted to 761 trees of 35 sets, of 1,000 to 20,000 policies, of four shapes and of ClassBench's. As rounded here it foretells their
//! look-ups within some 13 % on average: enough to tell much better trees, not good ones from each other.

use arrayvec::ArrayVec;

use super::batch::CUTS_PER_STAGE;
use super::node::Node;
use super::rule::{BestMatch, Rule};
use super::ternary::{KeyWords, PacketKey, mix};
use super::tuple_space::{Bucket, SearchOrder, Tuple, TupleSpace};
use super::window::Window;

/// Packets to weigh trees of some policies with.
pub(super) struct CostModel<W>(Vec<PacketKey<W>>);

/// No more packets: trees that they cannot tell apart are as good as each other.
const MODEL_PACKETS: usize = 512;

// Tenths of a cycle.

/// For each packet, and each cut of the trunk.
const PACKET: usize = 115;
const ROOT_CUT: usize = 50;
/// For each cut of a branch, and for the second way that goes on from one with a rest.
const CUT: usize = 115;
const REST: usize = 160;
/// For each leaf of a branch, of which nobody can foretell what kind it is.
const LINEAR: usize = 260;
const SIMD: usize = 275;
const BITVECTOR: usize = 410;
/// For each tier of a sieve, and where packets are picked for what is behind them; for each part that is looked at, if that is small, and beside the
/// node that it is otherwise; for each line that the matrix behind the tiers reads more than a trunk's; and for a tree in its place.
const TUPLE: usize = 45;
const PICK: usize = 25;
const LEAF: usize = 400;
const BUCKET_TREE: usize = 200;
const FAR_LINE_BEHIND: usize = 5;
const TREE_BEHIND: usize = 300;
/// For what the trunk ends in, where all packets do the same.
const LAST_LEAF: usize = 150;
const LAST_BYTE_BITVECTOR: usize = 60;
/// For each of its rows; and each line of them, where they are more than the first-level cache holds.
const ROW: usize = 7;
const FAR_LINE: usize = 3;
const NEAR: usize = 40_000;
/// For a grid in place of a tree, and each line of its rows. Of IPv6, where trees weigh less than they take, fitted to both of 63 sets of 64 to 1,900
/// policies.
const LAST_FIELD_BITVECTOR: [usize; 2] = [385, 290];
const FIELD_LINE: [usize; 2] = [3, 10];
/// For each line of branches that is read, by how much memory they lie scattered in, in so many bytes.
const SCATTERED: usize = 277_000;
/// More memory makes no difference.
const MOST_SCATTERED: usize = 4_000_000;

/// A cut of the trunk, and what it parts.
type RootCut<'a, W> = (Window, &'a [Node<W>]);

/// More cuts than any trunk has.
const MAX_ROOT_CUTS: usize = 64;

/// What one packet does.
struct Walk<'a, 'k, W: KeyWords> {
    key: &'k PacketKey<W>,
    /// The best when the packet set out, which says what it passes by.
    before: BestMatch<'a>,
    best: BestMatch<'a>,
    work: usize,
    /// Lines read in branches.
    lines: usize,
}

impl<W: KeyWords> CostModel<W> {
    /// For policies like these.
    pub(super) fn of(rules: &[Rule<W>]) -> Self {
        let mut seed = 0_u64;
        let mut next = move || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(seed, 0xd6e8_feb8_6659_fd93)
        };
        let met = rules.iter().step_by(rules.len().div_ceil(MODEL_PACKETS).max(1));
        Self(met.map(|rule| packet(rule, &mut next)).collect())
    }

    /// What a packet costs in a tree, in tenths of a cycle.
    pub(super) fn estimate(&self, tree: &Node<W>) -> usize {
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

    /// The same of a sieve; measured in the same way, it takes less for the same weight.
    pub(super) fn estimate_tuple_space(&self, space: &TupleSpace<W>) -> usize {
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

    /// The packets.
    pub(super) fn keys(&self) -> &[PacketKey<W>] {
        &self.0
    }
}

/// What one packet costs among others, in tenths of a cycle, however much memory it waits for.
pub(super) fn estimate_packet<W: KeyWords>(root: &Node<W>, key: &PacketKey<W>) -> usize {
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

/// The cuts that every packet meets, and what the last one leaves.
fn root_cuts<W: KeyWords>(tree: &Node<W>) -> (ArrayVec<RootCut<'_, W>, MAX_ROOT_CUTS>, &Node<W>) {
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

/// One that a policy is for.
fn packet<W: KeyWords>(rule: &Rule<W>, next: &mut impl FnMut() -> u64) -> PacketKey<W> {
    let words = W::each(|at| {
        let mask = rule.mask.word(at);
        (rule.value.word(at) & mask | next() & !mask) & W::SIGNIFICANT.word(at)
    });
    PacketKey { words, extra: 0 }
}

impl<'a, 'k, W: KeyWords> Walk<'a, 'k, W> {
    const fn of(key: &'k PacketKey<W>) -> Self {
        Self { key, before: BestMatch::NONE, best: BestMatch::NONE, work: 0, lines: 0 }
    }

    /// To what the trunk ends in, then up the branches of its cuts.
    fn walk_tree(&mut self, root_cuts: &[RootCut<'a, W>], last: &'a Node<W>) {
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

    /// Compares what the trunk ends in.
    fn visit_last(&mut self, last: &'a Node<W>) {
        self.work += match last {
            Node::Empty { .. }
            | Node::Counts { .. }
            | Node::Cut { .. }
            | Node::TupleSpace { .. } => 0,
            Node::Linear { .. } | Node::Compact { .. } | Node::Simd { .. } => LAST_LEAF,
            Node::ByteBitvector { bitvector, .. } => {
                let far = if bitvector.memory() > NEAR { FAR_LINE * bitvector.lines() } else { 0 };
                LAST_BYTE_BITVECTOR + ROW * bitvector.bytes() + far
            }
            Node::FieldBitvector { bitvector, .. } => {
                let family = usize::from(W::COUNT != 2);
                LAST_FIELD_BITVECTOR[family] + FIELD_LINE[family] * bitvector.lines()
            }
        };
        last.find(self.key, &mut self.best);
    }

    /// Compares what is behind the tiers of a sieve.
    fn visit_residue(&mut self, last: &'a Node<W>) {
        match last {
            Node::Cut { .. } => {
                self.work += TREE_BEHIND;
                self.visit_branch(last);
            }
            Node::ByteBitvector { bitvector, .. } => {
                self.work += FAR_LINE_BEHIND * bitvector.lines();
                self.visit_last(last);
            }
            Node::Empty { .. }
            | Node::Linear { .. }
            | Node::Compact { .. }
            | Node::Simd { .. }
            | Node::FieldBitvector { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => self.visit_last(last),
        }
    }

    /// To the tier where the first may be, then to those where one may stand before what was found there; and to what is behind them, when its turn is.
    fn walk_tuple_space(&mut self, space: &'a TupleSpace<W>) {
        if space.search_order() == SearchOrder::ResidueFirst {
            self.visit_residue(space.residue());
        }
        let probe = |tuple: &'a Tuple<W>| {
            let hash = tuple.prefilter().hash(self.key.words.all());
            Some((tuple.prefilter().rank(hash), tuple.bucket(tuple.prefilter().slot(hash))?))
        };
        // Workers weigh packets as well: nothing is allocated.
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

    /// At parts of tiers, unless what was found before stands before all of theirs.
    fn visit_buckets(
        &mut self,
        space: &TupleSpace<W>,
        parts: impl Iterator<Item = (u32, &'a Bucket<W>)>,
    ) {
        let rank16 = space.rank16(self.best.rank());
        self.before = self.best;
        let some = parts.filter(|(first, _)| *first <= rank16);
        some.for_each(|(_, part)| self.visit_bucket(part));
    }

    /// At a part of a tier.
    fn visit_bucket(&mut self, bucket: &'a Bucket<W>) {
        let few = bucket.leaf().entries().len();
        if few > 0 {
            self.work += LEAF;
            self.lines += 1 + few * W::COUNT / 4;
            return bucket.find(self.key, &mut self.best);
        }
        self.work += BUCKET_TREE;
        self.visit_branch(bucket.tree());
    }

    /// Up a branch.
    fn visit_branch(&mut self, node: &'a Node<W>) {
        if self.before.precedes(node.best_rank()) {
            return;
        }
        let (work, lines) = match node {
            Node::Empty { .. }
            | Node::FieldBitvector { .. }
            | Node::TupleSpace { .. }
            | Node::Counts { .. } => {
                return;
            }
            Node::Linear { .. } => (LINEAR, W::COUNT),
            Node::Compact { rules, .. } => (LINEAR, size_of_val(&**rules).div_ceil(64)),
            Node::Simd { blocks, .. } => (SIMD, blocks.len() * (2 * W::COUNT + 1)),
            Node::ByteBitvector { bitvector, .. } => (BITVECTOR, 2 * bitvector.bytes()),
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

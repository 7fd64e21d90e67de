//! Many packets go down a tree together. All of them go along its trunk, the cuts that every packet meets, to what the last cut leaves: the widest
//! policies, some of which fit nearly every packet, so that there is a policy to better before the first branch. Then they go up the branches of
//! some of these cuts after the other, level by level, so that they wait for memory together, and leave out what has no better one; and at
//! last by the kind of what is to be compared, because a processor that does the same again and again need not guess what comes next.

mod tuple_batch;

use std::hint::select_unpredictable;

use arrayvec::ArrayVec;

use super::compact_rule::CompactRules;
use super::node::Node;
use super::rule::BestMatch;
use super::simd_leaf::{self, RuleBlock as _};
use super::ternary::{KeyWords, PacketKey};
use super::window::Window;
use super::{LOOKUP_BATCH, linear_leaf};

pub(super) use tuple_batch::find_each_tuples;

/// A packet among others, and a node that it has come to.
#[derive(Clone, Copy, Debug)]
struct Visit<'a, W: KeyWords> {
    packet: usize,
    node: &'a Node<W>,
}

/// Where packets are.
struct BatchWalk<'a, 'k, W: KeyWords> {
    keys: &'k [PacketKey<W>],
    bests: &'k mut [BestMatch<'a>; LOOKUP_BATCH],
    /// Whether there may be any best yet.
    has_compared: bool,
    /// Nodes that are being fetched.
    fetching: Visits<'a, W>,
    /// Nodes that are here, by their kind.
    ready: [Visits<'a, W>; KINDS],
}

type Visits<'a, W> = ArrayVec<Visit<'a, W>, MAX_VISITS>;
/// Cuts that every packet meets, from the root on.
type RootCuts<'a, W> = ArrayVec<(Window, &'a [Node<W>]), MAX_ROOT_CUTS>;

/// So many ways of a kind are held at the most; who comes to more goes on alone.
const MAX_VISITS: usize = 128;
/// So many cuts of a trunk are held; what is behind them is looked for alone.
const MAX_ROOT_CUTS: usize = 16;
/// So many of them are followed together: enough to wait for much memory at once, few enough that what they find spares the next ones' ways.
pub(super) const CUTS_PER_STAGE: usize = 2;
const KINDS: usize = 6;
// As nodes are numbered, so that nothing has to be looked up for it.
const EMPTY: usize = 0;
const LINEAR: usize = 1;
const COMPACT: usize = 2;
const SIMD: usize = 3;
const BITVECTOR: usize = 4;
const CUT: usize = 5;

// Steps are functions of their own, so that each has the registers to itself.

/// Considers the first policy that fits, of each key, of which there are [`LOOKUP_BATCH`] at the most.
pub(super) fn find_each<'a, W: KeyWords>(
    root: &'a Node<W>,
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
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

impl<'a, 'k, W: KeyWords> BatchWalk<'a, 'k, W> {
    fn of(keys: &'k [PacketKey<W>], bests: &'k mut [BestMatch<'a>; LOOKUP_BATCH]) -> Self {
        Self {
            keys: &keys[..keys.len().min(LOOKUP_BATCH)],
            bests,
            has_compared: false,
            fetching: ArrayVec::new(),
            ready: std::array::from_fn(|_| ArrayVec::new()),
        }
    }
}

impl<'a, W: KeyWords> BatchWalk<'a, '_, W> {
    /// From the root through all rests, where every packet comes by, to what the last one leaves; the cuts on the way.
    #[inline(never)]
    fn descend_root_cuts(&mut self, root: &'a Node<W>) -> RootCuts<'a, W> {
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

    /// What every packet comes to.
    fn end(&mut self, node: &'a Node<W>) {
        let Self { keys, bests, .. } = self;
        match node {
            Node::ByteBitvector { bitvector, .. } => bitvector.find_each(keys, &mut **bests),
            Node::FieldBitvector { bitvector, .. } => bitvector.find_each(keys, &mut **bests),
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

    /// All packets up the branches of some cuts, as far as `kind_of` lets them, and compares what is there.
    #[inline]
    fn visit_branches(&mut self, cuts: &[(Window, &'a [Node<W>])], kind_of: impl KindOf<W>) {
        self.ready.iter_mut().for_each(ArrayVec::clear);
        cuts.iter().rev().for_each(|(window, nodes)| self.split(*window, nodes, kind_of));
        self.descend_to_the_end(kind_of);
        self.fetch();
        self.compare();
        self.has_compared = true;
    }

    /// From cuts to what is none.
    #[inline]
    fn descend_to_the_end(&mut self, kind_of: impl KindOf<W>) {
        while !self.ready[CUT].is_empty() {
            self.descend();
            self.sort_fetched(kind_of);
        }
    }

    /// All packets from one cut to its parts.
    #[inline(never)]
    fn split(&mut self, window: Window, nodes: &'a [Node<W>], kind_of: impl KindOf<W>) {
        for (packet, key) in self.keys.iter().enumerate() {
            let Some(node) = nodes.get(window.value_in(&key.words)) else { continue };
            let visit = Visit { packet, node };
            if self.ready[kind_of(node, &self.bests[packet % LOOKUP_BATCH])]
                .try_push(visit)
                .is_err()
            {
                find_single(visit, self.keys, self.bests);
            }
        }
        self.ready[EMPTY].clear();
    }

    /// From each cut to the part and, if there is one, to the rest.
    #[inline(never)]
    fn descend(&mut self) {
        let Self { keys, bests, fetching, ready, .. } = self;
        fetching.clear();
        for visit in &ready[CUT] {
            if let Node::Cut { window, rest, nodes, .. } = visit.node
                && let Some(key) = keys.get(visit.packet)
                && let Some(node) = nodes.get(window.value_in(&key.words))
            {
                let mut push = |visit: Visit<'a, W>| {
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

    /// Sorts what was fetched.
    #[inline(never)]
    fn sort_fetched(&mut self, kind_of: impl KindOf<W>) {
        for visit in &self.fetching {
            let kind_of = kind_of(visit.node, &self.bests[visit.packet % LOOKUP_BATCH]);
            if self.ready[kind_of].try_push(*visit).is_err() {
                find_single(*visit, self.keys, self.bests);
            }
        }
        self.ready[EMPTY].clear();
    }

    /// Fetches what is behind all that is no cut.
    fn fetch(&self) {
        let [_, linear, compact, simd, bitvectors, _] = &self.ready;
        linear.iter().for_each(|visit| visit.node.prefetch());
        compact.iter().for_each(|visit| visit.node.prefetch());
        simd.iter().for_each(|visit| visit.node.prefetch());
        bitvectors.iter().for_each(|visit| visit.node.prefetch());
    }

    /// All that is no cut.
    fn compare(&mut self) {
        let Self { keys, bests, ready: [_, linear, compact, simd, bitvectors, _], .. } = self;
        compare_linear(linear, keys, bests);
        compare_compact(compact, keys, bests);
        compare_simd(simd, keys, bests);
        compare_bitvectors(bitvectors, keys, bests);
    }
}

#[inline(never)]
fn compare_linear<'a, W: KeyWords>(
    linear: &[Visit<'a, W>],
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
) {
    for visit in linear {
        if let (Node::Linear { rules, .. }, Some(key)) = (visit.node, keys.get(visit.packet)) {
            linear_leaf::find(rules, &key.words, key, &mut bests[visit.packet % LOOKUP_BATCH]);
        }
    }
}

#[inline(never)]
fn compare_compact<'a, W: KeyWords>(
    compact: &[Visit<'a, W>],
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
) {
    for visit in compact {
        if let (Node::Compact { far, rules, .. }, Some(key)) = (visit.node, keys.get(visit.packet))
        {
            let far_first = W::CompactRule::far_first(&key.words, *far);
            linear_leaf::find(rules, &far_first, key, &mut bests[visit.packet % LOOKUP_BATCH]);
        }
    }
}

#[inline(never)]
fn compare_simd<'a, W: KeyWords>(
    simd: &[Visit<'a, W>],
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
) {
    let none = PacketKey { words: W::ZERO, extra: 0 };
    let key = |visit: &Visit<'a, W>| keys.get(visit.packet).unwrap_or(&none);
    let blocks = |visit: &Visit<'a, W>| match visit.node {
        Node::Simd { blocks, .. } => &**blocks,
        Node::Empty { .. }
        | Node::Linear { .. }
        | Node::Compact { .. }
        | Node::ByteBitvector { .. }
        | Node::FieldBitvector { .. }
        | Node::Cut { .. }
        | Node::TupleSpace { .. }
        | Node::Counts { .. } => &[],
    };
    for visits in simd.chunks(LOOKUP_BATCH) {
        let mut fits = [0; LOOKUP_BATCH];
        let pairs = visits.iter().map(|visit| (blocks(visit), &key(visit).words));
        W::RuleBlock8::fitting_each(pairs, &mut fits);
        for (visit, fits) in visits.iter().zip(&fits) {
            let best = &mut bests[visit.packet % LOOKUP_BATCH];
            simd_leaf::consider(blocks(visit), *fits, key(visit), best);
        }
    }
}

/// All are searched for before the first of the policies is waited for.
#[inline(never)]
fn compare_bitvectors<'a, W: KeyWords>(
    bitvectors: &[Visit<'a, W>],
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
) {
    for visits in bitvectors.chunks(LOOKUP_BATCH) {
        let mut found = [u32::MAX; LOOKUP_BATCH];
        for (visit, found) in visits.iter().zip(&mut found) {
            if let (Node::ByteBitvector { bitvector, .. }, Some(key)) =
                (visit.node, keys.get(visit.packet))
            {
                *found = bitvector.find_first_bit(key);
            }
        }
        for (visit, found) in visits.iter().zip(&found) {
            if let (Node::ByteBitvector { bitvector, .. }, Some(key)) =
                (visit.node, keys.get(visit.packet))
            {
                bitvector.consider(*found, key, &mut bests[visit.packet % LOOKUP_BATCH]);
            }
        }
    }
}

#[cold]
fn find_single<'a, W: KeyWords>(
    visit: Visit<'a, W>,
    keys: &[PacketKey<W>],
    bests: &mut [BestMatch<'a>; LOOKUP_BATCH],
) {
    if let Some(key) = keys.get(visit.packet) {
        visit.node.find(key, &mut bests[visit.packet % LOOKUP_BATCH]);
    }
}

/// Tells which of the lists a node belongs in, for a packet that has found some policy.
trait KindOf<W: KeyWords>: Fn(&Node<W>, &BestMatch<'_>) -> usize + Copy {}

impl<W: KeyWords, F: Fn(&Node<W>, &BestMatch<'_>) -> usize + Copy> KindOf<W> for F {}

/// Which of the lists a node belongs in. No branch, as nobody could foretell it.
#[inline]
const fn kind<W: KeyWords>(node: &Node<W>) -> usize {
    match node {
        Node::Empty { .. } | Node::Counts { .. } => EMPTY,
        Node::Linear { .. } => LINEAR,
        Node::Compact { .. } => COMPACT,
        Node::Simd { .. } => SIMD,
        Node::ByteBitvector { .. } => BITVECTOR,
        Node::Cut { .. } | Node::FieldBitvector { .. } | Node::TupleSpace { .. } => CUT,
    }
}

/// The same; where nothing can be better than what the packet has found, it is as if there were nothing.
#[inline]
fn kind_unless_beaten<W: KeyWords>(node: &Node<W>, best: &BestMatch<'_>) -> usize {
    select_unpredictable(best.precedes(node.best_rank()), EMPTY, kind(node))
}

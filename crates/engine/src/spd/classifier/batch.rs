//! Many packets go down a tree together. All of them go along its trunk, the cuts that every packet meets, to what the last cut leaves: the widest
//! policies, some of which fit nearly every packet, so that there is a policy to better before the first branch. Then they go up the branches of
//! some of these cuts after the other, level by level, so that they wait for memory together, and leave out what has no better one; and at
//! last by the kind of what is to be compared, because a processor that does the same again and again need not guess what comes next.

mod tuple_batch;

use std::hint::select_unpredictable;

use arrayvec::ArrayVec;

use super::compact_rule::LeanOf;
use super::node::Node;
use super::rule::Best;
use super::simd_leaf::{self, EightOf as _};
use super::ternary::{Key, Words};
use super::window::Window;
use super::{TOGETHER, linear_leaf};

pub(super) use tuple_batch::sift;

/// A packet among others, and a node that it has come to.
#[derive(Clone, Copy, Debug)]
struct Way<'a, W: Words> {
    packet: usize,
    node: &'a Node<W>,
}

/// Where packets are.
struct Batch<'a, 'k, W: Words> {
    keys: &'k [Key<W>],
    bests: &'k mut [Best<'a>; TOGETHER],
    /// Whether there may be any best yet.
    has_compared: bool,
    /// Nodes that are being fetched.
    coming: Ways<'a, W>,
    /// Nodes that are here, by their kind.
    here: [Ways<'a, W>; KINDS],
}

type Ways<'a, W> = ArrayVec<Way<'a, W>, WAYS>;
/// Cuts that every packet meets, from the root on.
type Trunk<'a, W> = ArrayVec<(Window, &'a [Node<W>]), TRUNK>;

/// So many ways of a kind are held at the most; who comes to more goes on alone.
const WAYS: usize = 128;
/// So many cuts of a trunk are held; what is behind them is looked for alone.
const TRUNK: usize = 16;
/// So many of them are followed together: enough to wait for much memory at once, few enough that what they find spares the next ones' ways.
pub(super) const STAGE: usize = 2;
const KINDS: usize = 6;
// As nodes are numbered, so that nothing has to be looked up for it.
const EMPTY: usize = 0;
const FEW: usize = 1;
const LEAN: usize = 2;
const SEVERAL: usize = 3;
const MANY: usize = 4;
const CUT: usize = 5;

// Steps are functions of their own, so that each has the registers to itself.

/// Considers the first policy that fits, of each key, of which there are [`TOGETHER`] at the most.
pub(super) fn find_each<'a, W: Words>(
    root: &'a Node<W>,
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    let mut batch = Batch::of(keys, bests);
    let trunk = batch.go_along(root);
    for cuts in trunk.rchunks(STAGE) {
        if batch.has_compared {
            batch.follow(cuts, unless_behind);
        } else {
            batch.follow(cuts, |node, _| kind(node));
        }
    }
}

impl<'a, 'k, W: Words> Batch<'a, 'k, W> {
    fn of(keys: &'k [Key<W>], bests: &'k mut [Best<'a>; TOGETHER]) -> Self {
        Self {
            keys: &keys[..keys.len().min(TOGETHER)],
            bests,
            has_compared: false,
            coming: ArrayVec::new(),
            here: std::array::from_fn(|_| ArrayVec::new()),
        }
    }
}

impl<'a, W: Words> Batch<'a, '_, W> {
    /// From the root through all rests, where every packet comes by, to what the last one leaves; the cuts on the way.
    #[inline(never)]
    fn go_along(&mut self, root: &'a Node<W>) -> Trunk<'a, W> {
        let mut cuts = Trunk::new();
        let mut trunk = root;
        while let Node::Cut { window, rest, nodes, .. } = trunk
            && cuts.try_push((*window, &**nodes)).is_ok()
        {
            let ([.., rest_node, _], true) = (&**nodes, *rest) else { return cuts };
            trunk = rest_node;
        }
        self.has_compared = true;
        self.end(trunk);
        cuts
    }

    /// What every packet comes to.
    fn end(&mut self, node: &'a Node<W>) {
        let Self { keys, bests, .. } = self;
        match node {
            Node::Many { matrix, .. } => matrix.find_each(keys, &mut **bests),
            Node::Grid { grid, .. } => grid.find_each(keys, &mut **bests),
            Node::Empty { .. }
            | Node::Few { .. }
            | Node::Lean { .. }
            | Node::Several { .. }
            | Node::Cut { .. }
            | Node::Sieve { .. }
            | Node::Tally { .. } => {
                keys.iter().zip(&mut **bests).for_each(|(key, best)| node.find(key, best));
            }
        }
    }

    /// All packets up the branches of some cuts, as far as `list` lets them, and compares what is there.
    #[inline]
    fn follow(&mut self, cuts: &[(Window, &'a [Node<W>])], list: impl List<W>) {
        self.here.iter_mut().for_each(ArrayVec::clear);
        cuts.iter().rev().for_each(|(window, nodes)| self.part(*window, nodes, list));
        self.descend_to_the_end(list);
        self.fetch();
        self.compare();
        self.has_compared = true;
    }

    /// From cuts to what is none.
    #[inline]
    fn descend_to_the_end(&mut self, list: impl List<W>) {
        while !self.here[CUT].is_empty() {
            self.descend();
            self.arrive(list);
        }
    }

    /// All packets from one cut to its parts.
    #[inline(never)]
    fn part(&mut self, window: Window, nodes: &'a [Node<W>], list: impl List<W>) {
        for (packet, key) in self.keys.iter().enumerate() {
            let Some(node) = nodes.get(window.part(&key.words)) else { continue };
            let way = Way { packet, node };
            if self.here[list(node, &self.bests[packet % TOGETHER])].try_push(way).is_err() {
                alone(way, self.keys, self.bests);
            }
        }
        self.here[EMPTY].clear();
    }

    /// From each cut to the part and, if there is one, to the rest.
    #[inline(never)]
    fn descend(&mut self) {
        let Self { keys, bests, coming, here, .. } = self;
        coming.clear();
        for way in &here[CUT] {
            if let Node::Cut { window, rest, nodes, .. } = way.node
                && let Some(key) = keys.get(way.packet)
                && let Some(node) = nodes.get(window.part(&key.words))
            {
                let mut go = |way: Way<'a, W>| {
                    uxfrm_packet::prefetch(way.node);
                    if coming.try_push(way).is_err() {
                        alone(way, keys, bests);
                    }
                };
                go(Way { node, ..*way });
                if *rest && let [.., rest, _] = &**nodes {
                    go(Way { node: rest, ..*way });
                }
            }
        }
        here[CUT].clear();
    }

    /// Sorts what was fetched.
    #[inline(never)]
    fn arrive(&mut self, list: impl List<W>) {
        for way in &self.coming {
            let list = list(way.node, &self.bests[way.packet % TOGETHER]);
            if self.here[list].try_push(*way).is_err() {
                alone(*way, self.keys, self.bests);
            }
        }
        self.here[EMPTY].clear();
    }

    /// Fetches what is behind all that is no cut.
    fn fetch(&self) {
        let [_, few, lean, several, many, _] = &self.here;
        few.iter().for_each(|way| way.node.prefetch());
        lean.iter().for_each(|way| way.node.prefetch());
        several.iter().for_each(|way| way.node.prefetch());
        many.iter().for_each(|way| way.node.prefetch());
    }

    /// All that is no cut.
    fn compare(&mut self) {
        let Self { keys, bests, here: [_, few, lean, several, many, _], .. } = self;
        compare_few(few, keys, bests);
        compare_lean(lean, keys, bests);
        compare_several(several, keys, bests);
        compare_many(many, keys, bests);
    }
}

#[inline(never)]
fn compare_few<'a, W: Words>(
    few: &[Way<'a, W>],
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    for way in few {
        if let (Node::Few { rules, .. }, Some(key)) = (way.node, keys.get(way.packet)) {
            linear_leaf::find(rules, &key.words, key, &mut bests[way.packet % TOGETHER]);
        }
    }
}

#[inline(never)]
fn compare_lean<'a, W: Words>(
    lean: &[Way<'a, W>],
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    for way in lean {
        if let (Node::Lean { far, rules, .. }, Some(key)) = (way.node, keys.get(way.packet)) {
            let seen = W::Lean::seen(&key.words, *far);
            linear_leaf::find(rules, &seen, key, &mut bests[way.packet % TOGETHER]);
        }
    }
}

#[inline(never)]
fn compare_several<'a, W: Words>(
    several: &[Way<'a, W>],
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    let none = Key { words: W::NOTHING, extra: 0 };
    let key = |way: &Way<'a, W>| keys.get(way.packet).unwrap_or(&none);
    let eights = |way: &Way<'a, W>| match way.node {
        Node::Several { eights, .. } => &**eights,
        Node::Empty { .. }
        | Node::Few { .. }
        | Node::Lean { .. }
        | Node::Many { .. }
        | Node::Grid { .. }
        | Node::Cut { .. }
        | Node::Sieve { .. }
        | Node::Tally { .. } => &[],
    };
    for ways in several.chunks(TOGETHER) {
        let mut fits = [0; TOGETHER];
        let pairs = ways.iter().map(|way| (eights(way), &key(way).words));
        W::Eight::fitting_each(pairs, &mut fits);
        for (way, fits) in ways.iter().zip(&fits) {
            let best = &mut bests[way.packet % TOGETHER];
            simd_leaf::consider(eights(way), *fits, key(way), best);
        }
    }
}

/// All are searched for before the first of the policies is waited for.
#[inline(never)]
fn compare_many<'a, W: Words>(
    many: &[Way<'a, W>],
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    for ways in many.chunks(TOGETHER) {
        let mut found = [u32::MAX; TOGETHER];
        for (way, found) in ways.iter().zip(&mut found) {
            if let (Node::Many { matrix, .. }, Some(key)) = (way.node, keys.get(way.packet)) {
                *found = matrix.first_bit(key);
            }
        }
        for (way, found) in ways.iter().zip(&found) {
            if let (Node::Many { matrix, .. }, Some(key)) = (way.node, keys.get(way.packet)) {
                matrix.consider(*found, key, &mut bests[way.packet % TOGETHER]);
            }
        }
    }
}

#[cold]
fn alone<'a, W: Words>(way: Way<'a, W>, keys: &[Key<W>], bests: &mut [Best<'a>; TOGETHER]) {
    if let Some(key) = keys.get(way.packet) {
        way.node.find(key, &mut bests[way.packet % TOGETHER]);
    }
}

/// Tells which of the lists a node belongs in, for a packet that has found some policy.
trait List<W: Words>: Fn(&Node<W>, &Best<'_>) -> usize + Copy {}

impl<W: Words, F: Fn(&Node<W>, &Best<'_>) -> usize + Copy> List<W> for F {}

/// Which of the lists a node belongs in. No branch, as nobody could foretell it.
#[inline]
const fn kind<W: Words>(node: &Node<W>) -> usize {
    match node {
        Node::Empty { .. } | Node::Tally { .. } => EMPTY,
        Node::Few { .. } => FEW,
        Node::Lean { .. } => LEAN,
        Node::Several { .. } => SEVERAL,
        Node::Many { .. } => MANY,
        Node::Cut { .. } | Node::Grid { .. } | Node::Sieve { .. } => CUT,
    }
}

/// The same; where nothing can be better than what the packet has found, it is as if there were nothing.
#[inline]
fn unless_behind<W: Words>(node: &Node<W>, best: &Best<'_>) -> usize {
    select_unpredictable(best.stands_before(node.first_rank()), EMPTY, kind(node))
}

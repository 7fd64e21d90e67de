//! What packets cost in a tree, found by sending some down it. Each meets a policy, and what that leaves open is drawn.
//!
//! Of a tree that stands it is known what packets come by: how many cuts, leaves and matrices, those left out that stand behind the best found. What
//! each costs was fitted to 761 trees of 35 sets, of 1,000 to 20,000 policies, of four shapes and of ClassBench's. As rounded here it foretells their
//! look-ups within some 13 % on average: enough to tell much better trees, not good ones from each other.

use arrayvec::ArrayVec;

use super::batch::STAGE;
use super::node::Node;
use super::rule::{Best, Rule};
use super::ternary::{Key, Words, mix};
use super::tuple_space::{Beginning, Part, Sieve, Tier};
use super::window::Window;

/// Packets to weigh trees of some policies with.
pub(super) struct Scale<W>(Vec<Key<W>>);

/// No more packets: trees that they cannot tell apart are as good as each other.
const PACKETS: usize = 512;

// Tenths of a cycle.

/// For each packet, and each cut of the trunk.
const PACKET: usize = 115;
const TRUNK: usize = 50;
/// For each cut of a branch, and for the second way that goes on from one with a rest.
const CUT: usize = 115;
const REST: usize = 160;
/// For each leaf of a branch, of which nobody can foretell what kind it is.
const FEW: usize = 260;
const SEVERAL: usize = 275;
const MANY: usize = 410;
/// For each tier of a sieve, and where packets are picked for what is behind them; for each part that is looked at, if that is small, and beside the
/// node that it is otherwise; for each line that the matrix behind the tiers reads more than a trunk's; and for a tree in its place.
const TIER: usize = 45;
const PICK: usize = 25;
const STRIP: usize = 400;
const DEEP: usize = 200;
const FAR_LINE_BEHIND: usize = 5;
const TREE_BEHIND: usize = 300;
/// For what the trunk ends in, where all packets do the same.
const LAST_LEAF: usize = 150;
const LAST_MATRIX: usize = 60;
/// For each of its rows; and each line of them, where they are more than the first-level cache holds.
const ROW: usize = 7;
const FAR_LINE: usize = 3;
const NEAR: usize = 40_000;
/// For a grid in place of a tree, and each line of its rows. Of IPv6, where trees weigh less than they take, fitted to both of 63 sets of 64 to 1,900
/// policies.
const LAST_GRID: [usize; 2] = [385, 290];
const GRID_LINE: [usize; 2] = [3, 10];
/// For each line of branches that is read, by how much memory they lie scattered in, in so many bytes.
const SCATTERED: usize = 277_000;
/// More memory makes no difference.
const MOST_SCATTERED: usize = 4_000_000;

/// A cut of the trunk, and what it parts.
type Stem<'a, W> = (Window, &'a [Node<W>]);

/// More cuts than any trunk has.
const TRUNK_CUTS: usize = 64;

/// What one packet does.
struct Walk<'a, 'k, W: Words> {
    key: &'k Key<W>,
    /// The best when the packet set out, which says what it passes by.
    before: Best<'a>,
    best: Best<'a>,
    work: usize,
    /// Lines read in branches.
    lines: usize,
}

impl<W: Words> Scale<W> {
    /// For policies like these.
    pub(super) fn of(rules: &[Rule<W>]) -> Self {
        let mut seed = 0_u64;
        let mut next = move || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(seed, 0xd6e8_feb8_6659_fd93)
        };
        let met = rules.iter().step_by(rules.len().div_ceil(PACKETS).max(1));
        Self(met.map(|rule| packet(rule, &mut next)).collect())
    }

    /// What a packet costs in a tree, in tenths of a cycle.
    pub(super) fn weigh(&self, tree: &Node<W>) -> usize {
        let (trunk, last) = trunk(tree);
        let (mut work, mut lines) = (PACKET * self.0.len(), 0);
        for key in &self.0 {
            let mut walk = Walk::of(key);
            walk.climb(&trunk, last);
            work += walk.work;
            lines += walk.lines;
        }
        let far = lines * tree.memory().min(MOST_SCATTERED) / SCATTERED;
        (work + far) / self.0.len().max(1)
    }

    /// The same of a sieve; measured in the same way, it takes less for the same weight.
    pub(super) fn weigh_sieve(&self, sieve: &Sieve<W>) -> usize {
        let each = PACKET + TIER * sieve.tiers().len();
        let walked = self.0.iter().map(|key| {
            let mut walk = Walk::of(key);
            walk.sift(sieve);
            (walk.work, walk.lines)
        });
        let (work, lines) = walked.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let far = lines * sieve.memory().min(MOST_SCATTERED) / SCATTERED;
        each + (work + far) / self.0.len().max(1)
    }

    /// The packets.
    pub(super) fn keys(&self) -> &[Key<W>] {
        &self.0
    }
}

/// What one packet costs among others, in tenths of a cycle, however much memory it waits for.
pub(super) fn weigh_packet<W: Words>(root: &Node<W>, key: &Key<W>) -> usize {
    let mut walk = Walk::of(key);
    if let Node::Sieve { sieve, .. } = root {
        walk.work += TIER * sieve.tiers().len();
        walk.sift(sieve);
    } else {
        let (trunk, last) = trunk(root);
        walk.climb(&trunk, last);
    }
    PACKET + walk.work
}

/// The cuts that every packet meets, and what the last one leaves.
fn trunk<W: Words>(tree: &Node<W>) -> (ArrayVec<Stem<'_, W>, TRUNK_CUTS>, &Node<W>) {
    let mut trunk = ArrayVec::new();
    let mut last = tree;
    while let Node::Cut { window, nodes, .. } = last
        && let [parts @ .., rest, _] = &**nodes
        && trunk.try_push((*window, parts)).is_ok()
    {
        last = rest;
    }
    (trunk, last)
}

/// One that a policy is for.
fn packet<W: Words>(rule: &Rule<W>, next: &mut impl FnMut() -> u64) -> Key<W> {
    let words = W::each(|at| {
        let mask = rule.mask.word(at);
        (rule.value.word(at) & mask | next() & !mask) & W::COUNTING.word(at)
    });
    Key { words, extra: 0 }
}

impl<'a, 'k, W: Words> Walk<'a, 'k, W> {
    const fn of(key: &'k Key<W>) -> Self {
        Self { key, before: Best::NONE, best: Best::NONE, work: 0, lines: 0 }
    }

    /// To what the trunk ends in, then up the branches of its cuts.
    fn climb(&mut self, trunk: &[Stem<'a, W>], last: &'a Node<W>) {
        self.end(last);
        for stage in trunk.rchunks(STAGE) {
            self.before = self.best;
            for (window, parts) in stage.iter().rev() {
                self.work += TRUNK;
                let part = parts.get(window.part(&self.key.words));
                part.into_iter().for_each(|node| self.go(node));
            }
        }
    }

    /// Compares what the trunk ends in.
    fn end(&mut self, last: &'a Node<W>) {
        self.work += match last {
            Node::Empty { .. } | Node::Tally { .. } | Node::Cut { .. } | Node::Sieve { .. } => 0,
            Node::Few { .. } | Node::Lean { .. } | Node::Several { .. } => LAST_LEAF,
            Node::Many { matrix, .. } => {
                let far = if matrix.memory() > NEAR { FAR_LINE * matrix.lines() } else { 0 };
                LAST_MATRIX + ROW * matrix.bytes() + far
            }
            Node::Grid { grid, .. } => {
                let family = usize::from(W::COUNT != 2);
                LAST_GRID[family] + GRID_LINE[family] * grid.lines()
            }
        };
        last.find(self.key, &mut self.best);
    }

    /// Compares what is behind the tiers of a sieve.
    fn end_sieve(&mut self, last: &'a Node<W>) {
        match last {
            Node::Cut { .. } => {
                self.work += TREE_BEHIND;
                self.go(last);
            }
            Node::Many { matrix, .. } => {
                self.work += FAR_LINE_BEHIND * matrix.lines();
                self.end(last);
            }
            Node::Empty { .. }
            | Node::Few { .. }
            | Node::Lean { .. }
            | Node::Several { .. }
            | Node::Grid { .. }
            | Node::Sieve { .. }
            | Node::Tally { .. } => self.end(last),
        }
    }

    /// To the tier where the first may be, then to those where one may stand before what was found there; and to what is behind them, when its turn is.
    fn sift(&mut self, sieve: &'a Sieve<W>) {
        if sieve.beginning() == Beginning::Last {
            self.end_sieve(sieve.last());
        }
        let told = |tier: &'a Tier<W>| {
            let hash = tier.slots().hash(self.key.words.all());
            Some((tier.slots().level(hash), tier.part(tier.slots().slot(hash))?))
        };
        // Workers weigh packets as well: nothing is allocated.
        let told = || sieve.tiers().iter().filter_map(told).enumerate();
        let first = told().min_by_key(|(_, (level, _))| *level);
        let of_first = first.map(|(at, _)| at);
        self.look_each(sieve, first.into_iter().map(|(_, part)| part));
        if sieve.beginning() == Beginning::Tiers {
            self.work += PICK;
            if !self.best.stands_before(sieve.last().first_rank()) {
                self.end_sieve(sieve.last());
            }
        }
        let others = told().filter(|(at, _)| Some(*at) != of_first);
        self.look_each(sieve, others.map(|(_, part)| part));
    }

    /// At parts of tiers, unless what was found before stands before all of theirs.
    fn look_each(&mut self, sieve: &Sieve<W>, parts: impl Iterator<Item = (u32, &'a Part<W>)>) {
        let level = sieve.level(self.best.rank());
        self.before = self.best;
        let some = parts.filter(|(first, _)| *first <= level);
        some.for_each(|(_, part)| self.look(part));
    }

    /// At a part of a tier.
    fn look(&mut self, part: &'a Part<W>) {
        let few = part.strip().entries().len();
        if few > 0 {
            self.work += STRIP;
            self.lines += 1 + few * W::COUNT / 4;
            return part.find(self.key, &mut self.best);
        }
        self.work += DEEP;
        self.go(part.deep());
    }

    /// Up a branch.
    fn go(&mut self, node: &'a Node<W>) {
        if self.before.stands_before(node.first_rank()) {
            return;
        }
        let (work, lines) = match node {
            Node::Empty { .. } | Node::Grid { .. } | Node::Sieve { .. } | Node::Tally { .. } => {
                return;
            }
            Node::Few { .. } => (FEW, W::COUNT),
            Node::Lean { rules, .. } => (FEW, size_of_val(&**rules).div_ceil(64)),
            Node::Several { eights, .. } => (SEVERAL, eights.len() * (2 * W::COUNT + 1)),
            Node::Many { matrix, .. } => (MANY, 2 * matrix.bytes()),
            Node::Cut { window, rest, nodes, .. } => {
                self.work += CUT;
                self.lines += 1;
                if *rest && let [.., rest, _] = &**nodes {
                    self.work += REST;
                    self.go(rest);
                }
                return nodes
                    .get(window.part(&self.key.words))
                    .into_iter()
                    .for_each(|node| self.go(node));
            }
        };
        self.work += work;
        self.lines += lines;
        node.find(self.key, &mut self.best);
    }
}

#[cfg(test)]
mod tests;

//! A tree of cuts: policies that some bits of the packet tell apart go their own ways, and those that are indifferent to these bits another.
//!
//! Each policy is in one place only, so that adding and removing touch one way down. Where cutting does not pay, policies are compared:
//! a few one by one, several eight by eight, many at once. What has doubled or shrunk since it was planned is planned anew, unless it is so large that
//! its parts may as well do that on their own.
//!
//! Each node says which rank its first policy has: who has found a better one passes by, without a look at what may lie far away in memory.

use std::sync::Arc;

use super::byte_bitvector::Matrix;
use super::compact_rule::{End, LeanOf};
use super::field_bitvector::Grid;
use super::plan::FEW;
use super::replanning::{Planned, Planning};
use super::rule::{Best, Comparable, Rank, Rule};
use super::simd_leaf::{self, EightOf, Several, count};
use super::ternary::{Key, Words};
use super::tuple_space::Sieve;
use super::window::Window;
use super::{TOGETHER, batch, linear_leaf, root_cuts};
use crate::PolicyEntry;

/// Some policies. All that it may be has `first` at the same place, so that reading it is no branch.
#[derive(Clone, Debug)]
pub(crate) enum Node<W: Words> {
    Empty {
        first: Rank,
    },
    /// One by one, in their order.
    Few {
        first: Rank,
        rules: Arc<[Rule<W>]>,
    },
    /// One by one, in their order; what most policies ask alike stands elsewhere, so that more of them fit into a cache line.
    Lean {
        first: Rank,
        far: End,
        rules: Arc<[W::Lean]>,
    },
    /// Eight by eight, in their order.
    Several {
        first: Rank,
        eights: Several<W>,
    },
    /// All at once.
    Many {
        first: Rank,
        matrix: Arc<Matrix<W>>,
    },
    /// All at once, by fields.
    Grid {
        first: Rank,
        grid: Arc<Grid<W>>,
    },
    /// By what stands in a window: one node for each value; behind them those to which not all of its bits matter, `rest` says
    /// whether there are any; and at last a tally.
    Cut {
        first: Rank,
        window: Window,
        rest: bool,
        nodes: Arc<[Self]>,
    },
    /// By tiers; only the root may be that. Its first may have gone, as nobody passes by a root.
    Sieve {
        first: Rank,
        sieve: Arc<Sieve<W>>,
    },
    /// How many policies a cut has, and had when it was planned. No place for a policy.
    Tally {
        first: Rank,
        len: usize,
        planned: usize,
    },
}

/// So few policies are found sooner packet by packet.
const ALONE: usize = 32;
/// Larger sets are not planned anew as a whole.
const REPLANNED: usize = 4096;

impl<W: Words> Default for Node<W> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<W: Words> Node<W> {
    const EMPTY: Self = Self::Empty { first: Rank::LAST };

    /// The first policy that fits, if any does.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Best<'_> {
        let mut best = Best::NONE;
        match self {
            Self::Few { rules, .. } => linear_leaf::find(rules, &key.words, key, &mut best),
            Self::Empty { .. }
            | Self::Lean { .. }
            | Self::Several { .. }
            | Self::Many { .. }
            | Self::Grid { .. }
            | Self::Cut { .. }
            | Self::Sieve { .. }
            | Self::Tally { .. } => {
                self.find(key, &mut best);
            }
        }
        best
    }

    /// Considers the first that fits, for each key, of which there are [`TOGETHER`] at the most.
    #[inline]
    pub(crate) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a>; TOGETHER]) {
        match self {
            Self::Cut { nodes, .. } if counts(nodes).0 > ALONE => {
                batch::find_each(self, keys, bests)
            }
            Self::Sieve { sieve, .. } => batch::sift(sieve, keys, bests),
            Self::Few { rules, .. } => linear_leaf::find_each(rules, |key| key.words, keys, bests),
            Self::Lean { far, rules, .. } => {
                linear_leaf::find_each(rules, |key| W::Lean::seen(&key.words, *far), keys, bests);
            }
            Self::Many { matrix, .. } => matrix.find_each(keys, bests),
            Self::Grid { grid, .. } => grid.find_each(keys, bests),
            Self::Empty { .. } | Self::Several { .. } | Self::Cut { .. } | Self::Tally { .. } => {
                keys.iter().zip(bests).for_each(|(key, best)| self.find(key, best));
            }
        }
    }

    /// Fetches what is compared here.
    #[inline]
    pub(super) fn prefetch(&self) {
        match self {
            Self::Empty { .. }
            | Self::Tally { .. }
            | Self::Cut { .. }
            | Self::Grid { .. }
            | Self::Sieve { .. } => {}
            Self::Few { rules, .. } => {
                let Some(last) = rules.last() else { return };
                // Always as often, because a branch less is worth more.
                for at in 0..FEW {
                    uxfrm_packet::prefetch_whole(rules.get(at).unwrap_or(last));
                }
                uxfrm_packet::prefetch(&last.entry);
            }
            Self::Lean { rules, .. } => {
                let Some(last) = rules.last() else { return };
                for at in 0..FEW {
                    uxfrm_packet::prefetch(rules.get(at).unwrap_or(last));
                }
                uxfrm_packet::prefetch(last.entry());
            }
            Self::Several { eights, .. } => {
                eights.iter().take(2).for_each(uxfrm_packet::prefetch_whole);
            }
            Self::Many { matrix, .. } => uxfrm_packet::prefetch(&**matrix),
        }
    }

    /// Considers the first that fits here.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let mut node = self;
        loop {
            match node {
                Self::Empty { .. } | Self::Tally { .. } => return,
                Self::Few { rules, .. } => return linear_leaf::find(rules, &key.words, key, best),
                Self::Lean { far, rules, .. } => {
                    return linear_leaf::find(rules, &W::Lean::seen(&key.words, *far), key, best);
                }
                Self::Several { eights, .. } => return simd_leaf::find(eights, key, best),
                Self::Many { matrix, .. } => return matrix.find(key, best),
                Self::Grid { grid, .. } => return grid.find(key, best),
                Self::Sieve { sieve, .. } => return sieve.find(key, best),
                Self::Cut { window, rest, nodes, .. } => {
                    if *rest
                        && let [.., rest, _] = &**nodes
                        && !best.stands_before(rest.first_rank())
                    {
                        rest.find(key, best);
                    }
                    let Some(part) = nodes.get(window.part(&key.words)) else { return };
                    if best.stands_before(part.first_rank()) {
                        return;
                    }
                    node = part;
                }
            }
        }
    }

    pub(crate) fn insert(&mut self, rule: Rule<W>, planning: Planning) {
        let rank = rule.rank();
        match self {
            Self::Empty { .. } | Self::Tally { .. } => *self = Self::few(vec![rule]),
            Self::Few { .. } | Self::Lean { .. } => {
                let mut rules = self.rules();
                let before = |other: &Rule<W>| other.entry.place() < rule.entry.place();
                rules.insert(rules.partition_point(before), rule);
                let is_few = rules.len() <= planning.few();
                *self = if is_few { Self::few(rules) } else { Self::of(rules) };
            }
            Self::Several { eights, .. } if count::<W>(eights) < simd_leaf::MOST => {
                let mut rules = self.rules();
                let before = |other: &Rule<W>| other.entry.place() < rule.entry.place();
                rules.insert(rules.partition_point(before), rule);
                *self = Self::several(&rules);
            }
            Self::Many { first, matrix } if matrix.len() < planning.growth() * matrix.planned => {
                *first = rank.min(*first);
                Arc::make_mut(matrix).insert(rule);
            }
            Self::Grid { first, grid } if grid.has_room() => {
                *first = rank.min(*first);
                Arc::make_mut(grid).insert(rule);
            }
            Self::Grid { .. } => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::grid(rules.iter().collect()).unwrap_or_else(|| Self::of(rules));
            }
            Self::Cut { first, window, rest, nodes } if !outgrown(nodes, planning) => {
                *first = rank.min(*first);
                let nodes = own(nodes);
                tally(nodes, |len| len + 1);
                let (at, aside) = place(*window, &rule);
                *rest |= aside;
                nodes[at].insert(rule, planning);
            }
            Self::Sieve { first, sieve } => {
                *first = rank.min(*first);
                Arc::make_mut(sieve).insert(rule, planning);
            }
            Self::Several { .. } | Self::Many { .. } | Self::Cut { .. } => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::of(rules);
            }
        }
    }

    /// Makes ready for another policy where one came, which is where the next one mostly comes: the way there is shared with no snapshot, and
    /// what has outgrown its plan is planned anew.
    pub(crate) fn prepare(&mut self, rule: &Rule<W>) {
        let is_outgrown = match self {
            Self::Empty { .. } | Self::Tally { .. } => false,
            Self::Few { rules, .. } => rules.len() > FEW,
            Self::Lean { .. } | Self::Several { .. } => false,
            Self::Many { matrix, .. } => matrix.len() >= Planning::Now.growth() * matrix.planned,
            Self::Cut { nodes, .. } => outgrown(nodes, Planning::Now),
            Self::Grid { .. } | Self::Sieve { .. } => false,
        };
        if is_outgrown {
            *self = Self::of(self.rules());
            return;
        }
        match self {
            Self::Many { matrix, .. } => Arc::make_mut(matrix).prepare(),
            Self::Grid { grid, .. } if !grid.is_ready() => {
                let rules = self.rules();
                *self = Self::grid(rules.iter().collect()).unwrap_or_else(|| Self::of(rules));
            }
            Self::Sieve { sieve, .. } => Arc::make_mut(sieve).prepare(rule),
            Self::Cut { window, nodes, .. } => {
                let (at, _) = place(*window, rule);
                own(nodes)[at].prepare(rule);
            }
            Self::Empty { .. }
            | Self::Few { .. }
            | Self::Lean { .. }
            | Self::Several { .. }
            | Self::Grid { .. }
            | Self::Tally { .. } => {}
        }
    }

    /// Plans anew when they are most of all there is, which is much faster than one by one.
    pub(crate) fn insert_all(&mut self, coming: Vec<Rule<W>>) -> Planned {
        if coming.len() < self.len().max(FEW) {
            coming.into_iter().for_each(|rule| self.insert(rule, Planning::Now));
            return Planned::Apart;
        }
        let mut rules = self.rules();
        rules.extend(coming);
        *self = root_cuts::tree(rules);
        Planned::Together
    }

    /// The same policies planned together, in the order in which they decide: plans go by samples, and which they are is not to hang on when policies came.
    pub(super) fn revised(&self) -> Self {
        let mut rules = self.rules();
        rules.sort_by_cached_key(|rule| rule.entry.place());
        root_cuts::tree(rules)
    }

    /// Takes a policy out that is in.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let (len, planned) = match self {
            Self::Empty { .. } | Self::Tally { .. } => return,
            Self::Few { .. } | Self::Lean { .. } => {
                let mut rules = self.rules();
                rules.retain(|other| other.entry.place() != rule.entry.place());
                *self = if rules.is_empty() { Self::EMPTY } else { Self::few(rules) };
                return;
            }
            Self::Several { .. } => {
                let mut rules = self.rules();
                rules.retain(|other| other.entry.place() != rule.entry.place());
                *self = Self::of(rules);
                return;
            }
            Self::Many { first, matrix } => {
                let matrix = Arc::make_mut(matrix);
                matrix.remove(rule);
                if *first == rule.rank() {
                    *first = matrix.first();
                }
                (matrix.len(), matrix.planned)
            }
            Self::Grid { first, grid } => {
                let grid = Arc::make_mut(grid);
                grid.remove(rule);
                if *first == rule.rank() {
                    *first = grid.first();
                }
                (grid.len(), grid.planned)
            }
            Self::Cut { first, window, rest, nodes } => {
                let nodes = own(nodes);
                let (at, aside) = place(*window, rule);
                nodes[at].remove(rule);
                *rest &= !aside || !matches!(nodes[at], Self::Empty { .. });
                if *first == rule.rank() {
                    *first = first_in(nodes);
                }
                tally(nodes, |len| len - 1)
            }
            Self::Sieve { sieve, .. } => {
                let sieve = Arc::make_mut(sieve);
                sieve.remove(rule);
                (sieve.len(), sieve.planned())
            }
        };
        if len <= FEW || len * 4 < planned && len <= REPLANNED {
            *self = Self::of(self.rules());
        }
    }

    /// Becomes what `newer` is where a policy has its place. Elsewhere it may have grown in another way, but has the same policies.
    pub(crate) fn follow(&mut self, newer: &Self, rule: &Rule<W>) {
        if let (
            Self::Cut { first, window, rest, nodes },
            Self::Cut { first: newer_first, window: newer_window, rest: newer_rest, nodes: newer },
        ) = (&mut *self, newer)
            && window == newer_window
        {
            if Arc::ptr_eq(nodes, newer) {
                return;
            }
            (*first, *rest) = (*newer_first, *newer_rest);
            let nodes = own(nodes);
            let (at, _) = place(*window, rule);
            nodes[at].follow(&newer[at], rule);
            if let ([.., tally], [.., newer]) = (nodes, &**newer) {
                tally.clone_from(newer);
            }
        } else if let (
            Self::Sieve { first, sieve },
            Self::Sieve { first: newer_first, sieve: newer_sieve },
        ) = (&mut *self, newer)
        {
            if Arc::ptr_eq(sieve, newer_sieve) {
                return;
            }
            *first = *newer_first;
            if !Arc::make_mut(sieve).follow(newer_sieve, rule) {
                self.clone_from(newer);
            }
        } else {
            self.clone_from(newer);
        }
    }

    /// The rank of its first policy: who has found one before that need not look here.
    #[inline]
    pub(super) fn first_rank(&self) -> Rank {
        match self {
            Self::Empty { first }
            | Self::Tally { first, .. }
            | Self::Few { first, .. }
            | Self::Lean { first, .. }
            | Self::Several { first, .. }
            | Self::Many { first, .. }
            | Self::Grid { first, .. }
            | Self::Sieve { first, .. }
            | Self::Cut { first, .. } => *first,
        }
    }

    /// How many policies are compared one by one or in one go; `None` when there are too many for that.
    #[inline]
    pub(crate) fn compared(&self) -> Option<usize> {
        match self {
            Self::Empty { .. } => Some(0),
            Self::Few { rules, .. } => Some(rules.len()),
            Self::Lean { rules, .. } => Some(rules.len()),
            Self::Several { eights, .. } if eights.len() == 1 => Some(count::<W>(eights)),
            Self::Several { .. }
            | Self::Many { .. }
            | Self::Grid { .. }
            | Self::Cut { .. }
            | Self::Sieve { .. }
            | Self::Tally { .. } => None,
        }
    }

    /// Whether each packet has more than one way to go, or one on which all policies are compared at once.
    pub(super) const fn is_wide(&self) -> bool {
        match self {
            Self::Many { .. } | Self::Grid { .. } | Self::Sieve { .. } => true,
            Self::Cut { rest, .. } => *rest,
            Self::Empty { .. }
            | Self::Few { .. }
            | Self::Lean { .. }
            | Self::Several { .. }
            | Self::Tally { .. } => false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Empty { .. } | Self::Tally { .. } => 0,
            Self::Few { rules, .. } => rules.len(),
            Self::Lean { rules, .. } => rules.len(),
            Self::Several { eights, .. } => count::<W>(eights),
            Self::Many { matrix, .. } => matrix.len(),
            Self::Grid { grid, .. } => grid.len(),
            Self::Cut { nodes, .. } => counts(nodes).0,
            Self::Sieve { sieve, .. } => sieve.len(),
        }
    }

    /// Shows each policy, in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        match self {
            Self::Empty { .. } | Self::Tally { .. } => {}
            Self::Few { rules, .. } => rules.iter().for_each(|rule| visit(&rule.entry)),
            Self::Lean { rules, .. } => rules.iter().for_each(|rule| visit(rule.entry())),
            Self::Several { eights, .. } => simd_leaf::each::<W>(eights, visit),
            Self::Many { matrix, .. } => matrix.each(visit),
            Self::Grid { grid, .. } => grid.each(visit),
            Self::Cut { nodes, .. } => nodes.iter().for_each(|node| node.each(visit)),
            Self::Sieve { sieve, .. } => sieve.each(visit),
        }
    }

    /// Bytes on the heap, policies apart.
    pub(crate) fn memory(&self) -> usize {
        /// The counts of an `Arc`, and what an allocation costs.
        const EACH: usize = 16 + 8;
        match self {
            Self::Empty { .. } | Self::Tally { .. } => 0,
            Self::Few { rules, .. } => EACH + size_of_val(&**rules),
            Self::Lean { rules, .. } => EACH + size_of_val(&**rules),
            Self::Several { eights, .. } => EACH + size_of_val(&**eights),
            Self::Many { matrix, .. } => EACH + matrix.memory(),
            Self::Grid { grid, .. } => EACH + grid.memory(),
            Self::Cut { nodes, .. } => {
                EACH + size_of_val(&**nodes) + nodes.iter().map(Self::memory).sum::<usize>()
            }
            Self::Sieve { sieve, .. } => EACH + sieve.memory(),
        }
    }

    /// Cuts on the longest way down.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Empty { .. }
            | Self::Few { .. }
            | Self::Lean { .. }
            | Self::Several { .. }
            | Self::Many { .. }
            | Self::Grid { .. }
            | Self::Tally { .. } => 0,
            Self::Cut { nodes, .. } => 1 + nodes.iter().map(Self::depth).max().unwrap_or(0),
            Self::Sieve { sieve, .. } => sieve.depth(),
        }
    }

    /// Who has it.
    fn sharers(&self) -> usize {
        match self {
            Self::Empty { .. } | Self::Tally { .. } => 0,
            Self::Few { rules, .. } => Arc::strong_count(rules),
            Self::Lean { rules, .. } => Arc::strong_count(rules),
            Self::Several { eights, .. } => Arc::strong_count(eights),
            Self::Many { matrix, .. } => Arc::strong_count(matrix),
            Self::Grid { grid, .. } => Arc::strong_count(grid),
            Self::Cut { nodes, .. } => Arc::strong_count(nodes),
            Self::Sieve { sieve, .. } => Arc::strong_count(sieve),
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W>> {
        let mut rules = Vec::with_capacity(self.len() + 1);
        self.gather(&mut rules);
        rules
    }

    fn gather(&self, rules: &mut Vec<Rule<W>>) {
        match self {
            Self::Empty { .. } | Self::Tally { .. } => {}
            Self::Few { rules: few, .. } => rules.extend_from_slice(few),
            Self::Lean { far, rules: lean, .. } => {
                rules.extend(lean.iter().map(|rule| rule.whole(*far)));
            }
            Self::Several { eights, .. } => rules.extend(eights.iter().flat_map(W::Eight::rules)),
            Self::Many { matrix, .. } => matrix.each(&mut |entry| rules.push(Rule::of(entry))),
            Self::Grid { grid, .. } => grid.each(&mut |entry| rules.push(Rule::of(entry))),
            Self::Cut { nodes, .. } => nodes.iter().for_each(|node| node.gather(rules)),
            Self::Sieve { sieve, .. } => sieve.each(&mut |entry| rules.push(Rule::of(entry))),
        }
    }
}

/// The node of a cut where a policy belongs, and whether that is the rest.
fn place<W: Words>(window: Window, rule: &Rule<W>) -> (usize, bool) {
    match window.part_of(&rule.value, &rule.mask) {
        Some(part) => (part, false),
        None => (window.parts(), true),
    }
}

/// The rank of the first of rules in their order.
fn first_of<W: Words>(rules: &[Rule<W>]) -> Rank {
    rules.first().map_or(Rank::LAST, Rule::rank)
}

/// The rank of the first policy of a cut.
fn first_in<W: Words>(nodes: &[Node<W>]) -> Rank {
    nodes.iter().map(Node::first_rank).min().unwrap_or(Rank::LAST)
}

/// A cut's nodes, to be changed: copied first if a snapshot has them too. A copy counts on each part that it shares, and these lie all over
/// memory: reading all counts first has them fetched at the same time.
fn own<W: Words>(nodes: &mut Arc<[Node<W>]>) -> &mut [Node<W>] {
    if Arc::strong_count(nodes) > 1 {
        std::hint::black_box(nodes.iter().map(Node::sharers).sum::<usize>());
    }
    Arc::make_mut(nodes)
}

/// How many policies a cut has, and had when it was planned.
fn counts<W: Words>(nodes: &[Node<W>]) -> (usize, usize) {
    let [.., Node::Tally { len, planned, .. }] = nodes else { return (0, 0) };
    (*len, *planned)
}

/// Counts a policy in or out.
fn tally<W: Words>(nodes: &mut [Node<W>], count: impl Fn(usize) -> usize) -> (usize, usize) {
    if let [.., Node::Tally { len, .. }] = nodes {
        *len = count(*len);
    }
    counts(nodes)
}

/// Whether a cut has so many more policies than it was planned for that another may be better.
fn outgrown<W: Words>(nodes: &[Node<W>], planning: Planning) -> bool {
    let (len, planned) = counts(nodes);
    len >= planning.growth() * planned && len <= REPLANNED
}

mod build;
#[cfg(test)]
pub(super) mod tests;

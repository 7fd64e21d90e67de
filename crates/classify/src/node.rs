//! A decision tree: a cut partitions rules by some bits of the key, and keeps those that do
//! not match on these bits in a rest.
//!
//! Each rule is in one node only, so that insertion and removal touch one path. Where cutting
//! does not pay, rules are compared: linearly, eight at a time, or by bit vectors. A node that
//! doubled or shrank since it was planned is replanned, unless it is so large that its parts can do
//! that themselves.
//!
//! Each node stores the rank of its first rule: a look-up with a better match skips the node
//! without reading it.

use std::sync::Arc;

use crate::byte_bitvector::ByteBitvector;
use crate::compact_rule::{AddressEnd, CompactRules};
use crate::entry::Entry;
use crate::field_bitvector::FieldBitvector;
use crate::key::{Key, Words};
use crate::linear_leaf;
use crate::plan::FEW;
use crate::replanning::ReplanTiming;
use crate::rule::{Best, MatchRule, Rank, Rule};
use crate::simd_leaf::{self, RuleBlock, SimdLeaf, count};
use crate::tuple_space::TupleSpace;
use crate::window::Window;

/// Some rules. `first` is at the same offset in all variants, so that it is read without a
/// branch.
#[derive(Clone, Debug)]
pub(crate) enum Node<W: Words, E: Entry> {
    Empty {
        first: Rank,
    },
    /// Compared one by one, in match order.
    Linear {
        first: Rank,
        rules: Arc<[Rule<W, E>]>,
    },
    /// Compared one by one, in match order, in compact form.
    Compact {
        first: Rank,
        far: AddressEnd,
        rules: Arc<[W::Compact<E>]>,
    },
    /// Compared eight at a time, in match order.
    Simd {
        first: Rank,
        blocks: SimdLeaf<W, E>,
    },
    /// Compared by byte bit vectors.
    ByteBits {
        first: Rank,
        bits: Arc<ByteBitvector<W, E>>,
    },
    /// Compared by field bit vectors.
    FieldBits {
        first: Rank,
        bits: Arc<FieldBitvector<W, E>>,
    },
    /// Partitioned by a window: one node per value, then the rest (rules that do not match on
    /// all bits of the window; `rest` tells whether there are any), then the counts.
    Cut {
        first: Rank,
        window: Window,
        rest: bool,
        nodes: Arc<[Self]>,
    },
    /// Partitioned by tuples; only as root. `first` may be outdated, as nobody skips a root.
    TupleSpace {
        first: Rank,
        space: Arc<TupleSpace<W, E>>,
    },
    /// Rules of a cut, now and when it was planned. Holds no rule.
    Counts {
        first: Rank,
        len: usize,
        planned: usize,
    },
}

/// Larger sets are not replanned as a whole.
const REPLANNED: usize = 4096;

impl<W: Words, E: Entry> Default for Node<W, E> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<W: Words, E: Entry> Node<W, E> {
    const EMPTY: Self = Self::Empty { first: Rank::LAST };

    /// Prefetches what is compared here.
    #[inline]
    pub(super) fn prefetch(&self) {
        match self {
            Self::Empty { .. }
            | Self::Counts { .. }
            | Self::Cut { .. }
            | Self::FieldBits { .. }
            | Self::TupleSpace { .. } => {}
            Self::Linear { rules, .. } => {
                let Some(last) = rules.last() else { return };
                // A fixed count is cheaper than a branch.
                for at in 0..FEW {
                    uxfrm_packet::prefetch_whole(rules.get(at).unwrap_or(last));
                }
                uxfrm_packet::prefetch(&last.entry);
            }
            Self::Compact { rules, .. } => {
                let Some(last) = rules.last() else { return };
                for at in 0..FEW {
                    uxfrm_packet::prefetch(rules.get(at).unwrap_or(last));
                }
                uxfrm_packet::prefetch(last.entry());
            }
            Self::Simd { blocks, .. } => {
                blocks.iter().take(2).for_each(uxfrm_packet::prefetch_whole);
            }
            Self::ByteBits { bits, .. } => uxfrm_packet::prefetch(&**bits),
        }
    }

    /// Offers the first match of this node.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        let mut node = self;
        loop {
            match node {
                Self::Empty { .. } | Self::Counts { .. } => return,
                Self::Linear { rules, .. } => {
                    return linear_leaf::find(rules, &key.words, key, best);
                }
                Self::Compact { far, rules, .. } => {
                    return linear_leaf::find(
                        rules,
                        &W::Compact::<E>::far_first(&key.words, *far),
                        key,
                        best,
                    );
                }
                Self::Simd { blocks, .. } => return simd_leaf::find(blocks, key, best),
                Self::ByteBits { bits, .. } => return bits.find(key, best),
                Self::FieldBits { bits, .. } => return bits.find(key, best),
                Self::TupleSpace { space, .. } => return space.find(key, best),
                Self::Cut { window, rest, nodes, .. } => {
                    if *rest
                        && let [.., rest, _] = &**nodes
                        && !best.precedes(rest.best_rank())
                    {
                        rest.find(key, best);
                    }
                    let Some(part) = nodes.get(window.value_in(&key.words)) else { return };
                    if best.precedes(part.best_rank()) {
                        return;
                    }
                    node = part;
                }
            }
        }
    }

    pub(crate) fn insert(&mut self, rule: Rule<W, E>, timing: ReplanTiming) {
        let rank = rule.rank();
        match self {
            Self::Empty { .. } | Self::Counts { .. } => *self = Self::linear(vec![rule]),
            Self::Linear { .. } | Self::Compact { .. } => {
                let mut rules = self.rules();
                let before =
                    |other: &Rule<W, E>| other.entry.precedence() < rule.entry.precedence();
                rules.insert(rules.partition_point(before), rule);
                let is_few = rules.len() <= timing.few();
                *self = if is_few { Self::linear(rules) } else { Self::of(rules) };
            }
            Self::Simd { blocks, .. } if count::<W, E>(blocks) < simd_leaf::MAX_RULES => {
                let mut rules = self.rules();
                let before =
                    |other: &Rule<W, E>| other.entry.precedence() < rule.entry.precedence();
                rules.insert(rules.partition_point(before), rule);
                *self = Self::simd(&rules);
            }
            Self::ByteBits { first, bits } if bits.len() < timing.growth() * bits.planned => {
                *first = rank.min(*first);
                Arc::make_mut(bits).insert(rule);
            }
            Self::FieldBits { first, bits } if bits.has_room() => {
                *first = rank.min(*first);
                Arc::make_mut(bits).insert(rule);
            }
            Self::FieldBits { .. } => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::field_bitvector(rules.iter().collect())
                    .unwrap_or_else(|| Self::of(rules));
            }
            Self::Cut { first, window, rest, nodes } if !needs_replan(nodes, timing) => {
                *first = rank.min(*first);
                let nodes = make_mut(nodes);
                update_counts(nodes, |len| len + 1);
                let (at, aside) = place(*window, &rule);
                *rest |= aside;
                nodes[at].insert(rule, timing);
            }
            Self::TupleSpace { first, space } => {
                *first = rank.min(*first);
                Arc::make_mut(space).insert(rule, timing);
            }
            Self::Simd { .. } | Self::ByteBits { .. } | Self::Cut { .. } => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::of(rules);
            }
        }
    }

    /// Prepares for another rule at the same place, where the next one mostly comes: unshares the
    /// path and replans what has outgrown its plan.
    pub(crate) fn prepare(&mut self, rule: &Rule<W, E>) {
        let is_outgrown = match self {
            Self::Empty { .. } | Self::Counts { .. } => false,
            Self::Linear { rules, .. } => rules.len() > FEW,
            Self::Compact { .. } | Self::Simd { .. } => false,
            Self::ByteBits { bits, .. } => bits.len() >= ReplanTiming::Now.growth() * bits.planned,
            Self::Cut { nodes, .. } => needs_replan(nodes, ReplanTiming::Now),
            Self::FieldBits { .. } | Self::TupleSpace { .. } => false,
        };
        if is_outgrown {
            *self = Self::of(self.rules());
            return;
        }
        match self {
            Self::ByteBits { bits, .. } => Arc::make_mut(bits).prepare(),
            Self::FieldBits { bits, .. } if !bits.is_ready() => {
                let rules = self.rules();
                *self = Self::field_bitvector(rules.iter().collect())
                    .unwrap_or_else(|| Self::of(rules));
            }
            Self::TupleSpace { space, .. } => Arc::make_mut(space).prepare(rule),
            Self::Cut { window, nodes, .. } => {
                let (at, _) = place(*window, rule);
                make_mut(nodes)[at].prepare(rule);
            }
            Self::Empty { .. }
            | Self::Linear { .. }
            | Self::Compact { .. }
            | Self::Simd { .. }
            | Self::FieldBits { .. }
            | Self::Counts { .. } => {}
        }
    }

    /// Removes a rule that is present.
    pub(crate) fn remove(&mut self, rule: &Rule<W, E>) {
        let (len, planned) = match self {
            Self::Empty { .. } | Self::Counts { .. } => return,
            Self::Linear { .. } | Self::Compact { .. } => {
                let mut rules = self.rules();
                rules.retain(|other| other.entry.precedence() != rule.entry.precedence());
                *self = if rules.is_empty() { Self::EMPTY } else { Self::linear(rules) };
                return;
            }
            Self::Simd { .. } => {
                let mut rules = self.rules();
                rules.retain(|other| other.entry.precedence() != rule.entry.precedence());
                *self = Self::of(rules);
                return;
            }
            Self::ByteBits { first, bits } => {
                let bits = Arc::make_mut(bits);
                bits.remove(rule);
                if *first == rule.rank() {
                    *first = bits.first();
                }
                (bits.len(), bits.planned)
            }
            Self::FieldBits { first, bits } => {
                let bits = Arc::make_mut(bits);
                bits.remove(rule);
                if *first == rule.rank() {
                    *first = bits.first();
                }
                (bits.len(), bits.planned)
            }
            Self::Cut { first, window, rest, nodes } => {
                let nodes = make_mut(nodes);
                let (at, aside) = place(*window, rule);
                nodes[at].remove(rule);
                *rest &= !aside || !matches!(nodes[at], Self::Empty { .. });
                if *first == rule.rank() {
                    *first = first_in(nodes);
                }
                update_counts(nodes, |len| len - 1)
            }
            Self::TupleSpace { space, .. } => {
                let space = Arc::make_mut(space);
                space.remove(rule);
                (space.len(), space.planned())
            }
        };
        if len <= FEW || len * 4 < planned && len <= REPLANNED {
            *self = Self::of(self.rules());
        }
    }

    /// Copies the path of a rule from `newer`. Other parts may differ in shape, but hold the same
    /// rules.
    pub(crate) fn follow(&mut self, newer: &Self, rule: &Rule<W, E>) {
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
            let nodes = make_mut(nodes);
            let (at, _) = place(*window, rule);
            nodes[at].follow(&newer[at], rule);
            if let ([.., update_counts], [.., newer]) = (nodes, &**newer) {
                update_counts.clone_from(newer);
            }
        } else if let (
            Self::TupleSpace { first, space },
            Self::TupleSpace { first: newer_first, space: newer_space },
        ) = (&mut *self, newer)
        {
            if Arc::ptr_eq(space, newer_space) {
                return;
            }
            *first = *newer_first;
            if !Arc::make_mut(space).follow(newer_space, rule) {
                self.clone_from(newer);
            }
        } else {
            self.clone_from(newer);
        }
    }

    /// Rank of its first rule; a better match need not look here.
    #[inline]
    pub(super) fn best_rank(&self) -> Rank {
        match self {
            Self::Empty { first }
            | Self::Counts { first, .. }
            | Self::Linear { first, .. }
            | Self::Compact { first, .. }
            | Self::Simd { first, .. }
            | Self::ByteBits { first, .. }
            | Self::FieldBits { first, .. }
            | Self::TupleSpace { first, .. }
            | Self::Cut { first, .. } => *first,
        }
    }

    /// Whether look-ups follow more than one path or compare all rules at once.
    pub(super) const fn is_wide(&self) -> bool {
        match self {
            Self::ByteBits { .. } | Self::FieldBits { .. } | Self::TupleSpace { .. } => true,
            Self::Cut { rest, .. } => *rest,
            Self::Empty { .. }
            | Self::Linear { .. }
            | Self::Compact { .. }
            | Self::Simd { .. }
            | Self::Counts { .. } => false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Empty { .. } | Self::Counts { .. } => 0,
            Self::Linear { rules, .. } => rules.len(),
            Self::Compact { rules, .. } => rules.len(),
            Self::Simd { blocks, .. } => count::<W, E>(blocks),
            Self::ByteBits { bits, .. } => bits.len(),
            Self::FieldBits { bits, .. } => bits.len(),
            Self::Cut { nodes, .. } => cut_counts(nodes).0,
            Self::TupleSpace { space, .. } => space.len(),
        }
    }

    /// Visits all rules in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        match self {
            Self::Empty { .. } | Self::Counts { .. } => {}
            Self::Linear { rules, .. } => rules.iter().for_each(|rule| visit(&rule.entry)),
            Self::Compact { rules, .. } => rules.iter().for_each(|rule| visit(rule.entry())),
            Self::Simd { blocks, .. } => simd_leaf::each::<W, E>(blocks, visit),
            Self::ByteBits { bits, .. } => bits.each(visit),
            Self::FieldBits { bits, .. } => bits.each(visit),
            Self::Cut { nodes, .. } => nodes.iter().for_each(|node| node.each(visit)),
            Self::TupleSpace { space, .. } => space.each(visit),
        }
    }

    /// Bytes on the heap, without the rules.
    pub(crate) fn memory(&self) -> usize {
        /// Counts of an `Arc`, and the allocator's overhead.
        const EACH: usize = 16 + 8;
        match self {
            Self::Empty { .. } | Self::Counts { .. } => 0,
            Self::Linear { rules, .. } => EACH + size_of_val(&**rules),
            Self::Compact { rules, .. } => EACH + size_of_val(&**rules),
            Self::Simd { blocks, .. } => EACH + size_of_val(&**blocks),
            Self::ByteBits { bits, .. } => EACH + bits.memory(),
            Self::FieldBits { bits, .. } => EACH + bits.memory(),
            Self::Cut { nodes, .. } => {
                EACH + size_of_val(&**nodes) + nodes.iter().map(Self::memory).sum::<usize>()
            }
            Self::TupleSpace { space, .. } => EACH + space.memory(),
        }
    }

    /// Cuts on the longest path.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Empty { .. }
            | Self::Linear { .. }
            | Self::Compact { .. }
            | Self::Simd { .. }
            | Self::ByteBits { .. }
            | Self::FieldBits { .. }
            | Self::Counts { .. } => 0,
            Self::Cut { nodes, .. } => 1 + nodes.iter().map(Self::depth).max().unwrap_or(0),
            Self::TupleSpace { space, .. } => space.depth(),
        }
    }

    /// Number of references to its payload.
    fn strong_count(&self) -> usize {
        match self {
            Self::Empty { .. } | Self::Counts { .. } => 0,
            Self::Linear { rules, .. } => Arc::strong_count(rules),
            Self::Compact { rules, .. } => Arc::strong_count(rules),
            Self::Simd { blocks, .. } => Arc::strong_count(blocks),
            Self::ByteBits { bits, .. } => Arc::strong_count(bits),
            Self::FieldBits { bits, .. } => Arc::strong_count(bits),
            Self::Cut { nodes, .. } => Arc::strong_count(nodes),
            Self::TupleSpace { space, .. } => Arc::strong_count(space),
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W, E>> {
        let mut rules = Vec::with_capacity(self.len() + 1);
        self.gather(&mut rules);
        rules
    }

    fn gather(&self, rules: &mut Vec<Rule<W, E>>) {
        match self {
            Self::Empty { .. } | Self::Counts { .. } => {}
            Self::Linear { rules: few, .. } => rules.extend_from_slice(few),
            Self::Compact { far, rules: compact, .. } => {
                rules.extend(compact.iter().map(|rule| rule.expand(*far)));
            }
            Self::Simd { blocks, .. } => {
                rules.extend(blocks.iter().flat_map(W::RuleBlock8::<E>::rules))
            }
            Self::ByteBits { bits, .. } => bits.each(&mut |entry| rules.push(Rule::of(entry))),
            Self::FieldBits { bits, .. } => bits.each(&mut |entry| rules.push(Rule::of(entry))),
            Self::Cut { nodes, .. } => nodes.iter().for_each(|node| node.gather(rules)),
            Self::TupleSpace { space, .. } => space.each(&mut |entry| rules.push(Rule::of(entry))),
        }
    }
}

/// Child of a cut for a rule, and whether it is the rest.
fn place<W: Words, E: Entry>(window: Window, rule: &Rule<W, E>) -> (usize, bool) {
    match window.value_of_rule(&rule.value, &rule.mask) {
        Some(part) => (part, false),
        None => (window.fanout(), true),
    }
}

/// Rank of the first of rules in match order.
fn first_of<W: Words, E: Entry>(rules: &[Rule<W, E>]) -> Rank {
    rules.first().map_or(Rank::LAST, Rule::rank)
}

/// Rank of the first rule of a cut.
fn first_in<W: Words, E: Entry>(nodes: &[Node<W, E>]) -> Rank {
    nodes.iter().map(Node::best_rank).min().unwrap_or(Rank::LAST)
}

/// Mutable children of a cut, copied first if a snapshot shares them. A copy increments scattered
/// reference counts; reading them all first overlaps the cache misses.
fn make_mut<W: Words, E: Entry>(nodes: &mut Arc<[Node<W, E>]>) -> &mut [Node<W, E>] {
    if Arc::strong_count(nodes) > 1 {
        std::hint::black_box(nodes.iter().map(Node::strong_count).sum::<usize>());
    }
    Arc::make_mut(nodes)
}

/// Rules of a cut, now and when it was planned. Holds no rule.
pub(crate) fn cut_counts<W: Words, E: Entry>(nodes: &[Node<W, E>]) -> (usize, usize) {
    let [.., Node::Counts { len, planned, .. }] = nodes else { return (0, 0) };
    (*len, *planned)
}

/// Updates the number of rules of a cut.
fn update_counts<W: Words, E: Entry>(
    nodes: &mut [Node<W, E>],
    count: impl Fn(usize) -> usize,
) -> (usize, usize) {
    if let [.., Node::Counts { len, .. }] = nodes {
        *len = count(*len);
    }
    cut_counts(nodes)
}

/// Whether a cut has outgrown its plan.
fn needs_replan<W: Words, E: Entry>(nodes: &[Node<W, E>], timing: ReplanTiming) -> bool {
    let (len, planned) = cut_counts(nodes);
    len >= timing.growth() * planned && len <= REPLANNED
}

mod build;
#[cfg(test)]
pub(super) mod tests;

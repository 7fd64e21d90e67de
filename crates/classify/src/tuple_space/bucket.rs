//! A hash bucket of a tuple.

use super::ternary_leaf::TernaryLeaf;
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::Node;
use crate::replanning::ReplanTiming;
use crate::rule::{Best, Rank, Rule};
use crate::ternary_block::BLOCK_LANES;

/// Some rules. Not an enum, to avoid an unpredictable branch: one of the two parts is empty.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Bucket<W: Words, E: Entry> {
    /// All rules, if few.
    leaf: TernaryLeaf<E>,
    /// All rules, if many.
    tree: Node<W, E>,
}

impl<W: Words, E: Entry> Bucket<W, E> {
    /// Builds it of rules in any order.
    pub(super) fn of(mut rules: Vec<&Rule<W, E>>) -> Self {
        rules.sort_by_key(|rule| rule.entry.precedence());
        match TernaryLeaf::of(&rules) {
            Some(leaf) => Self { leaf, tree: Node::default() },
            None => Self { leaf: TernaryLeaf::default(), tree: Node::planned(rules) },
        }
    }

    /// Whether the rules are in the leaf.
    #[inline]
    pub(crate) fn is_leaf(&self) -> bool {
        !self.leaf.entries().is_empty()
    }

    /// All rules if few, else empty.
    #[inline]
    pub(crate) const fn leaf(&self) -> &TernaryLeaf<E> {
        &self.leaf
    }

    /// All rules if many, else empty.
    #[inline]
    pub(crate) const fn tree(&self) -> &Node<W, E> {
        &self.tree
    }

    /// Offers the first match.
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        self.leaf.find(key, best);
        self.tree.find(key, best);
    }

    pub(super) fn insert(&mut self, rule: Rule<W, E>, timing: ReplanTiming) {
        if self.tree.len() > 0 {
            return self.tree.insert(rule, timing);
        }
        let mut rules = self.rules();
        rules.push(rule);
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W, E>) {
        if self.tree.len() > 0 {
            self.tree.prepare(rule);
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W, E>) {
        if self.tree.len() > BLOCK_LANES + 1 {
            return self.tree.remove(rule);
        }
        let mut rules = self.rules();
        rules.retain(|other| other.entry.precedence() != rule.entry.precedence());
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W, E>) {
        if self.tree.len() > 0 && newer.tree.len() > 0 {
            self.tree.follow(&newer.tree, rule);
        } else {
            self.clone_from(newer);
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W, E>> {
        let mut rules = self.tree.rules();
        rules.extend(self.leaf.entries().iter().map(Rule::of));
        rules
    }

    pub(super) fn len(&self) -> usize {
        self.leaf.entries().len() + self.tree.len()
    }

    pub(super) fn first(&self) -> Rank {
        let first = self.leaf.entries().first().map_or(Rank::LAST, |entry| entry.rank());
        first.min(self.tree.best_rank())
    }

    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        self.leaf.entries().iter().for_each(&mut *visit);
        self.tree.each(visit);
    }

    pub(super) fn depth(&self) -> u32 {
        self.tree.depth()
    }

    pub(super) fn memory(&self) -> usize {
        self.leaf.memory() + self.tree.memory()
    }
}

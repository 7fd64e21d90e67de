//! A hash bucket of a tuple.

use std::sync::Arc;

use uxfrm_classify::BLOCK_LANES;

use super::ternary_leaf::TernaryLeaf;
use crate::PolicyEntry;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::replanning::ReplanTiming;
use crate::spd::classifier::rule::{Best, Rank, Rule};
use crate::spd::classifier::ternary::{Key, Words};

/// Some policies. Not an enum, to avoid an unpredictable branch: one of the two parts is empty.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(in crate::spd::classifier) struct Bucket<W: Words> {
    /// All policies, if few.
    leaf: TernaryLeaf,
    /// All policies, if many.
    tree: Node<W>,
}

impl<W: Words> Bucket<W> {
    /// Builds it of rules in any order.
    pub(super) fn of(mut rules: Vec<&Rule<W>>) -> Self {
        rules.sort_by_key(|rule| rule.entry.precedence());
        match TernaryLeaf::of(&rules) {
            Some(leaf) => Self { leaf, tree: Node::default() },
            None => Self { leaf: TernaryLeaf::default(), tree: Node::planned(rules) },
        }
    }

    /// Whether the policies are in the leaf.
    #[inline]
    pub(in crate::spd::classifier) fn is_leaf(&self) -> bool {
        !self.leaf.entries().is_empty()
    }

    /// All policies if few, else empty.
    #[inline]
    pub(in crate::spd::classifier) const fn leaf(&self) -> &TernaryLeaf {
        &self.leaf
    }

    /// All policies if many, else empty.
    #[inline]
    pub(in crate::spd::classifier) const fn tree(&self) -> &Node<W> {
        &self.tree
    }

    /// Offers the first match.
    pub(in crate::spd::classifier) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        self.leaf.find(key, best);
        self.tree.find(key, best);
    }

    pub(super) fn insert(&mut self, rule: Rule<W>, timing: ReplanTiming) {
        if self.tree.len() > 0 {
            return self.tree.insert(rule, timing);
        }
        let mut rules = self.rules();
        rules.push(rule);
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W>) {
        if self.tree.len() > 0 {
            self.tree.prepare(rule);
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W>) {
        if self.tree.len() > BLOCK_LANES + 1 {
            return self.tree.remove(rule);
        }
        let mut rules = self.rules();
        rules.retain(|other| other.entry.precedence() != rule.entry.precedence());
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W>) {
        if self.tree.len() > 0 && newer.tree.len() > 0 {
            self.tree.follow(&newer.tree, rule);
        } else {
            self.clone_from(newer);
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W>> {
        let mut rules = self.tree.rules();
        rules.extend(self.leaf.entries().iter().map(Rule::of));
        rules
    }

    pub(super) fn len(&self) -> usize {
        self.leaf.entries().len() + self.tree.len()
    }

    pub(super) fn first(&self) -> Rank {
        let first = self.leaf.entries().first().map_or(Rank::LAST, |entry| Rank::of(entry));
        first.min(self.tree.best_rank())
    }

    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
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

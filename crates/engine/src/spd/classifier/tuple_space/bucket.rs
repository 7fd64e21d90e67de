//! Policies of some hashes of a tier.

use std::sync::Arc;

use uxfrm_packet::LANES;

use super::ternary_leaf::Strip;
use crate::PolicyEntry;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::replanning::Planning;
use crate::spd::classifier::rule::{Best, Rank, Rule};
use crate::spd::classifier::ternary::{Key, Words};

/// Some policies. Not an enum, so that nobody asks which it is: nobody could foretell it.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(in crate::spd::classifier) struct Part<W: Words> {
    /// All, if they are few enough to be compared at once.
    strip: Strip,
    /// All, if they are more.
    deep: Node<W>,
}

impl<W: Words> Part<W> {
    /// Of rules in any order.
    pub(super) fn of(mut rules: Vec<&Rule<W>>) -> Self {
        rules.sort_by_key(|rule| rule.entry.place());
        match Strip::of(&rules) {
            Some(strip) => Self { strip, deep: Node::default() },
            None => Self { strip: Strip::default(), deep: Node::planned(rules) },
        }
    }

    /// Whether they are few enough.
    #[inline]
    pub(in crate::spd::classifier) fn is_strip(&self) -> bool {
        !self.strip.entries().is_empty()
    }

    /// All, if they are few enough; else none.
    #[inline]
    pub(in crate::spd::classifier) const fn strip(&self) -> &Strip {
        &self.strip
    }

    /// All, if they are more; else none.
    #[inline]
    pub(in crate::spd::classifier) const fn deep(&self) -> &Node<W> {
        &self.deep
    }

    /// Considers the first that fits.
    pub(in crate::spd::classifier) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        self.strip.find(key, best);
        self.deep.find(key, best);
    }

    pub(super) fn insert(&mut self, rule: Rule<W>, planning: Planning) {
        if self.deep.len() > 0 {
            return self.deep.insert(rule, planning);
        }
        let mut rules = self.rules();
        rules.push(rule);
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W>) {
        if self.deep.len() > 0 {
            self.deep.prepare(rule);
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W>) {
        if self.deep.len() > LANES + 1 {
            return self.deep.remove(rule);
        }
        let mut rules = self.rules();
        rules.retain(|other| other.entry.place() != rule.entry.place());
        *self = Self::of(rules.iter().collect());
    }

    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W>) {
        if self.deep.len() > 0 && newer.deep.len() > 0 {
            self.deep.follow(&newer.deep, rule);
        } else {
            self.clone_from(newer);
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W>> {
        let mut rules = self.deep.rules();
        rules.extend(self.strip.entries().iter().map(Rule::of));
        rules
    }

    pub(super) fn len(&self) -> usize {
        self.strip.entries().len() + self.deep.len()
    }

    pub(super) fn first(&self) -> Rank {
        let first = self.strip.entries().first().map_or(Rank::LAST, |entry| Rank::of(entry));
        first.min(self.deep.first_rank())
    }

    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.strip.entries().iter().for_each(&mut *visit);
        self.deep.each(visit);
    }

    pub(super) fn depth(&self) -> u32 {
        self.deep.depth()
    }

    pub(super) fn memory(&self) -> usize {
        self.strip.memory() + self.deep.memory()
    }
}

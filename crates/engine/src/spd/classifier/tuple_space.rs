//! A sieve: tiers of policies, each by a hash of some bits of the packet, and what none of them takes.
//!
//! Cuts by a window leave policies that are wide in one field aside one field at a time. A tier takes those that ask for all bits of a mask, of several
//! fields at once, and finds the few that a packet may fit by one hash. Before a part of a tier is looked at, a table of slots tells
//! which rank the first of its policies has that such a packet may fit: so a packet asks all tiers first, goes where the first rank is, and then
//! only where something may stand before what it found there. What no tier takes comes before all that or after the first of it, whichever spares
//! more.

mod bucket;
pub(super) mod choice;
mod mask_selection;
mod prefix_lengths;
mod rank16;
mod ternary_leaf;
mod tuple;

use std::sync::Arc;

use super::node::Node;
use super::replanning::Planning;
use super::rule::{Best, Comparable, Rank, Rule};
use super::ternary::{Key, Words};
use crate::PolicyEntry;
pub(super) use bucket::Part;
use mask_selection::{Drafted, Prices, draft};
use rank16::Levels;
pub(super) use tuple::Tier;

/// Policies by tiers.
#[derive(Clone, Debug)]
pub(crate) struct Sieve<W: Words> {
    levels: Levels,
    beginning: Beginning,
    tiers: Vec<Tier<W>>,
    /// What no tier takes.
    last: Node<W>,
    len: usize,
    planned: usize,
}

/// What packets are compared with first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// The part of a tier where the first rank is: where what they find there mostly stands before all that no tier takes.
    Tiers,
    /// What no tier takes: where they mostly find something in it that spares them parts of tiers.
    Last,
}

impl<W: Words> Sieve<W> {
    /// Of rules in any order; a tier for each mask.
    pub(super) fn of(masks: &[W], rules: Vec<&Rule<W>>) -> Self {
        let len = rules.len();
        let levels = Levels::among(rules.iter().map(|rule| rule.rank()));
        let mut left = rules;
        let mut tiers = Vec::with_capacity(masks.len());
        for mask in masks {
            let (inside, others) = left.into_iter().partition(|rule| Tier::takes(mask, rule));
            left = others;
            tiers.push(Tier::of(*mask, levels, inside));
        }
        let (beginning, last) = (Beginning::Last, Node::planned(left));
        Self { levels, beginning, tiers, last, len, planned: len }
    }

    /// The same with another beginning.
    pub(super) fn beginning_with(self, beginning: Beginning) -> Self {
        Self { beginning, ..self }
    }

    #[inline]
    pub(super) const fn beginning(&self) -> Beginning {
        self.beginning
    }

    /// In the order in which they take policies.
    #[inline]
    pub(super) fn tiers(&self) -> &[Tier<W>] {
        &self.tiers
    }

    #[inline]
    pub(super) const fn last(&self) -> &Node<W> {
        &self.last
    }

    /// Who has found one of this rank looks for no higher level.
    #[inline]
    pub(super) fn level(&self, rank: Rank) -> u32 {
        self.levels.of(rank)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// How many there were when it was planned.
    pub(super) const fn planned(&self) -> usize {
        self.planned
    }

    /// Considers the first that fits.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        if self.beginning == Beginning::Last {
            self.find_behind(key, best);
        }
        for tier in &self.tiers {
            let hash = tier.slots().hash(key.words.all());
            if tier.slots().level(hash) <= self.levels.of(best.rank()) {
                let part = tier.part(tier.slots().slot(hash));
                part.into_iter().for_each(|part| part.find(key, best));
            }
        }
        if self.beginning == Beginning::Tiers {
            self.find_behind(key, best);
        }
    }

    /// In what no tier takes.
    fn find_behind<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        if !best.stands_before(self.last.first_rank()) {
            self.last.find(key, best);
        }
    }

    pub(super) fn insert(&mut self, rule: Rule<W>, planning: Planning) {
        self.len += 1;
        let levels = self.levels;
        match self.tiers.iter_mut().find(|tier| Tier::takes(tier.mask(), &rule)) {
            Some(tier) => tier.insert(rule, levels, planning),
            None => self.last.insert(rule, planning),
        }
    }

    /// Makes ready for another policy where one came.
    pub(super) fn prepare(&mut self, rule: &Rule<W>) {
        match self.tiers.iter_mut().find(|tier| Tier::takes(tier.mask(), rule)) {
            Some(tier) => tier.prepare(rule),
            None => self.last.prepare(rule),
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W>) {
        self.len -= 1;
        let levels = self.levels;
        match self.tiers.iter_mut().find(|tier| Tier::takes(tier.mask(), rule)) {
            Some(tier) => tier.remove(rule, levels),
            None => self.last.remove(rule),
        }
    }

    /// Becomes what `newer` is where a policy has its place, if it was planned as that was.
    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W>) -> bool {
        let alike = |(own, newer): (&Tier<W>, &Tier<W>)| own.is_like(newer);
        let is_like = self.levels == newer.levels
            && self.beginning == newer.beginning
            && self.planned == newer.planned
            && self.tiers.len() == newer.tiers.len()
            && self.tiers.iter().zip(&newer.tiers).all(alike);
        if !is_like {
            return false;
        }
        self.len = newer.len;
        let mut tiers = self.tiers.iter_mut().zip(&newer.tiers);
        match tiers.find(|(tier, _)| Tier::takes(tier.mask(), rule)) {
            Some((own, newer)) => own.follow(newer, rule),
            None => self.last.follow(&newer.last, rule),
        }
        true
    }

    /// The rank of the first.
    pub(super) fn first(&self) -> Rank {
        self.parts().map(Part::first).min().unwrap_or(Rank::LAST).min(self.last.first_rank())
    }

    /// Shows each policy, in no order.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.parts().for_each(|part| part.each(visit));
        self.last.each(visit);
    }

    pub(super) fn depth(&self) -> u32 {
        1 + self.parts().map(Part::depth).max().unwrap_or(0).max(self.last.depth())
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.tiers.iter().map(Tier::memory).sum::<usize>() + self.last.memory()
    }

    fn parts(&self) -> impl Iterator<Item = &Part<W>> {
        self.tiers.iter().flat_map(Tier::parts)
    }
}

#[cfg(test)]
mod tests;

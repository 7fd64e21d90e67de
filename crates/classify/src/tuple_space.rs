//! Tuple space search: rules grouped by the mask that they match on, one hash table per mask
//! (tuple), and a residue.
//!
//! A cut by a window leaves rules aside that are wide in one field. A tuple takes those that
//! match all bits of a mask over several fields, and finds the few candidates by one hash. A
//! prefilter gives the best rank of each hash, so that a key probes all tuples first, visits the
//! one with the best rank, and then only those that may hold a better match. The residue is
//! searched first or after the first bucket, whichever saves more.

mod bucket;
pub(super) mod choice;
mod mask_selection;
mod prefix_lengths;
mod rank16;
mod ternary_leaf;
mod tuple;

use mask_selection::{SelectedMask, TupleCosts, select_masks};
use rank16::Rank16;

use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::node::Node;
use crate::replanning::ReplanTiming;
use crate::rule::{Best, MatchRule, Rank, Rule};

pub(super) use bucket::Bucket;

pub(super) use tuple::Tuple;

/// Rules by tuple.
#[derive(Clone, Debug)]
pub(crate) struct TupleSpace<W: Words, E: Entry> {
    rank16: Rank16,
    search_order: SearchOrder,
    tuples: Vec<Tuple<W, E>>,
    /// Rules in no tuple.
    residue: Node<W, E>,
    len: usize,
    planned: usize,
}

/// What keys are compared with first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchOrder {
    /// The bucket with the best rank: matches there mostly precede the residue.
    TuplesFirst,
    /// The residue: matches there mostly spare bucket visits.
    ResidueFirst,
}

impl<W: Words, E: Entry> TupleSpace<W, E> {
    /// Builds it of rules in any order, with a tuple for each mask.
    pub(super) fn of(masks: &[W], rules: Vec<&Rule<W, E>>) -> Self {
        let len = rules.len();
        let rank16 = Rank16::spanning(rules.iter().map(|rule| rule.rank()));
        let mut left = rules;
        let mut tuples = Vec::with_capacity(masks.len());
        for mask in masks {
            let (inside, others) = left.into_iter().partition(|rule| Tuple::accepts(mask, rule));
            left = others;
            tuples.push(Tuple::of(*mask, rank16, inside));
        }
        let (search_order, residue) = (SearchOrder::ResidueFirst, Node::planned(left));
        Self { rank16, search_order, tuples, residue, len, planned: len }
    }

    /// Changes the search order.
    pub(super) fn with_search_order(self, search_order: SearchOrder) -> Self {
        Self { search_order, ..self }
    }

    #[inline]
    pub(super) const fn search_order(&self) -> SearchOrder {
        self.search_order
    }

    /// Tuples, in the order in which they take rules.
    #[inline]
    pub(super) fn tuples(&self) -> &[Tuple<W, E>] {
        &self.tuples
    }

    #[inline]
    pub(super) const fn residue(&self) -> &Node<W, E> {
        &self.residue
    }

    /// 16-bit rank up to which a rule may precede one of `rank`.
    #[inline]
    pub(super) fn rank16(&self, rank: Rank) -> u32 {
        self.rank16.of(rank)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of rules when it was planned.
    pub(super) const fn planned(&self) -> usize {
        self.planned
    }

    /// Offers the first match.
    pub(super) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        if self.search_order == SearchOrder::ResidueFirst {
            self.find_in_residue(key, best);
        }
        for tuple in &self.tuples {
            let hash = tuple.prefilter().hash(key.words.all());
            if tuple.prefilter().rank(hash) <= self.rank16.of(best.rank()) {
                let bucket = tuple.bucket(tuple.prefilter().slot(hash));
                bucket.into_iter().for_each(|bucket| bucket.find(key, best));
            }
        }
        if self.search_order == SearchOrder::TuplesFirst {
            self.find_in_residue(key, best);
        }
    }

    /// Searches the residue.
    fn find_in_residue<'a>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        if !best.precedes(self.residue.best_rank()) {
            self.residue.find(key, best);
        }
    }

    pub(super) fn insert(&mut self, rule: Rule<W, E>, timing: ReplanTiming) {
        self.len += 1;
        let rank16 = self.rank16;
        match self.tuples.iter_mut().find(|tuple| Tuple::accepts(tuple.mask(), &rule)) {
            Some(tuple) => tuple.insert(rule, rank16, timing),
            None => self.residue.insert(rule, timing),
        }
    }

    /// Prepares for another rule at the same place.
    pub(super) fn prepare(&mut self, rule: &Rule<W, E>) {
        match self.tuples.iter_mut().find(|tuple| Tuple::accepts(tuple.mask(), rule)) {
            Some(tuple) => tuple.prepare(rule),
            None => self.residue.prepare(rule),
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W, E>) {
        self.len -= 1;
        let rank16 = self.rank16;
        match self.tuples.iter_mut().find(|tuple| Tuple::accepts(tuple.mask(), rule)) {
            Some(tuple) => tuple.remove(rule, rank16),
            None => self.residue.remove(rule),
        }
    }

    /// Copies the place of a rule from `newer`; false if the plans differ.
    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W, E>) -> bool {
        let alike = |(own, newer): (&Tuple<W, E>, &Tuple<W, E>)| own.has_same_plan(newer);
        let has_same_plan = self.rank16 == newer.rank16
            && self.search_order == newer.search_order
            && self.planned == newer.planned
            && self.tuples.len() == newer.tuples.len()
            && self.tuples.iter().zip(&newer.tuples).all(alike);
        if !has_same_plan {
            return false;
        }
        self.len = newer.len;
        let mut tuples = self.tuples.iter_mut().zip(&newer.tuples);
        match tuples.find(|(tuple, _)| Tuple::accepts(tuple.mask(), rule)) {
            Some((own, newer)) => own.follow(newer, rule),
            None => self.residue.follow(&newer.residue, rule),
        }
        true
    }

    /// Rank of the first rule.
    pub(super) fn first(&self) -> Rank {
        self.buckets().map(Bucket::first).min().unwrap_or(Rank::LAST).min(self.residue.best_rank())
    }

    /// Visits all rules in no order.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a E)) {
        self.buckets().for_each(|bucket| bucket.each(visit));
        self.residue.each(visit);
    }

    pub(super) fn depth(&self) -> u32 {
        1 + self.buckets().map(Bucket::depth).max().unwrap_or(0).max(self.residue.depth())
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.tuples.iter().map(Tuple::memory).sum::<usize>()
            + self.residue.memory()
    }

    fn buckets(&self) -> impl Iterator<Item = &Bucket<W, E>> {
        self.tuples.iter().flat_map(Tuple::buckets)
    }
}

#[cfg(test)]
mod tests;

//! Policies of some hashes of a tier.

use std::sync::Arc;

use uxfrm_packet::LANES;

use super::strip::Strip;
use crate::PolicyEntry;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::planning::Planning;
use crate::spd::classifier::rule::{Best, Rank, Rule};
use crate::spd::classifier::ternary::{Key, Words};

/// Some policies.
#[derive(Clone, Debug)]
#[repr(align(32))]
pub(in crate::spd::classifier) enum Part<W: Words> {
    /// Compared all at once.
    Strip(Strip),
    /// More, or none.
    Deep(Node<W>),
}

impl<W: Words> Part<W> {
    /// Of rules in any order.
    pub(super) fn of(mut rules: Vec<&Rule<W>>) -> Self {
        if rules.is_empty() || rules.len() > LANES {
            return Self::Deep(Node::planned(rules));
        }
        rules.sort_by_key(|rule| rule.entry.place());
        let few: Vec<_> = rules.iter().map(|rule| (*rule).clone()).collect();
        Strip::of(&few).map_or_else(|| Self::Deep(Node::planned(rules)), Self::Strip)
    }

    /// Considers the first that fits.
    pub(in crate::spd::classifier) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        match self {
            Self::Strip(strip) => strip.find(key, best),
            Self::Deep(node) => node.find(key, best),
        }
    }

    pub(super) fn insert(&mut self, rule: Rule<W>, planning: Planning) {
        match self {
            Self::Deep(node) if node.len() > 0 => node.insert(rule, planning),
            Self::Strip(_) | Self::Deep(_) => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::of(rules.iter().collect());
            }
        }
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W>) {
        match self {
            Self::Strip(_) => {}
            Self::Deep(node) => node.prepare(rule),
        }
    }

    pub(super) fn remove(&mut self, rule: &Rule<W>) {
        match self {
            Self::Deep(node) if node.len() > LANES + 1 => node.remove(rule),
            Self::Strip(_) | Self::Deep(_) => {
                let mut rules = self.rules();
                rules.retain(|other| other.entry.place() != rule.entry.place());
                *self = Self::of(rules.iter().collect());
            }
        }
    }

    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W>) {
        match (&mut *self, newer) {
            (Self::Deep(own), Self::Deep(newer)) => own.follow(newer, rule),
            (Self::Strip(_), Self::Strip(_) | Self::Deep(_)) | (Self::Deep(_), Self::Strip(_)) => {
                self.clone_from(newer);
            }
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule<W>> {
        match self {
            Self::Strip(strip) => strip.entries().iter().map(Rule::of).collect(),
            Self::Deep(node) => node.rules(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Strip(strip) => strip.entries().len(),
            Self::Deep(node) => node.len(),
        }
    }

    pub(super) fn first(&self) -> Rank {
        match self {
            Self::Strip(strip) => {
                strip.entries().first().map_or(Rank::LAST, |entry| Rank::of(entry))
            }
            Self::Deep(node) => node.first_rank(),
        }
    }

    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        match self {
            Self::Strip(strip) => strip.entries().iter().for_each(visit),
            Self::Deep(node) => node.each(visit),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Strip(_) => 0,
            Self::Deep(node) => node.depth(),
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Strip(strip) => strip.memory(),
            Self::Deep(node) => node.memory(),
        }
    }
}

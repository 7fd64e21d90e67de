//! Nodes made of rules: planned, or as somebody else has chosen.

use std::sync::Arc;

use super::{Node, first_in, first_of, place};
use crate::spd::classifier::byte_bitvector::Matrix;
use crate::spd::classifier::compact_rule::{End, LeanOf};
use crate::spd::classifier::field_bitvector::Grid;
use crate::spd::classifier::plan::{LEAST, Plan, plan};
use crate::spd::classifier::rule::{Comparable, Rank, Rule};
use crate::spd::classifier::simd_leaf::several;
use crate::spd::classifier::ternary::Words;
use crate::spd::classifier::tuple_space::Sieve;
use crate::spd::classifier::window::Window;

impl<W: Words> Node<W> {
    /// The best node for rules, which may be in any order.
    pub(in crate::spd::classifier) fn of(rules: Vec<Rule<W>>) -> Self {
        Self::planned(rules.iter().collect())
    }

    /// The best node for rules, which may be in any order. They are copied where they come to stand and not on the way there: what that takes
    /// lay as holes between what stays.
    pub(in crate::spd::classifier) fn planned(mut rules: Vec<&Rule<W>>) -> Self {
        if rules.is_empty() {
            return Self::EMPTY;
        }
        let plan = plan(&rules);
        if let Plan::Cut(window) = plan {
            return Self::cut(window, rules);
        }
        rules.sort_by_key(|rule| rule.entry.place());
        let rules: Vec<_> = rules.into_iter().cloned().collect();
        match plan {
            Plan::Few => Self::few(rules),
            Plan::Several => Self::lean(&rules).unwrap_or_else(|| Self::several(&rules)),
            Plan::Many | Plan::Cut(_) => {
                let matrix = Arc::new(Matrix::of(&rules));
                Self::Many { first: first_of(&rules), matrix }
            }
        }
    }

    /// Of rules in their order.
    pub(super) fn few(rules: Vec<Rule<W>>) -> Self {
        Self::lean(&rules)
            .unwrap_or_else(|| Self::Few { first: first_of(&rules), rules: rules.into() })
    }

    /// Of rules in their order, if they are few and ask enough alike.
    pub(super) fn lean(rules: &[Rule<W>]) -> Option<Self> {
        let lean = (rules.len() <= LEAST).then(|| W::Lean::all(rules))??;
        Some(Self::Lean { first: first_of(rules), far: End::far(&rules[0]), rules: lean })
    }

    /// Of rules in their order.
    pub(super) fn several(rules: &[Rule<W>]) -> Self {
        Self::Several { first: first_of(rules), eights: several(rules) }
    }

    /// All at once by fields, unless they are too many.
    pub(in crate::spd::classifier) fn grid(mut rules: Vec<&Rule<W>>) -> Option<Self> {
        rules.sort_by_key(|rule| rule.entry.place());
        let first = rules.first().map_or(Rank::LAST, |rule| rule.rank());
        Some(Self::Grid { first, grid: Arc::new(Grid::of(&rules)?) })
    }

    /// All policies there are.
    pub(in crate::spd::classifier) fn sieve(sieve: Sieve<W>) -> Self {
        Self::Sieve { first: sieve.first(), sieve: Arc::new(sieve) }
    }

    /// What a window tells apart, and the rest.
    pub(in crate::spd::classifier) fn cut(window: Window, rules: Vec<&Rule<W>>) -> Self {
        let len = rules.len();
        let mut sets = Vec::new();
        sets.resize_with(window.parts() + 1, Vec::new);
        for rule in rules {
            sets[place(window, rule).0].push(rule);
        }
        let rest = !sets[window.parts()].is_empty();
        let tally = Self::Tally { first: Rank::LAST, len, planned: len };
        let nodes: Arc<[Self]> = sets.into_iter().map(Self::planned).chain([tally]).collect();
        Self::Cut { first: first_in(&nodes), window, rest, nodes }
    }
}

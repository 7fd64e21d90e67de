//! Builds nodes of rules: planned, or of a chosen kind.

use std::sync::Arc;

use super::{Node, first_in, first_of, place};
use crate::byte_bitvector::ByteBitvector;
use crate::compact_rule::CompactRules;
use crate::entry::Entry;
use crate::field_bitvector::FieldBitvector;
use crate::key::Words;
use crate::plan::{LEAST, Plan, plan};
use crate::rule::{MatchRule, Rank, Rule};
use crate::simd_leaf::build;
use crate::tuple_space::TupleSpace;
use crate::window::Window;

impl<W: Words, E: Entry> Node<W, E> {
    /// The best node for rules in any order.
    pub(crate) fn of(rules: Vec<Rule<W, E>>) -> Self {
        Self::planned(rules.iter().collect())
    }

    /// The best node for rules in any order. Rules are cloned only at their final place, which
    /// avoids holes in memory.
    pub(crate) fn planned(mut rules: Vec<&Rule<W, E>>) -> Self {
        if rules.is_empty() {
            return Self::EMPTY;
        }
        let plan = plan(&rules);
        if let Plan::Cut(window) = plan {
            return Self::cut(window, rules);
        }
        rules.sort_by_key(|rule| rule.entry.precedence());
        let rules: Vec<_> = rules.into_iter().cloned().collect();
        match plan {
            Plan::Linear => Self::linear(rules),
            Plan::Simd => Self::compact(&rules).unwrap_or_else(|| Self::simd(&rules)),
            Plan::Bitvector | Plan::Cut(_) => {
                let bits = Arc::new(ByteBitvector::of(&rules));
                Self::ByteBits { first: first_of(&rules), bits }
            }
        }
    }

    /// A leaf of rules in match order.
    pub(super) fn linear(rules: Vec<Rule<W, E>>) -> Self {
        Self::compact(&rules)
            .unwrap_or_else(|| Self::Linear { first: first_of(&rules), rules: rules.into() })
    }

    /// A compact leaf of rules in match order, if they are few and share a template.
    pub(super) fn compact(rules: &[Rule<W, E>]) -> Option<Self> {
        let compact = (rules.len() <= LEAST).then(|| W::Compact::<E>::all(rules))??;
        Some(Self::Compact {
            first: first_of(rules),
            far: rules[0].entry.far_end(),
            rules: compact,
        })
    }

    /// A leaf of rules in match order.
    pub(super) fn simd(rules: &[Rule<W, E>]) -> Self {
        Self::Simd { first: first_of(rules), blocks: build(rules) }
    }

    /// A field bit vector, unless there are too many rules.
    pub(crate) fn field_bitvector(mut rules: Vec<&Rule<W, E>>) -> Option<Self> {
        rules.sort_by_key(|rule| rule.entry.precedence());
        let first = rules.first().map_or(Rank::LAST, |rule| rule.rank());
        Some(Self::FieldBits { first, bits: Arc::new(FieldBitvector::of(&rules)?) })
    }

    /// A tuple space of all rules.
    pub(crate) fn tuple_space(space: TupleSpace<W, E>) -> Self {
        Self::TupleSpace { first: space.first(), space: Arc::new(space) }
    }

    /// A cut by a window.
    pub(crate) fn cut(window: Window, rules: Vec<&Rule<W, E>>) -> Self {
        let len = rules.len();
        let mut sets = Vec::new();
        sets.resize_with(window.fanout() + 1, Vec::new);
        for rule in rules {
            sets[place(window, rule).0].push(rule);
        }
        let rest = !sets[window.fanout()].is_empty();
        let update_counts = Self::Counts { first: Rank::LAST, len, planned: len };
        let nodes: Arc<[Self]> =
            sets.into_iter().map(Self::planned).chain([update_counts]).collect();
        Self::Cut { first: first_in(&nodes), window, rest, nodes }
    }
}

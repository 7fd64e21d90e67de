//! Builds nodes of rules: planned, or of a chosen kind.

use std::sync::Arc;

use super::{Node, first_in, first_of, place};
use crate::spd::classifier::byte_bitvector::ByteBitvector;
use crate::spd::classifier::compact_rule::{AddressEnd, CompactRules};
use crate::spd::classifier::field_bitvector::FieldBitvector;
use crate::spd::classifier::plan::{LEAST, Plan, plan};
use crate::spd::classifier::rule::{MatchRule, Rank, Rule};
use crate::spd::classifier::simd_leaf::build;
use crate::spd::classifier::ternary::Words;
use crate::spd::classifier::tuple_space::TupleSpace;
use crate::spd::classifier::window::Window;

impl<W: Words> Node<W> {
    /// The best node for rules in any order.
    pub(in crate::spd::classifier) fn of(rules: Vec<Rule<W>>) -> Self {
        Self::planned(rules.iter().collect())
    }

    /// The best node for rules in any order. Rules are cloned only at their final place, which
    /// avoids holes in memory.
    pub(in crate::spd::classifier) fn planned(mut rules: Vec<&Rule<W>>) -> Self {
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
    pub(super) fn linear(rules: Vec<Rule<W>>) -> Self {
        Self::compact(&rules)
            .unwrap_or_else(|| Self::Linear { first: first_of(&rules), rules: rules.into() })
    }

    /// A compact leaf of rules in match order, if they are few and share a template.
    pub(super) fn compact(rules: &[Rule<W>]) -> Option<Self> {
        let compact = (rules.len() <= LEAST).then(|| W::Compact::all(rules))??;
        Some(Self::Compact {
            first: first_of(rules),
            far: AddressEnd::far(&rules[0]),
            rules: compact,
        })
    }

    /// A leaf of rules in match order.
    pub(super) fn simd(rules: &[Rule<W>]) -> Self {
        Self::Simd { first: first_of(rules), blocks: build(rules) }
    }

    /// A field bit vector, unless there are too many rules.
    pub(in crate::spd::classifier) fn field_bitvector(mut rules: Vec<&Rule<W>>) -> Option<Self> {
        rules.sort_by_key(|rule| rule.entry.precedence());
        let first = rules.first().map_or(Rank::LAST, |rule| rule.rank());
        Some(Self::FieldBits { first, bits: Arc::new(FieldBitvector::of(&rules)?) })
    }

    /// A tuple space of all policies.
    pub(in crate::spd::classifier) fn tuple_space(space: TupleSpace<W>) -> Self {
        Self::TupleSpace { first: space.first(), space: Arc::new(space) }
    }

    /// A cut by a window.
    pub(in crate::spd::classifier) fn cut(window: Window, rules: Vec<&Rule<W>>) -> Self {
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

//! Chooses the cuts at the root by trial.
//!
//! A plan does not know what stands behind a cut. So several cuts are tried for each place at the
//! root: the resulting tree is built and its cost [estimated](super::cost_model). Further down a
//! bad cut costs less, and there are too many.

use std::sync::Arc;

use crate::cost_model::CostModel;
use crate::entry::Entry;
use crate::field_bitvector;
use crate::key::Words;
use crate::node::Node;
use crate::plan::cuts;
use crate::rule::Rule;
use crate::tuple_space::choice;

/// Larger trees take too long to build: some tens of milliseconds.
const MOST: usize = 32_768;
/// Cuts tried in each place.
const CUTS: usize = 11;
/// Saving in percent that justifies another tree, given the error of estimates.
const MARGIN: usize = 4;
/// Trees below this cost (tenths of a cycle) are kept as planned: each key follows one path.
const CHEAP: usize = 650;

/// The best root for all rules: a tree, a field bit vector or a tuple space.
pub(super) fn best_root<W: Words, E: Entry>(rules: Vec<Rule<W, E>>) -> Node<W, E> {
    let model = CostModel::of(&rules);
    let tree = best_tree(rules, &model);
    if let Some(bitvector) = field_bitvector::choice::best_bitvector(&tree, &model) {
        return bitvector;
    }
    let space = if tree.is_wide() { choice::best_tuple_space(&tree, &model) } else { None };
    space.unwrap_or(tree)
}

/// The best tree of cuts.
fn best_tree<W: Words, E: Entry>(rules: Vec<Rule<W, E>>, model: &CostModel<W>) -> Node<W, E> {
    if rules.len() > MOST {
        return Node::of(rules);
    }
    let planned = Node::of(rules);
    let estimate = |tree: &Node<W, E>| model.estimate(tree);
    if estimate(&planned) > CHEAP { improve_cut(planned, &estimate) } else { planned }
}

/// A root cut, or a better one for the same rules; `estimate` gives the cost of the whole tree.
fn improve_cut<W: Words, E: Entry>(
    node: Node<W, E>,
    estimate: &dyn Fn(&Node<W, E>) -> usize,
) -> Node<W, E> {
    let rules = node.rules();
    let enough = estimate(&node) * (100 - MARGIN) / 100;
    let rules: Vec<_> = rules.iter().collect();
    let others = cuts(&rules).into_iter().take(CUTS);
    let others = others.map(|window| Node::cut(window, rules.clone()));
    let cheapest = others.map(|other| (estimate(&other), other)).min_by_key(|(cost, _)| *cost);
    let node = cheapest.filter(|(cost, _)| *cost < enough).map_or(node, |(_, other)| other);
    let Some(rest) = rest(&node) else { return node };
    let rest = improve_cut(rest.clone(), &|rest| estimate(&with_rest(node.clone(), rest.clone())));
    with_rest(node, rest)
}

/// The rest of a cut, if any.
fn rest<W: Words, E: Entry>(node: &Node<W, E>) -> Option<&Node<W, E>> {
    match node {
        Node::Cut { rest: true, nodes, .. } => nodes.iter().nth_back(1),
        Node::Empty { .. }
        | Node::Linear { .. }
        | Node::Compact { .. }
        | Node::Simd { .. }
        | Node::ByteBits { .. }
        | Node::FieldBits { .. }
        | Node::TupleSpace { .. }
        | Node::Cut { .. }
        | Node::Counts { .. } => None,
    }
}

/// A cut with another rest.
fn with_rest<W: Words, E: Entry>(mut cut: Node<W, E>, other: Node<W, E>) -> Node<W, E> {
    if let Node::Cut { nodes, .. } = &mut cut
        && let [.., rest, _] = Arc::make_mut(nodes)
    {
        *rest = other;
    }
    cut
}

#[cfg(test)]
pub(super) mod tests;

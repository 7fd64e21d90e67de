//! Which cuts make the best trunk.
//!
//! A plan is made before anything is known of what stands behind a cut, so several cuts are tried for each place in a trunk: the tree that each
//! leads to is made, and [weighed](super::cost_model). In the branches a cut that is not the best costs less, and there are too many.

use std::sync::Arc;

use super::cost_model::CostModel;
use super::field_bitvector;
use super::node::Node;
use super::plan::cuts;
use super::rule::Rule;
use super::ternary::KeyWords;
use super::tuple_space::choice;

/// With more policies each tree takes too long to make, some tens of milliseconds.
const MOST: usize = 32_768;
/// So many cuts are tried in each place.
const CUTS: usize = 11;
/// Another tree must save so many hundredths, as weights err.
const MARGIN: usize = 4;
/// A tree that costs no more, in tenths of a cycle, leads each packet to one place, and is left as it was planned.
const CHEAP: usize = 650;

/// The best tree, grid or sieve for rules that are all there is.
pub(super) fn best_root<W: KeyWords>(rules: Vec<Rule<W>>) -> Node<W> {
    let model = CostModel::of(&rules);
    let tree = best_tree(rules, &model);
    if let Some(bitvector) = field_bitvector::choice::best_bitvector(&tree, &model) {
        return bitvector;
    }
    let space = if tree.is_wide() { choice::best_tuple_space(&tree, &model) } else { None };
    space.unwrap_or(tree)
}

/// The best tree of cuts.
fn best_tree<W: KeyWords>(rules: Vec<Rule<W>>, model: &CostModel<W>) -> Node<W> {
    if rules.len() > MOST {
        return Node::of(rules);
    }
    let planned = Node::of(rules);
    let estimate = |tree: &Node<W>| model.estimate(tree);
    if estimate(&planned) > CHEAP { improve_cut(planned, &estimate) } else { planned }
}

/// A node of a trunk, or a better one for the same rules; `estimate` tells what the whole tree costs with it.
fn improve_cut<W: KeyWords>(node: Node<W>, estimate: &dyn Fn(&Node<W>) -> usize) -> Node<W> {
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

/// What a cut leaves, if it leaves any.
fn rest<W: KeyWords>(node: &Node<W>) -> Option<&Node<W>> {
    match node {
        Node::Cut { rest: true, nodes, .. } => nodes.iter().nth_back(1),
        Node::Empty { .. }
        | Node::Linear { .. }
        | Node::Compact { .. }
        | Node::Simd { .. }
        | Node::ByteBitvector { .. }
        | Node::FieldBitvector { .. }
        | Node::TupleSpace { .. }
        | Node::Cut { .. }
        | Node::Counts { .. } => None,
    }
}

/// A cut with another tree of the policies that it leaves.
fn with_rest<W: KeyWords>(mut cut: Node<W>, other: Node<W>) -> Node<W> {
    if let Node::Cut { nodes, .. } = &mut cut
        && let [.., rest, _] = Arc::make_mut(nodes)
    {
        *rest = other;
    }
    cut
}

#[cfg(test)]
pub(super) mod tests;

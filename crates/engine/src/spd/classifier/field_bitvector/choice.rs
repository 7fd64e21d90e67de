//! Whether a grid is better than a tree of cuts.

use crate::spd::classifier::cost_model::Scale;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::ternary::Words;

/// With fewer policies a tree or a matrix is as quick, and takes less memory. Of IPv6 a tree reads more.
const LEAST_V4: usize = 512;
const LEAST_V6: usize = 64;

/// A grid of a tree's policies, if it is better than the tree.
pub(in crate::spd::classifier) fn grid<W: Words>(
    tree: &Node<W>,
    scale: &Scale<W>,
) -> Option<Node<W>> {
    let least = if W::COUNT == 2 { LEAST_V4 } else { LEAST_V6 };
    if tree.len() < least {
        return None;
    }
    let rules = tree.rules();
    let grid = Node::grid(rules.iter().collect())?;
    let is_better = is_quick(&grid) && scale.weigh(&grid) < scale.weigh(tree);
    is_better.then_some(grid)
}

/// Whether a grid takes what it weighs. Of IPv6 that was only measured where processors have what its trie needs.
fn is_quick<W: Words>(node: &Node<W>) -> bool {
    match node {
        Node::Grid { grid, .. } => W::COUNT == 2 || grid.is_fast(),
        Node::Empty { .. }
        | Node::Few { .. }
        | Node::Lean { .. }
        | Node::Several { .. }
        | Node::Many { .. }
        | Node::Cut { .. }
        | Node::Sieve { .. }
        | Node::Tally { .. } => false,
    }
}

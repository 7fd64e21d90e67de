//! Whether a grid is better than a tree of cuts.

use crate::spd::classifier::node::Node;
use crate::spd::classifier::ternary::Words;
use crate::spd::classifier::weigh::Scale;

/// With fewer policies a tree or a matrix is as quick, and takes less memory.
const LEAST: usize = 512;

/// A grid of a tree's policies, if it is better than the tree.
pub(in crate::spd::classifier) fn grid<W: Words>(
    tree: &Node<W>,
    scale: &Scale<W>,
) -> Option<Node<W>> {
    if tree.len() < LEAST {
        return None;
    }
    let rules = tree.rules();
    let grid = Node::grid(rules.iter().collect())?;
    let is_better = match W::COUNT {
        2 => scale.weigh(&grid) < scale.weigh(tree),
        // Searches for two words take longer, and weights err by more than what is won. By measuring both: grids win where each packet meets one cut,
        // and rows for most bytes of addresses behind it; not where several cuts part policies further.
        _ => tree.is_wide() && tree.depth() == 1,
    };
    is_better.then_some(grid)
}

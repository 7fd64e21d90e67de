//! Whether a field bit vector is better than a tree of cuts.

use crate::cost_model::CostModel;
use crate::entry::Entry;
use crate::key::Words;
use crate::node::Node;

/// With fewer rules a tree or byte bit vector is as fast and smaller. For IPv6 a tree reads
/// more.
const LEAST_V4: usize = 512;
const LEAST_V6: usize = 64;

/// A field bit vector of a tree's rules, if it is better than the tree.
pub(crate) fn best_bitvector<W: Words, E: Entry>(
    tree: &Node<W, E>,
    model: &CostModel<W>,
) -> Option<Node<W, E>> {
    let least = if W::COUNT == 2 { LEAST_V4 } else { LEAST_V6 };
    if tree.len() < least {
        return None;
    }
    let rules = tree.rules();
    let bitvector = Node::field_bitvector(rules.iter().collect())?;
    let is_better = fits_estimate(&bitvector) && model.estimate(&bitvector) < model.estimate(tree);
    is_better.then_some(bitvector)
}

/// Whether the cost estimate holds: for IPv6 it was measured with AVX-512 only.
fn fits_estimate<W: Words, E: Entry>(node: &Node<W, E>) -> bool {
    match node {
        Node::FieldBits { bits, .. } => W::COUNT == 2 || bits.is_fast(),
        Node::Empty { .. }
        | Node::Linear { .. }
        | Node::Compact { .. }
        | Node::Simd { .. }
        | Node::ByteBits { .. }
        | Node::Cut { .. }
        | Node::TupleSpace { .. }
        | Node::Counts { .. } => false,
    }
}

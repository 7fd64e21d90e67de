//! Whether a tuple space is better than a tree of cuts.

use super::{SearchOrder, SelectedMask, TupleCosts, TupleSpace, select_masks};
use crate::cost_model::CostModel;
use crate::entry::Entry;
use crate::key::Words;
use crate::node::Node;
use crate::rule::Rule;

/// With fewer rules a tree is faster, and soon replanned when it grows. With more, planning
/// takes too long and buckets become large, which hurts the worst case.
const SIZES: std::ops::RangeInclusive<usize> = 4097..=1 << 17;
/// Cost assumptions of the candidate plans.
const COSTS: [TupleCosts; 2] = [
    TupleCosts { tuple: 40, buckets: [350, 430, 530, 700] },
    TupleCosts { tuple: 40, buckets: [220, 330, 400, 450] },
];
/// Cost assumptions of finer tuples, tried only up to [`FINE`] rules: beyond, planning takes
/// long and estimates are weak.
const FINE_COSTS: [TupleCosts; 2] = [
    TupleCosts { tuple: 40, buckets: [350, 800, 1000, 1100] },
    TupleCosts { tuple: 30, buckets: [340, 460, 650, 800] },
];
const FINE: usize = 1 << 15;
/// Upper limits of the residue, which is compared by bit vectors at a cost per line.
const RESIDUE: [usize; 2] = [512, 1024];
/// Measured cost of a tuple space relative to a tree of equal estimate, in percent (26 sets).
const WEIGHT_V4: usize = 76;
const WEIGHT_V6: usize = 100;

/// The best tuple space for a tree's rules, if it is better than the tree.
pub(crate) fn best_tuple_space<W: Words, E: Entry>(
    tree: &Node<W, E>,
    model: &CostModel<W>,
) -> Option<Node<W, E>> {
    if !SIZES.contains(&tree.len()) {
        return None;
    }
    let rules = tree.rules();
    let rules: Vec<_> = rules.iter().collect();
    let fine = FINE_COSTS.into_iter().filter(|_| rules.len() <= FINE);
    let candidates =
        COSTS.into_iter().chain(fine).flat_map(|costs| candidates(&rules, model, costs));
    let both = |space: TupleSpace<W, E>| {
        [SearchOrder::ResidueFirst, SearchOrder::TuplesFirst]
            .map(|search_order| space.clone().with_search_order(search_order))
    };
    let weighed =
        candidates.flat_map(both).map(|space| (model.estimate_tuple_space(&space), space));
    let (weight, best) = weighed.min_by_key(|(weight, _)| *weight)?;
    let hundredths = if W::COUNT == 2 { WEIGHT_V4 } else { WEIGHT_V6 };
    let is_better = weight * hundredths < model.estimate(tree) * 100;
    is_better.then(|| Node::tuple_space(best))
}

/// Tuple spaces with the masks selected under some costs.
fn candidates<W: Words, E: Entry>(
    rules: &[&Rule<W, E>],
    model: &CostModel<W>,
    costs: TupleCosts,
) -> impl Iterator<Item = TupleSpace<W, E>> {
    let selected: Vec<SelectedMask<W>> = select_masks(rules, model.keys(), costs);
    let count = |residue: usize| {
        let enough = selected.iter().position(|(_, left)| *left <= residue);
        enough.map_or(selected.len(), |at| at + 1)
    };
    let mut counts = RESIDUE.map(count).to_vec();
    counts.dedup();
    let masks: Vec<W> = selected.into_iter().map(|(mask, _)| mask).collect();
    let of = move |count: usize| TupleSpace::of(&masks[..count], rules.to_vec());
    counts.into_iter().map(of)
}

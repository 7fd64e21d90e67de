//! Whether a sieve is better than a tree of cuts.

use super::{SearchOrder, SelectedMask, TupleCosts, TupleSpace, select_masks};
use crate::spd::classifier::cost_model::CostModel;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::rule::Rule;
use crate::spd::classifier::ternary::KeyWords;

/// With fewer policies a tree is quicker, and soon planned anew when they become more; with more a plan takes too long, and parts of tiers are so large that worse packets take far longer.
const SIZES: std::ops::RangeInclusive<usize> = 4097..=1 << 17;
/// What different drafts are made with.
const COSTS: [TupleCosts; 2] = [
    TupleCosts { tuple: 40, buckets: [350, 430, 530, 700] },
    TupleCosts { tuple: 40, buckets: [220, 330, 400, 450] },
];
/// Those of finer tiers, which are only tried with so many policies: with more, drafts take long, and weights tell less.
const FINE_COSTS: [TupleCosts; 2] = [
    TupleCosts { tuple: 40, buckets: [350, 800, 1000, 1100] },
    TupleCosts { tuple: 30, buckets: [340, 460, 650, 800] },
];
const FINE: usize = 1 << 15;
/// So many may be left for the end: what is left is compared all at once, which costs by the line.
const RESIDUE: [usize; 2] = [512, 1024];
/// What a sieve of the same weight takes in place of a tree, in hundredths: by measuring both of 26 sets.
const WEIGHT_V4: usize = 76;
const WEIGHT_V6: usize = 100;

/// The best sieve for a tree's policies, if it is better than the tree.
pub(in crate::spd::classifier) fn best_tuple_space<W: KeyWords>(
    tree: &Node<W>,
    model: &CostModel<W>,
) -> Option<Node<W>> {
    if !SIZES.contains(&tree.len()) {
        return None;
    }
    let rules = tree.rules();
    let rules: Vec<_> = rules.iter().collect();
    let fine = FINE_COSTS.into_iter().filter(|_| rules.len() <= FINE);
    let candidates =
        COSTS.into_iter().chain(fine).flat_map(|costs| candidates(&rules, model, costs));
    let both = |space: TupleSpace<W>| {
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

/// Those that a draft comes to.
fn candidates<W: KeyWords>(
    rules: &[&Rule<W>],
    model: &CostModel<W>,
    costs: TupleCosts,
) -> impl Iterator<Item = TupleSpace<W>> {
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

//! Whether a sieve is better than a tree of cuts.

use super::{Beginning, Drafted, Prices, Sieve, draft};
use crate::spd::classifier::cost_model::Scale;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::rule::Rule;
use crate::spd::classifier::ternary::Words;

/// With fewer policies a tree is quicker, and soon planned anew when they become more; with more a plan takes too long, and parts of tiers are so large that worse packets take far longer.
const SIZES: std::ops::RangeInclusive<usize> = 4097..=1 << 17;
/// What different drafts are made with.
const PRICES: [Prices; 2] = [
    Prices { tier: 40, parts: [350, 430, 530, 700] },
    Prices { tier: 40, parts: [220, 330, 400, 450] },
];
/// Those of finer tiers, which are only tried with so many policies: with more, drafts take long, and weights tell less.
const FINE_PRICES: [Prices; 2] = [
    Prices { tier: 40, parts: [350, 800, 1000, 1100] },
    Prices { tier: 30, parts: [340, 460, 650, 800] },
];
const FINE: usize = 1 << 15;
/// So many may be left for the end: what is left is compared all at once, which costs by the line.
const LAST: [usize; 2] = [512, 1024];
/// What a sieve of the same weight takes in place of a tree, in hundredths: by measuring both of 26 sets.
const WEIGHT_V4: usize = 76;
const WEIGHT_V6: usize = 100;

/// The best sieve for a tree's policies, if it is better than the tree.
pub(in crate::spd::classifier) fn sieve<W: Words>(
    tree: &Node<W>,
    scale: &Scale<W>,
) -> Option<Node<W>> {
    if !SIZES.contains(&tree.len()) {
        return None;
    }
    let rules = tree.rules();
    let rules: Vec<_> = rules.iter().collect();
    let fine = FINE_PRICES.into_iter().filter(|_| rules.len() <= FINE);
    let sieves = PRICES.into_iter().chain(fine).flat_map(|prices| sieves(&rules, scale, prices));
    let both = |sieve: Sieve<W>| {
        [Beginning::Last, Beginning::Tiers].map(|beginning| sieve.clone().beginning_with(beginning))
    };
    let weighed = sieves.flat_map(both).map(|sieve| (scale.weigh_sieve(&sieve), sieve));
    let (weight, best) = weighed.min_by_key(|(weight, _)| *weight)?;
    let hundredths = if W::COUNT == 2 { WEIGHT_V4 } else { WEIGHT_V6 };
    let is_better = weight * hundredths < scale.weigh(tree) * 100;
    is_better.then(|| Node::sieve(best))
}

/// Those that a draft comes to.
fn sieves<W: Words>(
    rules: &[&Rule<W>],
    scale: &Scale<W>,
    prices: Prices,
) -> impl Iterator<Item = Sieve<W>> {
    let drafted: Vec<Drafted<W>> = draft(rules, scale.keys(), prices);
    let count = |last: usize| {
        let enough = drafted.iter().position(|(_, left)| *left <= last);
        enough.map_or(drafted.len(), |at| at + 1)
    };
    let mut counts = LAST.map(count).to_vec();
    counts.dedup();
    let masks: Vec<W> = drafted.into_iter().map(|(mask, _)| mask).collect();
    let of = move |count: usize| Sieve::of(&masks[..count], rules.to_vec());
    counts.into_iter().map(of)
}

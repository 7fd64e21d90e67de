use proptest::prelude::*;

use super::prefix_lengths::PrefixLengths;
use super::*;
use crate::LOOKUP_BATCH;
use crate::cost_model::CostModel;
use crate::index::Index;
use crate::key::{V4, V6};
use crate::node::tests::check_from;
use crate::root_cuts::tests::firewall;
use crate::rule::{MatchRule, fits_extra};
use crate::test_rules::{Family, TestEntry, keys, rules, selectors};

fn node<W: Words>(
    masks: &[W],
    rules: &[Rule<W, TestEntry>],
    search_order: SearchOrder,
) -> Node<W, TestEntry> {
    Node::tuple_space(TupleSpace::of(masks, rules.iter().collect()).with_search_order(search_order))
}

fn beginnings() -> impl Strategy<Value = SearchOrder> {
    prop::sample::select(vec![SearchOrder::ResidueFirst, SearchOrder::TuplesFirst])
}

/// Masks of few lengths, which selectors have more bits than, the same, or fewer.
fn masks() -> impl Strategy<Value = Vec<PrefixLengths>> {
    let address = || prop::sample::select(vec![0, 8, 16, 31, 32]);
    let port = || prop::sample::select(vec![0, 0, 8, 16]);
    let protocol = prop::sample::select(vec![0, 8]);
    let lengths = (address(), address(), port(), port(), protocol);
    let lengths =
        lengths.prop_map(|(to, from, a, b, protocol)| PrefixLengths([to, from, a, b, protocol]));
    prop::collection::vec(lengths, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv4_lookup_agrees_with_scan(
        all in prop::collection::vec(selectors(Family::V4), 1..500),
        masks in masks(),
        search_order in beginnings(),
        later in 0_usize..40,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V4>(Family::V4), 1..70),
    ) {
        let mut rules = rules(all);
        let coming = rules.split_off(rules.len() - later.min(rules.len() / 2));
        let masks: Vec<_> = masks.into_iter().map(PrefixLengths::mask).collect();
        check_from(node(&masks, &rules, search_order), rules, coming, &gone, &keys);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv6_lookup_agrees_with_scan(
        all in prop::collection::vec(selectors(Family::V6), 1..400),
        masks in masks(),
        search_order in beginnings(),
        later in 0_usize..40,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V6>(Family::V6), 1..70),
    ) {
        let mut rules = rules(all);
        let coming = rules.split_off(rules.len() - later.min(rules.len() / 2));
        let masks: Vec<_> = masks.into_iter().map(PrefixLengths::mask).collect();
        check_from(node(&masks, &rules, search_order), rules, coming, &gone, &keys);
    }
}

/// Every rule stands in a tier or behind them all, and keys find the first.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn tuple_space_of_selected_masks_agrees_with_scan() {
    let rules = firewall(5000);
    let model = CostModel::of(&rules);
    let costs = TupleCosts { tuple: 40, buckets: [350, 430, 530, 700] };
    let selected = select_masks(&rules.iter().collect::<Vec<_>>(), model.keys(), costs);
    let masks: Vec<_> = selected.iter().map(|(mask, _)| *mask).collect();
    assert!((2..=12).contains(&masks.len()), "{}", masks.len());
    let space = TupleSpace::of(&masks, rules.iter().collect());
    assert_eq!(space.residue().len(), selected.last().unwrap().1);
    let mut shown = 0;
    space.each(&mut |_| shown += 1);
    assert_eq!(shown, rules.len());
    let place = |best: Best<'_, TestEntry>| best.entry().map(|entry| entry.precedence());
    let first = |key: &Key<_>| {
        let fits =
            |rule: &&Rule<_, TestEntry>| rule.fits(&key.words) && fits_extra(&rule.entry, key);
        rules.iter().filter(fits).map(|rule| rule.entry.precedence()).min()
    };
    let firsts: Vec<_> = model.keys().iter().map(first).collect();
    for search_order in [SearchOrder::ResidueFirst, SearchOrder::TuplesFirst] {
        let space = space.clone().with_search_order(search_order);
        let alone = model.keys().iter().map(|key| {
            let mut best = Best::NONE;
            space.find(key, &mut best);
            place(best)
        });
        assert!(alone.eq(firsts.iter().copied()), "{search_order:?}");
        let index = Index(Node::tuple_space(space.clone()));
        let mut are_picked = false;
        for (keys, firsts) in model.keys().chunks(LOOKUP_BATCH).zip(firsts.chunks(LOOKUP_BATCH)) {
            let mut bests = [Best::NONE; LOOKUP_BATCH];
            index.lookup_batch(keys, &mut bests);
            assert!(bests.iter().map(|best| place(*best)).zip(firsts).all(|(a, b)| a == *b));
            let passes = |best: &&Best<'_, TestEntry>| best.precedes(space.residue().best_rank());
            are_picked |= (1..keys.len()).contains(&bests.iter().filter(passes).count());
        }
        assert!(are_picked, "some keys need not look behind the tuples, and others must");
    }
}

#[test]
fn rank16_is_monotonic() {
    let ranks = || firewall(300).into_iter().map(|rule| rule.rank());
    let mut all: Vec<_> = ranks().collect();
    all.sort_unstable();
    let rank16 = Rank16::spanning(all.iter().copied());
    assert!(all.windows(2).all(|two| rank16.of(two[0]) <= rank16.of(two[1])));
    assert_eq!(rank16.of(all[0]), 0);
    assert!(rank16.of(Rank::LAST) >= rank16.of(all[all.len() - 1]));
    assert!(rank16.of(Rank::LAST) < crate::prefilter_table::NO_RANK);
}

#[test]
fn prefix_lengths_round_trip_through_mask() {
    let all = [[0; 5], [32, 32, 16, 16, 8], [1, 31, 3, 0, 8], [9, 0, 0, 5, 0]].map(PrefixLengths);
    for lengths in all {
        assert_eq!(PrefixLengths::of(&lengths.mask::<[u64; 2]>()), lengths);
        assert_eq!(PrefixLengths::of(&lengths.mask::<[u64; 5]>()), lengths);
    }
    let long = PrefixLengths([65, 128, 0, 16, 8]);
    assert_eq!(PrefixLengths::of(&long.mask::<[u64; 5]>()), long);
}

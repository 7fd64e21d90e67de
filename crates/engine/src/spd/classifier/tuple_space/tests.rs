use proptest::prelude::*;

use super::prefix_lengths::Lengths;
use super::*;
use crate::Family;
use crate::spd::classifier::TOGETHER;
use crate::spd::classifier::byte_bitvector::tests::{flows, rules, selectors};
use crate::spd::classifier::cost_model::Scale;
use crate::spd::classifier::node::tests::{check_from, v4, v6};
use crate::spd::classifier::root_cuts::tests::firewall;
use crate::spd::classifier::rule::fits_more;

fn node<W: Words>(masks: &[W], rules: &[Rule<W>], beginning: Beginning) -> Node<W> {
    Node::sieve(Sieve::of(masks, rules.iter().collect()).beginning_with(beginning))
}

fn beginnings() -> impl Strategy<Value = Beginning> {
    prop::sample::select(vec![Beginning::Last, Beginning::Tiers])
}

/// Masks of few lengths, which selectors have more bits than, the same, or fewer.
fn masks() -> impl Strategy<Value = Vec<Lengths>> {
    let address = || prop::sample::select(vec![0, 8, 16, 31, 32]);
    let port = || prop::sample::select(vec![0, 0, 8, 16]);
    let protocol = prop::sample::select(vec![0, 8]);
    let lengths = (address(), address(), port(), port(), protocol);
    let lengths =
        lengths.prop_map(|(to, from, a, b, protocol)| Lengths([to, from, a, b, protocol]));
    prop::collection::vec(lengths, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ipv4_is_found_as_by_a_look_at_every_rule(
        policies in prop::collection::vec(selectors(Family::V4), 1..500),
        masks in masks(),
        beginning in beginnings(),
        later in 0_usize..40,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        flows in prop::collection::vec(flows(Family::V4), 1..70),
    ) {
        let mut rules = rules(policies);
        let coming = rules.split_off(rules.len() - later.min(rules.len() / 2));
        let masks: Vec<_> = masks.into_iter().map(Lengths::mask).collect();
        let keys: Vec<_> = flows.iter().filter_map(v4).collect();
        check_from(node(&masks, &rules, beginning), rules, coming, &gone, &keys);
    }

    #[test]
    fn ipv6_is_found_as_by_a_look_at_every_rule(
        policies in prop::collection::vec(selectors(Family::V6), 1..400),
        masks in masks(),
        beginning in beginnings(),
        later in 0_usize..40,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        flows in prop::collection::vec(flows(Family::V6), 1..70),
    ) {
        let mut rules = rules(policies);
        let coming = rules.split_off(rules.len() - later.min(rules.len() / 2));
        let masks: Vec<_> = masks.into_iter().map(Lengths::mask).collect();
        let keys: Vec<_> = flows.iter().filter_map(v6).collect();
        check_from(node(&masks, &rules, beginning), rules, coming, &gone, &keys);
    }
}

/// Every policy stands in a tier or behind them all, and packets find the first.
#[test]
fn drafts_make_sieves_that_find_what_a_scan_finds() {
    let rules = firewall(5000);
    let scale = Scale::of(&rules);
    let prices = Prices { tier: 40, parts: [350, 430, 530, 700] };
    let drafted = draft(&rules.iter().collect::<Vec<_>>(), scale.keys(), prices);
    let masks: Vec<_> = drafted.iter().map(|(mask, _)| *mask).collect();
    assert!((2..=12).contains(&masks.len()), "{}", masks.len());
    let sieve = Sieve::of(&masks, rules.iter().collect());
    assert_eq!(sieve.last().len(), drafted.last().unwrap().1);
    let mut shown = 0;
    sieve.each(&mut |_| shown += 1);
    assert_eq!(shown, rules.len());
    let place = |best: Best<'_>| best.entry().map(|entry| entry.place());
    let first = |key: &Key<_>| {
        let fits = |rule: &&Rule<_>| rule.fits(&key.words) && fits_more(&rule.entry, key);
        rules.iter().filter(fits).map(|rule| rule.entry.place()).min()
    };
    let firsts: Vec<_> = scale.keys().iter().map(first).collect();
    for beginning in [Beginning::Last, Beginning::Tiers] {
        let sieve = sieve.clone().beginning_with(beginning);
        let alone = scale.keys().iter().map(|key| {
            let mut best = Best::NONE;
            sieve.find(key, &mut best);
            place(best)
        });
        assert!(alone.eq(firsts.iter().copied()), "{beginning:?}");
        let node = Node::sieve(sieve.clone());
        let mut are_picked = false;
        for (keys, firsts) in scale.keys().chunks(TOGETHER).zip(firsts.chunks(TOGETHER)) {
            let mut bests = [Best::NONE; TOGETHER];
            node.find_each(keys, &mut bests);
            assert!(bests.iter().map(|best| place(*best)).zip(firsts).all(|(a, b)| a == *b));
            let passes = |best: &&Best<'_>| best.stands_before(sieve.last().first_rank());
            are_picked |= (1..keys.len()).contains(&bests.iter().filter(passes).count());
        }
        assert!(are_picked, "some packets need not look behind the tiers, and others must");
    }
}

#[test]
fn levels_are_in_the_order_of_ranks() {
    let ranks = || firewall(300).into_iter().map(|rule| rule.rank());
    let mut all: Vec<_> = ranks().collect();
    all.sort_unstable();
    let levels = Levels::among(all.iter().copied());
    assert!(all.windows(2).all(|two| levels.of(two[0]) <= levels.of(two[1])));
    assert_eq!(levels.of(all[0]), 0);
    assert!(levels.of(Rank::LAST) >= levels.of(all[all.len() - 1]));
    assert!(levels.of(Rank::LAST) < uxfrm_packet::NO_LEVEL);
}

#[test]
fn lengths_are_told_from_the_masks_that_they_make() {
    let all = [[0; 5], [32, 32, 16, 16, 8], [1, 31, 3, 0, 8], [9, 0, 0, 5, 0]].map(Lengths);
    for lengths in all {
        assert_eq!(Lengths::of(&lengths.mask::<[u64; 2]>()), lengths);
        assert_eq!(Lengths::of(&lengths.mask::<[u64; 5]>()), lengths);
    }
    let long = Lengths([65, 128, 0, 16, 8]);
    assert_eq!(Lengths::of(&long.mask::<[u64; 5]>()), long);
}

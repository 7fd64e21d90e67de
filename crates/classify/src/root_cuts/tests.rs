use super::*;
use crate::key::V4;
use crate::test_rules::{self, TestEntry, any as matches_all, numbers, rules, v4};
use crate::window::Window;

/// As a firewall's: often wide on one side, with services and blocks of ports.
pub(crate) fn firewall(count: u32) -> Vec<Rule<V4, TestEntry>> {
    let mut next = numbers();
    let rule = |at: u32| {
        let rule = matches_all(next(2 * count));
        let mut net = |lens: &[u32]| {
            let length = lens[next(u32::try_from(lens.len()).unwrap()) as usize];
            (v4(next(count / 16).wrapping_mul(0x9e37_79b1) ^ next(1 << 16)), length)
        };
        let rule = rule.from(net(&[0, 0, 0, 8, 16, 24, 32, 32]));
        let rule = rule.to(net(&[0, 0, 0, 8, 21, 24, 29, 32]));
        let rule = rule.protocol([6, 6, 17, 1][at as usize % 4]);
        let mask = [u16::MAX, 0xffc0, 0, 0][next(4) as usize];
        let port = u16::try_from(next(1 << 16)).unwrap() & mask;
        rule.ports([0, port], [0, mask])
    };
    rules((0..count).map(rule).collect())
}

/// Where the cuts of a trunk are.
fn windows(mut node: &Node<V4, TestEntry>) -> Vec<Window> {
    let mut windows = Vec::new();
    while let Node::Cut { window, nodes, .. } = node
        && let [.., rest, _] = &**nodes
    {
        windows.push(*window);
        node = rest;
    }
    windows
}

/// Not what was planned, and no other cut of what the first one leaves would be better either.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn root_cuts_cheapest_candidate_is_chosen() {
    let rules = firewall(10_000);
    let model = CostModel::of(&rules);
    let tree = best_tree(rules.clone(), &model);
    let cost = model.estimate(&tree);
    assert!(cost * 10 < model.estimate(&Node::of(rules)) * 6);
    let left = rest(&tree).unwrap().rules();
    let left: Vec<_> = left.iter().collect();
    for window in cuts(&left).into_iter().take(CUTS) {
        let other = with_rest(tree.clone(), Node::cut(window, left.clone()));
        assert!(model.estimate(&other) >= cost * (100 - MARGIN) / 100);
    }
}

/// Both would be others.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn root_cuts_large_and_cheap_trees_are_kept() {
    for count in [700, 33_000] {
        let rules = firewall(count);
        let planned = Node::of(rules.clone());
        let model = CostModel::of(&rules);
        let other = improve_cut(planned.clone(), &|tree| model.estimate(tree));
        assert_ne!(windows(&other), windows(&planned));
        assert_eq!(windows(&best_tree(rules, &model)), windows(&planned));
    }
}

/// Weights err by as much.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn root_cuts_saving_within_margin_is_ignored() {
    let planned = Node::of(firewall(700));
    let cuts_after = |others: usize| {
        let estimate = |tree: &Node<V4, TestEntry>| {
            if windows(tree) == windows(&planned) { 100 } else { others }
        };
        windows(&improve_cut(planned.clone(), &estimate))
    };
    assert_eq!(cuts_after(96), windows(&planned));
    assert_ne!(cuts_after(95), windows(&planned));
}

/// Where it is thought to be quicker by so much that it is, and never where a tree leads each
/// key to one place.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn root_cuts_faster_tuple_space_replaces_tree() {
    let rules = firewall(10_000);
    let model = CostModel::of(&rules);
    let tree_alone = best_tree(rules.clone(), &model);
    let Node::TupleSpace { space, .. } = best_root(rules.clone()) else { panic!("a tree") };
    assert!(model.estimate_tuple_space(&space) * 8 < model.estimate(&tree_alone) * 10);
    assert_eq!(space.len(), rules.len());
    let few = best_root(firewall(4000));
    assert!(!matches!(few, Node::TupleSpace { .. }), "too few");
    let network = |at: u32| matches_all(at).to((v4(at << 8), 24));
    let apart = best_root(test_rules::rules::<V4>((0..5000).map(network).collect()));
    assert!(!matches!(apart, Node::TupleSpace { .. }), "one place for each");
}

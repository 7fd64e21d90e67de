use super::*;
use crate::key::{UNUSED_BITS, V4};
use crate::rule::MatchRule;
use crate::test_rules::{TestEntry, any as matches_all, rules, v4};
use crate::window::Window;

/// Rules for one address each, and a wide one for all; with their priorities.
fn wide_and_narrow(wide: u32, narrow: u32) -> Vec<Rule<V4, TestEntry>> {
    let narrow = (0..64).map(|at| matches_all(narrow).to((v4(at << 24), 32)));
    rules(narrow.chain([matches_all(wide)]).collect())
}

#[test]
fn cost_model_packets_match_a_rule() {
    let rules = wide_and_narrow(2, 1);
    let CostModel(keys) = CostModel::of(&rules);
    assert_eq!(keys.len(), rules.len());
    for (key, rule) in keys.iter().zip(&rules) {
        assert!(rule.fits(&key.words));
        assert_eq!(key.words[1] & UNUSED_BITS, 0);
    }
    let CostModel(keys) = CostModel::of(&vec![rules; 100].concat());
    assert!((MODEL_KEYS / 2..=MODEL_KEYS).contains(&keys.len()));
    assert_eq!(
        CostModel::<V4>::of::<TestEntry>(&[]).estimate(&Node::<_, TestEntry>::default()),
        0,
        "nothing to estimate with"
    );
}

/// A key that has found the wide rule first passes by the narrow ones behind it.
#[test]
fn cost_model_pruned_branches_cost_nothing() {
    let estimate = |wide, narrow| {
        let rules = wide_and_narrow(wide, narrow);
        CostModel::of(&rules).estimate(&Node::cut(Window::new(0, 56, 6), rules.iter().collect()))
    };
    let (first, last) = (estimate(1, 2), estimate(2, 1));
    assert_eq!(first, PACKET + LAST_LEAF + ROOT_CUT);
    assert!(last >= first + LINEAR * 64 / 65, "{first} {last}");
}

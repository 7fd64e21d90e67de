use proptest::prelude::*;

use super::*;
use crate::key::{V4, V6};
use crate::node::Node;
use crate::node::tests::check_from;
use crate::replanning::ReplanTiming;
use crate::root_cuts;
use crate::test_rules::{Family, TestEntry, TestRule, any as matches_all, keys, rules, selectors};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Also where rows take several lines, and rules come, go, and are planned anew.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv4_lookup_agrees_with_scan(
        all in prop::collection::vec(selectors(Family::V4), 1..1400),
        later in 0_usize..150,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V4>(Family::V4), 1..70),
    ) {
        check(rules(all), later, &gone, &keys);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv6_lookup_agrees_with_scan(
        all in prop::collection::vec(selectors(Family::V6), 1..700),
        later in 0_usize..150,
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V6>(Family::V6), 1..70),
    ) {
        check(rules(all), later, &gone, &keys);
    }

    /// Of ranges, so that most share bits.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn field_bitvector_port_ranges_agree_with_scan(
        ranges in prop::collection::vec((selectors(Family::V4), 1_u16..20, any::<bool>()), 60..120),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V4>(Family::V4), 1..70),
    ) {
        let all = (0..).zip(&ranges).flat_map(|(at, range)| range_of(at, range)).collect();
        check(rules(all), 20, &gone, &keys);
    }
}

/// A grid of the first ones, to which the others come.
fn check<W: Words>(
    mut rules: Vec<Rule<W, TestEntry>>,
    later: usize,
    gone: &[prop::sample::Index],
    keys: &[Key<W>],
) {
    let coming = rules.split_off(rules.len() - later.min(rules.len() / 2));
    let node = Node::field_bitvector(rules.iter().collect()).unwrap();
    assert!(matches!(node, Node::FieldBits { .. }));
    check_from(node, rules, coming, gone, keys);
}

/// Rules that ask the same but of one port.
fn range_of(priority: u32, range: &(TestRule, u16, bool)) -> Vec<TestRule> {
    let (first, count, is_source) = range;
    let at = usize::from(!is_source);
    let port = |port: u16| {
        let mut rule = TestRule { priority, ..first.clone() };
        (rule.ternary.value.ports[at], rule.ternary.mask.ports[at]) = (8 * port, 0xfff8);
        rule
    };
    (0..*count).map(port).collect()
}

fn bitvector<W: Words>(rules: &[Rule<W, TestEntry>]) -> FieldBitvector<W, TestEntry> {
    let mut rules: Vec<_> = rules.iter().collect();
    rules.sort_by_key(|rule| rule.entry.precedence());
    FieldBitvector::of(&rules).unwrap()
}

fn port(port: u16) -> TestRule {
    matches_all(u32::from(port) / 16).protocol(17).ports([0, port], [0, u16::MAX])
}

/// Only where rows become shorter for it.
#[test]
fn field_bitvector_shares_bits_only_to_shorten_rows() {
    let few = bitvector::<V4>(&rules((0..512).map(port).collect()));
    assert_eq!((few.groups.len(), few.is_exact, few.lines()), (512, true, 2));
    let many = bitvector::<V4>(&rules((0..600).map(port).collect()));
    assert_eq!((many.groups.len(), many.is_exact, many.lines()), (75, false, 2));
    assert_eq!(many.rows.width(), 1, "a line of each, for protocol and port");
}

/// What comes is compared apart, but not for ever.
#[test]
fn field_bitvector_full_recent_leaf_replans() {
    let mut rules = rules::<V4>((0..400).map(port).collect());
    let more = rules.split_off(200);
    let mut node = Node::field_bitvector(rules.iter().collect()).unwrap();
    let apart = |node: &Node<V4, TestEntry>| {
        let Node::FieldBits { bits: bitvector, .. } = node else { panic!("no bitvector") };
        simd_leaf::count::<V4, TestEntry>(&bitvector.recent)
    };
    for (count, rule) in more.into_iter().enumerate() {
        assert_eq!(apart(&node), count % (MAX_RECENT + 1));
        node.insert(rule, ReplanTiming::Now);
    }
    node.prepare(&rules[0]);
    assert!(apart(&node) <= FEW_RECENT);
    assert_eq!(node.len(), 400);
}

#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn field_bitvector_too_many_rules_is_none() {
    // Neighbours of two protocols share no bits.
    let other = |at: u16| port(at * 16).protocol([6, 17][usize::from(at % 2)]);
    let rules = rules::<V4>((0..3000).map(other).collect());
    assert!(FieldBitvector::of(&rules.iter().collect::<Vec<_>>()).is_none());
}

/// A network of IPv6 among others, in a network of theirs.
fn nested(at: u16) -> TestRule {
    let word = |by: u16| at.wrapping_mul(by) >> 3;
    let address = [0x2001, at % 8, word(29), word(97), 1, 2, 3, word(577)];
    let address = address.iter().fold(0, |all, word| all << 16 | u128::from(*word));
    let length = [40, 48, 56, 64, 128][usize::from(at % 5)];
    matches_all(at.into()).to((address, length))
}

/// But neither few, nor where a processor has no quick way.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn field_bitvector_is_chosen_for_nested_ipv6_networks() {
    let of = |count: u16| rules::<V6>((0..count).map(nested).collect());
    let is_fast = bitvector(&of(64)).is_fast();
    let is_grid = |count: u16| matches!(root_cuts::best_root(of(count)), Node::FieldBits { .. });
    assert_eq!([63, 1500].map(is_grid), [false, is_fast]);
}

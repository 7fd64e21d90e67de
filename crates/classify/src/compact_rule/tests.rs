use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::LOOKUP_BATCH;
use crate::index::Index;
use crate::node::{Node, tests as nodes};
use crate::rule::Best;
use crate::test_rules::{Network, TestEntry, TestRule, any as matches_all, key, rules};

/// With templates, which those that have the same share.
fn templated(all: Vec<TestRule>) -> Vec<Rule<V6, TestEntry>> {
    let mut templates = HashSet::new();
    let with_template = |rule: TestRule| {
        let own = Arc::new(MaskTemplate::of(&rule.ternary, rule.far));
        let kept = templates.get(&own).cloned().unwrap_or(own);
        templates.insert(Arc::clone(&kept));
        TestRule { mask_template: Some(kept), ..rule }
    };
    rules(all.into_iter().map(with_template).collect())
}

fn address(net: u8, host: u8) -> u128 {
    (0xfd00 + u128::from(net)) << 112 | u128::from(host)
}

fn network(lens: &'static [u32]) -> impl Strategy<Value = Network> {
    (0_u8..3, 0_u8..8, prop::sample::select(lens))
        .prop_map(|(net, host, len)| (address(net, host), len))
}

/// A rule between two ends.
fn between(local: Network, remote: Network, far: AddressEnd, priority: u32) -> TestRule {
    let rule = TestRule { far, ..matches_all(priority) };
    match far {
        AddressEnd::Destination => rule.from(local).to(remote),
        AddressEnd::Source => rule.from(remote).to(local),
    }
}

/// Of one direction: few networks on this side, many on the other one.
fn sites(far: AddressEnd) -> impl Strategy<Value = TestRule> {
    let extra = prop_oneof![9 => Just((0, 0)), 1 => (0_u64..3, Just(3))];
    let rest = (prop_oneof![9 => Just(0_u8), 1 => Just(6)], extra, 0_u32..50);
    (network(&[0, 16]), network(&[8, 16, 64, 126, 127, 128]), rest).prop_map(
        move |(local, remote, (protocol, (value, mask), priority))| {
            between(local, remote, far, priority).protocol(protocol).extra(value, mask)
        },
    )
}

fn far_ends() -> impl Strategy<Value = AddressEnd> {
    prop::sample::select(vec![AddressEnd::Destination, AddressEnd::Source])
}

fn key_of(source: u128, destination: u128, protocol: u8, extra: u64) -> Key<V6> {
    key([source, destination], [1, 2], protocol, extra)
}

prop_compose! {
    fn some_key()(ends in [(0_u8..3, 0_u8..8), (0_u8..3, 0_u8..8)], protocol in prop::sample::select(vec![6, 17]), extra in 0_u64..4) -> Key<V6> {
        let [source, destination] = ends.map(|(net, host)| address(net, host));
        key_of(source, destination, protocol, extra)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// As nodes of whole rules do; also who is compared in full leaves and who goes with the last
    /// of a leaf.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn compact_rule_lookup_agrees_with_scan(
        all in far_ends().prop_flat_map(|far| prop::collection::vec(sites(far), 1..300)),
        first in prop::sample::select(vec![1, 4, 9, 70, 200]),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(some_key(), 1..70),
    ) {
        nodes::check(templated(all), first, &gone, &keys);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn compact_rule_expands_to_original(
        all in far_ends().prop_flat_map(|far| prop::collection::vec(sites(far), 1..40)),
    ) {
        for rule in templated(all) {
            let compact = CompactRule::of(&rule).unwrap();
            let expand = compact.expand(rule.entry.far_end());
            prop_assert_eq!((expand.value, expand.mask), (rule.value, rule.mask));
            prop_assert!(expand.entry.precedence() == rule.entry.precedence());
            prop_assert_eq!((compact.rank(), compact.tag_bits()), (rule.rank(), rule.tag_bits()));
        }
    }
}

fn site(host: u8, local: u8) -> TestRule {
    let (local, remote) = ((address(local, 0), 128), (address(0, host), 128));
    between(local, remote, AddressEnd::Destination, host.into())
}

#[test]
fn compact_leaf_is_used_when_remote_address_separates() {
    let alike = templated((0..9).map(|host| site(host, 1)).collect());
    assert!(matches!(Node::of(alike[..1].to_vec()), Node::Compact { .. }));
    assert!(matches!(Node::of(alike[..8].to_vec()), Node::Compact { .. }));
    assert!(!matches!(Node::of(alike), Node::Compact { .. }), "too many");
    let local = templated((0..4).map(|local| site(local, local)).collect());
    assert!(matches!(Node::of(local), Node::Linear { .. }));
    let few = rules::<V6>((0..4).map(|host| site(host, 1)).collect());
    assert!(matches!(Node::of(few), Node::Linear { .. }), "nobody shares a mask_template");
}

/// A leaf gets keys that nothing told apart by this side before: what is kept for all its
/// rules is compared as well.
#[test]
fn compact_leaf_compares_shared_fields() {
    let protected = |host| site(host, 1).protocol(6);
    let node = Node::of(templated((0..8).map(protected).collect()));
    assert!(matches!(node, Node::Compact { .. }));
    let index = Index(node);
    for (net, host, protocol, fits) in
        [(1, 0, 6, true), (2, 0, 6, false), (1, 1, 6, false), (1, 0, 17, false)]
    {
        for far in 0..8 {
            let key = key_of(address(net, host), address(0, far), protocol, 0);
            assert_eq!(
                index.lookup(&key).entry().is_some(),
                fits,
                "{net} {host} {protocol} to {far}"
            );
        }
    }
}

/// In leaves of a tree, which batches go down together.
#[test]
fn compact_leaf_batch_finds_each_rule() {
    for far in [AddressEnd::Destination, AddressEnd::Source] {
        let (here, there) = (address(1, 0), |host| address(0, host));
        let site = |host: u8| between((here, 128), (there(host), 128), far, host.into());
        let rules = templated((0..64).map(site).collect());
        let key = |host| match far {
            AddressEnd::Destination => key_of(here, there(host), 6, 0),
            AddressEnd::Source => key_of(there(host), here, 6, 0),
        };
        let keys: Vec<_> = (0..65).map(key).collect();
        let index = Index(Node::of(rules.clone()));
        for (round, keys) in keys.chunks(LOOKUP_BATCH).enumerate() {
            let mut bests = [Best::NONE; LOOKUP_BATCH];
            index.lookup_batch(keys, &mut bests);
            for (at, best) in bests.iter().enumerate().take(keys.len()) {
                let own = rules.get(round * LOOKUP_BATCH + at).map(|rule| rule.entry.precedence());
                assert_eq!(best.entry().map(Entry::precedence), own, "{far:?} {at}");
            }
        }
    }
}

/// Whoever counts on a shape writes to no line of its words.
#[test]
fn compact_rule_and_mask_template_sizes() {
    assert_eq!(
        (
            size_of::<CompactRule<TestEntry>>(),
            size_of::<MaskTemplate>(),
            align_of::<MaskTemplate>()
        ),
        (40, 64, 64)
    );
}

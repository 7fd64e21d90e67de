use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::spd::classifier::LOOKUP_BATCH;
use crate::spd::classifier::byte_bitvector::tests::rules;
use crate::spd::classifier::node::{Node, tests as nodes};
use crate::spd::classifier::rule::Best;
use crate::spd::table::tests::policy;
use crate::{FlowKey, Mark, Policy, PortMask, Prefix};

/// So many policies of IPv4 that shapes are kept of those that come behind them.
const OTHERS: u16 = 4096;

/// With rules of IPv6 alone.
fn among_many(policies: Vec<Policy>) -> Vec<Rule<V6>> {
    let other = |port| {
        let mut policy = policy(Direction::Forward, 1);
        policy.selector.source_port = PortMask::exactly(port);
        policy
    };
    let all = (0..OTHERS).map(other).chain(policies).collect();
    rules::<V4>(all).into_iter().skip(OTHERS.into()).map(|rule| Rule::of(&rule.entry)).collect()
}

fn address(net: u8, host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00 + u16::from(net), 0, 0, 0, 0, 0, 0, host.into()).into()
}

fn prefix(lens: &'static [u8]) -> impl Strategy<Value = Prefix> {
    (0_u8..3, 0_u8..8, prop::sample::select(lens))
        .prop_map(|(net, host, len)| Prefix::new(address(net, host), len).unwrap())
}

/// Of one direction: few networks on this side, many on the other one.
fn sites(direction: Direction) -> impl Strategy<Value = Policy> {
    let mark = prop_oneof![9 => Just((0, 0)), 1 => (0_u32..3, Just(3))];
    let rest = (prop_oneof![9 => Just(0_u8), 1 => Just(6)], mark, 0_u32..50);
    (prefix(&[0, 16]), prefix(&[8, 16, 64, 126, 127, 128]), rest).prop_map(
        move |(local, far, (protocol, (value, mask), priority))| {
            let (source, destination) = match AddressEnd::of(direction) {
                AddressEnd::Destination => (local, far),
                AddressEnd::Source => (far, local),
            };
            let any = Selector::any(crate::Family::V6);
            let selector = Selector { source, destination, protocol, ..any };
            Policy { selector, mark: Mark { value, mask }, ..policy(direction, priority) }
        },
    )
}

fn packet(source: IpAddr, destination: IpAddr, protocol: u8, mark: u32) -> Key<V6> {
    let (source_port, destination_port, if_id, ifindex) = (1, 2, 0, 0);
    let flow = FlowKey {
        source,
        destination,
        protocol,
        source_port,
        destination_port,
        mark,
        if_id,
        ifindex,
    };
    match (destination, source) {
        (IpAddr::V6(destination), IpAddr::V6(source)) => Key::v6(destination, source, &flow),
        _ => unreachable!("both are of IPv6"),
    }
}

prop_compose! {
    fn key()(ends in [(0_u8..3, 0_u8..8), (0_u8..3, 0_u8..8)], protocol in prop::sample::select(vec![6, 17]), mark in 0_u32..4) -> Key<V6> {
        let [source, destination] = ends.map(|(net, host)| address(net, host));
        packet(source, destination, protocol, mark)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// As nodes of whole rules do; also who is compared in full leaves and who goes with the last
    /// of a leaf.
    #[test]
    fn compact_rule_lookup_agrees_with_scan(
        policies in prop::sample::select(vec![Direction::Out, Direction::In])
            .prop_flat_map(|direction| prop::collection::vec(sites(direction), 1..300)),
        first in prop::sample::select(vec![1, 4, 9, 70, 200]),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(key(), 1..70),
    ) {
        nodes::check(among_many(policies), first, &gone, &keys);
    }

    #[test]
    fn compact_rule_expands_to_original(
        policies in prop::sample::select(vec![Direction::Out, Direction::Forward])
            .prop_flat_map(|direction| prop::collection::vec(sites(direction), 1..40)),
    ) {
        for rule in among_many(policies) {
            let compact = CompactRule::of(&rule).unwrap();
            let expand = compact.expand(AddressEnd::far(&rule));
            prop_assert_eq!((expand.value, expand.mask), (rule.value, rule.mask));
            prop_assert!(Arc::ptr_eq(&expand.entry, &rule.entry));
            prop_assert_eq!((compact.rank(), compact.verdict_bits()), (rule.rank(), rule.verdict_bits()));
        }
    }
}

fn site(host: u8, local: u8) -> Policy {
    let mut policy = policy(Direction::Out, host.into());
    policy.selector = Selector::any(crate::Family::V6);
    policy.selector.source = Prefix::host(address(local, 0));
    policy.selector.destination = Prefix::host(address(0, host));
    policy
}

#[test]
fn compact_leaf_is_used_when_remote_address_separates() {
    let alike = among_many((0..9).map(|host| site(host, 1)).collect());
    assert!(matches!(Node::of(alike[..1].to_vec()), Node::Compact { .. }));
    assert!(matches!(Node::of(alike[..8].to_vec()), Node::Compact { .. }));
    assert!(!matches!(Node::of(alike), Node::Compact { .. }), "too many");
    let local = among_many((0..4).map(|local| site(local, local)).collect());
    assert!(matches!(Node::of(local), Node::Linear { .. }));
    let few = rules::<V6>((0..4).map(|host| site(host, 1)).collect());
    assert!(matches!(Node::of(few), Node::Linear { .. }), "nobody shares a mask_template");
}

/// A leaf gets packets that nothing told apart by this side before: what is kept for all its
/// policies is compared as well.
#[test]
fn compact_leaf_compares_shared_fields() {
    let protected = |host| {
        let mut policy = site(host, 1);
        policy.selector.protocol = 6;
        policy
    };
    let node = Node::of(among_many((0..8).map(protected).collect()));
    assert!(matches!(node, Node::Compact { .. }));
    for (net, host, protocol, fits) in
        [(1, 0, 6, true), (2, 0, 6, false), (1, 1, 6, false), (1, 0, 17, false)]
    {
        for far in 0..8 {
            let key = packet(address(net, host), address(0, far), protocol, 0);
            assert_eq!(
                node.first(&key).entry().is_some(),
                fits,
                "{net} {host} {protocol} to {far}"
            );
        }
    }
}

/// In leaves of a tree, which batches go down together.
#[test]
fn compact_leaf_batch_finds_each_policy() {
    for direction in [Direction::Out, Direction::In] {
        let far_is = |host: u8| {
            let mut policy = Policy { direction, ..site(host, 1) };
            let Selector { source, destination, .. } = policy.selector;
            if AddressEnd::of(direction) == AddressEnd::Source {
                (policy.selector.source, policy.selector.destination) = (destination, source);
            }
            policy
        };
        let rules = among_many((0..64).map(far_is).collect());
        let packet = |host| match AddressEnd::of(direction) {
            AddressEnd::Destination => packet(address(1, 0), address(0, host), 6, 0),
            AddressEnd::Source => packet(address(0, host), address(1, 0), 6, 0),
        };
        let keys: Vec<_> = (0..65).map(packet).collect();
        let node = Node::of(rules.clone());
        for (round, keys) in keys.chunks(LOOKUP_BATCH).enumerate() {
            let mut bests = [Best::NONE; LOOKUP_BATCH];
            node.find_each(keys, &mut bests);
            for (at, best) in bests.iter().enumerate().take(keys.len()) {
                let own = rules.get(round * LOOKUP_BATCH + at).map(|rule| Arc::as_ptr(&rule.entry));
                assert_eq!(best.entry().map(Arc::as_ptr), own, "{direction:?} {at}");
            }
        }
    }
}

/// Twice as many come as stay whole rules of their own.
#[test]
fn mask_templates_are_limited() {
    let mask_template = |serial: u64| MaskTemplate { masks: [0; 5], local: [serial, 0], upper: 0 };
    let mut shapes = MaskTemplates::default();
    let kept: Vec<_> =
        (0..2 * MAX_TEMPLATES as u64).map_while(|at| shapes.share(mask_template(at))).collect();
    assert_eq!((kept.len(), shapes.have_room()), (MAX_TEMPLATES, false));
    assert!(shapes.share(mask_template(7)).is_some_and(|again| Arc::ptr_eq(&again, &kept[7])));
    shapes.release(&kept[7]);
    assert!(shapes.share(mask_template(1 << 20)).is_none(), "one has it still");
    shapes.release(&kept[7]);
    assert!(shapes.share(mask_template(1 << 20)).is_some());
    assert_eq!(shapes.len(), MAX_TEMPLATES);
}

/// Whoever counts on a shape writes to no line of its words.
#[test]
fn compact_rule_and_mask_template_sizes() {
    assert_eq!(
        (size_of::<CompactRule>(), size_of::<MaskTemplate>(), align_of::<MaskTemplate>()),
        (40, 64, 64)
    );
}

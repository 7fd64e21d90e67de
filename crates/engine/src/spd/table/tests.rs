//! Look-up against a naive reading of the rules.

use proptest::prelude::*;
use uxfrm_crypto::Backend;

use crate::{
    Action, Database, DefaultActions, Direction, Family, FlowKey, IfId, LifetimeLimits, Mark,
    Moment, Policy, PolicyFlags, PolicyIndex, PolicyKind, PolicyLookup, PortMask, Prefix, Priority,
    Selector,
};

pub(crate) fn policy(direction: Direction, priority: u32) -> Policy {
    Policy {
        direction,
        kind: PolicyKind::Main,
        index: PolicyIndex(0),
        selector: Selector::any(Family::V4),
        priority: Priority(priority),
        action: Action::Allow,
        templates: Vec::new(),
        mark: Mark::default(),
        if_id: IfId(0),
        flags: PolicyFlags::empty(),
        limits: LifetimeLimits::default(),
        offload: None,
    }
}

/// Few values, so that packets meet policies often.
fn address() -> impl Strategy<Value = std::net::IpAddr> {
    prop_oneof![
        (0_u8..4, 0_u8..4).prop_map(|(net, host)| std::net::Ipv4Addr::new(10, net, 0, host).into()),
        (0_u16..4, 0_u16..4)
            .prop_map(
                |(net, host)| std::net::Ipv6Addr::new(0xfd00, net, 0, 0, 0, 0, 0, host).into()
            ),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (address(), any::<prop::sample::Index>()).prop_map(|(address, pick)| {
        let lens: &[u8] =
            if address.is_ipv4() { &[0, 8, 16, 31, 32] } else { &[0, 16, 32, 127, 128] };
        Prefix::new(address, lens[pick.index(lens.len())]).unwrap()
    })
}

fn port() -> impl Strategy<Value = PortMask> {
    let mask = prop_oneof![3 => Just(0_u16), 1 => Just(0xffff), 1 => Just(0xfffe), 1 => Just(1)];
    (0_u16..4, mask).prop_map(|(value, mask)| PortMask { value, mask })
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::In), Just(Direction::Out), Just(Direction::Forward)]
}

prop_compose! {
    pub(crate) fn any_policy()(
        direction in direction(),
        sub in prop::bool::weighted(0.2),
        (source, destination) in (prefix(), prefix()).prop_filter("one family", |(a, b)| a.family() == b.family()),
        ports in (port(), port()),
        protocol in prop_oneof![3 => Just(0_u8), 1 => Just(6), 1 => Just(17)],
        ifindex in prop_oneof![4 => Just(0_u32), 1 => 1_u32..3],
        if_id in prop_oneof![4 => Just(0_u32), 1 => Just(1)],
        mark in prop_oneof![4 => Just((0, 0)), 1 => (0_u32..4, 0_u32..4)],
        priority in 0_u32..4,
    ) -> Policy {
        Policy {
            kind: if sub { PolicyKind::Sub } else { PolicyKind::Main },
            selector: Selector { source, destination, source_port: ports.0, destination_port: ports.1, protocol, ifindex, user: 0 },
            mark: Mark { value: mark.0, mask: mark.1 },
            if_id: IfId(if_id),
            ..policy(direction, priority)
        }
    }
}

prop_compose! {
    pub(crate) fn flow()(
        (source, destination) in (address(), address()).prop_filter("one family", |(a, b)| a.is_ipv4() == b.is_ipv4()),
        protocol in prop_oneof![Just(6_u8), Just(17), Just(1)],
        (source_port, destination_port, mark) in (0_u16..4, 0_u16..4, 0_u32..4),
        (if_id, ifindex) in (prop_oneof![4 => Just(0_u32), 1 => Just(1)], 0_u32..3),
    ) -> FlowKey {
        FlowKey { source, destination, protocol, source_port, destination_port, mark, if_id, ifindex }
    }
}

/// Bit by bit, as `ip-xfrm(8)` says it.
pub(crate) fn applies(policy: &Policy, flow: &FlowKey) -> bool {
    let selector = &policy.selector;
    let in_prefix = |prefix: Prefix, address: std::net::IpAddr| {
        let bits = |address: std::net::IpAddr| match address {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let (ours, theirs) = (bits(prefix.address()), bits(address));
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        ours.len() == theirs.len()
            && (0..usize::from(prefix.prefix_len())).all(|at| bit(&ours, at) == bit(&theirs, at))
    };
    in_prefix(selector.source, flow.source)
        && in_prefix(selector.destination, flow.destination)
        && flow.source_port & selector.source_port.mask
            == selector.source_port.value & selector.source_port.mask
        && flow.destination_port & selector.destination_port.mask
            == selector.destination_port.value & selector.destination_port.mask
        && [0, flow.protocol].contains(&selector.protocol)
        && [0, flow.ifindex].contains(&selector.ifindex)
        && policy.if_id.0 == flow.if_id
        && flow.mark & policy.mark.mask == policy.mark.value
}

proptest! {
    #[test]
    fn spd_lookup_agrees_with_scan(
        policies in prop::collection::vec(any_policy(), 0..60),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        packets in prop::collection::vec((direction(), flow()), 1..60),
    ) {
        let mut database = Database::new(Backend::Portable, 1);
        let mut model = Vec::new();
        database.apply(Moment(0), |change| {
            for policy in policies {
                if let Ok(entry) = change.add_policy(policy) { model.push(entry); }
            }
        });
        database.apply(Moment(0), |change| {
            for pick in removed {
                if model.is_empty() { break; }
                let entry = model.remove(pick.index(model.len()));
                change.delete_policy(&entry.key()).unwrap();
            }
        });
        let snapshot = database.snapshot();
        for (direction, flow) in packets {
            let fits = model.iter().enumerate().filter(|(_, entry)| {
                entry.direction() == direction && applies(&entry.policy(), &flow)
            });
            let first = fits.min_by_key(|(seq, entry)| (entry.kind() == PolicyKind::Main, entry.precedence().priority(), *seq));
            let found = match snapshot.spd.lookup(direction, &flow) {
                PolicyLookup::Policy(entry) => Some(entry.index()),
                PolicyLookup::Default(action) => { prop_assert_eq!(action, Action::Allow); None }
            };
            prop_assert_eq!(found, first.map(|(_, entry)| entry.index()));
        }
    }

    /// Of whatever families and interfaces, and also beside one between two families, which no
    /// policy is for.
    #[test]
    fn spd_batch_lookup_agrees_with_single(
        policies in prop::collection::vec(any_policy(), 0..60),
        mut flows in prop::collection::vec(flow(), 1..80),
        odd in any::<prop::sample::Index>(),
    ) {
        let mut database = Database::new(Backend::Portable, 1);
        database.apply(Moment(0), |change| {
            policies.into_iter().for_each(|policy| { let _ = change.add_policy(policy); });
        });
        let snapshot = database.snapshot();
        let index = |lookup: &PolicyLookup<'_>| match lookup {
            PolicyLookup::Policy(entry) => Some(entry.index()),
            PolicyLookup::Default(_) => None,
        };
        let odd = odd.index(2 * flows.len());
        if let Some(flow) = flows.get_mut(odd) {
            flow.source = if flow.source.is_ipv4() { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
        }
        for direction in [Direction::In, Direction::Out, Direction::Forward] {
            let mut together = Vec::new();
            snapshot.spd.lookup_batch(direction, &flows, &mut together);
            let alone = flows.iter().map(|flow| index(&snapshot.spd.lookup(direction, flow)));
            prop_assert_eq!(together.iter().map(index).collect::<Vec<_>>(), alone.collect::<Vec<_>>());
        }
    }
}

fn packet() -> FlowKey {
    FlowKey {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        protocol: 6,
        source_port: 1,
        destination_port: 2,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    }
}

/// Which one of several that all match.
fn winner(database: &Database) -> Option<PolicyIndex> {
    match database.snapshot().spd.lookup(Direction::Out, &packet()) {
        PolicyLookup::Policy(entry) => Some(entry.index()),
        PolicyLookup::Default(_) => None,
    }
}

fn narrower(priority: u32, len: u8) -> Policy {
    let mut narrow = policy(Direction::Out, priority);
    narrow.selector.destination = Prefix::new(packet().destination, len).unwrap();
    narrow
}

#[test]
fn spd_order_is_priority_then_age() {
    let mut database = Database::new(Backend::Portable, 1);
    let mut add =
        |policy| database.apply(Moment(0), |change| change.add_policy(policy).unwrap().index());
    let wide = add(narrower(10, 8));
    add(narrower(10, 32));
    add(narrower(11, 24));
    assert_eq!(winner(&database), Some(wide));
    let urgent =
        database.apply(Moment(0), |change| change.add_policy(narrower(9, 16)).unwrap().index());
    assert_eq!(winner(&database), Some(urgent));
    let sub = Policy { kind: PolicyKind::Sub, ..narrower(4000, 0) };
    let sub = database.apply(Moment(0), |change| change.add_policy(sub).unwrap().index());
    assert_eq!(winner(&database), Some(sub), "sub policies come before main ones");
}

/// As `net/xfrm/xfrm_policy.c: xfrm_policy_insert_list` has it; the machine's kernel is asked in
/// `netlink`'s `tests/protocol/judge.rs`.
#[test]
fn spd_updated_policy_keeps_index_and_precedence() {
    let mut database = Database::new(Backend::Portable, 1);
    let (first, second) = database.apply(Moment(0), |change| {
        (
            change.add_policy(narrower(1, 8)).unwrap().index(),
            change.add_policy(narrower(1, 16)).unwrap().index(),
        )
    });
    let mut update = |policy| {
        let index =
            database.apply(Moment(0), |change| change.update_policy(policy).unwrap().index());
        (index, winner(&database))
    };
    assert_eq!(update(narrower(1, 8)), (first, Some(first)));
    assert_eq!(update(narrower(2, 8)), (first, Some(second)));
    assert_eq!(update(narrower(1, 8)), (first, Some(second)), "behind its new equals");
}

#[test]
fn spd_restored_policy_keeps_precedence() {
    let mut database = Database::new(Backend::Portable, 1);
    database.apply(Moment(0), |change| {
        let first = change.add_policy(narrower(1, 8)).unwrap();
        change.add_policy(narrower(1, 16)).unwrap();
        change.delete_policy(&first.key()).unwrap();
        let again = change.restore_policy(&first).unwrap();
        assert_eq!((again.index(), again.precedence()), (first.index(), first.precedence()));
        assert!(change.restore_policy(&first).is_err(), "it is there");
    });
    assert_eq!(winner(&database), Some(PolicyIndex(1)));
}

/// A search for sub policies goes before that for main ones only while there are any.
#[test]
fn spd_skips_sub_policies_after_last_removal() {
    for if_id in [0, 7] {
        let mut database = Database::new(Backend::Portable, 1);
        let sub = Policy { kind: PolicyKind::Sub, if_id: IfId(if_id), ..narrower(1, 8) };
        let key = database.apply(Moment(0), |change| change.add_policy(sub.clone()).unwrap().key());
        assert!(database.snapshot().spd.has_subs(Direction::Out), "of interface {if_id}");
        database.apply(Moment(0), |change| change.delete_policy(&key)).unwrap();
        assert!(!database.snapshot().spd.has_subs(Direction::Out), "of interface {if_id}");
    }
}

#[test]
fn spd_default_actions_are_per_direction() {
    let mut database = Database::new(Backend::Portable, 1);
    let defaults = DefaultActions { outbound: Action::Block, ..DefaultActions::default() };
    database.apply(Moment(0), |change| change.set_defaults(defaults));
    let snapshot = database.snapshot();
    for (direction, expected) in [
        (Direction::In, Action::Allow),
        (Direction::Forward, Action::Allow),
        (Direction::Out, Action::Block),
    ] {
        let lookup = snapshot.spd.lookup(direction, &packet());
        assert!(
            matches!(lookup, PolicyLookup::Default(action) if action == expected),
            "{direction:?}: {lookup:?}"
        );
    }
}

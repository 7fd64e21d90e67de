//! The kernel's cases of policy look-up (`tools/testing/selftests/net/xfrm_policy.sh`): policies
//! that overlap, exact and inexact ones side by side, in every order of adding. Checked is which
//! policy matches.

use uxfrm_bench::cases::lookup::{Random, policy};
use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Action, Database, Direction, Family, FlowKey, Moment, Policy, PolicyKey, PolicyKind,
    PolicyLookup, PolicyName, Prefix, Priority, Selector,
};

fn prefix(text: &str) -> Prefix {
    let (address, len) = text.split_once('/').expect("a prefix has a length");
    Prefix::new(address.parse().expect("an address"), len.parse().expect("a length"))
        .expect("a length of the family")
}

fn between(source: &str, destination: &str, priority: u32) -> Policy {
    let mut selector = Selector::any(prefix(source).family());
    selector.source = prefix(source);
    selector.destination = prefix(destination);
    policy(Direction::Out, selector, priority)
}

fn packet(source: &str, destination: &str) -> FlowKey {
    FlowKey {
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: 1,
        source_port: 8,
        destination_port: 0,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    }
}

fn add_all(database: &mut Database, policies: &[Policy]) {
    for policy in policies {
        database.apply(Moment(0), |change| {
            change.add_policy(policy.clone()).expect("each is another");
        });
    }
}

fn delete(database: &mut Database, policy: &Policy) {
    let key = PolicyKey {
        direction: policy.direction,
        kind: PolicyKind::Main,
        mark: policy.mark,
        if_id: policy.if_id,
        name: PolicyName::Selector(policy.selector),
    };
    database.apply(Moment(0), |change| change.delete_policy(&key)).expect("it is in");
}

fn priority(database: &Database, flow: &FlowKey) -> Option<u32> {
    let snapshot = database.snapshot();
    let found = match snapshot.spd.lookup(Direction::Out, flow) {
        PolicyLookup::Policy(entry) => Some(entry.precedence().priority().0),
        PolicyLookup::Default(_) => None,
    };
    let mut together = Vec::new();
    snapshot.spd.lookup_batch(Direction::Out, &[*flow, *flow], &mut together);
    for lookup in together {
        let each = match lookup {
            PolicyLookup::Policy(entry) => Some(entry.precedence().priority().0),
            PolicyLookup::Default(_) => None,
        };
        assert_eq!(each, found, "alone and in a batch");
    }
    found
}

/// Enough other policies that no linear search is used.
fn other_policies(count: u8) -> Vec<Policy> {
    (0..count)
        .map(|at| between(&format!("172.16.{at}.0/24"), &format!("192.168.{at}.0/24"), 900))
        .collect()
}

/// `do_esp_policy`, `do_exception`: a wide policy, an exception for one host, and both among
/// others.
#[test]
fn exception_before_wide_policy_matches_until_deleted() {
    for others in [0, 100, 250] {
        let mut database = Database::new(Backend::Portable, 1);
        add_all(&mut database, &other_policies(others));
        let wide = between("10.0.1.0/24", "10.0.2.0/24", 100);
        let exception =
            Policy { action: Action::Block, ..between("10.0.1.0/24", "10.0.2.253/32", 10) };
        add_all(&mut database, &[wide.clone(), exception.clone()]);
        let (plain, excepted) = (packet("10.0.1.2", "10.0.2.2"), packet("10.0.1.2", "10.0.2.253"));
        assert_eq!(
            (priority(&database, &plain), priority(&database, &excepted)),
            (Some(100), Some(10))
        );
        delete(&mut database, &exception);
        assert_eq!(priority(&database, &excepted), Some(100));
        delete(&mut database, &wide);
        assert_eq!((priority(&database, &plain), priority(&database, &excepted)), (None, None));
    }
}

/// `do_overlap`: the selftest's nested prefixes, some of which the kernel's tree once lost when it
/// merged nodes.
#[test]
fn nested_prefixes_are_found_in_any_order() {
    let nested = [
        between("10.1.0.0/24", "10.0.0.0/23", 200),
        between("10.1.0.0/24", "10.0.1.0/24", 200 - 1),
        between("10.1.0.0/24", "10.0.1.0/25", 200 - 2),
        between("10.1.0.0/24", "10.1.0.0/25", 200 - 3),
        between("10.0.0.0/8", "10.0.0.0/16", 200 + 4),
        between("0.0.0.0/0", "10.0.0.0/8", 200 + 5),
        between("0.0.0.0/0", "0.0.0.0/0", 200 + 6),
    ];
    let expected = [
        ("10.1.0.7", "10.0.1.5", Some(198)),
        ("10.1.0.7", "10.0.1.200", Some(199)),
        ("10.1.0.7", "10.0.0.1", Some(200)),
        ("10.1.0.7", "10.1.0.9", Some(197)),
        ("10.1.1.7", "10.0.0.1", Some(204)),
        ("11.0.0.1", "10.0.0.1", Some(205)),
        ("11.0.0.1", "11.0.0.1", Some(206)),
    ];
    let mut random = Random::new(1);
    for round in 0..200 {
        let mut order = nested.to_vec();
        order.extend(other_policies(if round % 2 == 0 { 0 } else { 60 }));
        shuffle(&mut order, &mut random);
        let mut database = Database::new(Backend::Portable, 1);
        add_all(&mut database, &order);
        for (source, destination, met) in expected {
            let flow = packet(source, destination);
            assert_eq!(priority(&database, &flow), met, "{source} → {destination}");
        }
        for gone in &order {
            delete(&mut database, gone);
        }
        assert!(database.snapshot().spd.is_empty());
    }
}

/// `do_random_overlap`, "policies inserted in random order": each order of 400 overlapping policies
/// gives the same matches.
#[test]
fn order_of_adding_does_not_matter_if_priorities_differ() {
    let mut random = Random::new(2);
    let mut policies: Vec<Policy> = (0_u32..400)
        .map(|at| {
            let len = 8 + at % 25;
            let wide = 8 + at / 25;
            let source = format!("10.{}.{}.0/{wide}", at % 4, at % 7);
            let mut policy =
                between(&source, &format!("10.{}.{}.{}/{len}", at % 3, at % 5, at % 11), at);
            policy.priority = Priority(at);
            policy
        })
        .collect();
    let flows: Vec<FlowKey> = (0..300)
        .map(|_| {
            let mut address =
                || format!("10.{}.{}.{}", random.below(5), random.below(8), random.below(12));
            packet(&address(), &address())
        })
        .collect();
    let mut first: Option<Vec<Option<u32>>> = None;
    for _ in 0..20 {
        shuffle(&mut policies, &mut random);
        let mut database = Database::new(Backend::Portable, 1);
        add_all(&mut database, &policies);
        let found = flows.iter().map(|flow| priority(&database, flow)).collect::<Vec<_>>();
        let naive = |flow: &FlowKey| {
            let fits = policies.iter().filter(|policy| policy.selector.matches(flow));
            fits.map(|policy| policy.priority.0).min()
        };
        assert_eq!(found, flows.iter().map(naive).collect::<Vec<_>>());
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found);
    }
}

/// Of equal priorities the older one, until it is deleted.
#[test]
fn older_of_equal_priorities_matches() {
    let mut database = Database::new(Backend::Portable, 1);
    add_all(&mut database, &other_policies(200));
    let older = between("10.0.0.0/8", "10.0.0.0/9", 5);
    let younger = between("10.0.0.0/24", "10.0.0.0/25", 5);
    add_all(&mut database, &[older.clone(), younger.clone()]);
    let flow = packet("10.0.0.1", "10.0.0.2");
    let winner = |database: &Database| match database.snapshot().spd.lookup(Direction::Out, &flow) {
        PolicyLookup::Policy(entry) => Some(entry.selector()),
        PolicyLookup::Default(_) => None,
    };
    assert_eq!(winner(&database), Some(older.selector));
    delete(&mut database, &older);
    assert_eq!(winner(&database), Some(younger.selector));
    add_all(&mut database, &[older]);
    assert_eq!(winner(&database), Some(younger.selector), "now that one is older");
}

/// A wildcard of one family never matches the other.
#[test]
fn wildcard_matches_only_its_family() {
    let mut database = Database::new(Backend::Portable, 1);
    let all4 = policy(Direction::Out, Selector::any(Family::V4), 1);
    let all6 = policy(Direction::Out, Selector::any(Family::V6), 2);
    add_all(&mut database, &[all4.clone(), all6]);
    assert_eq!(priority(&database, &packet("10.0.0.1", "10.0.0.2")), Some(1));
    assert_eq!(priority(&database, &packet("2001:db8::1", "2001:db8::2")), Some(2));
    delete(&mut database, &all4);
    assert_eq!(priority(&database, &packet("10.0.0.1", "10.0.0.2")), None);
}

fn shuffle<T>(things: &mut [T], random: &mut Random) {
    for at in (1..things.len()).rev() {
        things.swap(at, random.below(at + 1));
    }
}

//! Whatever policies come and go, and whichever of that a cache sees at once: what it says is what
//! the policies say, each policy itself.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::PolicyIndex;

/// What happens between two looks.
#[derive(Clone, Debug)]
enum Step {
    /// Policies come.
    Come(Vec<Policy>),
    /// Some that are there go, chosen by number.
    Go(Vec<usize>),
    /// More come and go again than is kept of.
    Crowd,
    /// A second passes.
    LetGo,
    /// Packets of all flows come so many times.
    Ask(u8),
}

/// One of a few addresses that have up to 32 bits in common.
fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    let near = prop_oneof![Just(0), Just(1), Just(0x100), Just(0x1_0000), Just(0x100_0000_u32)];
    near.prop_map(move |near| match family {
        Family::V4 => IpAddr::from((0x0a00_0000 + near).to_be_bytes()),
        Family::V6 => {
            IpAddr::from((0x2001_0db8 << 96 | u128::from(near).rotate_right(56)).to_be_bytes())
        }
    })
}

fn prefix(family: Family) -> impl Strategy<Value = Prefix> {
    let steps = i32::from(family.bits() / 16);
    let len = (0..=16_u8).prop_map(move |of| u8::try_from(i32::from(of) * steps).unwrap());
    (address(family), len).prop_map(|(address, len)| Prefix::new(address, len).unwrap())
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![3 => Just(Direction::Out), 1 => Just(Direction::In), 1 => Just(Direction::Forward)]
}

fn a_policy(family: Family, has_subs: bool) -> impl Strategy<Value = Policy> {
    let port = prop_oneof![3 => Just(None), 1 => (0..3_u16).prop_map(Some)];
    let kind = if has_subs { 0..4_u8 } else { 1..4 };
    let ends = (prefix(family), prefix(family));
    (direction(), ends, port, kind, 0..3_u32, label()).prop_map(
        |(direction, (source, destination), port, kind, priority, [mark, if_id])| {
            let mut new = policy(direction, priority);
            let destination_port = port.map_or_else(PortMask::default, PortMask::exactly);
            new.selector = Selector {
                source,
                destination,
                destination_port,
                ..Selector::any(source.family())
            };
            new.kind = if kind == 0 { PolicyKind::Sub } else { PolicyKind::Main };
            new.mark = crate::Mark { value: mark, mask: mark };
            new.if_id = IfId(if_id);
            new
        },
    )
}

/// Mark and interface id; mostly none.
fn label() -> impl Strategy<Value = [u32; 2]> {
    let one = || prop_oneof![4 => Just(0), 1 => Just(1_u32)];
    [one(), one()]
}

fn step(family: Family, has_subs: bool) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(a_policy(family, has_subs), 1..4).prop_map(Step::Come),
        6 => vec(any::<usize>(), 1..4).prop_map(Step::Go),
        1 => Just(Step::Crowd),
        2 => Just(Step::LetGo),
        8 => (1..4_u8).prop_map(Step::Ask),
    ]
}

fn flows(family: Family) -> impl Strategy<Value = Vec<(Direction, FlowKey)>> {
    let flow = (direction(), address(family), address(family), 0..3_u16, label());
    let flow = flow.prop_map(|(direction, source, destination, port, [mark, if_id])| {
        let ends = FlowKey::between(source, destination);
        (direction, FlowKey { destination_port: port, mark, if_id, ..ends })
    });
    vec(flow, 1..40)
}

/// The policies that decide, as they say themselves.
fn decide(spd: &Spd, direction: Direction, flow: &FlowKey) -> Vec<PolicyIndex> {
    let of = |kind| spd.lookup_kind(kind, direction, flow).map(|entry| entry.index());
    of(PolicyKind::Sub).into_iter().chain(of(PolicyKind::Main)).collect()
}

fn check(cache: &mut PolicyCache, database: &Database, flows: &[(Direction, FlowKey)]) {
    let snapshot = database.snapshot();
    let spd = &snapshot.spd;
    cache.begin_batch(spd);
    for (direction, flow) in flows {
        let id = cache.lookup(spd, *direction, flow, Spi(0));
        let said: Vec<_> = cache.policies(id).iter().map(|entry| entry.index()).collect();
        assert_eq!(said, decide(spd, *direction, flow), "{direction:?} {flow:?}");
        cache.count(id, 1, 1);
    }
}

fn take(
    step: Step,
    database: &mut Database,
    cache: &mut PolicyCache,
    flows: &[(Direction, FlowKey)],
) {
    match step {
        Step::Come(policies) => database.apply(Moment(0), |change| {
            // One of a name that is there takes its place.
            policies.into_iter().for_each(|policy| drop(change.update_policy(policy).unwrap()));
        }),
        Step::Go(numbers) => database.apply(Moment(0), |change| {
            for number in numbers {
                let all: Vec<_> = change.policies().map(|entry| entry.key()).collect();
                if !all.is_empty() {
                    change.delete_policy(&all[number % all.len()]).unwrap();
                }
            }
        }),
        Step::Crowd => (0..600).for_each(|serial| {
            let key = change_elsewhere(database, serial).key();
            database.apply(Moment(0), |change| change.delete_policy(&key)).unwrap();
        }),
        Step::LetGo => cache.release_stale(&database.snapshot().spd),
        Step::Ask(times) => (0..times).for_each(|_| check(cache, database, flows)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn cache_agrees_with_spd_under_any_changes(
        (flows, steps) in (any::<bool>(), any::<bool>()).prop_flat_map(|(is_v4, has_subs)| {
            let family = if is_v4 { Family::V4 } else { Family::V6 };
            (flows(family), vec(step(family, has_subs), 1..40))
        }),
        until_numbers_come_round in 0..40_u16,
    ) {
        let mut database = Database::new(Backend::Portable, 1);
        let mut cache = cache(CacheMode::On, 256);
        cache.now.policies = u16::MAX - until_numbers_come_round;
        for step in steps {
            take(step, &mut database, &mut cache, &flows);
        }
        check(&mut cache, &database, &flows);
    }
}

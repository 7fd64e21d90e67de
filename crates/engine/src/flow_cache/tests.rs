//! The cache's promises, one by one; that it answers as the policies do is tested over generated
//! sets in `bench/tests/lookup.rs`.

use std::net::IpAddr;

use uxfrm_crypto::Backend;

mod changing;

use super::*;
use crate::spd::table::tests::policy;
use crate::{Database, Family, IfId, Moment, Policy, PortMask, Prefix, Selector};

fn flow(last: u8) -> FlowKey {
    FlowKey {
        source: "10.0.0.1".parse().unwrap(),
        destination: IpAddr::from([10, 1, 0, last]),
        protocol: 17,
        source_port: 1,
        destination_port: 2,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    }
}

fn cache(mode: CacheMode, flows: usize) -> PolicyCache {
    PolicyCache::new(CacheSettings { mode, flows }, 7)
}

fn lookup_batch(cache: &mut PolicyCache, database: &Database, flow: &FlowKey) -> Option<u32> {
    let snapshot = database.snapshot();
    cache.begin_batch(&snapshot.spd);
    let id = cache.lookup(&snapshot.spd, Direction::Out, flow, Spi(0));
    cache.policies(id).first().map(|entry| entry.index().0)
}

fn add(database: &mut Database, priority: u32, last: u8) -> u32 {
    let mut new = policy(Direction::Out, priority);
    new.selector.destination = Prefix::host(flow(last).destination);
    database.apply(Moment(0), |change| change.add_policy(new).unwrap().index().0)
}

#[test]
fn cache_admits_flow_with_second_packet_also_without_policy() {
    let database = Database::new(Backend::Portable, 1);
    let mut cache = cache(CacheMode::On, 64);
    for _ in 0..4 {
        assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), None);
    }
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.hits, stats.misses), (1, 2, 2));
}

/// Of a batch the policies that were met before may stand behind those that were not.
#[test]
fn cache_batch_records_new_policies_behind_known_ones() {
    let mut database = Database::new(Backend::Portable, 1);
    let policies = [1, 2, 3].map(|last| Some(add(&mut database, 10, last)));
    let mut cache = cache(CacheMode::Off, 64);
    assert_eq!(lookup_batch(&mut cache, &database, &flow(3)), policies[2]);
    let spd = &database.snapshot().spd;
    let mut found = Vec::new();
    cache.lookup_batch(spd, Direction::Out, &[1, 2, 3].map(flow), Spi(0), &mut found);
    let told = |id: &VerdictId| cache.policies(*id).first().map(|entry| entry.index().0);
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), policies);
}

#[test]
fn cache_policy_change_invalidates_affected_flows() {
    let mut database = Database::new(Backend::Portable, 1);
    let first = add(&mut database, 10, 1);
    let mut cache = cache(CacheMode::On, 64);
    for _ in 0..3 {
        assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(first));
    }
    add(&mut database, 10, 2);
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(first));
    assert_eq!((cache.stats().stale, cache.stats().hits), (0, 2), "it is another host's");
    let from_here = |priority: u32| {
        let mut new = policy(Direction::Out, priority);
        new.selector.source = Prefix::host(flow(1).source);
        new.selector.source_port =
            PortMask { value: 0, mask: u16::try_from(priority).unwrap() << 8 };
        new
    };
    database.apply(Moment(0), |change| change.add_policy(from_here(11)).map(drop)).unwrap();
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(first));
    assert_eq!((cache.stats().stale, cache.stats().hits), (1, 2));
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(first));
    assert_eq!((cache.stats().stale, cache.stats().hits), (1, 3), "it was revalidated");
    let better = database.apply(Moment(0), |change| change.add_policy(from_here(9)).unwrap());
    let better = better.index().0;
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(better));
    database.apply(Moment(0), |change| change.flush_policies(PolicyKind::Main));
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), None);
}

#[test]
fn cache_epoch_wrap_finds_no_old_entries() {
    let mut database = Database::new(Backend::Portable, 1);
    let mut cache = cache(CacheMode::On, 64);
    let mut known = None;
    for round in 0..140_000_u32 {
        if round % 70_000 < 2 {
            assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), known);
        }
        if round == 3 {
            known = Some(add(&mut database, 1, 1));
        }
        // Every batch sees other policies.
        cache.generation = None;
        cache.begin_batch(&database.snapshot().spd);
    }
}

/// Or else no answer would hold until as many changes were made once more.
#[test]
fn cache_epoch_wrap_clears_invalidations() {
    let mut database = Database::new(Backend::Portable, 1);
    let first = add(&mut database, 1, 1);
    let mut cache = cache(CacheMode::On, 64);
    cache.now.policies = u16::MAX - 2;
    let mut ask_often = |database: &Database| {
        for _ in 0..3 {
            assert_eq!(lookup_batch(&mut cache, database, &flow(1)), Some(first));
        }
        (cache.now.policies, cache.stats().stale)
    };
    assert_eq!(ask_often(&database), (u16::MAX - 1, 0));
    let mut for_a_port = policy(Direction::Out, 2);
    for_a_port.selector.destination = Prefix::host(flow(1).destination);
    for_a_port.selector.destination_port = PortMask::exactly(77);
    database.apply(Moment(0), |change| change.add_policy(for_a_port).map(drop)).unwrap();
    assert_eq!(ask_often(&database), (u16::MAX, 1), "it is concerned");
    add(&mut database, 1, 2);
    assert_eq!(ask_often(&database), (1, 1), "it is forgotten");
    add(&mut database, 1, 3);
    assert_eq!(ask_often(&database), (2, 1), "it is known on");
}

#[test]
fn cache_family_sees_changes_when_other_family_is_off() {
    let settings = |mode| CacheSettings { mode, flows: 64 };
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    let sixth = FlowKey { source: v6, destination: v6, ..flow(1) };
    for (flow, [four, six]) in
        [(flow(1), [CacheMode::On, CacheMode::Off]), (sixth, [CacheMode::Off, CacheMode::On])]
    {
        let mut database = Database::new(Backend::Portable, 1);
        let families = CacheFamilySettings { v4: settings(four), v6: settings(six) };
        let mut cache = PolicyCache::new(families, 7);
        for _ in 0..3 {
            assert_eq!(lookup_batch(&mut cache, &database, &flow), None);
        }
        let mut new = policy(Direction::Out, 1);
        new.selector = Selector::any(Family::of(flow.destination));
        new.selector.destination = Prefix::host(flow.destination);
        let new = database.apply(Moment(0), |change| change.add_policy(new).unwrap().index().0);
        assert_eq!(lookup_batch(&mut cache, &database, &flow), Some(new));
    }
}

#[test]
fn cache_key_contains_all_deciding_fields() {
    let mut database = Database::new(Backend::Portable, 1);
    let plain = add(&mut database, 1, 1);
    let mut tagged = policy(Direction::Out, 1);
    tagged.if_id = IfId(9);
    let tagged = database.apply(Moment(0), |change| change.add_policy(tagged).unwrap().index().0);
    let mut cache = cache(CacheMode::On, 64);
    for _ in 0..3 {
        assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(plain));
        assert_eq!(
            lookup_batch(&mut cache, &database, &FlowKey { if_id: 9, ..flow(1) }),
            Some(tagged)
        );
        assert_eq!(lookup_batch(&mut cache, &database, &FlowKey { if_id: 8, ..flow(1) }), None);
        let snapshot = database.snapshot();
        for (direction, spi) in [(Direction::In, Spi(1)), (Direction::In, Spi(2))] {
            let id = cache.lookup(&snapshot.spd, direction, &flow(1), spi);
            assert!(cache.policies(id).is_empty());
        }
    }
    assert_eq!(cache.stats().entries, 5, "two SPIs are two flows");
}

#[test]
fn cache_smallest_with_many_flows_answers_correctly() {
    let mut database = Database::new(Backend::Portable, 1);
    let all: Vec<u32> = (0..200).map(|last| add(&mut database, 1, last)).collect();
    let mut cache = cache(CacheMode::On, 16);
    for _ in 0..20 {
        for last in 0..200 {
            assert_eq!(
                lookup_batch(&mut cache, &database, &flow(last)),
                Some(all[usize::from(last)])
            );
            assert_eq!(
                lookup_batch(&mut cache, &database, &flow(last)),
                Some(all[usize::from(last)])
            );
        }
    }
    assert!(cache.stats().entries <= 16 && cache.stats().evicted > 0);
}

#[test]
fn cache_bypassed_for_new_flows_resumes_for_recurring_ones() {
    let mut database = Database::new(Backend::Portable, 1);
    (0..20).for_each(|last| {
        add(&mut database, 1, last);
    });
    let mut cache = cache(CacheMode::Auto, 1 << 12);
    let new = |serial: u32| FlowKey { mark: serial, ..flow(1) };
    for serial in 0..40_000 {
        lookup_batch(&mut cache, &database, &new(serial));
    }
    assert!(cache.stats().bypassed > 10_000);
    let before = cache.stats();
    for round in 0..700_000 {
        lookup_batch(&mut cache, &database, &new((1 << 20) | (round % 256)));
    }
    assert!(cache.stats().hits - before.hits > 10_000);
}

/// What a cache knew when it stepped aside is of use when it comes back, unless numbers came round
/// meanwhile.
#[test]
fn cache_epoch_wrap_while_bypassed_finds_no_old_entries() {
    let mut database = Database::new(Backend::Portable, 1);
    (0..20).for_each(|last| {
        add(&mut database, 10, last);
    });
    let mut cache = cache(CacheMode::Auto, 1 << 12);
    for source_port in 0..40_000 {
        lookup_batch(&mut cache, &database, &flow(1));
        lookup_batch(&mut cache, &database, &FlowKey { source_port, ..flow(2) });
        lookup_batch(&mut cache, &database, &FlowKey { source_port, ..flow(3) });
    }
    let before = cache.stats();
    assert!(before.bypassed > 10_000 && before.entries > 0, "{before:?}");
    let mut better = policy(Direction::Out, 1);
    better.selector.destination = Prefix::host(flow(1).destination);
    better.selector.source = Prefix::host(flow(1).source);
    let better = database.apply(Moment(0), |change| change.add_policy(better).unwrap().index().0);
    cache.now.policies = u16::MAX;
    cache.begin_batch(&database.snapshot().spd);
    assert_eq!(cache.now.policies, 1);
    let comes_back = (0..1_000_000).any(|_| {
        lookup_batch(&mut cache, &database, &flow(2));
        cache.stats().hits > before.hits
    });
    assert!(comes_back);
    assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(better));
}

#[test]
fn cache_with_few_policies_stays_small() {
    let mut database = Database::new(Backend::Portable, 1);
    let one = add(&mut database, 1, 1);
    for mode in [CacheMode::Auto, CacheMode::On] {
        let mut cache = cache(mode, 1 << 20);
        for _ in 0..5 {
            assert_eq!(lookup_batch(&mut cache, &database, &flow(1)), Some(one));
        }
        assert_eq!(cache.stats().hits, 3);
        let new = |serial: u32| FlowKey { mark: serial % 30_000, ..flow(1) };
        for serial in 0..100_000 {
            assert_eq!(lookup_batch(&mut cache, &database, &new(serial)), Some(one));
        }
        let stats = cache.stats();
        assert!(stats.bypassed > 50_000 && stats.room < 4096, "{mode:?}: {stats:?}");
    }
}

#[test]
fn cache_with_some_policies_hits() {
    let mut database = Database::new(Backend::Portable, 1);
    (0..6).for_each(|last| {
        add(&mut database, 1, last);
    });
    for mode in [CacheMode::Auto, CacheMode::On] {
        let mut cache = cache(mode, 1 << 20);
        let flow = |serial: u32| FlowKey { mark: serial % 10_000, ..flow(1) };
        for serial in 0..400_000 {
            lookup_batch(&mut cache, &database, &flow(serial));
        }
        let stats = cache.stats();
        assert!(stats.hits > 200_000 && stats.entries > 9_900, "{mode:?}: {stats:?}");
    }
}

#[test]
fn cache_doorkeeper_admits_alternating_flows() {
    let mut database = Database::new(Backend::Portable, 1);
    (0..20).for_each(|last| {
        add(&mut database, 1, last);
    });
    let mut cache = cache(CacheMode::On, 4096);
    for round in 0..40_u32 {
        for serial in 0..1500_u16 {
            let flow = FlowKey { source_port: serial, ..flow(1) };
            lookup_batch(&mut cache, &database, &flow);
        }
        let before = cache.stats();
        assert!(round < 30 || before.entries > 1490, "{before:?}");
    }
}

#[test]
fn cache_unlimited_marks_are_distinguished() {
    let mut database = Database::new(Backend::Portable, 1);
    let mut marked = policy(Direction::Out, 1);
    marked.mark = crate::Mark { value: 0, mask: 1 };
    let even = database.apply(Moment(0), |change| change.add_policy(marked).unwrap().index().0);
    let mut cache = cache(CacheMode::On, 64);
    for serial in 0..200_000_u32 {
        let expected = serial.is_multiple_of(2).then_some(even);
        let flow = FlowKey { mark: serial, ..flow(1) };
        assert_eq!(lookup_batch(&mut cache, &database, &flow), expected);
        assert_eq!(lookup_batch(&mut cache, &database, &flow), expected);
    }
}

#[test]
fn cache_mixed_family_packet_has_no_policy() {
    let mut database = Database::new(Backend::Portable, 1);
    let any = policy(Direction::Out, 1);
    database.apply(Moment(0), |change| change.add_policy(any).unwrap());
    let mut cache = cache(CacheMode::On, 64);
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    let odd = [FlowKey { source: v6, ..flow(1) }, FlowKey { destination: v6, ..flow(1) }];
    for _ in 0..4 {
        assert!(lookup_batch(&mut cache, &database, &flow(1)).is_some());
        assert_eq!(odd.each_ref().map(|odd| lookup_batch(&mut cache, &database, odd)), [None; 2]);
    }
}

/// What a cache did for 10,000 IPv6 flows in turn, beside 200 policies.
fn beside(mode: CacheMode, mut change: impl FnMut(u8, &mut Policy)) -> CacheStats {
    let mut database = Database::new(Backend::Portable, 1);
    let host = |last: u8| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()]);
    for last in 0..200 {
        let mut new = policy(Direction::Out, last.into());
        new.selector = Selector::any(Family::V6);
        new.selector.destination = Prefix::host(host(last));
        change(last, &mut new);
        database.apply(Moment(0), |change| change.add_policy(new).map(drop)).unwrap();
    }
    let mut cache = cache(mode, 1 << 20);
    for serial in 0..400_000 {
        let [.., high, low] = u32::to_be_bytes(serial % 10_000);
        let source_port = u16::from_be_bytes([high, low]);
        let flow = FlowKey { source: host(1), destination: host(low % 200), ..flow(1) };
        lookup_batch(&mut cache, &database, &FlowKey { source_port, ..flow });
    }
    cache.stats()
}

#[test]
fn cache_thousands_of_ipv6_flows_hit_with_enough_policies() {
    for mode in [CacheMode::Auto, CacheMode::On] {
        let tunnels = beside(mode, |_, _| {});
        assert!(tunnels.hits > 250_000 && tunnels.entries > 9900, "{mode:?}: {tunnels:?}");
        let filter = beside(mode, |last, policy| {
            // One in ten is for all addresses, as in packet filters.
            if last % 10 == 9 {
                policy.selector.destination = Prefix::any(Family::V6);
                policy.selector.destination_port = PortMask { value: last.into(), mask: 0xffff };
            }
        });
        assert!(filter.hits > 250_000 && filter.entries > 9900, "{mode:?}: {filter:?}");
    }
}

#[test]
fn cache_mode_on_is_bypassed_when_most_packets_miss() {
    let mut database = Database::new(Backend::Portable, 1);
    (0..20).for_each(|last| {
        add(&mut database, 1, last);
    });
    let mut cache = cache(CacheMode::On, 4096);
    for serial in 0..200_000_u32 {
        // Each third packet is of a flow that comes again.
        let mark = if serial.is_multiple_of(3) { serial / 3 % 64 } else { 64 + serial };
        lookup_batch(&mut cache, &database, &FlowKey { mark, ..flow(1) });
    }
    let stats = cache.stats();
    assert!(stats.bypassed > 100_000, "{stats:?}");
}

/// As many policies as there are last bytes and ports for, each for a host and a port.
fn many(count: u16) -> Database {
    let mut database = Database::new(Backend::Portable, 1);
    database.apply(Moment(0), |change| {
        for port in 0..count {
            let mut new = policy(Direction::Out, 1);
            new.selector.destination = Prefix::host(flow(port.to_le_bytes()[0]).destination);
            new.selector.destination_port = PortMask { value: port, mask: 0xffff };
            change.add_policy(new).unwrap();
        }
    });
    database
}

/// A search beside so many is worth three quarters of hits, not a half of them.
#[test]
fn cache_hit_rate_of_60_percent_with_thousands_of_policies_is_bypassed() {
    let database = many(20_000);
    for (mode, of_ten) in
        [CacheMode::On, CacheMode::Auto].into_iter().flat_map(|mode| [(mode, 6), (mode, 9)])
    {
        let mut cache = cache(mode, 1 << 20);
        for serial in 0..400_000_u32 {
            let mark = if serial % 10 < of_ten { serial % 640 } else { 640 + serial };
            lookup_batch(&mut cache, &database, &FlowKey { mark, ..flow(1) });
        }
        let CacheStats { bypassed, .. } = cache.stats();
        assert!(
            if of_ten == 6 { bypassed > 200_000 } else { bypassed == 0 },
            "{mode:?}, {of_ten}: {bypassed}"
        );
    }
}

/// Flows of which each is outdated whenever it comes are not given as long to come back as the room
/// that they once had would take to fill.
#[test]
fn cache_resumed_during_changes_is_soon_bypassed_again() {
    const FLOWS: u32 = 20_000;
    let mut database = many(64);
    let mut cache = cache(CacheMode::Auto, 1 << 20);
    let turn = |cache: &mut PolicyCache, database: &Database| {
        for mark in 0..FLOWS {
            lookup_batch(cache, database, &FlowKey { mark, ..flow(1) });
        }
    };
    (0..40).for_each(|_| turn(&mut cache, &database));
    let before = cache.stats();
    assert_eq!(before.entries, u64::from(FLOWS), "{before:?}");
    for serial in 0..100 {
        change(&mut database, serial);
        turn(&mut cache, &database);
    }
    let stats = cache.stats();
    assert!(stats.bypassed > 1_500_000 && stats.stale < 350_000, "{stats:?}");
}

/// One more policy, which may be for packets between any addresses, but is for none of ours.
fn change(database: &mut Database, serial: u32) {
    let mut new = policy(Direction::Out, 1);
    let [a, b, c, d] = serial.to_be_bytes();
    new.selector.source_port = PortMask::exactly(u16::from_be_bytes([a, b]));
    new.selector.destination_port = PortMask::exactly(u16::from_be_bytes([c, d]));
    database.apply(Moment(0), |change| change.add_policy(new).map(drop)).unwrap();
}

/// One more policy, between hosts that none of ours are.
fn change_elsewhere(database: &mut Database, serial: u32) -> Arc<PolicyEntry> {
    let mut new = policy(Direction::Out, 1);
    new.selector.destination = Prefix::host(IpAddr::from([11, 0, 0, 0]));
    new.selector.source = Prefix::host(IpAddr::from(serial.to_be_bytes()));
    database.apply(Moment(0), |change| change.add_policy(new)).unwrap()
}

/// One of 16,384 flows in turn.
fn in_turn(serial: u32) -> FlowKey {
    FlowKey { source_port: u16::try_from(serial % 16_384).unwrap(), ..flow(1) }
}

/// Flows that are outdated whenever they come push nobody out, need no room, and are left alone.
#[test]
fn cache_under_constant_changes_does_not_grow_and_is_bypassed() {
    for mode in [CacheMode::On, CacheMode::Auto] {
        let mut database = many(5000);
        let mut cache = cache(mode, 1 << 20);
        for serial in 0..300_000 {
            if serial % 100 == 0 {
                change(&mut database, serial);
            }
            lookup_batch(&mut cache, &database, &in_turn(serial));
        }
        let stats = cache.stats();
        assert_eq!(stats.evicted, 0, "{mode:?}: {stats:?}");
        assert!(stats.room < 4096 && stats.bypassed > 270_000, "{mode:?}: {stats:?}");
    }
}

#[test]
fn cache_warm_under_constant_changes_is_bypassed() {
    let mut database = many(5000);
    let mut cache = cache(CacheMode::Auto, 1 << 20);
    for serial in 0..400_000 {
        lookup_batch(&mut cache, &database, &in_turn(serial));
    }
    let before = cache.stats();
    for serial in 0..400_000 {
        if serial % 200 == 0 {
            change(&mut database, serial);
        }
        lookup_batch(&mut cache, &database, &in_turn(serial));
    }
    let stats = cache.stats();
    assert_eq!((stats.room, stats.evicted), (before.room, before.evicted));
    assert!(stats.bypassed - before.bypassed > 330_000, "{stats:?}");
}

#[test]
fn cache_rare_change_costs_one_lookup_per_flow() {
    let mut database = many(5000);
    let mut cache = cache(CacheMode::Auto, 1 << 20);
    for serial in 0..400_000 {
        lookup_batch(&mut cache, &database, &in_turn(serial));
    }
    let before = cache.stats();
    assert_eq!(before.entries, 16_384);
    for serial in 0..600_000 {
        // Two policies, one after the other, as a key manager brings them.
        if serial % 200_000 == 0 || serial % 200_000 == 1000 {
            change(&mut database, serial);
        }
        lookup_batch(&mut cache, &database, &in_turn(serial));
    }
    let stats = cache.stats();
    assert_eq!((stats.bypassed, stats.misses), (before.bypassed, before.misses), "{stats:?}");
    assert_eq!(stats.stale, 3 * (1000 + 16_384));
}

#[test]
fn cache_unaffected_flows_keep_hitting_under_constant_changes() {
    for mode in [CacheMode::On, CacheMode::Auto] {
        let mut database = many(5000);
        let mut cache = cache(mode, 1 << 20);
        for serial in 0..400_000 {
            lookup_batch(&mut cache, &database, &in_turn(serial));
        }
        let before = cache.stats();
        for serial in 0..400_000 {
            if serial % 100 == 0 {
                change_elsewhere(&mut database, serial);
            }
            lookup_batch(&mut cache, &database, &in_turn(serial));
        }
        let stats = cache.stats();
        assert_eq!(stats.bypassed, before.bypassed, "{mode:?}: {stats:?}");
        // Cells are shared with some.
        assert!(stats.hits - before.hits > 380_000, "{mode:?}: {stats:?}");
    }
}

#[test]
fn cache_memory_with_few_flows_is_small_and_reported() {
    let database = many(60_000);
    for mode in [CacheMode::Auto, CacheMode::Off] {
        let mut cache = cache(mode, 1 << 20);
        for _ in 0..3 {
            for port in [0, 20_000, 40_000, 59_999_u16] {
                let destination = flow(port.to_le_bytes()[0]).destination;
                let to = FlowKey { destination, destination_port: port, ..flow(1) };
                assert!(lookup_batch(&mut cache, &database, &to).is_some());
            }
        }
        let stats = cache.stats();
        assert!(cache.memory() < 110_000, "{mode:?}: {}", cache.memory());
        assert_eq!(stats.bytes, cache.memory() as u64, "{mode:?}");
    }
}

/// The policies that decide over the flows to 200 hosts, each found twice.
fn met(cache: &mut PolicyCache, database: &Database) -> Vec<std::sync::Weak<PolicyEntry>> {
    let snapshot = database.snapshot();
    cache.begin_batch(&snapshot.spd);
    let mut met = Vec::new();
    for last in 0..200 {
        for _ in 0..2 {
            let id = cache.lookup(&snapshot.spd, Direction::Out, &flow(last), Spi(0));
            met.extend(cache.policies(id).iter().map(Arc::downgrade));
            cache.count(id, 1, 100);
        }
    }
    met
}

#[test]
fn cache_releases_removed_policies_and_keeps_others() {
    for (mode, kind, each) in [
        (CacheMode::On, PolicyKind::Main, 1),
        (CacheMode::Off, PolicyKind::Main, 1),
        (CacheMode::On, PolicyKind::Sub, 2),
    ] {
        let mut database = Database::new(Backend::Portable, 1);
        for last in 0..200 {
            add(&mut database, 1, last);
        }
        let mut wide = policy(Direction::Out, 9);
        wide.kind = kind;
        database.apply(Moment(0), |change| change.add_policy(wide).map(drop)).unwrap();
        let mut cache = cache(mode, 4096);
        let gone = met(&mut cache, &database);
        assert_eq!(gone.len(), 400 * each);
        cache.release_stale(&database.snapshot().spd);
        assert!(gone.iter().all(|one| one.upgrade().is_some()), "they hold");
        database.apply(Moment(0), |change| {
            change.flush_policies(PolicyKind::Main);
            change.flush_policies(PolicyKind::Sub);
        });
        (0..100).for_each(|serial| change(&mut database, serial));
        cache.release_stale(&database.snapshot().spd);
        let left = gone.iter().filter(|one| one.upgrade().is_some()).count();
        assert_eq!(left, 0, "{mode:?}, {kind:?}");
        let again = add(&mut database, 1, 7);
        assert_eq!(
            lookup_batch(&mut cache, &database, &flow(7)),
            Some(again),
            "{mode:?}, {kind:?}"
        );
    }
}

//! What becomes of states and policies that ask for a device, and that nothing stays behind.

use std::sync::Arc;

use uxfrm_crypto::Backend;
use uxfrm_engine::{
    CarriedTraffic, Counters, Database, DeviceEvent, DeviceRefusal, DeviceSaCounters, Direction,
    Error, Event, IfId, LifetimeLimits, Mark, Mode, Moment, OffloadKind, Policy, PolicyKind,
    Priority, Reqid, Sa, SaConfig, SaFailures, SaFlags, SaMove, SaProgress, SaProtocol, SaRequest,
    SoftHardLimit, Spi, Transaction,
};
use uxfrm_testkit::{IpsecSetup, PairDirection};

use crate::nic::{NIC0, NIC1, Nics, offload};

fn database() -> (Database, Nics) {
    let (mut database, nics) = (Database::new(Backend::Portable, 1), Nics::default());
    database.set_devices(Box::new(nics.clone()));
    (database, nics)
}

fn state(kind: OffloadKind, spi: u32) -> SaConfig {
    let offload = offload(kind, "nic0", Direction::Out);
    SaConfig { offload, ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, spi) }
}

fn policy() -> Policy {
    let offload = offload(OffloadKind::Packet, "nic0", Direction::Out);
    Policy { offload, ..IpsecSetup::tunnel4().policy(Direction::Out, PairDirection::LeftToRight) }
}

fn add(database: &mut Database, config: SaConfig) -> Result<Arc<Sa>, Error> {
    database.apply(Moment(0), |change| change.add_sa(config))
}

fn add_policy(database: &mut Database, policy: Policy) -> Result<(), Error> {
    database.apply(Moment(0), |change| change.add_policy(policy).map(drop))
}

fn full() -> DeviceRefusal {
    DeviceRefusal { errno: 28, text: "No space for SA in Tx table!".into() }
}

#[test]
fn removed_sa_is_detached_however_removed() {
    let mark = Mark::default();
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut database, nics) = database();
        let sa = add(&mut database, state(kind, 1)).unwrap();
        let place = sa.attachment().unwrap();
        assert_eq!((place.device, place.handle, place.kind), (NIC0, nics.handle(), kind));
        assert_eq!(sa.to_config().offload, state(kind, 1).offload);
        database.apply(Moment(0), |change| change.delete_sa(sa.id(), mark)).unwrap();
        assert_eq!(nics.held(), (0, 0), "deleted");

        add(&mut database, state(kind, 1)).unwrap();
        add(&mut database, state(kind, 2)).unwrap();
        assert_eq!(nics.held().0, 2);
        database.apply(Moment(0), |change| change.flush_sas(SaProtocol::Any));
        assert_eq!(nics.held(), (0, 0), "flushed");

        let limits = LifetimeLimits {
            added_seconds: SoftHardLimit { soft: u64::MAX, hard: 5 },
            ..LifetimeLimits::default()
        };
        add(&mut database, SaConfig { limits, ..state(kind, 1) }).unwrap();
        database.handle_timeout(Moment::from_secs(5), &mut Vec::new());
        assert_eq!(nics.held(), (0, 0), "expired");
    }
}

#[test]
fn failed_change_leaves_nothing_attached() {
    let (mut database, nics) = database();
    add(&mut database, state(OffloadKind::Packet, 1)).unwrap();
    let again = add(&mut database, state(OffloadKind::Packet, 1));
    assert!(matches!(again, Err(Error::Exists)));
    assert_eq!(nics.held(), (1, 0));
    add_policy(&mut database, policy()).unwrap();
    assert!(matches!(add_policy(&mut database, policy()), Err(Error::Exists)));
    assert_eq!(nics.held(), (1, 1));
    nics.tables().refusal = Some(full());
    let refused = add(&mut database, state(OffloadKind::Packet, 2)).unwrap_err();
    assert_eq!((refused.errno(), refused.to_string()), (28, full().text));
    let refused = add_policy(&mut database, Policy { priority: Priority(9), ..policy() });
    assert_eq!(refused.unwrap_err().errno(), 28, "the device is asked before names are compared");
    assert_eq!((database.snapshot().sad.len(), nics.held()), (1, (1, 1)));
}

#[test]
fn crypto_offload_falls_back_and_packet_offload_fails() {
    let (mut database, nics) = database();
    nics.tables().declines = true;
    let sa = add(&mut database, state(OffloadKind::Crypto, 1)).unwrap();
    assert_eq!((sa.attachment(), sa.to_config().offload), (None, None), "listed as software");
    // A device that is not there at all.
    let mut bare = Database::new(Backend::Portable, 1);
    assert_eq!(add(&mut bare, state(OffloadKind::Crypto, 1)).unwrap().attachment(), None);
    let refused = add(&mut bare, state(OffloadKind::Packet, 2)).unwrap_err();
    let text = "Device nic0 doesn't support packet offload";
    assert_eq!((refused.errno(), refused.to_string()), (22, text.to_owned()));
    let refused = add_policy(&mut bare, policy()).unwrap_err();
    let text = "Policy offload is not supported";
    assert_eq!((refused.errno(), refused.to_string()), (22, text.to_owned()));
}

#[test]
fn policy_is_attached_once_across_updates() {
    let (mut database, nics) = database();
    add_policy(&mut database, policy()).unwrap();
    let update = |database: &mut Database, policy| {
        database.apply(Moment(0), |change| change.update_policy(policy)).unwrap()
    };
    let on_device = update(&mut database, policy());
    assert_eq!((on_device.device(), nics.held()), (Some(NIC0), (0, 1)));
    let software = update(&mut database, Policy { offload: None, ..policy() });
    assert_eq!((software.device(), nics.held()), (None, (0, 0)));
    assert_eq!(software.index(), on_device.index());
    let back = update(&mut database, policy());
    assert_eq!(nics.held(), (0, 1));
    database.apply(Moment(0), |change| change.delete_policy(&back.key())).unwrap();
    assert_eq!(nics.held(), (0, 0));
    let restored = database.apply(Moment(0), |change| change.restore_policy(&back)).unwrap();
    assert_eq!((restored.device(), nics.held()), (Some(NIC0), (0, 1)));
    database.apply(Moment(0), |change| change.flush_policies(PolicyKind::Main));
    assert_eq!(nics.held(), (0, 0));
}

#[test]
fn migrated_sa_changes_device() {
    let (mut database, nics) = database();
    let old = add(&mut database, state(OffloadKind::Packet, 1)).unwrap();
    let destination = "192.0.2.77".parse().unwrap();
    let to = || SaMove {
        destination,
        offload: offload(OffloadKind::Packet, "nic1", Direction::Out),
        ..SaMove::of(&old)
    };
    nics.tables().refusal = Some(full());
    let change = |database: &mut Database, to| {
        let old = Arc::clone(&old);
        database.apply(Moment(0), |change| change.move_sas(vec![(old, to)]))
    };
    assert_eq!(change(&mut database, to()).unwrap_err().errno(), 28);
    assert!(old.sequence().take(1).is_ok(), "it goes on where it is");
    nics.tables().refusal = None;
    let new = change(&mut database, to()).unwrap().remove(0);
    assert_eq!((new.packet_device(), nics.held()), (Some(NIC1), (1, 0)));
    assert!(database.snapshot().sad.attached(NIC1, nics.handle()).is_some());
}

#[test]
fn update_keeps_sa_attached() {
    let (mut database, nics) = database();
    let old = add(&mut database, state(OffloadKind::Packet, 1)).unwrap();
    let limits =
        LifetimeLimits { packets: SoftHardLimit { soft: 1, hard: 2 }, ..LifetimeLimits::default() };
    let config = SaConfig { limits, ..state(OffloadKind::Packet, 1) };
    let new = database.apply(Moment(0), |change| change.update_sa(config)).unwrap();
    assert_eq!(new.attachment(), old.attachment());
    let handle = nics.handle();
    assert_eq!(nics.tables().updates[&handle], limits, "the device keeps them");
    let snapshot = database.snapshot();
    let found = snapshot.sad.attached(NIC0, nics.handle()).unwrap();
    assert!(Arc::ptr_eq(found, &new));
}

#[test]
fn device_counters_reach_limits_once() {
    let (mut database, nics) = database();
    let packets = SoftHardLimit { soft: 10, hard: 20 };
    let limits = LifetimeLimits { packets, ..LifetimeLimits::default() };
    let sa = add(&mut database, SaConfig { limits, ..state(OffloadKind::Packet, 1) }).unwrap();
    let handle = nics.handle();
    let count = |packets: u64| {
        let failures = SaFailures { replay: 3, ..SaFailures::default() };
        let counts = DeviceSaCounters {
            packets,
            bytes: packets * 100,
            sent: packets,
            received: 0,
            wanted: 0,
            first_used: Some(Moment(1)),
            last_used: Some(Moment(packets)),
            failures,
        };
        nics.tables().counts.insert(handle, counts);
    };
    let hear_of = |database: &mut Database, event| {
        let mut events = Vec::new();
        database.hear(NIC0, event, Moment(0), &mut events);
        events
    };
    let hear = |database: &mut Database| hear_of(database, DeviceEvent::SoftLimit(handle));
    count(9);
    assert_eq!(hear(&mut database), []);
    let usage = sa.usage();
    assert_eq!((usage.packets(), usage.bytes(), usage.failures().replay), (9, 900, 3));
    assert_eq!((usage.first_used(), usage.last_used()), (Some(Moment(1)), Some(Moment(9))));
    assert_eq!(sa.sequence().last(), 9);
    count(10);
    assert_eq!(hear(&mut database), [Event::SaSoftLimit(sa.id())]);
    assert_eq!(hear(&mut database), [], "once");
    count(20);
    assert_eq!(hear(&mut database), [], "of twenty packets twenty pass");
    let mut events = Vec::new();
    database.hear(NIC1, DeviceEvent::HardLimit(handle), Moment(0), &mut events);
    assert_eq!(events, [], "another device's handle");
    let hard = |database: &mut Database| hear_of(database, DeviceEvent::HardLimit(handle));
    assert_eq!(hard(&mut database), [Event::SaHardLimit(sa.id())]);
    assert_eq!((database.snapshot().sad.len(), nics.held()), (0, (0, 0)));
    assert_eq!(hard(&mut database), []);
}

/// The device told of both, and the database came to it after both.
#[test]
fn soft_limit_is_reported_before_hard_one() {
    for lost in [false, true] {
        let (mut database, nics) = database();
        let packets = SoftHardLimit { soft: 10, hard: 20 };
        let limits = LifetimeLimits { packets, ..LifetimeLimits::default() };
        let sa = add(&mut database, SaConfig { limits, ..state(OffloadKind::Packet, 1) }).unwrap();
        let handle = nics.handle();
        let counts = DeviceSaCounters { packets: 20, bytes: 2000, ..DeviceSaCounters::default() };
        nics.tables().counts.insert(handle, counts);
        let (mut events, now) = (Vec::new(), Moment::from_secs(1));
        if lost {
            database.handle_timeout(now, &mut events);
        } else {
            for event in [DeviceEvent::SoftLimit(handle), DeviceEvent::HardLimit(handle)] {
                database.hear(NIC0, event, now, &mut events);
            }
        }
        assert_eq!(events, [Event::SaSoftLimit(sa.id()), Event::SaHardLimit(sa.id())], "{lost}");
    }
}

/// `replay-seq 1000`, and what a client's bitmap says of the numbers below.
#[test]
fn device_starts_at_sa_progress_and_follows() {
    let counters =
        |received, window| Counters { received: Some(received), window, ..Counters::default() };
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut database, nics) = database();
        let config = SaConfig {
            offload: offload(kind, "nic0", Direction::In),
            ..IpsecSetup::tunnel4().sa(PairDirection::RightToLeft, 1)
        };
        let id = config.id;
        database
            .apply(Moment(0), |change| {
                let sa = change.add_sa(config)?;
                assert!(nics.tables().opened.is_empty(), "not before all is said");
                change.set_counters(sa.id(), Mark::default(), counters(1000, vec![998, 1000]))
            })
            .unwrap();
        let handle = nics.handle();
        let opened = || nics.tables().opened[&handle].clone();
        assert_eq!((opened().received, opened().window), (1000, vec![998, 1000]), "{kind:?}");
        assert_eq!(opened().carried, Some(CarriedTraffic::default()));
        let moved = |change: &mut Transaction<'_>| {
            change.set_counters(id, Mark::default(), counters(2000, vec![2000]))
        };
        database.apply(Moment(0), moved).unwrap();
        assert_eq!((opened().received, opened().window), (2000, vec![2000]), "{kind:?}");
        assert_eq!(opened().carried, None, "the device counts");
    }
}

#[test]
fn device_received_numbers_follow_sa() {
    let (mut database, nics) = database();
    let config = SaConfig {
        offload: offload(OffloadKind::Packet, "nic0", Direction::In),
        ..IpsecSetup::tunnel4().sa(PairDirection::RightToLeft, 1)
    };
    let old = add(&mut database, config).unwrap();
    let handle = nics.handle();
    let counts =
        DeviceSaCounters { packets: 2, bytes: 200, received: 50, ..DeviceSaCounters::default() };
    nics.tables().counts.insert(handle, counts);
    nics.tables().windows.insert(handle, vec![47, 50]);
    database.update_counts(&old);
    assert_eq!((old.highest_received(), old.received_in_window()), (50, vec![47, 50]));
    let to = SaMove {
        source: "192.0.2.77".parse().unwrap(),
        offload: offload(OffloadKind::Packet, "nic1", Direction::In),
        ..SaMove::of(&old)
    };
    let change = |change: &mut Transaction<'_>| change.move_sas(vec![(Arc::clone(&old), to)]);
    let new = database.apply(Moment(0), change).unwrap().remove(0);
    let handle = nics.handle();
    let opened = nics.tables().opened[&handle].clone();
    assert_eq!((opened.received, opened.window), (50, vec![47, 50]));
    assert_eq!(opened.carried.map(|carried| (carried.packets, carried.bytes)), Some((2, 200)));
    assert_eq!(new.received_in_window(), [47, 50]);
}

#[test]
fn device_uses_reserved_numbers_once() {
    let (mut database, nics) = database();
    database.track_changes();
    let sa = add(&mut database, state(OffloadKind::Packet, 1)).unwrap();
    let handle = nics.handle();
    let told = || nics.tables().numbers[&handle];
    assert_eq!(told(), (0, 0));
    // A key that was used before, and what is on the disk now.
    sa.sequence().skip_to(500);
    sa.sequence().reserve(1000);
    database.push_sequence_limits();
    assert_eq!(told(), (500, 1000));
    let counts = DeviceSaCounters { packets: 200, sent: 700, ..DeviceSaCounters::default() };
    nics.tables().counts.insert(handle, counts);
    database.push_sequence_limits();
    assert_eq!((sa.sequence().last(), told()), (700, (700, 1000)));
    database.apply(Moment(0), |change| change.delete_sa(sa.id(), Mark::default())).unwrap();
    assert_eq!(sa.sequence().last(), 1000, "who knows what it sent until it heard of it");
}

/// `xdo_dev_state_advance_esn`
#[test]
fn esn_progress_is_sent_for_crypto_offload_only() {
    let (mut database, nics) = database();
    let extended = |kind, spi| SaConfig { flags: SaFlags::ESN, ..state(kind, spi) };
    let sa = add(&mut database, extended(OffloadKind::Crypto, 1)).unwrap();
    let handle = nics.handle();
    for other in [extended(OffloadKind::Packet, 2), state(OffloadKind::Crypto, 3)] {
        add(&mut database, other).unwrap().sequence().skip_to(9);
    }
    sa.sequence().skip_to((7 << 32) | 5);
    database.advance_numbers();
    let told: Vec<_> = nics.tables().heads.iter().map(|(which, head)| (*which, *head)).collect();
    assert_eq!(told, [(handle, (7 << 32) | 5)]);
}

#[test]
fn limit_without_device_event_is_met() {
    let (mut database, nics) = database();
    let limits = LifetimeLimits {
        bytes: SoftHardLimit { soft: 500, hard: 1000 },
        ..LifetimeLimits::default()
    };
    let sa = add(&mut database, SaConfig { limits, ..state(OffloadKind::Packet, 1) }).unwrap();
    let counts = |bytes| DeviceSaCounters { packets: 1, bytes, ..DeviceSaCounters::default() };
    let (mut events, handle) = (Vec::new(), nics.handle());
    for (second, bytes) in [(1, 400), (2, 500), (3, 999), (4, 1000)] {
        nics.tables().counts.insert(handle, counts(bytes));
        let at = database.poll_timeout().unwrap().at;
        assert_eq!(at, Moment::from_secs(second));
        database.handle_timeout(at, &mut events);
    }
    assert_eq!(events, [Event::SaSoftLimit(sa.id()), Event::SaHardLimit(sa.id())]);
    assert_eq!(nics.held(), (0, 0));
}

/// As after a restart: the packets of the last run are not taken again.
#[test]
fn device_learns_received_numbers_of_owner() {
    let (mut database, nics) = database();
    database.track_changes();
    let config = SaConfig {
        offload: offload(OffloadKind::Packet, "nic0", Direction::In),
        ..IpsecSetup::tunnel4().sa(PairDirection::RightToLeft, 1)
    };
    let sa = add(&mut database, config).unwrap();
    let handle = nics.handle();
    nics.tables().counts.insert(handle, DeviceSaCounters::default());
    let opened = || nics.tables().opened[&handle].received;
    database.push_sequence_limits();
    assert_eq!(opened(), 0);
    sa.continue_from(&SaProgress { received: 500, window: vec![500], ..SaProgress::default() });
    database.push_sequence_limits();
    assert_eq!(opened(), 500);
    let counts = DeviceSaCounters { received: 700, ..DeviceSaCounters::default() };
    nics.tables().counts.insert(handle, counts);
    database.push_sequence_limits();
    assert_eq!(opened(), 500, "the device knows better");
}

#[test]
fn larval_sas_are_attached_and_detached() {
    let (mut database, nics) = database();
    let wanted = SaRequest {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(7),
        mark: Mark::default(),
        if_id: IfId(0),
        pcpu: None,
    };
    let handle = database.attach_larval(NIC0, &wanted).unwrap();
    assert_eq!(nics.tables().larvals.get(&handle), Some(&NIC0));
    database.detach_larval(NIC0, handle);
    assert!(nics.tables().larvals.is_empty());
    nics.tables().refusal = Some(DeviceRefusal::invalid("no"));
    assert_eq!(database.attach_larval(NIC0, &wanted), Err(DeviceRefusal::invalid("no")));
}

//! The databases as seen by a user of `ip xfrm`: errno, updates, limits, snapshots.

mod moves;

use std::sync::Arc;

use uxfrm_crypto::{Backend, KeyMaterial};

use super::*;
use crate::{
    Action, ChargeOutcome, DefaultActions, Direction, DropReason, Error, Event, Family, IfId,
    Lifecycle, LifetimeLimits, Mark, Mode, Offload, OffloadKind, Policy, PolicyIndex, PolicyKey,
    PolicyKind, PolicyLookup, PolicyName, Prefix, Reqid, SaConfig, SaMove, SaProtocol, Selector,
    SoftHardLimit, Spi, Template, TemplateLevel, UdpEncap, UdpEncapKind, sa::sample,
    spd::table::tests::policy,
};

fn database() -> Database {
    Database::new(Backend::Portable, 1)
}

fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn add(database: &mut Database, config: SaConfig) -> Result<Arc<Sa>, Error> {
    database.apply(at(0), |change| change.add_sa(config))
}

fn update(database: &mut Database, config: SaConfig) -> Result<Arc<Sa>, Error> {
    database.apply(at(0), |change| change.update_sa(config))
}

fn limited(limits: LifetimeLimits) -> SaConfig {
    SaConfig { limits, ..sample("10.0.0.2", 1) }
}

fn encap(kind: UdpEncapKind, port: u16) -> Option<UdpEncap> {
    let original_address = "0.0.0.0".parse().unwrap();
    Some(UdpEncap { kind, source_port: port, destination_port: 4500, original_address })
}

fn says<T>(result: Result<T, Error>) -> (i32, String) {
    result.map_or_else(|error| (error.errno(), error.to_string()), |_| (0, String::new()))
}

#[test]
fn sas_are_distinguished_as_in_kernel() {
    let mut database = database();
    let marked = || SaConfig { mark: Mark { value: 1, mask: 1 }, ..sample("10.0.0.2", 1) };
    add(&mut database, marked()).unwrap();
    add(&mut database, sample("10.0.0.2", 1)).unwrap();
    add(&mut database, sample("10.0.0.3", 1)).unwrap();
    assert_eq!(says(add(&mut database, sample("10.0.0.3", 1))), (17, "File exists".into()));
    // A state without mark is found by every mark, so nothing can be added behind it.
    let behind = SaConfig { mark: Mark { value: 1, mask: 1 }, ..sample("10.0.0.3", 1) };
    assert_eq!(says(add(&mut database, behind)).0, 17);
    let id = sample("10.0.0.2", 1).id;
    let deleted =
        database.apply(at(0), |change| change.delete_sa(id, Mark { value: 1, mask: 1 })).unwrap();
    assert_eq!(deleted.config().mark, Mark::default(), "the youngest whose mark fits");
    assert_eq!(database.snapshot().sad.len(), 2);
}

#[test]
fn what_is_not_there_is_said_so() {
    let mut database = database();
    let id = sample("10.0.0.2", 1).id;
    assert_eq!(says(update(&mut database, sample("10.0.0.2", 1))), (3, "No such process".into()));
    let deleted = database.apply(at(0), |change| change.delete_sa(id, Mark::default()));
    assert_eq!(says(deleted), (3, "No such process".into()));
    let key = PolicyKey {
        direction: Direction::Out,
        kind: PolicyKind::Main,
        mark: Mark::default(),
        if_id: IfId(0),
        name: PolicyName::Index(PolicyIndex(9)),
    };
    let deleted = database.apply(at(0), |change| change.delete_policy(&key));
    assert_eq!(says(deleted), (2, "No such file or directory".into()));
    assert_eq!(database.apply(at(0), |change| change.flush_sas(SaProtocol::Any)), 0);
    assert_eq!(database.apply(at(0), |change| change.flush_policies(PolicyKind::Main)), 0);
}

#[test]
fn key_of_wrong_length_is_refused() {
    let mut config = sample("10.0.0.2", 1);
    config.transform.encryption_key = KeyMaterial::new(&[1; 5]);
    let error = add(&mut database(), config).unwrap_err();
    assert!(matches!(error, Error::Crypto(_)) && error.errno() == 22, "{error}");
    let unknown = uxfrm_crypto::Transform::aead("rfc4106(gcm(camellia))", 160, 128).unwrap_err();
    assert_eq!(says::<()>(Err(unknown.into())), (38, "Requested AEAD algorithm not found".into()));
}

#[test]
fn update_keeps_keys_numbers_and_counters() {
    let mut database = database();
    let old = add(
        &mut database,
        SaConfig { encap: encap(UdpEncapKind::Esp, 1000), ..sample("10.0.0.2", 1) },
    )
    .unwrap();
    old.sequence().take(5).unwrap();
    old.charge(3, 300, at(1));
    let soft = LifetimeLimits {
        packets: SoftHardLimit { soft: 1, hard: 99 },
        ..LifetimeLimits::default()
    };
    let mut words =
        SaConfig { encap: encap(UdpEncapKind::Esp, 2000), if_id: IfId(4), ..limited(soft) };
    words.transform.encryption_key = KeyMaterial::new(&[9; 20]);
    words.reqid = Reqid(77);
    let new = update(&mut database, words).unwrap();
    assert!(new.is_same(&old) && !Arc::ptr_eq(&new, &old));
    assert_eq!(new.sequence().take(1).unwrap().first, 6);
    assert_eq!((new.usage().packets(), new.usage().bytes()), (3, 300));
    let config = new.config();
    assert_eq!(config.encap.unwrap().source_port, 2000);
    assert_eq!((config.if_id, config.limits, new.reqid()), (IfId(4), soft, Reqid(1)));
    assert_eq!(new.secrets().encryption_key, KeyMaterial::new(&[7; 20]));
    let snapshot = database.snapshot();
    let found = snapshot.sad.inbound(new.id().destination, Spi(1), SaProtocol::Esp, 0);
    assert!(found.is_some_and(|found| Arc::ptr_eq(found, &new)), "workers see the new words");
    assert_eq!(snapshot.sad.len(), 1);
}

#[test]
fn update_of_fixed_field_is_refused() {
    let mut database = database();
    add(&mut database, sample("10.0.0.2", 1)).unwrap();
    let other_way = SaConfig { direction: Some(Direction::In), ..sample("10.0.0.2", 1) };
    assert_eq!(says(update(&mut database, other_way)).0, 3);
    let encapsulated = SaConfig { encap: encap(UdpEncapKind::Esp, 1), ..sample("10.0.0.2", 1) };
    assert_eq!(says(update(&mut database, encapsulated)), (22, "Invalid argument".into()));
}

#[test]
fn soft_limit_raised_by_update_may_be_passed_again() {
    let mut database = database();
    let soft = |soft| {
        limited(LifetimeLimits {
            packets: SoftHardLimit { soft, hard: SoftHardLimit::NONE },
            ..LifetimeLimits::default()
        })
    };
    let old = add(&mut database, soft(1)).unwrap();
    let charges = [old.charge(1, 1, at(1)), old.charge(1, 1, at(1)), old.charge(1, 1, at(1))];
    assert_eq!(charges, [ChargeOutcome::Ok, ChargeOutcome::SoftLimit, ChargeOutcome::Ok]);
    let new = update(&mut database, soft(3)).unwrap();
    assert_eq!(new.lifecycle(), Lifecycle::Valid);
    assert_eq!(new.charge(1, 1, at(1)), ChargeOutcome::SoftLimit);
}

/// Calls when due, until `end`; returns (second, event).
fn run(database: &mut Database, end: u64) -> Vec<(u64, Event)> {
    let mut all = Vec::new();
    while let Some(Timeout { at: due, .. }) =
        database.poll_timeout().filter(|timeout| timeout.at <= at(end))
    {
        let mut events = Vec::new();
        database.handle_timeout(due, &mut events);
        all.extend(events.into_iter().map(|event| (due.as_secs(), event)));
    }
    all
}

#[test]
fn sa_time_limits_fire_once_each() {
    let mut database = database();
    let limits = LifetimeLimits {
        added_seconds: SoftHardLimit { soft: 10, hard: 20 },
        ..LifetimeLimits::default()
    };
    let sa = add(&mut database, limited(limits)).unwrap();
    let id = sa.id();
    assert_eq!(
        database.poll_timeout(),
        Some(Timeout { at: at(10), reason: "time limit of a state" })
    );
    assert_eq!(run(&mut database, 19), [(10, Event::SaSoftLimit(id))]);
    assert_eq!((sa.lifecycle(), database.snapshot().sad.len()), (Lifecycle::Dying, 1));
    assert_eq!(run(&mut database, 1000), [(20, Event::SaHardLimit(id))]);
    assert_eq!((sa.lifecycle(), database.snapshot().sad.len()), (Lifecycle::Expired, 0));
    assert_eq!(
        sa.charge(1, 1, at(21)),
        ChargeOutcome::Expired,
        "also for workers that still hold it"
    );
    assert_eq!(database.poll_timeout(), None);
}

#[test]
fn use_limits_wait_for_first_use() {
    let mut database = database();
    let limits = LifetimeLimits {
        used_seconds: SoftHardLimit { soft: 0, hard: 10 },
        ..LifetimeLimits::default()
    };
    let sa = add(&mut database, limited(limits)).unwrap();
    assert_eq!(run(&mut database, 34), []);
    sa.charge(1, 1, at(34));
    sa.charge(1, 1, at(43));
    assert_eq!(run(&mut database, 100), [(44, Event::SaHardLimit(sa.id()))]);
}

#[test]
fn old_timers_ignore_deleted_and_updated_sas() {
    let mut database = database();
    let limits = |hard| LifetimeLimits {
        added_seconds: SoftHardLimit { soft: 0, hard },
        ..LifetimeLimits::default()
    };
    let sa = add(&mut database, limited(limits(10))).unwrap();
    update(&mut database, limited(limits(50))).unwrap();
    assert_eq!(run(&mut database, 49), []);
    assert_eq!(run(&mut database, 60), [(50, Event::SaHardLimit(sa.id()))]);
    let sa = add(&mut database, limited(limits(10))).unwrap();
    database.apply(at(1), |change| change.delete_sa(sa.id(), Mark::default())).unwrap();
    assert_eq!(run(&mut database, 100), []);
}

#[test]
fn hard_limit_event_of_worker_removes_sa() {
    let mut database = database();
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: SoftHardLimit::NONE, hard: 1 },
        ..LifetimeLimits::default()
    };
    let sa = add(&mut database, limited(limits)).unwrap();
    assert_eq!(
        [sa.charge(1, 1, at(1)), sa.charge(1, 1, at(1))],
        [ChargeOutcome::Ok, ChargeOutcome::HardLimit]
    );
    assert_eq!(
        says(update(&mut database, sample("10.0.0.2", 1))).0,
        22,
        "an expired state takes no update"
    );
    database.observe(&Event::SaHardLimit(sa.id()));
    assert!(database.snapshot().sad.is_empty());
    let next = add(&mut database, sample("10.0.0.2", 1)).unwrap();
    database.observe(&Event::SaHardLimit(sa.id()));
    assert!(
        !next.is_same(&sa) && database.snapshot().sad.len() == 1,
        "a late event does not hit its successor"
    );
}

#[test]
fn policies_repeat_soft_event_and_expire_by_last_use() {
    let mut database = database();
    let limits = LifetimeLimits {
        used_seconds: SoftHardLimit { soft: 40, hard: 100 },
        ..LifetimeLimits::default()
    };
    let words = Policy { limits, ..policy(Direction::Out, 1) };
    let entry = database.apply(at(0), |change| change.add_policy(words)).unwrap();
    entry.record_use(1, 100, at(10));
    let soft = |second| (second, Event::PolicySoftLimit(Arc::clone(&entry)));
    assert_eq!(run(&mut database, 59), [soft(50)]);
    assert_eq!(run(&mut database, 109), [soft(80)]);
    entry.record_use(1, 100, at(105));
    assert_eq!(run(&mut database, 204), [soft(145), soft(175)]);
    assert_eq!(run(&mut database, 999), [(205, Event::PolicyHardLimit(Arc::clone(&entry)))]);
    assert_eq!(database.snapshot().spd.iter().count(), 0);
}

#[test]
fn outbound_policies_expire_unused_and_others_stay() {
    let limits = LifetimeLimits {
        used_seconds: SoftHardLimit { soft: 40, hard: 100 },
        ..LifetimeLimits::default()
    };
    let protecting = vec![template(Mode::Tunnel, "10.0.0.2")];
    let table = [
        (Direction::Out, Action::Block, vec![], true),
        (Direction::Out, Action::Allow, protecting.clone(), true),
        (Direction::Out, Action::Allow, vec![], false),
        (Direction::In, Action::Block, vec![], false),
        (Direction::In, Action::Allow, protecting, false),
    ];
    for (row, (direction, action, templates, expires)) in table.into_iter().enumerate() {
        let mut database = database();
        let words = Policy { action, templates, limits, ..policy(direction, 1) };
        let entry = database.apply(at(7), |change| change.add_policy(words)).unwrap();
        let soft = |second| (second, Event::PolicySoftLimit(Arc::clone(&entry)));
        let hard = |second| (second, Event::PolicyHardLimit(Arc::clone(&entry)));
        let expected = if expires { vec![soft(47), soft(77), hard(107)] } else { vec![] };
        assert_eq!(run(&mut database, 999), expected, "row {row}");
        assert_eq!(database.snapshot().spd.iter().count(), usize::from(!expires), "row {row}");
    }
}

fn template(mode: Mode, destination: &str) -> Template {
    let destination = destination.parse().unwrap();
    Template {
        source: Family::of(destination).unspecified(),
        destination,
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode,
        reqid: Reqid(1),
        level: TemplateLevel::Required,
    }
}

#[test]
fn policy_faults_give_kernel_errors() {
    type Fault = fn(&mut Policy);
    let offload = |kind| Some(Offload { kind, device: "eth4".into(), direction: Direction::Out });
    #[rustfmt::skip]
    let table: &[(Fault, &str)] = &[
        (|p| p.selector.source = Prefix::any(Family::V6), "Invalid selector family"),
        (|p| p.index = PolicyIndex(8), "Policy index doesn't match direction"),
        (|p| p.templates = vec![template(Mode::Transport, "10.0.0.2"); 7], "Template count must be <= XFRM_MAX_DEPTH (6)"),
        (|p| p.templates = vec![Template { level: TemplateLevel::Use, ..template(Mode::Tunnel, "10.0.0.2") }],
            "Mode in optional template not allowed in outbound policy"),
        (|p| p.templates = vec![template(Mode::Transport, "::1")], "Mode in template doesn't support a family change"),
        (|p| p.templates = vec![template(Mode::Tunnel, "::1"), template(Mode::Transport, "10.0.0.2")],
            "Mode in template doesn't support a family change"),
        (|p| p.templates = vec![Template { source: "::".parse().unwrap(), ..template(Mode::Tunnel, "10.0.0.2") }],
            "Invalid family in template"),
    ];
    for (fault, text) in table {
        let mut words = policy(Direction::Out, 1);
        fault(&mut words);
        let refused = database().apply(at(0), |change| change.add_policy(words));
        assert_eq!(says(refused), (22, (*text).to_owned()));
    }
    for (kind, text) in [
        (OffloadKind::Crypto, "Unrecognized flags in offload request"),
        (OffloadKind::Packet, "Policy offload is not supported"),
    ] {
        let words = Policy { offload: offload(kind), ..policy(Direction::Out, 1) };
        assert_eq!(
            says(database().apply(at(0), |change| change.add_policy(words))),
            (22, text.to_owned())
        );
    }
    let nested = vec![
        template(Mode::Transport, "10.0.0.2"),
        template(Mode::Tunnel, "::1"),
        template(Mode::Transport, "::1"),
    ];
    let words = Policy { templates: nested, ..policy(Direction::Out, 1) };
    assert!(database().apply(at(0), |change| change.add_policy(words)).is_ok());
}

#[test]
fn policy_index_has_direction_and_keys_are_unique() {
    let mut database = database();
    let index = |database: &mut Database, words| {
        database.apply(at(0), |change| change.add_policy(words)).map(|entry| entry.index().0)
    };
    assert_eq!(index(&mut database, policy(Direction::In, 1)), Ok(8));
    assert_eq!(index(&mut database, policy(Direction::Out, 1)), Ok(9));
    assert_eq!(index(&mut database, policy(Direction::Forward, 1)), Ok(18));
    assert_eq!(
        index(&mut database, policy(Direction::In, 7)),
        Err(Error::Exists),
        "priority is no part of the name"
    );
    assert_eq!(index(&mut database, Policy { if_id: IfId(1), ..policy(Direction::In, 1) }), Ok(24));
    assert_eq!(
        index(&mut database, Policy { kind: PolicyKind::Sub, ..policy(Direction::In, 1) }),
        Ok(32)
    );
    let marked = |value| Policy { mark: Mark { value, mask: 0xff }, ..policy(Direction::Out, 1) };
    assert_eq!(
        index(&mut database, Policy { index: PolicyIndex(81), ..marked(1) }),
        Ok(81),
        "as asked for"
    );
    assert_eq!(
        index(&mut database, Policy { index: PolicyIndex(81), ..marked(2) }),
        Ok(41),
        "taken: another"
    );
    assert_eq!(database.apply(at(0), |change| change.flush_policies(PolicyKind::Main)), 6);
    assert_eq!(database.snapshot().spd.iter().count(), 1);
}

#[test]
fn change_is_visible_at_once_and_whole() {
    let mut database = database();
    let published = database.published();
    let before = published.load_full();
    database.apply(at(0), |change| {
        for host in 0..100_u8 {
            change.add_sa(sample(&format!("10.1.0.{host}"), 1)).unwrap();
            let mut words = policy(Direction::Out, u32::from(host));
            words.selector.destination = Prefix::host(format!("10.1.0.{host}").parse().unwrap());
            change.add_policy(words).unwrap();
        }
        assert_eq!(published.load().generation, before.generation);
    });
    let after = published.load_full();
    assert_eq!(after.generation, before.generation + 1);
    assert_eq!((before.sad.len(), after.sad.len(), after.spd.iter().count()), (0, 100, 100));
    let flow = crate::FlowKey {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.1.0.42".parse().unwrap(),
        protocol: 6,
        source_port: 0,
        destination_port: 0,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    };
    assert!(
        matches!(after.spd.lookup(Direction::Out, &flow), PolicyLookup::Policy(entry) if entry.precedence().priority().0 == 42)
    );
}

#[test]
fn deleted_policy_frees_index_and_key() {
    let mut database = database();
    let words = || Policy { index: PolicyIndex(81), ..policy(Direction::Out, 1) };
    let key = |name| PolicyKey {
        direction: Direction::Out,
        kind: PolicyKind::Main,
        mark: Mark::default(),
        if_id: IfId(0),
        name,
    };
    for name in [PolicyName::Index(PolicyIndex(81)), PolicyName::Selector(words().selector)] {
        let added = database.apply(at(0), |change| change.add_policy(words())).unwrap();
        assert_eq!(added.index(), PolicyIndex(81));
        database.apply(at(0), |change| change.delete_policy(&key(name.clone()))).unwrap();
        let again = database.apply(at(0), |change| change.delete_policy(&key(name)));
        assert_eq!(says(again).0, 2);
    }
}

#[test]
fn no_op_change_keeps_generation() {
    let mut database = database();
    add(&mut database, sample("10.0.0.2", 1)).unwrap();
    let before = database.snapshot().generation;
    add(&mut database, sample("10.0.0.2", 1)).unwrap_err();
    update(&mut database, sample("10.0.0.3", 1)).unwrap_err();
    database.apply(at(0), |change| change.flush_policies(PolicyKind::Main));
    database.handle_timeout(at(99), &mut Vec::new());
    assert_eq!(database.snapshot().generation, before);
}

/// Tracked changes are returned once each, and published only on request.
#[test]
fn tracked_changes_wait_for_publish() {
    let mut database = database();
    database.track_changes();
    let workers = database.published();
    let sa = add(&mut database, sample("10.0.0.2", 1)).unwrap();
    let old = database.apply(at(0), |change| change.add_policy(policy(Direction::Out, 1))).unwrap();
    let new =
        database.apply(at(0), |change| change.update_policy(policy(Direction::Out, 1))).unwrap();
    assert_eq!((database.snapshot().sad.len(), workers.load().sad.len()), (1, 0));
    assert!(sa.sequence().take(1).is_err(), "nothing is reserved");

    let changes = database.take_changes();
    assert!(Arc::ptr_eq(&changes.added[0], &sa) && changes.removed.is_empty());
    let [PolicyChange::Added(first), PolicyChange::Removed(gone), PolicyChange::Added(second)] =
        &changes.policies[..]
    else {
        panic!("{:?}", changes.policies)
    };
    assert!(Arc::ptr_eq(first, &old) && Arc::ptr_eq(gone, &old) && Arc::ptr_eq(second, &new));
    assert!(database.take_changes().is_empty());
    database.publish();
    assert_eq!((workers.load().sad.len(), workers.load().spd.len()), (1, 1));

    database.apply(at(0), |change| {
        change.flush_sas(SaProtocol::Any);
        change.flush_policies(PolicyKind::Main);
        change.set_defaults(DefaultActions { inbound: Action::Block, ..DefaultActions::default() });
    });
    let changes = database.take_changes();
    assert_eq!((changes.removed.len(), changes.policies.len(), changes.defaults), (1, 1, true));
    assert_eq!(workers.load().sad.len(), 1);
}

/// Removal by a limit is a change, too.
#[test]
fn expiry_is_a_tracked_change() {
    let mut database = database();
    database.track_changes();
    let limits = LifetimeLimits {
        added_seconds: SoftHardLimit { soft: SoftHardLimit::NONE, hard: 5 },
        ..LifetimeLimits::default()
    };
    add(&mut database, limited(limits)).unwrap();
    let words = Policy { limits, ..policy(Direction::Out, 1) };
    database.apply(at(0), |change| change.add_policy(words)).unwrap();
    let _added = database.take_changes();
    database.handle_timeout(at(6), &mut Vec::new());
    let changes = database.take_changes();
    assert_eq!((changes.removed.len(), changes.policies.len()), (1, 1));
}

/// What depends on missing metadata is refused: stored, it would let packets leave in plaintext.
#[test]
fn unsupported_metadata_is_refused() {
    type Fault = fn(&mut SaConfig);
    let mark = Mark { value: 5, mask: 0xff };
    let states: [(i32, Fault); 6] = [
        (95, |config| config.if_id = IfId(7)),
        (95, |config| config.mark = Mark { value: 5, mask: 0xff }),
        (95, |config| config.output_mark = Mark { value: 0, mask: 1 }),
        (95, |config| config.selector.as_mut().unwrap().ifindex = 3),
        (0, |config| config.mark = Mark { value: 0, mask: 0xff }),
        (0, |_| {}),
    ];
    // With a packet filter, and without.
    let policies: [(i32, i32, Policy); 7] = [
        (95, 95, Policy { if_id: IfId(7), ..policy(Direction::Out, 6) }),
        (95, 95, Policy { if_id: IfId(7), ..policy(Direction::In, 7) }),
        (95, 95, Policy { mark, ..policy(Direction::Out, 1) }),
        (95, 95, Policy { mark: Mark { value: 0, mask: 1 }, ..policy(Direction::Out, 2) }),
        (0, 95, Policy { mark, ..policy(Direction::In, 3) }),
        (0, 95, Policy { mark, ..policy(Direction::Forward, 4) }),
        (0, 0, policy(Direction::Out, 5)),
    ];
    for (senses, scale) in
        [(MetadataSupport::Filtered, 1), (MetadataSupport::BytesOnly, 1), (MetadataSupport::All, 0)]
    {
        let mut database = database();
        database.set_metadata_support(senses);
        for (number, (errno, fault)) in (1..).zip(&states) {
            let mut config = sample("10.0.0.2", number);
            config.selector = Some(Selector::any(Family::V4));
            fault(&mut config);
            let seen = says(add(&mut database, config));
            assert_eq!(seen.0, errno * scale, "state {number}: {}", seen.1);
        }
        for (filtered, alone, words) in policies.clone() {
            let errno = if senses == MetadataSupport::Filtered { filtered } else { alone };
            let seen = says(database.apply(at(0), |change| change.update_policy(words.clone())));
            assert_eq!(seen.0, errno * scale, "{}: {words:?}", seen.1);
        }
        let mut by_interface = policy(Direction::Out, 8);
        by_interface.selector.ifindex = 3;
        let seen = says(database.apply(at(0), |change| change.add_policy(by_interface)));
        assert_eq!(seen.0, 95 * scale, "{}", seen.1);
    }
    // An update must not add it either.
    let mut database = database();
    database.set_metadata_support(MetadataSupport::BytesOnly);
    let sa = add(&mut database, sample("10.0.0.2", 1)).unwrap();
    let to = SaMove { mark, ..SaMove::of(&sa) };
    let moved = database.apply(at(0), |change| change.move_sas(vec![(sa, to)]));
    assert_eq!(says(moved).0, 95);
    let with_output_mark = SaConfig { output_mark: mark, ..sample("10.0.0.2", 1) };
    assert_eq!(says(update(&mut database, with_output_mark)).0, 95);
}

#[test]
fn workers_follow_host_changes() {
    let mut database = database();
    let mut worker = crate::Worker::new(crate::Settings::default(), &database.published()).unwrap();
    let addresses = std::iter::once("10.0.0.9".parse().unwrap()).collect();
    let host = HostView { addresses, mtu: 1280, path_mtus: crate::PathMtus::new() };
    database.set_host(host.clone());
    let before = database.snapshot().generation;
    database.set_host(host.clone());
    assert_eq!(database.snapshot().generation, before, "nothing new");
    let (mut batch, mut pool) = (uxfrm_packet::Batch::new(), uxfrm_packet::Pool::new());
    worker.inbound(&mut batch, at(0), &mut pool, &mut crate::Output::default());
    assert_eq!((&worker.settings().addresses, worker.settings().mtu), (&host.addresses, 1280));
}

/// An outbound state behind a NAT, with a keepalive after 20 seconds of silence.
fn through_nat() -> SaConfig {
    SaConfig {
        direction: Some(Direction::Out),
        replay: crate::ReplayConfig::default(),
        encap: encap(UdpEncapKind::Esp, 1024),
        nat_keepalive: crate::KeepaliveInterval::from_secs(20),
        ..sample("10.0.0.2", 1)
    }
}

/// The seconds until `end` at which a keepalive is due.
fn keepalives(database: &mut Database, end: u64) -> Vec<u64> {
    let mut all: Vec<_> = database.take_keepalives().map(|_| 0).collect();
    while let Some(Timeout { at: due, .. }) =
        database.poll_timeout().filter(|timeout| timeout.at <= at(end))
    {
        database.handle_timeout(due, &mut Vec::new());
        all.extend(database.take_keepalives().map(|_| due.as_secs()));
    }
    all
}

#[test]
fn idle_sa_sends_nat_keepalives() {
    let mut database = database();
    let sa = add(&mut database, through_nat()).unwrap();
    let first: Vec<_> = database.take_keepalives().collect();
    let [source, destination] = ["10.0.0.1:1024", "10.0.0.2:4500"].map(|end| end.parse().unwrap());
    assert_eq!(first, [Keepalive { source, destination }], "at once, as it never sent");
    assert_eq!(keepalives(&mut database, 45), [20, 40]);
    assert_eq!(sa.charge(1, 100, at(50)), ChargeOutcome::Ok);
    assert_eq!(keepalives(&mut database, 69), [0; 0], "what was sent kept it open");
    assert_eq!(keepalives(&mut database, 95), [70, 90]);
    let id = sa.id();
    database.apply(at(95), |change| change.delete_sa(id, Mark::default())).unwrap();
    assert_eq!(keepalives(&mut database, 500), [0; 0]);
    assert_eq!(database.poll_timeout(), None);
}

/// `xfrm_state_update` calls `xfrm_state_check_expire` for a used state: no further packet is
/// needed.
#[test]
fn update_below_counters_takes_effect_at_once() {
    let packets = |soft, hard| {
        limited(LifetimeLimits {
            packets: SoftHardLimit { soft, hard },
            ..LifetimeLimits::default()
        })
    };
    let mut database = database();
    let sa = add(&mut database, packets(u64::MAX, u64::MAX)).unwrap();
    update(&mut database, packets(0, 0)).unwrap();
    assert_eq!(run(&mut database, 1), [], "it was never used");
    update(&mut database, packets(u64::MAX, u64::MAX)).unwrap();
    assert_eq!(sa.charge(7, 700, at(1)), ChargeOutcome::Ok);
    update(&mut database, packets(8, 9)).unwrap();
    assert_eq!(run(&mut database, 1), []);
    update(&mut database, packets(7, 9)).unwrap();
    assert_eq!(run(&mut database, 1), [(0, Event::SaSoftLimit(sa.id()))]);
    update(&mut database, packets(2, 7)).unwrap();
    assert_eq!(run(&mut database, 1), [(0, Event::SaHardLimit(sa.id()))]);
    assert!(database.snapshot().sad.is_empty());
}

#[test]
fn update_keeps_one_keepalive_timer_with_new_ports() {
    let mut database = database();
    add(&mut database, through_nat()).unwrap();
    keepalives(&mut database, 0);
    let ports = SaConfig { encap: encap(UdpEncapKind::Esp, 7777), ..through_nat() };
    database.apply(at(5), |change| change.update_sa(ports)).unwrap();
    let ends: Vec<_> = database.take_keepalives().map(|ends| ends.source.port()).collect();
    assert_eq!(ends, [7777]);
    assert_eq!(keepalives(&mut database, 70), [25, 45, 65]);
}

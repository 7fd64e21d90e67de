//! Migrated states (`XFRM_MSG_MIGRATE`).

use super::*;

#[test]
fn migration_changes_named_fields_only() {
    let mut database = database();
    let old = add(&mut database, through_nat()).unwrap();
    keepalives(&mut database, 0);
    old.sequence().take(7).unwrap();
    let to = SaMove {
        destination: "10.0.0.9".parse().unwrap(),
        reqid: Reqid(9),
        encap: None,
        ..SaMove::of(&old)
    };
    let new = database.apply(at(5), |change| change.move_sas(vec![(old, to)])).unwrap();
    let config = new[0].config();
    assert_eq!((new[0].reqid(), config.encap, config.nat_keepalive), (Reqid(9), None, None));
    assert_eq!(new[0].sequence().take(1).unwrap().first, 8);
    assert_eq!(keepalives(&mut database, 100), [0; 0]);
    assert_eq!(database.snapshot().sad.len(), 1);
}

/// A batch in flight continues with the old state, and an attacker replays its packets to the new
/// one.
#[test]
fn number_is_accepted_once_across_migration() {
    for used in [true, false] {
        let mut database = database();
        let old = add(&mut database, sample("10.0.0.2", 1)).unwrap();
        let take =
            |sa: &Sa, number| sa.replay().check(number).and_then(|new| sa.replay().accept(new));
        let in_hand = used.then(|| {
            assert_eq!(take(&old, 3), Ok(()));
            old.replay().check(5).unwrap()
        });
        let to = SaMove { destination: "10.0.0.9".parse().unwrap(), ..SaMove::of(&old) };
        let moved = vec![(Arc::clone(&old), to)];
        let new = database.apply(at(5), |change| change.move_sas(moved)).unwrap().remove(0);
        let late = in_hand.map_or_else(|| take(&old, 5), |in_hand| old.replay().accept(in_hand));
        assert_eq!(late, Err(DropReason::InTooOld));
        assert_eq!(take(&old, 6), Err(DropReason::InTooOld));
        assert_eq!(take(&new, 3), if used { Err(DropReason::InReplay) } else { Ok(()) });
        assert_eq!((take(&new, 5), take(&new, 5)), (Ok(()), Err(DropReason::InReplay)));
        assert_eq!((old.highest_received(), new.highest_received()), (if used { 3 } else { 0 }, 5));
    }
}

/// Packets accepted by the old state and not yet counted are counted for the new one, against
/// limits too.
#[test]
fn late_counts_go_to_migrated_sa() {
    let mut database = database();
    let hard = |hard| SoftHardLimit { hard, ..SoftHardLimit::default() };
    let limits = LifetimeLimits { packets: hard(6), ..LifetimeLimits::default() };
    let old = add(&mut database, SaConfig { limits, ..sample("10.0.0.2", 1) }).unwrap();
    let go = |database: &mut Database, old: &Arc<Sa>, to: &str| {
        let to = SaMove { destination: to.parse().unwrap(), ..SaMove::of(old) };
        let moved = vec![(Arc::clone(old), to)];
        database.apply(at(5), |change| change.move_sas(moved)).unwrap().remove(0)
    };
    let counts = |sa: &Sa| (sa.usage().packets(), sa.usage().bytes());
    assert_eq!(old.charge(2, 200, at(1)), ChargeOutcome::Ok);
    let new = go(&mut database, &old, "10.0.0.8");
    assert_eq!((counts(&old), counts(&new)), ((2, 200), (2, 200)));
    assert_eq!(old.charge(2, 300, at(6)), ChargeOutcome::Ok);
    assert_eq!((counts(&old), counts(&new)), ((2, 200), (4, 500)));
    let newest = go(&mut database, &new, "10.0.0.9");
    assert_eq!(new.charge(1, 10, at(7)), ChargeOutcome::Ok);
    assert_eq!(old.charge(2, 20, at(7)), ChargeOutcome::NeedsPerPacket, "of two not both pass");
    assert_eq!(old.charge(1, 10, at(7)), ChargeOutcome::Ok);
    assert_eq!([&old, &new].map(|late| late.charge(1, 10, at(7))), [ChargeOutcome::Expired; 2]);
    assert_eq!(counts(&newest), (6, 520));
    assert_eq!(newest.charge(1, 10, at(8)), ChargeOutcome::HardLimit);
    assert_eq!((counts(&old), counts(&new), counts(&newest)), ((2, 200), (4, 500), (6, 520)));
}

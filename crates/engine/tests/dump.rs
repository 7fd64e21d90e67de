//! A dump of all SAs blocks nobody and sees one snapshot, whatever the writer does meanwhile.

#![expect(clippy::unwrap_used, reason = "the fixtures of a test are known to be right")]

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use uxfrm_crypto::{Backend, KeyMaterial, Transform};
use uxfrm_engine::{
    Database, Mark, Mode, Moment, ReplayConfig, Reqid, SaConfig, SaId, SaProtocol, SaTransform,
    Snapshot, Spi,
};

/// These stay; those above are added and removed in pairs.
const STAYING: u32 = 1000;
const CHANGES: u32 = 600;

#[test]
fn dump_sees_one_snapshot_during_changes() {
    let mut database = Database::new(Backend::Portable, 1);
    database.apply(Moment(0), |change| {
        (0..STAYING).for_each(|number| drop(change.add_sa(state(number)).unwrap()));
    });
    let published = database.published();
    let is_over = AtomicBool::new(false);
    let dumps = thread::scope(|scope| {
        let dump = scope.spawn(|| {
            let mut dumps = 0;
            while !is_over.load(Ordering::Acquire) || dumps == 0 {
                check(&published.load_full());
                dumps += 1;
            }
            dumps
        });
        // Begun before all changes, and read in steps between them.
        let early = database.snapshot();
        let mut shown = early.sad.iter();
        for number in (0..CHANGES).map(|step| STAYING + step * 2) {
            database.apply(Moment(0), |change| {
                (number..number + 2).for_each(|number| drop(change.add_sa(state(number)).unwrap()));
                if let Some(old) = number.checked_sub(100).filter(|old| *old >= STAYING) {
                    (old..old + 2).for_each(|old| {
                        drop(change.delete_sa(id(old), Mark::default()).unwrap());
                    });
                }
            });
            assert!(shown.next().is_some_and(|sa| sa.id().spi.0 <= STAYING));
        }
        is_over.store(true, Ordering::Release);
        assert_eq!(shown.count(), (STAYING - CHANGES) as usize);
        dump.join().unwrap()
    });
    assert!(dumps > 0);
    check(&database.snapshot());
}

fn check(snapshot: &Snapshot) {
    let shown: Vec<u32> = snapshot.sad.iter().map(|sa| sa.id().spi.0 - 1).collect();
    let each: HashSet<u32> = shown.iter().copied().collect();
    assert_eq!((shown.len(), each.len()), (snapshot.sad.len(), shown.len()), "each once");
    assert!((0..STAYING).all(|number| each.contains(&number)), "what stays is shown");
    let alone = |number: &&u32| **number >= STAYING && !each.contains(&(**number ^ 1));
    assert_eq!(each.iter().find(alone), None, "two that come and go together");
}

fn id(number: u32) -> SaId {
    let destination = "10.0.0.2".parse().unwrap();
    SaId { destination, spi: Spi(number + 1), protocol: SaProtocol::Esp }
}

fn state(number: u32) -> SaConfig {
    SaConfig {
        mode: Mode::Tunnel,
        reqid: Reqid(number),
        replay: ReplayConfig { window: 32, sent: 0, received: 0 },
        ..SaConfig::new(
            id(number),
            "10.0.0.1".parse().unwrap(),
            SaTransform {
                transform: Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap(),
                encryption_key: KeyMaterial::new(&[7; 20]),
                authentication_key: KeyMaterial::empty(),
            },
        )
    }
}

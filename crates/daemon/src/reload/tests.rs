//! Two files, each of some lines out of a few that meet each other often: what a reload makes of
//! one is what the other says, and clients' own stays.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};
use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Direction, FlowKey, Moment};

use super::diff::Difference;
use crate::batch::apply;
use crate::batch::provenance::FileOwned;

const NOW: Moment = Moment(0);

fn state(spi: u8, key: u8, limit: u8) -> String {
    format!(
        "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1{spi:02x} mode tunnel \
         aead rfc4106(gcm(aes)) 0x{} 128 limit packet-soft 9{limit}",
        format!("{key:02x}").repeat(20)
    )
}

fn policy(net: u8, length: u8, priority: u8, action: &str) -> String {
    format!(
        "xfrm policy add src 10.{net}.0.0/{length} dst 10.0.0.0/8 dir in priority {priority} action {action}"
    )
}

prop_compose! {
    fn any_state()(spi in 0..4_u8, key in 1..3_u8, limit in 0..2_u8) -> String {
        state(spi, key, limit)
    }
}

prop_compose! {
    fn any_policy()(net in 0..4_u8, wide in 0..3_u8, priority in 0..2_u8, allow: bool) -> String {
        policy(net, 16 - 4 * wide, priority, if allow { "allow" } else { "block" })
    }
}

/// What names a line's state or policy: the words before what may be otherwise.
fn name(line: &str) -> &str {
    let end = [" mode", " priority"].iter().filter_map(|word| line.find(word)).min();
    &line[..end.unwrap_or(line.len())]
}

/// A file has no name twice.
fn file() -> impl Strategy<Value = Vec<String>> {
    vec(prop_oneof![any_state(), any_policy()], 0..12).prop_map(|mut lines| {
        let mut known = BTreeSet::new();
        lines.retain(|line| known.insert(name(line).to_owned()));
        lines
    })
}

fn fresh() -> Database {
    Database::new(Backend::Portable, 7)
}

fn load(database: &mut Database, lines: &[String]) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lines");
    std::fs::write(&path, lines.join("\n") + "\n").expect("it is written");
    apply::load(database, &[path], NOW).expect("they are right");
}

fn said(lines: &[String]) -> Database {
    let mut database = fresh();
    load(&mut database, lines);
    database
}

fn reload(running: &mut Database, written: &mut FileOwned, lines: &[String]) -> Vec<String> {
    let said = said(lines);
    let difference = Difference::find(running, written, &said);
    let told = difference.lines();
    running.apply(NOW, |change| difference.carry_out(change)).expect("nothing stands in the way");
    *written = super::diff::written(running, &said);
    told
}

/// All that a database says, in an order of its own.
fn all(database: &Database) -> Vec<String> {
    let mut all: Vec<_> = database
        .current()
        .sad
        .iter()
        .map(|sa| {
            let config = sa.to_config();
            let key = config.transform.encryption_key.fingerprint();
            format!("{:?} {:?} {key:x}", config.id, config.limits)
        })
        .chain(database.current().spd.iter().map(|entry| {
            let policy = entry.policy();
            format!("{:?} {:?} {:?}", policy.selector, policy.priority, policy.action)
        }))
        .collect();
    all.sort();
    all
}

/// What becomes of packets from each network.
fn verdicts(database: &Database) -> Vec<Option<uxfrm_engine::Action>> {
    let to = "10.1.2.3".parse().expect("an address");
    let from = (0..=u8::MAX).map(|net| std::net::IpAddr::from([10, net, 7, 7]));
    let kind = uxfrm_engine::PolicyKind::Main;
    from.map(|from| {
        let flow = FlowKey {
            source: from,
            destination: to,
            protocol: 17,
            source_port: 1,
            destination_port: 2,
            mark: 0,
            if_id: 0,
            ifindex: 0,
        };
        let found = database.current().spd.lookup_kind(kind, Direction::In, &flow);
        found.map(|entry| entry.action())
    })
    .collect()
}

proptest! {
    #[test]
    fn reload_makes_databases_match_files(before in file(), after in file()) {
        let mut running = said(&before);
        let mut written = FileOwned::all(&running);
        reload(&mut running, &mut written, &after);
        let wanted = said(&after);
        prop_assert_eq!(all(&running), all(&wanted));
        prop_assert_eq!(verdicts(&running), verdicts(&wanted), "equal priorities go by the file's order");
        let nothing: Vec<String> = Vec::new();
        prop_assert_eq!(reload(&mut running, &mut written, &after), nothing);
    }

    #[test]
    fn reload_keeps_objects_of_clients(before in file(), after in file(), between in file()) {
        let theirs = vec![
            policy(200, 24, 0, "block"),
            state(0xfe, 9, 0),
        ];
        let mut running = said(&before);
        let mut written = FileOwned::all(&running);
        load(&mut running, &theirs);
        reload(&mut running, &mut written, &between);
        reload(&mut running, &mut written, &after);
        let mut wanted = said(&after);
        load(&mut wanted, &theirs);
        prop_assert_eq!(all(&running), all(&wanted));
    }
}

#[test]
fn reload_keeps_state_with_same_key() {
    let mut running = said(&[state(1, 1, 0)]);
    let mut written = FileOwned::all(&running);
    let turn =
        |database: &Database| database.current().sad.iter().next().map(|sa| sa.insertion_seq());
    let first = turn(&running);
    let told = reload(&mut running, &mut written, &[state(1, 1, 5)]);
    assert!(told[0].ends_with("(goes on)"), "{told:?}");
    assert_eq!(turn(&running), first);
    let told = reload(&mut running, &mut written, &[state(1, 2, 5)]);
    assert!(told[0].ends_with("(begins anew)"), "{told:?}");
    assert_ne!(turn(&running), first);
}

/// Where a state's line says what no update changes, packets of the same key must not be accepted
/// twice, nor an IV be sent twice.
#[test]
fn reload_same_key_continues_numbers() {
    let line = state(1, 1, 0);
    let changes = [
        "flag af-unspec",
        "flag noecn",
        "flag esn",
        "output-mark 7",
        "reqid 9",
        "replay-window 256 flag esn",
    ];
    for change in changes {
        let before = format!("{line} replay-window 128");
        let window = if change.contains("replay-window") { "" } else { "replay-window 128" };
        let mut running = said(&[before]);
        let mut written = FileOwned::all(&running);
        let first = |database: &Database| database.current().sad.iter().next().cloned().unwrap();
        let old = first(&running);
        for number in 1..=100 {
            let candidate = old.replay().check(number).unwrap();
            old.replay().accept(candidate).unwrap();
        }
        let sent = old.sequence().take(100).unwrap().first + 99;
        let told = reload(&mut running, &mut written, &[format!("{line} {window} {change}")]);
        assert!(told[0].ends_with("(goes on)"), "{told:?}");
        let new = first(&running);
        assert!(new.insertion_seq() > old.insertion_seq(), "no update: {change}");
        let numbers = 1..=100_u32;
        assert!(numbers.map(|number| new.replay().check(number)).all(|check| check.is_err()));
        assert!(new.replay().check(101).is_ok(), "{change}");
        assert_eq!(new.sequence().take(1).unwrap().first, sent + 1, "{change}");
        // What a worker still has in hands of the old one.
        let late = old.replay().check(101).and_then(|candidate| old.replay().accept(candidate));
        assert!(late.is_err() && old.sequence().take(1).is_err(), "{change}");
    }
}

#[test]
fn reload_lines_show_no_keys() {
    let mut running = fresh();
    let mut written = FileOwned::all(&running);
    let told = reload(&mut running, &mut written, &[state(1, 0xab, 0)]);
    assert_eq!(told, ["+ state src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00000101"]);
}

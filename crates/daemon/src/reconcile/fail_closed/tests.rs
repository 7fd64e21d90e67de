//! What a run leaves, and what the next one makes of it.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use uxfrm_crypto::Backend;
use uxfrm_engine::{FlowKey, IfId, Mark, PolicyKind, PolicyLookup, PortMask};

use super::{
    saved_policies::{self, Cleartext, PolicyOrigin, SavedPolicies, SavedPolicy},
    *,
};
use crate::batch::{apply, provenance::FileOwned};

fn database(lines: &str) -> Database {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("batch");
    std::fs::write(&file, lines).unwrap();
    let mut database = Database::new(Backend::Portable, 1);
    apply::load(&mut database, &[file], now()).unwrap();
    database
}

/// A run of some policies of files and of programs.
fn run(files: &str, programs: &str) -> (Database, FileOwned) {
    (database(&format!("{files}{programs}")), FileOwned::all(&database(files)))
}

/// What it leaves.
fn left(files: &str, programs: &str) -> SavedPolicies {
    let (database, written) = run(files, programs);
    SavedPolicies::of(&database.current().spd, &written)
}

/// What becomes of a plain packet from 10.1.0.1.
fn outcome(database: &Database, to: &str) -> Cleartext {
    let flow = FlowKey {
        source: "10.1.0.1".parse().unwrap(),
        destination: to.parse().unwrap(),
        protocol: 17,
        source_port: 7,
        destination_port: 7,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    };
    match database.current().spd.lookup(Direction::Out, &flow) {
        PolicyLookup::Policy(entry) => Cleartext::of(entry),
        PolicyLookup::Default(Action::Allow) => Cleartext::Pass,
        PolicyLookup::Default(Action::Block) => Cleartext::Refuse,
    }
}

const ALL: &str =
    "xfrm policy add dst 0.0.0.0/0 dir out priority 900 tmpl proto esp mode transport\n";
const NET: &str =
    "xfrm policy add dst 10.2.0.0/16 dir out priority 500 tmpl proto esp mode transport\n";
const LAN: &str = "xfrm policy add dst 192.168.0.0/16 dir out priority 100\n";

#[test]
fn saved_program_policies_refuse_or_pass() {
    let mut next = database("");
    assert_eq!(hold(&mut next, &left("", &[ALL, LAN].concat()), PolicyFiles::Decide), 2);
    assert_eq!(outcome(&next, "10.2.0.1"), Cleartext::Refuse);
    assert_eq!(outcome(&next, "192.168.0.1"), Cleartext::Pass);
}

#[test]
fn saved_file_policies_are_left_to_files() {
    let mut next = database("");
    assert_eq!(hold(&mut next, &left(NET, ""), PolicyFiles::Decide), 0);
    assert_eq!(hold(&mut next, &left(NET, ""), PolicyFiles::AreFaulty), 1);
    assert_eq!(outcome(&next, "10.2.0.1"), Cleartext::Refuse);
}

#[test]
fn live_policy_precedes_saved_ones() {
    let pass = "xfrm policy add dst 10.2.0.0/24 dir out priority 100\n";
    let mut next = database(NET);
    hold(&mut next, &left("", pass), PolicyFiles::Decide);
    assert_eq!(
        outcome(&next, "10.2.0.1"),
        Cleartext::Refuse,
        "what is held lets nobody past a file"
    );
}

#[test]
fn lower_priority_file_policy_opens_nothing() {
    let pass = "xfrm policy add dst 10.0.0.0/8 dir out priority 800\n";
    let mut next = database(pass);
    hold(&mut next, &left(pass, NET), PolicyFiles::Decide);
    assert_eq!(outcome(&next, "10.2.0.1"), Cleartext::Refuse);
    assert_eq!(outcome(&next, "10.3.0.1"), Cleartext::Pass);
}

#[test]
fn same_policy_replaces_saved_one() {
    let mut next = database("");
    hold(&mut next, &left("", NET), PolicyFiles::Decide);
    let again = database(NET).current().spd.iter().next().unwrap().policy();
    let entry = next.apply(now(), |change| change.add_policy(again)).unwrap();
    assert!(!entry.is_held());
    assert_eq!(next.current().spd.len(), 1);
}

#[test]
fn saved_block_defaults_are_kept() {
    let block = "xfrm policy setdefault out block\n";
    let mut next = database("");
    hold(&mut next, &left("", &[block, LAN].concat()), PolicyFiles::Decide);
    assert_eq!(outcome(&next, "10.9.0.1"), Cleartext::Refuse);
    let mut of_files = database("");
    hold(&mut of_files, &left(block, ""), PolicyFiles::Decide);
    assert_eq!(outcome(&of_files, "10.9.0.1"), Cleartext::Pass);
}

#[test]
fn saved_policies_survive_second_start() {
    let mut second = database("");
    hold(&mut second, &left("", NET), PolicyFiles::Decide);
    let saved = SavedPolicies::of(&second.current().spd, &FileOwned::default());
    assert!(saved.policies.iter().all(|policy| policy.is_held));
    let mut third = database("");
    assert_eq!(hold(&mut third, &saved, PolicyFiles::Decide), 1);
    assert_eq!(outcome(&third, "10.2.0.1"), Cleartext::Refuse);
}

#[test]
fn damaged_saved_policies_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    assert!(saved_policies::read(directory.path()).unwrap().is_none());
    let (database, written) = run(LAN, NET);
    let draft =
        saved_policies::DraftFile::write(directory.path(), &database.current().spd, &written);
    draft.unwrap().settle(directory.path()).unwrap();
    let file = saved_policies::path(directory.path());
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(saved_policies::read(directory.path()).unwrap().unwrap(), left(LAN, NET));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert!(saved_policies::read(directory.path()).unwrap_err().to_string().contains("damaged"));
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
    saved_policies::read(directory.path()).unwrap_err();
}

/// What may stand in the portrait's place after an accident, or by somebody's hand.
fn faults() -> Vec<fn(&Path)> {
    vec![
        |place| std::fs::write(place, "").unwrap(),
        |place| std::fs::write(place, &left("", NET).to_text()[..70]).unwrap(),
        |place| std::fs::write(place, [0xff; 4096]).unwrap(),
        |place| std::fs::create_dir(place).unwrap(),
        |place| std::os::unix::fs::symlink("/dev/zero", place).unwrap(),
        |place| nix::unistd::mkfifo(place, nix::sys::stat::Mode::S_IRWXU).unwrap(),
    ]
}

#[test]
fn unreadable_saved_policies_refuse_all() {
    for fault in faults() {
        let directory = tempfile::tempdir().unwrap();
        fault(&saved_policies::path(directory.path()));
        let mut next = database(LAN);
        assert_eq!(take_up(&mut next, directory.path(), AtStart::Block, PolicyFiles::Decide), 6);
        assert_eq!(outcome(&next, "10.2.0.1"), Cleartext::Refuse);
        assert_eq!(outcome(&next, "192.168.0.1"), Cleartext::Pass, "what a file says is said");
        assert!(next.current().spd.iter().filter(|entry| entry.is_held()).count() == 6);
        let told = describe(directory.path(), AtStart::Block).join("\n");
        assert!(told.contains("uxfrm release") && told.contains("uxfrm clean"), "{told}");
        let mut open = database("");
        assert_eq!(take_up(&mut open, directory.path(), AtStart::Open, PolicyFiles::Decide), 0);
    }
    let mut first = database("");
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(take_up(&mut first, directory.path(), AtStart::Block, PolicyFiles::Decide), 0);
}

#[test]
fn draft_path_taken_is_replaced_without_following() {
    let (database, written) = run(LAN, NET);
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let draft = |directory: &Path| {
        saved_policies::DraftFile::write(directory, &database.current().spd, &written)
    };
    for link in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("policies.new");
        if link {
            std::os::unix::fs::symlink(elsewhere.path(), &place).unwrap();
        } else {
            nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        draft(directory.path()).unwrap().settle(directory.path()).unwrap();
        assert_eq!(saved_policies::read(directory.path()).unwrap().unwrap(), left(LAN, NET));
    }
    assert_eq!(std::fs::read(elsewhere.path()).unwrap(), b"");
}

fn prefixes() -> impl Strategy<Value = Prefix> {
    let four = (any::<[u8; 4]>(), 0..=32_u8)
        .prop_map(|(address, length)| Prefix::new(address.into(), length).unwrap());
    let six = (any::<[u8; 16]>(), 0..=128_u8)
        .prop_map(|(address, length)| Prefix::new(address.into(), length).unwrap());
    prop_oneof![four, six]
}

prop_compose! {
    fn policies()(
        (source, destination) in (prefixes(), prefixes())
            .prop_filter("one family", |(one, other)| one.family() == other.family()),
        (protocol, ports, ifindex, user) in any::<(u8, [u16; 4], u32, u32)>(),
        (priority, value, mask, if_id) in any::<(u32, u32, u32, u32)>(),
        (way, bits) in (0..3_usize, any::<[bool; 4]>()),
    ) -> SavedPolicy {
        SavedPolicy {
            direction: [Direction::In, Direction::Forward, Direction::Out][way],
            kind: if bits[0] { PolicyKind::Main } else { PolicyKind::Sub },
            action: if bits[1] { Cleartext::Pass } else { Cleartext::Refuse },
            origin: if bits[2] { PolicyOrigin::PolicyFiles } else { PolicyOrigin::Programs },
            is_held: bits[3],
            priority: Priority(priority),
            selector: Selector {
                source,
                destination,
                protocol,
                source_port: PortMask { value: ports[0], mask: ports[1] },
                destination_port: PortMask { value: ports[2], mask: ports[3] },
                ifindex,
                user,
            },
            mark: Mark { value, mask },
            if_id: IfId(if_id),
        }
    }
}

proptest! {
    #[test]
    fn saved_policies_written_and_read_are_unchanged(policies in prop::collection::vec(policies(), 0..8)) {
        let defaults = vec![(Direction::Out, PolicyOrigin::Programs)];
        let saved = SavedPolicies { defaults, policies };
        prop_assert_eq!(SavedPolicies::parse(&saved.to_text()), Some(saved));
    }

    #[test]
    fn no_text_is_too_strange(text in "\\PC*", cut in 0..400_usize) {
        SavedPolicies::parse(&text);
        let whole = left(LAN, NET).to_text();
        let part = &whole[..cut.min(whole.len())];
        prop_assert!(SavedPolicies::parse(part).is_none() || part == whole);
    }
}

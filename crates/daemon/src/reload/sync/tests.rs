//! Any databases, written as lines and read again into others.

use proptest::prelude::*;
use uxfrm_control_client::reload::SyncRequest;
use uxfrm_crypto::Backend;
use uxfrm_engine::{DefaultActions, Moment, Policy, SaConfig};
use uxfrm_testkit::{Rng, arbitrary};
use uxfrm_xfrm::{grammar::LineWriter, names::Names, text::Keys};

use super::*;

const NOW: Moment = Moment(0);

fn fresh() -> Database {
    Database::new(Backend::Portable, 7)
}

/// So many states and policies, of those that are any that an engine takes.
fn database(seed: u64, most: usize) -> Database {
    let (mut database, mut rng) = (fresh(), Rng::new(seed));
    database.apply(NOW, |change| {
        for _ in 0..rng.below(most + 1) {
            let _refused = change.add_sa(arbitrary::state(&mut rng));
            let _refused = change.add_policy(arbitrary::policy(&mut rng));
        }
    });
    database
}

/// What `uxfrm xfrm save` prints.
fn saved(database: &Database) -> String {
    let (names, now) = (Names::none(), database.current());
    let mut writer = LineWriter::new(&names, Keys::Shown);
    let mut text = writer.defaults(now.spd.defaults()).to_owned();
    for config in states(database) {
        text += writer.state(&config).unwrap();
    }
    for policy in policies(database) {
        text += writer.policy(&policy).unwrap();
    }
    text
}

/// The oldest first.
fn states(database: &Database) -> Vec<SaConfig> {
    let mut all: Vec<_> = database.current().sad.iter().collect();
    all.sort_by_key(|sa| sa.insertion_seq());
    all.into_iter().map(|sa| sa.to_config()).collect()
}

/// The oldest first, without their indexes.
fn policies(database: &Database) -> Vec<Policy> {
    let mut all: Vec<_> = database.current().spd.iter().collect();
    all.sort_by_key(|entry| entry.precedence().insertion_seq());
    let index = uxfrm_engine::PolicyIndex(0);
    all.into_iter().map(|entry| Policy { index, ..entry.policy() }).collect()
}

fn text(lines: &str, others: SyncOthers) -> WholeText {
    let bytes = zeroize::Zeroizing::new(lines.as_bytes().to_vec());
    let (source, course) = ("FILE".to_owned(), SyncCourse::Apply);
    WholeText { request: SyncRequest { source, bytes: 0, course, others }, bytes }
}

/// Does what the lines say; what is told.
fn sync(
    running: &mut Database,
    lines: &str,
    others: SyncOthers,
) -> Result<Vec<String>, Vec<String>> {
    let difference = plan(&text(lines, others), running, fresh())?;
    let told = difference.lines();
    running.apply(NOW, |change| difference.carry_out(change)).map_err(|(line, _)| vec![line])?;
    Ok(told)
}

/// In an order of their own: what is there already stands where it stood.
fn all(database: &Database) -> Vec<String> {
    let mut all = saved(database).lines().map(str::to_owned).collect::<Vec<_>>();
    all.sort();
    all
}

proptest! {
    #[test]
    fn saved_lines_make_the_same_states_and_policies(seed: u64) {
        let there = database(seed, 12);
        let mut here = fresh();
        sync(&mut here, &saved(&there), SyncOthers::Remove).unwrap();
        prop_assert_eq!(states(&here), states(&there), "in their order");
        prop_assert_eq!(policies(&here), policies(&there), "in their order");
    }

    #[test]
    fn sync_of_what_was_saved_changes_nothing(seed: u64) {
        let mut here = database(seed, 12);
        let lines = saved(&here);
        for others in [SyncOthers::Remove, SyncOthers::Keep] {
            prop_assert_eq!(sync(&mut here, &lines, others).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn sync_makes_any_databases_the_texts(seeds: (u64, u64), shared: u64) {
        let mut here = database(seeds.0, 8);
        let mut there = database(seeds.1, 8);
        // Both have these, and at one end they have other limits.
        let both = saved(&database(shared, 6));
        sync(&mut here, &both, SyncOthers::Keep).unwrap();
        sync(&mut there, &both.replace("byte-hard 3600", "byte-hard 3700"), SyncOthers::Keep).unwrap();
        let lines = saved(&there);
        sync(&mut here, &lines, SyncOthers::Remove).unwrap();
        prop_assert_eq!(all(&here), all(&there));
        prop_assert_eq!(sync(&mut here, &lines, SyncOthers::Remove).unwrap(), Vec::<String>::new());
    }
}

const STATE: &str = "state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x101 mode tunnel \
                     aead rfc4106(gcm(aes)) 0x0101010101010101010101010101010101010101 128\n";
const POLICY: &str = "policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir in\n";

#[test]
fn what_a_text_does_not_say_goes_or_stays() {
    let mut here = fresh();
    assert_eq!(sync(&mut here, &[STATE, POLICY].concat(), SyncOthers::Remove).unwrap().len(), 2);
    assert_eq!(sync(&mut here, POLICY, SyncOthers::Keep).unwrap(), Vec::<String>::new());
    let told = sync(&mut here, POLICY, SyncOthers::Remove).unwrap();
    assert_eq!(told, ["- state dst 192.0.2.2 proto esp spi 0x00000101"]);
}

#[test]
fn defaults_that_a_text_does_not_name_stay() {
    let mut here = fresh();
    sync(&mut here, "policy setdefault in block\n", SyncOthers::Remove).unwrap();
    sync(&mut here, "policy setdefault out block\n", SyncOthers::Remove).unwrap();
    sync(&mut here, POLICY, SyncOthers::Remove).unwrap();
    let DefaultActions { inbound, forward, outbound } = here.current().spd.defaults();
    let block = uxfrm_engine::Action::Block;
    assert_eq!([inbound, outbound], [block; 2]);
    assert_ne!(forward, block);
    let told =
        sync(&mut here, "policy setdefault in accept out accept\n", SyncOthers::Keep).unwrap();
    assert_eq!(told, ["~ policy setdefault in accept fwd accept out accept"]);
}

#[test]
fn text_that_says_nothing_is_refused() {
    let mut here = fresh();
    sync(&mut here, POLICY, SyncOthers::Remove).unwrap();
    for nothing in ["\n", "# nothing\n"] {
        let faults = sync(&mut here, nothing, SyncOthers::Remove).unwrap_err();
        assert!(faults[0].starts_with("FILE: it says no state"), "{faults:?}");
    }
    assert_eq!(here.current().spd.len(), 1);
}

#[test]
fn all_faults_of_a_text_are_told_with_their_places_and_no_key() {
    let wrong = "state add prot esp\npolicy add dir\nstate list\n";
    let faults = sync(&mut fresh(), wrong, SyncOthers::Remove).unwrap_err();
    assert_eq!(faults.len(), 2, "lines that are no ip xfrm come first: {faults:?}");
    assert!(faults[0].starts_with("FILE:1:11: \"prot\""), "{faults:?}");
    assert!(faults[1].starts_with("FILE:2:"), "{faults:?}");
    let faults = sync(&mut fresh(), &[STATE, STATE, "state list\n"].concat(), SyncOthers::Remove);
    let faults = faults.unwrap_err();
    assert!(faults[0].starts_with("FILE:2: ") && faults[0].contains("exist"), "{faults:?}");
    assert!(faults[1].starts_with("FILE:3: `state list` has no place"), "{faults:?}");
    let hidden = STATE.replace("0x0101010101010101010101010101010101010101", "<<Keys hidden>>");
    let faults = sync(&mut fresh(), &hidden, SyncOthers::Remove).unwrap_err();
    assert!(faults[0].contains("hidden (nokeys)"), "{faults:?}");
}

/// What files own is theirs after a sync that gave it another insertion number, too.
#[test]
fn files_own_by_name_what_they_owned_before() {
    let mut here = fresh();
    sync(&mut here, &[STATE, POLICY].concat(), SyncOthers::Remove).unwrap();
    let owned = FileOwned::all(&here);
    let before = here.snapshot();
    let more = STATE.replace("0x101", "0x102");
    let moved = [&STATE.replace("mode", "flag noecn mode"), &more, POLICY].concat();
    sync(&mut here, &moved, SyncOthers::Remove).unwrap();
    let owned = diff::still_owned(&owned, &before, &here);
    let of_files: Vec<_> = here
        .current()
        .sad
        .iter()
        .filter(|sa| owned.has_state(sa))
        .map(|sa| sa.id().spi.0)
        .collect();
    assert_eq!(of_files, [0x101]);
    assert!(here.current().spd.iter().all(|entry| owned.has_policy(entry)));
}

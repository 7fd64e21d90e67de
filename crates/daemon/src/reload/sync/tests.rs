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
    let bytes = Zeroizing::new(lines.as_bytes().to_vec());
    let (source, course) = ("FILE".to_owned(), SyncCourse::Apply);
    WholeText { request: SyncRequest { source, bytes: 0, course, others }, bytes }
}

/// The same states by name, each with another window, other limits, or all that another state has
/// but perhaps the keys.
fn varied(database: &Database, seed: u64) -> Database {
    let (mut there, mut rng) = (fresh(), Rng::new(seed));
    there.apply(NOW, |change| {
        for now in states(database) {
            let _refused = change.add_sa(variation(now, &mut rng));
        }
    });
    there
}

fn variation(now: SaConfig, rng: &mut Rng) -> SaConfig {
    let same_family =
        |other: &SaConfig| other.id.destination.is_ipv4() == now.id.destination.is_ipv4();
    let mut any = std::iter::repeat_with(|| arbitrary::state(rng));
    let other = any.find(same_family).expect("either family comes");
    match rng.below(4) {
        0 if now.replay.window > 0 => now.with_replay_window(other.replay.window.max(1)),
        0 | 1 => SaConfig { limits: other.limits, ..now },
        2 => SaConfig { id: now.id, mark: now.mark, ..other },
        _ => SaConfig { id: now.id, mark: now.mark, transform: now.transform, ..other },
    }
}

/// What a text asks for, read to its end.
fn plan(text: WholeText, running: &Database) -> Result<Difference, Vec<String>> {
    let mut reading = SyncReading::begin(ClientId(0), text, running, fresh()).unwrap();
    while !reading.is_over() {
        reading.read_on();
    }
    reading.difference(running).map(|(difference, _said)| difference)
}

/// Does what the lines say; what is told.
fn sync(
    running: &mut Database,
    lines: &str,
    others: SyncOthers,
) -> Result<Vec<String>, Vec<String>> {
    let difference = plan(text(lines, others), running)?;
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

    /// Whatever a line of a state that is there says otherwise: it is done at once, and then done.
    #[test]
    fn second_sync_of_changed_states_finds_nothing_left(seeds: (u64, u64)) {
        let mut here = database(seeds.0, 12);
        let there = varied(&here, seeds.1);
        let lines = saved(&there);
        sync(&mut here, &lines, SyncOthers::Keep).unwrap();
        prop_assert_eq!(sync(&mut here, &lines, SyncOthers::Keep).unwrap(), Vec::<String>::new());
        sync(&mut here, &lines, SyncOthers::Remove).unwrap();
        prop_assert_eq!(all(&here), all(&there));
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
fn window_of_an_extended_state_is_changed_once() {
    let line = |window| STATE.replace("mode", &format!("replay-window {window} flag esn mode"));
    let mut here = fresh();
    sync(&mut here, &line(32), SyncOthers::Remove).unwrap();
    let told = sync(&mut here, &line(1024), SyncOthers::Remove).unwrap();
    assert!(told[0].ends_with("(goes on)"), "{told:?}");
    assert_eq!(states(&here)[0].replay.window, 1024);
    assert_eq!(sync(&mut here, &line(1024), SyncOthers::Remove).unwrap(), Vec::<String>::new());
}

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

/// Faults have the places that they have in the whole text, and parts end with whole commands.
#[test]
fn text_is_read_in_parts_as_one() {
    let aead = &STATE[STATE.find("aead").unwrap()..];
    let ends = "src 192.0.2.1 dst 192.0.2.2 proto esp";
    let line = |spi: u32| format!("state add {ends} \\\n spi {spi:#x} \\ \n mode tunnel {aead}");
    let right: String = (0x1000..0x2000).map(line).collect();
    let mut reading =
        SyncReading::begin(ClientId(0), text(&right, SyncOthers::Remove), &fresh(), fresh())
            .unwrap();
    let mut parts = 0;
    while !reading.is_over() {
        reading.read_on();
        parts += 1;
    }
    let least = right.len() / PART;
    assert!((least..=least + 1).contains(&parts), "{parts} parts of {} bytes", right.len());
    let steps = reading.difference(&fresh()).unwrap().0.lines();
    assert_eq!(steps.len(), 0x1000);
    let lines = right.lines().count();
    let twice = STATE.replace("0x101", "0x1001");
    let wrong = [&right, "state list\n", STATE, "\n", &twice].concat();
    let faults = sync(&mut fresh(), &wrong, SyncOthers::Remove).unwrap_err();
    assert!(faults[0].starts_with(&format!("FILE:{}: `state list`", lines + 1)), "{faults:?}");
    assert!(faults[1].starts_with(&format!("FILE:{}: ", lines + 4)), "{faults:?}");
    let wrong = [&right, "policy add dir\n"].concat();
    let faults = sync(&mut fresh(), &wrong, SyncOthers::Remove).unwrap_err();
    assert!(faults[0].starts_with(&format!("FILE:{}:", lines + 1)), "{faults:?}");
}

/// What somebody tells a gateway while a text is read is not taken back by what that leaves alone.
#[test]
fn defaults_told_meanwhile_stay_where_the_text_changes_others() {
    let mut here = fresh();
    let lines = text("policy setdefault in block\n", SyncOthers::Remove);
    let mut reading = SyncReading::begin(ClientId(0), lines, &here, fresh()).unwrap();
    sync(&mut here, "policy setdefault out block\n", SyncOthers::Keep).unwrap();
    reading.read_on();
    let told = reading.difference(&here).unwrap().0.lines();
    assert_eq!(told, ["~ policy setdefault in block fwd accept out block"]);
}

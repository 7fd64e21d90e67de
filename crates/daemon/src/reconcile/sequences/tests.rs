use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use tempfile::TempDir;
use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, DropReason, FIRST_RESERVED, Moment, SaConfig};
use uxfrm_io::poll::Poller;

use super::{
    disk::{Disk, LocalDisk},
    found::{WitnessPlace, random_bits},
    leaving::UNDER_WAY,
    memory::RunFile,
    reservation::AHEAD,
    *,
};
use crate::batch::{self, Command, apply};

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f10111213";
const OTHER_KEY: &str = "0xff0102030405060708090a0b0c0d0e0f10111213";

mod lost;
mod received;
mod simulated;

/// A directory with a store, across the runs of a gateway.
struct Runs(TempDir);

/// One run: its databases and its store.
struct Run(Database, SequenceStore);

impl Runs {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn journal(&self) -> PathBuf {
        self.path().join("sequences")
    }

    /// What outlives the process and not the machine.
    fn memory(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn open(&self) -> SequenceStore {
        let memory = self.memory().join("store.windows");
        let storage = Box::new(RunFile(memory));
        let remembered = WitnessPlace { storage, waker: Poller::new().unwrap().waker() };
        let disk = Box::new(LocalDisk::open(&self.path()).unwrap());
        SequenceStore::on(disk, Some(remembered), random_bits).unwrap()
    }

    fn start(&self, words: &str, key: &str) -> Run {
        let batch = self.0.path().join("batch");
        fs::write(&batch, state(words, key)).unwrap();
        let Run(mut database, store) = self.start_empty();
        apply::load(&mut database, &[batch], Moment(0)).unwrap();
        let mut run = Run(database, store);
        run.attend();
        run
    }

    /// A run without states.
    fn start_empty(&self) -> Run {
        let store = self.open();
        let mut database = Database::new(Backend::Portable, 1);
        database.track_changes_with(store.keeper());
        Run(database, store)
    }

    /// What stands in the journal.
    fn text(&self) -> String {
        let text = fs::read_to_string(self.journal()).unwrap();
        text.trim_end_matches('\0').to_owned()
    }

    fn lines(&self) -> usize {
        self.text().lines().count()
    }
}

impl Run {
    /// What the gateway does about changes.
    fn attend(&mut self) {
        let changes = self.0.take_changes();
        for sa in &changes.removed {
            self.1.dismiss(sa, Moment(0));
            self.1.leaving.remove(&SaName::of(sa));
            self.1.settle(sa);
        }
        changes.added.iter().for_each(|sa| self.1.admit(sa, Moment(0)));
        self.1.commit().unwrap();
        self.0.publish();
    }

    fn add(&mut self, spi: u32, key: &[u8; 20]) -> Arc<Sa> {
        let sa = self.0.apply(Moment(0), |change| change.add_sa(config(spi, key))).unwrap();
        assert_eq!(sa.sequence().reserved(), 0, "nothing is reserved yet");
        self.attend();
        sa
    }

    fn delete(&mut self, sa: &Sa) {
        let (id, mark) = (sa.id(), sa.config().mark);
        self.0.apply(Moment(0), |change| change.delete_sa(id, mark)).unwrap();
        self.attend();
    }

    /// The number of the next packet of the first state.
    fn send(&self) -> Result<u64, DropReason> {
        let snapshot = self.0.snapshot();
        let sa = snapshot.sad.iter().next().unwrap();
        sa.sequence().take(1).map(|block| block.first)
    }

    /// What `kill -9` leaves: nobody gives anything back.
    fn crash(self) {
        let Self(database, store) = self;
        std::mem::forget(database);
        drop(store);
    }

    /// The first state.
    fn sa(&self) -> Arc<Sa> {
        Arc::clone(self.0.snapshot().sad.iter().next().unwrap())
    }

    fn end(mut self) {
        self.1.close(&self.0.snapshot().sad).unwrap();
    }
}

/// A state's words with a name and key.
fn config(spi: u32, key: &[u8; 20]) -> SaConfig {
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = state(&format!("spi {spi}"), &format!("0x{key}"));
    let line = batch::parse("batch", &text).unwrap().remove(0);
    let Command::StateAdd(config) = line.value else { panic!("{line:?}") };
    *config
}

fn state(words: &str, key: &str) -> String {
    format!(
        "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp {words} \
         mode tunnel aead rfc4106(gcm(aes)) {key} 128"
    )
}

#[test]
fn after_an_orderly_end_the_next_number_follows() {
    let runs = Runs::new();
    let run = runs.start("spi 1", KEY);
    assert_eq!((run.send(), run.send()), (Ok(1), Ok(2)));
    run.end();
    assert_eq!(runs.start("spi 1", KEY).send(), Ok(3));
}

#[test]
fn after_a_crash_all_reserved_numbers_count_as_used() {
    let runs = Runs::new();
    for run in 0..3 {
        assert_eq!(runs.start("spi 1", KEY).send(), Ok(run * AHEAD + 1));
    }
}

#[test]
fn numbers_are_reserved_again_before_they_end() {
    let runs = Runs::new();
    let Run(database, mut store) = runs.start("spi 1", KEY);
    let half = u32::try_from(AHEAD / 2).unwrap() + 1;
    for sa in database.snapshot().sad.iter() {
        sa.sequence().take(half).unwrap();
    }
    let ahead = || database.snapshot().sad.iter().next().unwrap().sequence().reserved();
    assert_eq!(ahead(), AHEAD);
    store.renew(Moment(0)).unwrap();
    assert_eq!(ahead(), AHEAD + u64::from(half));
    let text = runs.text();
    assert!(text.contains(&format!(" {}\ncommit ", ahead())), "{text}");
}

#[test]
fn another_key_begins_anew_and_the_old_one_is_remembered() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    assert_eq!(runs.start("spi 1", OTHER_KEY).send(), Ok(1));
    assert_eq!(runs.start("spi 1", KEY).send(), Ok(AHEAD + 1));
}

#[test]
fn a_key_goes_on_under_another_spi() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    assert_eq!(runs.start("spi 2", KEY).send(), Ok(AHEAD + 1));
}

#[test]
fn what_the_line_says_counts_when_it_is_higher() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    assert_eq!(runs.start("spi 1 replay-oseq 0x80000000", KEY).send(), Ok(0x8000_0001));
}

#[test]
fn a_state_whose_numbers_are_used_up_starts_and_sends_nothing_until_it_has_another_key() {
    let runs = Runs::new();
    assert_eq!(runs.start("spi 1 replay-oseq 0xfffffff0", KEY).send(), Ok(0xffff_fff1));
    let run = runs.start("spi 1", KEY);
    assert_eq!(run.send(), Err(DropReason::OutSequenceOverflow));
    run.end();
    assert_eq!(runs.start("spi 1", KEY).send(), Err(DropReason::OutSequenceOverflow));
    assert_eq!(runs.start("spi 1", OTHER_KEY).send(), Ok(1));
}

#[test]
fn a_counter_that_may_wrap_goes_on_above_2_to_the_32() {
    let runs = Runs::new();
    let words = "spi 1 extra-flag oseq-may-wrap";
    drop(runs.start(&format!("{words} replay-oseq 0xfffffff0"), KEY));
    assert_eq!(runs.start(words, KEY).send(), Ok(0xffff_fff0 + AHEAD + 1));
}

#[test]
fn a_state_that_only_receives_keeps_out() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    runs.start("spi 1 dir in", KEY).end();
    assert_eq!(runs.start("spi 1", KEY).send(), Ok(AHEAD + 1));
}

#[test]
fn the_file_has_no_key_and_is_for_its_owner() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    let text = runs.text();
    assert!(!text.contains(&KEY[2..18]), "{text}");
    let mode = fs::metadata(runs.journal()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn journal_of_a_newer_release_is_refused() {
    let runs = Runs::new();
    fs::create_dir(runs.path()).unwrap();
    let text = "uxfrm-sequences 2 00000000000000000000000000000001\ncommit 1";
    let text = format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()));
    fs::write(runs.journal(), text).unwrap();
    let disk = Box::new(LocalDisk::open(&runs.path()).unwrap());
    let error = SequenceStore::on(disk, None, random_bits).unwrap_err();
    assert!(error.to_string().contains("newer release"), "{error}");
}

const STATIC: [u8; 20] = [1; 20];

/// A program deletes a state and adds it again, under another SPI too: numbers go on without a gap.
#[test]
fn readded_key_continues_numbers() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    for (spi, expected) in [(1, 1), (1, 4), (2, 7)] {
        let sa = run.add(spi, &STATIC);
        assert_eq!(sa.sequence().take(3).unwrap().first, expected);
        run.delete(&sa);
        assert!(sa.sequence().take(1).is_err(), "batches under way get no number any more");
    }
    drop(run);
    let mut run = runs.start_empty();
    assert_eq!(run.add(1, &STATIC).sequence().take(1).unwrap().first, 10);
    drop(run);
    let mut run = runs.start_empty();
    assert_eq!(run.add(1, &STATIC).sequence().take(1).unwrap().first, 9 + AHEAD + 1, "a crash");
}

/// Two states with one key count in places of their own while both are there.
#[test]
fn states_sharing_key_do_not_skip_numbers() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    let (first, second) = (run.add(1, &STATIC), run.add(2, &STATIC));
    assert_eq!(first.sequence().take(5).unwrap().first, 1);
    assert_eq!(second.sequence().take(1).unwrap().first, 1);
    run.delete(&first);
    assert_eq!(second.sequence().take(1).unwrap().first, 2);
    assert_eq!(run.add(3, &STATIC).sequence().take(1).unwrap().first, 6);
}

#[test]
fn unused_state_leaves_no_record() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    let sa = run.add(1, &STATIC);
    run.delete(&sa);
    assert_eq!(run.1.sent.iter().len(), 0);
}

/// One that is deleted in the round in which it was added, and cannot be written down, has sent
/// nothing and sends nothing.
#[test]
fn missing_journal_grants_nothing_and_retries() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    fs::create_dir(runs.path().join("sequences.new")).unwrap();
    let sa = run.0.apply(Moment(0), |change| change.add_sa(config(1, &STATIC))).unwrap();
    run.0.take_changes().added.iter().for_each(|sa| run.1.admit(sa, Moment(0)));
    run.1.commit().unwrap_err();
    assert_eq!(sa.sequence().reserved(), 0);
    fs::remove_dir(runs.path().join("sequences.new")).unwrap();
    run.1.renew(Moment(0)).unwrap();
    assert!(sa.sequence().take(1).is_ok());
}

/// Keys that come and go all the time leave a file and a memory that do not grow for ever.
#[test]
fn remembered_keys_are_limited() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    run.1.sent.remembered = 100;
    let key = |n: u32| {
        let mut key = STATIC;
        key[..4].copy_from_slice(&n.to_be_bytes());
        key
    };
    for n in 0..200 {
        let sa = run.add(1, &key(n));
        sa.sequence().take(1).unwrap();
        run.delete(&sa);
    }
    assert_eq!(run.1.sent.iter().len(), 100);
    assert!(runs.lines() < 1500, "{} lines", runs.lines());
    assert_eq!(run.add(1, &key(199)).sequence().take(1).unwrap().first, 2);
    assert_eq!(run.add(2, &key(0)).sequence().take(1).unwrap().first, 1, "forgotten");
}

/// Power fails while lines are added: what was confirmed stands, the rest is nothing.
#[test]
fn truncated_journal_line_is_ignored() {
    let runs = Runs::new();
    drop(runs.start("spi 1", KEY));
    let whole = runs.text();
    for cut in [
        "0001",
        "\0\0\0\0\n",
        "sent 00112233445566778899aabbccddeeff 10.0.0.2 0x1\n",
        "commit 99 0",
    ] {
        fs::write(runs.journal(), whole.clone() + cut).unwrap();
        let run = runs.start("spi 1", KEY);
        assert_eq!(run.1.condition(), Condition::Intact);
        assert_eq!(run.send(), Ok(AHEAD + 1));
        fs::write(runs.journal(), &whole).unwrap();
        fs::remove_dir_all(runs.memory()).unwrap();
    }
}

#[test]
fn running_batch_continues_deleted_state() {
    let runs = Runs::new();
    let Run(database, mut store) = runs.start("spi 1", KEY);
    let sa = Arc::clone(database.snapshot().sad.iter().next().unwrap());
    sa.sequence().take(1).unwrap();
    store.dismiss(&sa, Moment(0));
    store.settle_due(Moment(0));
    assert!(sa.sequence().take(1).is_ok());
    store.settle_due(Moment(0).plus(UNDER_WAY));
    assert!(sa.sequence().take(1).is_err());
}

#[test]
fn deleted_state_ends_when_key_is_reused() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    let (key, other) = ([1; 20], [2; 20]);
    let (old, stranger) = (run.add(1, &key), run.add(2, &other));
    old.sequence().take(5).unwrap();
    for sa in [&old, &stranger] {
        run.1.dismiss(sa, Moment(0));
        run.0.apply(Moment(0), |change| change.delete_sa(sa.id(), sa.config().mark)).unwrap();
        drop(run.0.take_changes());
    }
    let new = run.add(3, &key);
    assert!(old.sequence().take(1).is_err());
    assert!(stranger.sequence().take(1).is_ok());
    assert_eq!(new.sequence().take(1).unwrap().first, 6);
}

/// Else a hundred thousand that come back at once are compared each with each.
#[test]
fn state_that_comes_back_is_compared_with_its_own_name_alone() {
    let mut run = Runs::new().start_empty();
    let all: Vec<_> = (1..100).map(|at: u8| run.add(at.into(), &[at; 20])).collect();
    all.iter().for_each(|sa| run.1.dismiss(sa, Moment(0)));
    run.1.settle_due(Moment::from_secs(100));
    assert_eq!(run.1.settled.names().collect::<Vec<_>>(), vec![1; all.len()]);
    all.iter().for_each(|sa| run.1.recall(sa));
    run.1.commit().unwrap();
    for sa in &all {
        assert_eq!(sa.sequence().take(1).unwrap().first, 1, "as if it had never gone");
    }
}

use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;
use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, DropReason, Moment};

use super::*;
use crate::load;

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f10111213";
const OTHER_KEY: &str = "0xff0102030405060708090a0b0c0d0e0f10111213";

/// A directory with a file of reservations, across the runs of a gateway.
struct Runs(TempDir);

/// One run: its databases and its reservations.
struct Run(Database, Reservations);

impl Runs {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("test.sequences")
    }

    fn start(&self, words: &str, key: &str) -> Run {
        let batch = self.0.path().join("batch");
        fs::write(&batch, state(words, key)).unwrap();
        let mut reservations = Reservations::open(&self.path()).unwrap();
        let mut database = Database::new(Backend::Portable);
        load::load(&mut database, &[batch], &reservations, Moment(0)).unwrap();
        reservations.renew(&database.snapshot().sad).unwrap();
        Run(database, reservations)
    }
}

impl Run {
    /// The number of the next packet of the first state.
    fn send(&self) -> Result<u64, DropReason> {
        let snapshot = self.0.snapshot();
        let sa = snapshot.sad.iter().next().unwrap();
        sa.sequence().take(1).map(|block| block.first)
    }

    fn end(self) {
        self.1.settle(&self.0.snapshot().sad).unwrap();
    }
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
    let Run(database, mut reservations) = runs.start("spi 1", KEY);
    let half = u32::try_from(AHEAD / 2).unwrap() + 1;
    for sa in database.snapshot().sad.iter() {
        sa.sequence().take(half).unwrap();
    }
    let before = reservations.numbers.clone();
    reservations.renew(&database.snapshot().sad).unwrap();
    assert_ne!(reservations.numbers, before);
    assert_eq!(Reservations::open(&runs.path()).unwrap().numbers, reservations.numbers);
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
    let text = fs::read_to_string(runs.path()).unwrap();
    assert!(!text.contains(&KEY[2..18]), "{text}");
    let mode = fs::metadata(runs.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, OWNER);
}

#[test]
fn a_file_with_other_lines_is_refused() {
    let runs = Runs::new();
    fs::write(runs.path(), "none of ours\n").unwrap();
    assert!(Reservations::open(&runs.path()).is_err());
}

//! What a state received before a restart it does not accept after it, and what comes then it does.

use uxfrm_engine::{FIRST_RESERVED, Lifecycle};

use super::*;

const WORDS: &str = "spi 1 replay-window 128";
const ESN: &str = "spi 1 replay-window 128 flag esn";

/// What a packet with this number meets; authentic, if it is asked.
fn receive(sa: &Sa, number: u64) -> Result<(), DropReason> {
    let low = u32::try_from(number & 0xffff_ffff).unwrap();
    let window = sa.replay();
    let candidate = window.check(low).map_err(|reason| window.explain(low, reason))?;
    if candidate.number() != number {
        // It was sealed with another upper half.
        return Err(window.explain(low, DropReason::InForged));
    }
    window.accept(candidate)
}

fn receive_all(sa: &Sa, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        assert_eq!(receive(sa, number), Ok(()), "{number}");
    }
}

fn refuse_all(sa: &Sa, mut numbers: std::ops::RangeInclusive<u64>) {
    assert!(numbers.all(|number| receive(sa, number) == Err(DropReason::InBeforeRestart)));
}

#[test]
fn window_goes_on_behind_an_orderly_end() {
    for words in [WORDS, ESN] {
        let runs = Runs::new();
        let run = runs.start(words, KEY);
        receive_all(&run.sa(), 1..=50);
        run.end();
        let run = runs.start(words, KEY);
        refuse_all(&run.sa(), 1..=50);
        receive_all(&run.sa(), 51..=60);
        assert_eq!(receive(&run.sa(), 55), Err(DropReason::InReplay));
    }
}

#[test]
fn window_goes_on_exactly_after_the_process_was_killed() {
    for words in [WORDS, ESN] {
        let runs = Runs::new();
        let run = runs.start(words, KEY);
        receive_all(&run.sa(), 1..=50);
        run.crash();
        for _ in 0..2 {
            let run = runs.start(words, KEY);
            assert_eq!(run.1.condition(), Condition::Intact);
            refuse_all(&run.sa(), 1..=50);
            run.crash();
        }
        let run = runs.start(words, KEY);
        receive_all(&run.sa(), 51..=60);
    }
}

#[test]
fn window_begins_at_its_reserved_edge_after_the_machine_crashed() {
    for words in [WORDS, ESN] {
        let runs = Runs::new();
        let run = runs.start(words, KEY);
        receive_all(&run.sa(), 1..=50);
        run.crash();
        fs::remove_dir_all(runs.memory()).unwrap();
        let run = runs.start(words, KEY);
        refuse_all(&run.sa(), 1..=FIRST_RESERVED);
        receive_all(&run.sa(), FIRST_RESERVED + 1..=FIRST_RESERVED + 60);
    }
}

#[test]
fn nothing_above_the_edge_is_accepted_until_more_is_reserved() {
    let runs = Runs::new();
    let mut run = runs.start(WORDS, KEY);
    let sa = run.sa();
    receive_all(&sa, 1..=FIRST_RESERVED);
    assert!(run.1.is_urgent(), "half of it was used");
    assert_eq!(receive(&sa, FIRST_RESERVED + 1), Err(DropReason::InReplayReserve));
    run.1.renew(Moment::from_secs(1)).unwrap();
    receive_all(&sa, FIRST_RESERVED + 1..=FIRST_RESERVED + 100);
    // A peer that has gone far ahead, as after a crash of its own.
    let far = 5_000_000;
    assert_eq!(receive(&sa, far), Err(DropReason::InReplayReserve));
    run.1.renew(Moment::from_secs(2)).unwrap();
    receive_all(&sa, far..=far + 100);
}

/// What is reserved for a burst is drawn back when it is over, so that a crash costs little.
#[test]
fn edge_is_about_a_second_ahead_at_the_rate_of_now() {
    let runs = Runs::new();
    let mut run = runs.start(WORDS, KEY);
    let sa = run.sa();
    let (mut next, mut now) = (1, Moment(0));
    for _ in 0..20 {
        for _ in 0..500 {
            receive_all(&sa, next..=next);
            next += 1;
        }
        now = now.plus(Duration::from_millis(10));
        run.1.renew(now).unwrap();
    }
    let ahead = |sa: &Sa| sa.reserved_to_receive() - sa.highest_received();
    assert!((25_000..=50_000).contains(&ahead(&sa)), "50,000 a second: {}", ahead(&sa));
    for _ in 0..100 {
        now = now.plus(Duration::from_millis(200));
        run.1.renew(now).unwrap();
    }
    assert!(ahead(&sa) <= 4 * FIRST_RESERVED, "{}", ahead(&sa));
    let edge = sa.reserved_to_receive();
    run.crash();
    fs::remove_dir_all(runs.memory()).unwrap();
    assert_eq!(receive(&runs.start(WORDS, KEY).sa(), edge + 1), Ok(()));
}

/// A peer that restarted leaves out millions of numbers at once. Taken for a rate, so much would be reserved for an upgrade that after a crash nothing would
/// be accepted for hours.
#[test]
fn a_leap_of_the_peer_is_no_rate() {
    const MOST: u64 = 1 << 22;
    let runs = Runs::new();
    let mut run = runs.start(WORDS, KEY);
    let sa = run.sa();
    receive_all(&sa, 1..=50);
    let now = Moment::from_secs(1);
    run.1.renew(now).unwrap();
    let far = 3 * MOST;
    assert_eq!(receive(&sa, far), Err(DropReason::InReplayReserve));
    run.1.renew(now.plus(Duration::from_millis(2))).unwrap();
    receive_all(&sa, far..=far + 10);
    run.1.reserve_for_long().unwrap();
    let ahead = sa.reserved_to_receive() - sa.highest_received();
    assert!((16 * FIRST_RESERVED..=MOST).contains(&ahead), "{ahead}");
    assert!(run.1.fastest() <= MOST, "{}", run.1.fastest());
}

/// As the kernel does it: who deletes a state and adds it again begins anew.
#[test]
fn deleted_state_begins_anew() {
    let runs = Runs::new();
    let mut run = runs.start(WORDS, KEY);
    let sa = run.sa();
    receive_all(&sa, 1..=50);
    run.delete(&sa);
    drop(sa);
    run.end();
    assert_eq!(receive(&runs.start(WORDS, KEY).sa(), 1), Ok(()));
}

#[test]
fn state_that_could_not_be_added_is_remembered() {
    let runs = Runs::new();
    let run = runs.start(WORDS, KEY);
    receive_all(&run.sa(), 1..=50);
    run.end();
    let Run(database, mut store) = runs.start(WORDS, KEY);
    let sa = Arc::clone(database.snapshot().sad.iter().next().unwrap());
    store.withdraw(&sa);
    store.commit().unwrap();
    drop((database, store));
    refuse_all(&runs.start(WORDS, KEY).sa(), 1..=50);
}

#[test]
fn without_a_check_or_a_direction_nothing_is_kept() {
    for words in ["spi 1 replay-window 0", "spi 1 dir out"] {
        let runs = Runs::new();
        let run = runs.start(words, KEY);
        assert!(!runs.text().contains("received"), "{}", runs.text());
        assert_eq!(run.sa().lifecycle(), Lifecycle::Valid);
    }
}

#[test]
fn cells_of_states_that_went_serve_others() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    for spi in 1..=1500 {
        let sa = run.add(spi, &[7; 20]);
        assert!(sa.replay().check(1).is_ok());
        run.delete(&sa);
    }
    assert!(fs::metadata(runs.memory().join("store.windows")).is_ok());
    assert_eq!(run.1.received.witness.as_ref().unwrap().missing(), 0);
}

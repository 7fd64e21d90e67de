//! What a state received before a restart it does not accept after it, and what comes then it does.

use uxfrm_engine::{FIRST_RESERVED, Lifecycle};

use crate::reconcile::sequences::received::LEAST_AHEAD;

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
    for _ in 0..400 {
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
    assert!(ahead(&sa) <= 2 * FIRST_RESERVED, "{}", ahead(&sa));
    let edge = sa.reserved_to_receive();
    run.crash();
    fs::remove_dir_all(runs.memory()).unwrap();
    assert_eq!(receive(&runs.start(WORDS, KEY).sa(), edge + 1), Ok(()));
}

/// Runs a state at a rate, in steps of 100 µs, against a disk that takes so many of them for a
/// write. Its owner looks every 200 ms, and when it is woken; what it reserves is in force once it
/// is on the disk. Says how many packets are lost meanwhile.
struct Bursts {
    run: Run,
    sa: Arc<Sa>,
    disk: u64,
    step: u64,
    next: u64,
}

const STEPS_A_SECOND: u64 = 10_000;
const STEPS_TO_A_REVIEW: u64 = STEPS_A_SECOND / 5;

impl Bursts {
    fn new(runs: &Runs, disk: u64) -> Self {
        let run = runs.start(WORDS, KEY);
        let sa = run.sa();
        Self { run, sa, disk, step: 0, next: 1 }
    }

    fn run(&mut self, rate: u64, steps: u64) -> u64 {
        let (mut lost, until) = (0, self.step + steps);
        let mut reviewed = self.step;
        while self.step < until {
            lost += self.receive_at(rate, 1);
            let is_urgent = self.run.1.is_urgent();
            if is_urgent || self.step >= reviewed + STEPS_TO_A_REVIEW {
                reviewed = self.step;
                lost += self.renew(rate);
            }
        }
        lost
    }

    /// The owner looks now; until its write is done nothing more may be received than before.
    fn renew(&mut self, rate: u64) -> u64 {
        let edge = self.sa.reserved_to_receive();
        self.run.1.renew(Moment(self.step * 1_000_000_000 / STEPS_A_SECOND)).unwrap();
        if self.sa.reserved_to_receive() <= edge {
            return 0;
        }
        let granted = self.sa.reserved_to_receive();
        self.sa.replay().reserve(edge);
        let lost = self.receive_at(rate, self.disk);
        self.sa.replay().reserve(granted);
        lost
    }

    fn receive_at(&mut self, rate: u64, steps: u64) -> u64 {
        let numbers = |step: u64| step * rate / STEPS_A_SECOND;
        let count = numbers(self.step + steps) - numbers(self.step);
        self.step += steps;
        let first = self.next;
        self.next += count;
        let refused = (first..self.next).filter(|number| receive(&self.sa, *number).is_err());
        u64::try_from(refused.count()).unwrap()
    }
}

/// Whether it begins at once, behind the first look, or after so long that what is not needed was
/// drawn back; and with as much as it had after silence.
#[test]
fn a_peer_may_begin_at_full_rate() {
    for (rate, disk) in
        [(50_000, 100), (100_000, 10), (100_000, 100), (400_000, 10), (400_000, 100)]
    {
        for before in [0, 1, STEPS_TO_A_REVIEW + 1, 2 * STEPS_TO_A_REVIEW - 1, 30 * STEPS_A_SECOND]
        {
            let runs = Runs::new();
            let mut bursts = Bursts::new(&runs, disk);
            let idle = bursts.run(0, before);
            let lost = bursts.run(rate, STEPS_A_SECOND / 2);
            assert_eq!((idle, lost), (0, 0), "{rate}/s, disk {disk}, behind {before} steps");
        }
    }
}

#[test]
fn bursts_after_silence_lose_nothing() {
    let runs = Runs::new();
    let mut bursts = Bursts::new(&runs, 100);
    for burst in 0..4 {
        assert_eq!(bursts.run(300_000, 100), 0, "burst {burst}");
        assert_eq!(bursts.run(0, 30 * STEPS_A_SECOND), 0);
    }
    let ahead = bursts.sa.reserved_to_receive() - bursts.sa.highest_received();
    assert!(ahead <= 2 * FIRST_RESERVED, "{ahead}");
}

/// A crash is to cost little, so a state that was never fast has little ahead: until more is
/// reserved some is lost, as the page on sequence numbers says.
#[test]
fn a_rate_that_leaps_costs_no_more_than_a_write_takes() {
    for (slow, rate, disk, most) in [
        (0, 100_000, 10, 0),
        (100, 100_000, 10, 0),
        (100, 400_000, 10, 400),
        (10_000, 400_000, 100, 4_000),
    ] {
        let runs = Runs::new();
        let mut bursts = Bursts::new(&runs, disk);
        bursts.run(100, 10);
        assert_eq!(bursts.run(slow, 30 * STEPS_A_SECOND), 0);
        let lost = bursts.run(rate, STEPS_A_SECOND / 2);
        assert!(lost <= most, "{slow}/s to {rate}/s, disk {disk}: {lost}");
    }
}

/// A peer that restarted leaves out millions of numbers at once. Taken for a rate, so much would be
/// reserved for an upgrade that after a crash nothing would be accepted for hours.
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
    assert!((16 * LEAST_AHEAD..=MOST).contains(&ahead), "{ahead}");
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

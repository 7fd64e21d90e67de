//! The window against a set that remembers every number.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU32, Ordering},
};

use proptest::prelude::*;

use super::*;
use DropReason::{InNoNumber, InReplay, InTooOld};

/// Reference implementation of the window.
struct Model {
    seen: HashSet<u64>,
    start: u64,
    head: u64,
    window: u64,
}

impl Model {
    fn new(window: u32, start: u64) -> Self {
        Self { seen: HashSet::new(), start, head: start, window: u64::from(window) }
    }

    fn receive(&mut self, number: u64) -> Result<(), DropReason> {
        if self.window != 0 {
            if number == 0 {
                return Err(InNoNumber);
            }
            if number + self.window <= self.head {
                return Err(InTooOld);
            }
            if number <= self.start || !self.seen.insert(number) {
                return Err(InReplay);
            }
        }
        self.head = self.head.max(number);
        Ok(())
    }
}

/// A packet that was really sent with `number`: if another number is inferred, its ICV is wrong.
fn receive(replay: &ReplayWindow, number: u64) -> Result<(), DropReason> {
    let candidate = replay.check(low_half(number))?;
    if candidate.number() != number {
        // Nobody sends 0: what says so is not authentic either way.
        return Err(if number == 0 { InNoNumber } else { InTooOld });
    }
    replay.accept(candidate)
}

/// Steps relative to the head: in order, late, much too late, ahead, far ahead.
fn steps() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![
        4 => Just(1_i64),
        4 => -80_i64..80,
        2 => -5000_i64..5000,
        1 => 0_i64..(1 << 31),
        1 => -(1_i64 << 31)..0,
    ];
    proptest::collection::vec(step, 1..400)
}

fn window() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..=130, Just(1024_u32), Just(4095_u32), Just(4096_u32)]
}

proptest! {
    #[test]
    fn agrees_with_the_model_with_esn(
        window in window().prop_filter("ESN needs one", |window| *window > 0),
        start in prop_oneof![Just(0_u64), 0_u64..5000, (1_u64 << 32) - 5000..(1 << 32) + 5000, Just(7_u64 << 40)],
        steps in steps(),
    ) {
        let replay = ReplayWindow::new(window, SeqWidth::Esn, start);
        let mut model = Model::new(window, start);
        for step in steps {
            let Some(number) = model.head.checked_add_signed(step) else { continue };
            prop_assert_eq!(receive(&replay, number), model.receive(number), "number {}", number);
            prop_assert_eq!(replay.highest(), model.head);
        }
    }

    #[test]
    fn agrees_with_the_model_without_esn(
        window in window(),
        start in prop_oneof![Just(0_u64), 0_u64..5000, (1_u64 << 32) - 6000..(1 << 32)],
        steps in steps(),
    ) {
        let replay = ReplayWindow::new(window, SeqWidth::Bits32, start);
        let mut model = Model::new(window, start);
        for step in steps {
            let Some(number) = model.head.checked_add_signed(step) else { continue };
            if number > u64::from(u32::MAX) { continue }
            prop_assert_eq!(receive(&replay, number), model.receive(number), "number {}", number);
        }
    }

    #[test]
    fn accept_some_agrees_with_accept(
        window in window(),
        steps in steps(),
        size in 1_usize..80,
    ) {
        let [together, single] = [(); 2].map(|()| ReplayWindow::new(window, SeqWidth::Bits32, 9000));
        let mut head = 9000_u64;
        let next = |step: &i64| {
            let number = head.checked_add_signed(*step).unwrap_or(1) & u64::from(u32::MAX);
            head = head.max(number);
            number
        };
        let numbers: Vec<u64> = steps.iter().map(next).collect();
        for batch in numbers.chunks(size) {
            let candidates: Vec<UncheckedSeq> =
                batch.iter().filter_map(|number| single.check(low_half(*number)).ok()).collect();
            let expected: Vec<_> = candidates.iter().map(|number| single.accept(*number)).collect();
            let (mut rest, mut outcomes) = (candidates.as_slice(), Vec::new());
            while let Some((first, behind)) = rest.split_first() {
                match together.accept_some(rest.iter().copied()) {
                    0 => {
                        outcomes.push(together.accept(*first));
                        rest = behind;
                    }
                    taken => {
                        outcomes.extend(std::iter::repeat_n(Ok(()), taken));
                        rest = &rest[taken..];
                    }
                }
            }
            prop_assert_eq!(outcomes, expected);
            prop_assert_eq!(together.highest(), single.highest());
        }
    }

    /// RFC 4303 §A2: the inferred number is the one with that lower half in the 2^32 above the
    /// window's bottom.
    #[test]
    fn inferred_number_is_nearest_above_window_bottom(low: u32, head in any::<u64>(), window in 1_u32..=4096) {
        let bottom = i128::from(head) - i128::from(window) + 1;
        let high = (bottom - i128::from(low) + i128::from(u32::MAX)).div_euclid(1 << 32);
        let expected = u64::try_from((high << 32) + i128::from(low)).ok();
        prop_assert_eq!(infer(low, head, window), expected);
    }
}

/// Number, action, result. One window, step by step.
fn walk(replay: &ReplayWindow, steps: &[(u64, Result<(), DropReason>, &str)]) {
    for (step, (number, expected, why)) in steps.iter().enumerate() {
        assert_eq!(receive(replay, *number), *expected, "step {}: {number}, {why}", step + 1);
    }
}

#[test]
fn thirty_two_bits_step_by_step() {
    let last = u64::from(u32::MAX);
    walk(
        &ReplayWindow::new(64, SeqWidth::Bits32, 0),
        &[
            (0, Err(InNoNumber), "number 0 is never sent"),
            (1, Ok(()), "the first"),
            (1, Err(InReplay), "again"),
            (2, Ok(()), "in order"),
            (5, Ok(()), "a gap"),
            (3, Ok(()), "late, in the gap"),
            (3, Err(InReplay), "late again"),
            (66, Ok(()), "65 to go: the window is now 3 to 66"),
            (2, Err(InTooOld), "below the bottom"),
            (3, Err(InReplay), "at the bottom, seen"),
            (4, Ok(()), "inside the window, not seen"),
            (200, Ok(()), "a jump of more than the ring"),
            (136, Err(InTooOld), "just below the bottom"),
            (137, Ok(()), "the bottom"),
            (199, Ok(()), "just below the head"),
            (last, Ok(()), "as far ahead as can be"),
            (last, Err(InReplay), "the last one again"),
            (0, Err(InNoNumber), "it does not wrap"),
            (200, Err(InTooOld), "the past stays closed"),
            (last - 63, Ok(()), "the last bottom"),
        ],
    );
}

#[test]
fn across_2_to_the_32_step_by_step() {
    let wrap = 1_u64 << 32;
    walk(
        &ReplayWindow::new(128, SeqWidth::Esn, wrap - 200),
        &[
            (wrap - 200, Err(InReplay), "what was received before counts as seen"),
            (wrap - 10, Ok(()), "towards the end of the lower half"),
            (wrap + 5, Ok(()), "past it: the upper half rises"),
            (wrap + 5, Err(InReplay), "again"),
            (wrap, Ok(()), "lower half 0 is a number like any other"),
            (wrap - 1, Ok(()), "late from before the wrap"),
            (wrap - 10, Err(InReplay), "seen before the wrap"),
            (wrap - 122, Ok(()), "the bottom"),
            (wrap - 123, Err(InTooOld), "just below it"),
            (2 * wrap - 124, Ok(()), "as far ahead as can be inferred"),
            (wrap + 5, Err(InTooOld), "all before is closed"),
            (2 * wrap + 3, Ok(()), "and past the next wrap"),
        ],
    );
}

#[test]
fn numbers_end_at_64_bits() {
    let last = u64::MAX;
    let replay = ReplayWindow::new(64, SeqWidth::Esn, last - 3);
    walk(
        &replay,
        &[(last, Ok(()), "the last"), (last - 2, Ok(()), "late"), (last, Err(InReplay), "again")],
    );
    assert_eq!(replay.check(5), Err(InTooOld), "a number after the last does not exist");
}

#[test]
fn number_zero_is_refused() {
    // Lower halves near 2^32 with a head near 0 would be number -1 and so on.
    let replay = ReplayWindow::new(64, SeqWidth::Esn, 3);
    assert_eq!(replay.check(u32::MAX), Err(InTooOld));
}

#[test]
fn window_zero_accepts_all() {
    let replay = ReplayWindow::new(0, SeqWidth::Bits32, 0);
    for number in [0, 5, 5, 1, u64::from(u32::MAX), 0] {
        assert_eq!(receive(&replay, number), Ok(()));
    }
    assert_eq!(replay.highest(), u64::from(u32::MAX));
}

#[test]
fn candidate_is_accepted_once() {
    let replay = ReplayWindow::new(64, SeqWidth::Bits32, 0);
    let (one, other) = (replay.check(9).unwrap(), replay.check(9).unwrap());
    assert_eq!(replay.accept(one), Ok(()));
    assert_eq!(replay.accept(other), Err(InReplay));
    let late = replay.check(8).unwrap();
    assert_eq!(receive(&replay, 500), Ok(()));
    assert_eq!(replay.accept(late), Err(InTooOld), "the window moved on while it was decrypted");
}

/// So many numbers that 32-bit tags wrap, as after a migration.
#[test]
fn learned_numbers_far_ahead_are_refused() {
    for high in [1, 15, 16, 17, 24, 31, 32, 33, 1 << 20, u64::from(u32::MAX)] {
        for used in [0, 1000] {
            let replay = ReplayWindow::new(64, SeqWidth::Esn, used);
            let at = (high << 32) + 1000;
            replay.mark_received(at, [at - 40, at]);
            walk(
                &replay,
                &[
                    (at, Err(InReplay), "the highest"),
                    (at - 40, Err(InReplay), "another one of the window"),
                    (at - 64, Err(InTooOld), "one below it"),
                    (at - 39, Ok(()), "one that was not received"),
                    (at - 39, Err(InReplay), "and now was"),
                    (at + 1, Ok(()), "the next one"),
                    (at + 5000, Ok(()), "one ahead"),
                    (at + 1, Err(InTooOld), "which left it behind"),
                ],
            );
        }
    }
}

/// Each thread receives every number, in another order within runs shorter than the window. The SA
/// was carried by another host for long.
#[test]
fn learned_numbers_are_refused_by_all_threads() {
    for received in
        [100, 1 << 32, 1 << 36, (1 << 36) + 7 * 32, (1 << 37) - 1, 3 << 36, u64::MAX >> 1]
    {
        for window in [32, 64, 100, 4096] {
            let replay = ReplayWindow::new(window, SeqWidth::Esn, 0);
            let learnt: Vec<_> =
                (received - 31..=received).filter(|number| number % 3 != 0).collect();
            replay.mark_received(received, learnt.iter().copied());
            assert_eq!(replay.highest(), received);
            let lowest = received.saturating_sub(u64::from(window) - 1).max(1);
            for number in lowest..=received + 5000 {
                let expected = if learnt.contains(&number) { Err(InReplay) } else { Ok(()) };
                assert_eq!(
                    receive(&replay, number),
                    expected,
                    "{number} of a window of {window} up to {received}"
                );
                assert!(receive(&replay, number).is_err(), "{number} twice");
            }
        }
    }
}

#[test]
fn many_threads_accept_each_number_exactly_once() {
    const COUNT: u64 = 200_000;
    const START: u64 = (1 << 32) - COUNT / 2;
    let replay = ReplayWindow::new(2048, SeqWidth::Esn, START - 1);
    let accepted: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for key in [0_u64, 21, 42, 63] {
            let (replay, accepted) = (&replay, &accepted);
            scope.spawn(move || {
                for place in (0..COUNT).map(|place| place ^ key) {
                    if receive(replay, START + place).is_ok() {
                        accepted[usize::try_from(place).unwrap()].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let wrong = accepted.iter().position(|times| times.load(Ordering::Relaxed) != 1);
    assert_eq!(wrong, None, "a number that was not accepted exactly once");
}

/// The state between another thread's acceptance and its update of the head.
#[test]
fn newer_block_refuses_old_numbers_while_head_lags() {
    let replay = ReplayWindow::new(32, SeqWidth::Bits32, 0);
    assert_eq!(replay.ring.len(), 2);
    let newer = WindowSlot::of(70, 2);
    replay.ring[newer.slot].store(join(newer.tag, newer.bit), Ordering::Relaxed);
    walk(
        &replay,
        &[
            (
                5,
                Err(InTooOld),
                "its word holds a newer block: nobody knows any more whether it was seen",
            ),
            (70, Err(InReplay), "the other thread has it"),
            (71, Ok(()), "its neighbour is free"),
        ],
    );
}

/// While others accept numbers, a window closes and another continues: it knows all that the first
/// accepted.
#[test]
fn numbers_accepted_before_close_are_handed_over() {
    for (window, start) in [(32, 0), (64, (1 << 32) - 2000), (4096, u64::from(u32::MAX) << 16)] {
        let (old, new) = (
            ReplayWindow::new(window, SeqWidth::Esn, start),
            ReplayWindow::new(window, SeqWidth::Esn, 0),
        );
        let last = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for step in 1..200_000 {
                    if old.accept(UncheckedSeq(start + u64::from(step))).is_err() {
                        break;
                    }
                    last.store(step, Ordering::Release);
                }
            });
            while last.load(Ordering::Acquire) < 1000 {
                std::hint::spin_loop();
            }
            let (highest, received) = old.end();
            new.mark_received(highest, received);
        });
        let last = start + u64::from(last.into_inner());
        assert_eq!((new.highest(), old.highest()), (last, last), "window {window}");
        for number in last - u64::from(window) + 1..=last {
            assert_eq!(new.accept(UncheckedSeq(number)), Err(InReplay), "{number} of {last}");
        }
        assert_eq!(old.accept(UncheckedSeq(last + 1)), Err(InTooOld));
        assert_eq!((old.end().0, old.has(last)), (last, false));
        assert_eq!(new.accept(UncheckedSeq(last + 1)), Ok(()));
    }
}

//! GETPOLICY by selector and by index, for present and absent policies, compared with the machine's
//! kernel.

use uxfrm_engine::Family;

use crate::dice::{Candidate, Dice};
use crate::judge::{Meanwhile, set_up};
use crate::kernel::{Kernel, against_the_kernel, comparable, hex};
use crate::stage::{Answer, Stage, message};

const SETS: u32 = 2000;
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;

#[test]
fn getpolicy_finds_selector_and_index_in_2000_sets() {
    compare(Family::V4);
}

#[test]
fn getpolicy_finds_selector_and_index_in_2000_sets_ipv6() {
    compare(Family::V6);
}

fn compare(family: Family) {
    against_the_kernel(move |kernel| {
        let (mut stage, mut dice) = (Stage::new(), Dice::new(family, 4));
        let (mut found, mut asked) = (0, 0);
        for _ in 0..SETS {
            let candidates = set_up(kernel, &mut stage, &mut dice, Meanwhile::Updates);
            for _ in 0..8 {
                let one = &candidates[dice.below(candidates.len())];
                let other = nearly(one, &mut dice);
                asked += 2;
                found += u32::from(ask(kernel, &mut stage, one));
                found += u32::from(ask(kernel, &mut stage, &other));
            }
        }
        let share = found * 100 / asked;
        assert!((30..=90).contains(&share), "{share} of a hundred found: too one-sided a test");
    });
}

/// A policy with a word changed, or with bits that its masks leave out.
fn nearly(one: &Candidate, dice: &mut Dice) -> Candidate {
    let (mut other, another) = (one.clone(), dice.candidate());
    match dice.below(9) {
        0 => other.info[42] = another.info[42],
        1 => other.info[43] = another.info[43],
        2 => other.info[44] = another.info[44],
        3 => other.info[..40].copy_from_slice(&another.info[..40]),
        4 => other.info[160] ^= 1,
        5 => other.mark = another.mark,
        6 => other.if_id ^= 7,
        7 => other.kind ^= 1,
        _ => other.info[3] ^= 1,
    }
    other
}

/// Asks both for a policy by selector, then by the index that each returned. Whether it exists.
fn ask(kernel: &Kernel, stage: &mut Stage, candidate: &Candidate) -> bool {
    let request = get(candidate, 0, candidate.direction());
    let (theirs, ours) = (kernel.ask(&request), stage.ask(&request));
    same(&ours, &theirs, &request);
    let indexes = (index(&theirs), index(&ours));
    let (Some(their_index), Some(our_index)) = indexes else { return false };
    // An index says its direction: in another one there is no such policy.
    for direction in [0, 1, 2] {
        let theirs = kernel.ask(&get(candidate, their_index, direction));
        let request = get(candidate, our_index, direction);
        let ours = stage.ask(&request);
        same(&ours, &theirs, &request);
        assert_eq!(index(&ours).is_some(), direction == candidate.direction());
    }
    true
}

/// By index the selector is not looked at.
fn get(candidate: &Candidate, index: u32, direction: u8) -> Vec<u8> {
    let selector = if index == 0 { candidate.info[..56].to_vec() } else { vec![0; 56] };
    let id = [selector, index.to_ne_bytes().to_vec(), vec![direction, 0, 0, 0]].concat();
    message(GET_POLICY, 5, &[id, candidate.attributes()].concat())
}

/// All but the index, which each numbers by itself.
fn same(ours: &[Answer], theirs: &[Answer], request: &[u8]) {
    let [ours, theirs] = [ours, theirs].map(|answers| {
        let mut answers = answers.to_vec();
        let policies = answers.iter_mut().filter(|answer| answer.kind == NEW_POLICY);
        policies.for_each(|answer| answer.body[156..160].fill(0));
        comparable(&answers)
    });
    assert_eq!(ours, theirs, "ours, the kernel's: {}", hex(request));
}

fn index(answers: &[Answer]) -> Option<u32> {
    let policy = answers.iter().find(|answer| answer.kind == NEW_POLICY)?;
    policy.body[156..160].try_into().ok().map(u32::from_ne_bytes)
}

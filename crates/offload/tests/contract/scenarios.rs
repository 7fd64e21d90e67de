//! Every operation on states, one after the other: the table of what must be the same.

use uxfrm_engine::{LifetimeLimits, SaFlags, SoftHardLimit};
use uxfrm_testkit::IpsecSetup;

use crate::{Step, compare};

const WRAP: u64 = 1 << 32;

fn add() -> Step {
    Step::Add { sent: 0, received: 0, window: Vec::new() }
}

fn add_at(sent: u64, received: u64, window: &[u64]) -> Step {
    Step::Add { sent, received, window: window.to_vec() }
}

fn packets(soft: u64, hard: u64) -> LifetimeLimits {
    LifetimeLimits { packets: SoftHardLimit { soft, hard }, ..LifetimeLimits::default() }
}

fn bytes(soft: u64, hard: u64) -> LifetimeLimits {
    LifetimeLimits { bytes: SoftHardLimit { soft, hard }, ..LifetimeLimits::default() }
}

fn ages(soft: u64, hard: u64) -> LifetimeLimits {
    LifetimeLimits { added_seconds: SoftHardLimit { soft, hard }, ..LifetimeLimits::default() }
}

fn receive(numbers: impl IntoIterator<Item = u64>) -> Step {
    Step::Receive(numbers.into_iter().collect())
}

fn tunnel() -> IpsecSetup {
    IpsecSetup { window: 32, ..IpsecSetup::tunnel4() }
}

fn limited(limits: LifetimeLimits) -> IpsecSetup {
    IpsecSetup { limits, ..tunnel() }
}

fn extended() -> IpsecSetup {
    IpsecSetup { flags: SaFlags::ESN, ..tunnel() }
}

#[test]
fn sa_starts_at_given_position() {
    let steps = [
        add_at(77, 1000, &[1000, 999, 990]),
        receive([5, 6, 7]),
        receive([990, 999, 1000, 998, 989, 968, 969]),
        receive([1001, 1001, 1040, 1005]),
        Step::Send(3),
    ];
    compare("replay-seq", &tunnel(), &steps);
    compare("replay-seq, extended", &extended(), &steps);
}

#[test]
fn esn_wraps_lower_half_both_ways() {
    let near = 0xffff_ffe0;
    let steps = [
        add_at(near, near, &[near]),
        receive(near + 1..near + 63),
        receive([near + 62, near + 30, near + 63]),
        Step::Send(63),
        receive([near + 100, near + 71, 5]),
    ];
    compare("from 0xffffffe0", &extended(), &steps);
    let steps = [
        add_at(3 * WRAP - 4, 3 * WRAP - 4, &[]),
        receive(3 * WRAP - 3..3 * WRAP + 3),
        Step::Send(6),
    ];
    compare("the third time", &extended(), &steps);
}

#[test]
fn numbers_without_an_upper_half_end() {
    let last = u64::from(u32::MAX);
    let steps = [
        add_at(last - 3, last - 3, &[]),
        Step::Send(3),
        receive(last - 2..=last),
        receive([last]),
        Step::Send(2),
        Step::Send(1),
    ];
    compare("the last numbers", &tunnel(), &steps);
}

#[test]
fn forged_packet_does_not_advance_window() {
    let steps = [
        add(),
        receive(1..5),
        Step::ReceiveForged(vec![5, 1_000_000]),
        receive(5..8),
        receive([1, 7]),
    ];
    compare("forged", &tunnel(), &steps);
}

#[test]
fn soft_then_hard_limit_is_reported_once() {
    for (name, limits) in [
        ("packets", packets(3, 6)),
        ("bytes", bytes(100, 300)),
        ("only hard", packets(u64::MAX, 4)),
        ("both at once", packets(4, 4)),
        ("at the same packet", bytes(1, 200)),
    ] {
        let one_by_one = [vec![add()], vec![Step::Send(1); 9]].concat();
        compare(name, &limited(limits), &one_by_one);
        compare(name, &limited(limits), &[add(), Step::Send(12), Step::Send(1)]);
        compare(name, &limited(limits), &[add(), receive(1..12), receive([12])]);
        let inward: Vec<_> = (1..10).map(|number| receive([number])).collect();
        compare(name, &limited(limits), &[vec![add()], inward].concat());
    }
}

#[test]
fn sa_ages_match_software() {
    let steps = [
        add(),
        Step::Send(2),
        Step::Wait(3),
        Step::Send(1),
        Step::Wait(2),
        Step::Wait(5),
        Step::Send(1),
    ];
    compare("age", &limited(ages(5, 9)), &steps);
}

#[test]
fn an_update_gives_new_limits_and_keeps_the_numbers() {
    let steps = [
        add(),
        Step::Send(4),
        receive(1..4),
        Step::Update(packets(6, 8)),
        receive([2, 3]),
        Step::Send(3),
        Step::Send(1),
        receive(4..20),
        Step::Send(2),
    ];
    compare("tighter", &tunnel(), &steps);
    let steps = [
        add(),
        Step::Send(4),
        Step::Update(packets(30, 40)),
        Step::Send(20),
        Step::Update(packets(25, 50)),
        Step::Send(8),
        Step::Update(packets(40, 50)),
        Step::Send(20),
        Step::Send(1),
    ];
    compare("wider, and wider again", &limited(packets(3, 6)), &steps);
    compare(
        "past already",
        &tunnel(),
        &[add(), Step::Send(4), Step::Update(packets(1, 3)), Step::Send(1)],
    );
}

#[test]
fn moved_sa_continues_position() {
    let steps = [
        add(),
        Step::Send(5),
        receive(1..51),
        Step::Move(77),
        receive(1..51),
        Step::Send(5),
        receive([51, 60, 55]),
        Step::Move(78),
        receive([51, 52, 60, 61]),
        Step::Send(1),
    ];
    compare("moves", &tunnel(), &steps);
    compare("moves, extended", &extended(), &steps);
    compare("moves with limits", &limited(packets(8, 12)), &steps);
    let near = WRAP - 8;
    let steps = [
        add_at(near, near, &[]),
        receive(near + 1..near + 12),
        Step::Send(10),
        Step::Move(77),
        receive(near + 1..near + 16),
        Step::Send(3),
    ];
    compare("moves behind the end of the lower half", &extended(), &steps);
}

#[test]
fn counters_continue_from_predecessor() {
    let steps = [
        add(),
        Step::Send(2),
        receive(1..3),
        Step::SetCounters { sent: 500, received: 700 },
        receive([3, 700, 701, 690]),
        Step::Send(2),
        Step::SetCounters { sent: 400, received: 600 },
        Step::Send(1),
    ];
    compare("newae", &tunnel(), &steps);
}

#[test]
fn rekey_and_deletion_behave_as_in_software() {
    let steps = [
        add(),
        Step::Send(3),
        receive(1..4),
        Step::AddNext,
        Step::Send(3),
        receive(1..4),
        Step::DeletePrevious,
        Step::Send(2),
        receive(4..6),
        Step::Flush,
        Step::Send(1),
        receive([6]),
    ];
    compare("rekey", &tunnel(), &steps);
}

/// The one that is refused leaves the one that is there as it is, device and all.
#[test]
fn duplicate_sa_leaves_existing_one() {
    let steps = [add(), receive(1..4), add_at(0, 2, &[]), receive([3, 4]), Step::Send(2)];
    compare("twice", &tunnel(), &steps);
}

#[test]
fn zero_window_accepts_all() {
    let wrapping = IpsecSetup { window: 0, ..IpsecSetup::tunnel4() };
    compare("no window", &wrapping, &[add(), receive([1, 1, 9, 2]), Step::Move(77), receive([1])]);
}

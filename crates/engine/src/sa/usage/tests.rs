//! Limits, packet by packet and with many workers.

use super::{ChargeOutcome::*, *};

fn limits(packets: (u64, u64), bytes: (u64, u64)) -> LifetimeLimits {
    LifetimeLimits {
        packets: SoftHardLimit { soft: packets.0, hard: packets.1 },
        bytes: SoftHardLimit { soft: bytes.0, hard: bytes.1 },
        ..LifetimeLimits::default()
    }
}

const NONE: (u64, u64) = (SoftHardLimit::NONE, SoftHardLimit::NONE);

/// Limits, then charges (packets, bytes) with their answers.
#[test]
#[rustfmt::skip]
fn limits_by_table() {
    type Row<'a> = ((u64, u64), (u64, u64), &'a [(u32, u64, ChargeOutcome)]);
    let table: &[Row<'_>] = &[
        (NONE, NONE, &[(256, u64::MAX / 4, Ok), (1, 1, Ok)]),
        // Of a hard limit of 3, 3 pass.
        ((u64::MAX, 3), NONE, &[(1, 9, Ok), (1, 9, Ok), (1, 9, Ok), (1, 9, HardLimit), (1, 9, Expired), (5, 9, Expired)]),
        ((u64::MAX, 3), NONE, &[(3, 9, Ok), (1, 9, HardLimit)]),
        ((u64::MAX, 3), NONE, &[(4, 9, NeedsPerPacket), (1, 9, Ok), (2, 9, Ok), (2, 9, NeedsPerPacket), (1, 9, HardLimit)]),
        // The soft event comes with the packet after the limit, once.
        ((2, 4), NONE, &[(2, 9, Ok), (1, 9, SoftLimit), (1, 9, Ok), (1, 9, HardLimit)]),
        ((2, 10), NONE, &[(4, 9, NeedsPerPacket), (1, 9, Ok), (1, 9, Ok), (1, 9, SoftLimit), (4, 9, Ok), (1, 1, Ok)]),
        // The packet that passes the limit of bytes still goes, however long.
        (NONE, (u64::MAX, 100), &[(1, 99, Ok), (1, 1500, Ok), (1, 1, HardLimit)]),
        (NONE, (u64::MAX, 100), &[(1, 100, Ok), (1, 1, HardLimit)]),
        (NONE, (50, 1000), &[(1, 50, Ok), (1, 1, SoftLimit), (1, 949, Ok), (1, 1, HardLimit)]),
        (NONE, (50, 100), &[(2, 101, NeedsPerPacket), (1, 60, Ok), (1, 41, SoftLimit), (1, 1, HardLimit)]),
        // 0 is a limit, as in the kernel; "none" is u64::MAX.
        ((u64::MAX, 0), NONE, &[(1, 1, HardLimit)]),
        // Soft above hard: the hard one counts.
        ((9, 1), NONE, &[(1, 1, Ok), (1, 1, HardLimit)]),
    ];
    for (row, (packets, bytes, charges)) in table.iter().enumerate() {
        let usage = SaUsage::new(Lifecycle::Valid);
        let limits = limits(*packets, *bytes);
        for (step, (packets, bytes, expected)) in charges.iter().enumerate() {
            let answer = usage.charge(&limits, *packets, *bytes, Moment(5)).unwrap();
            assert_eq!(answer, *expected, "row {row}, charge {step}");
        }
    }
}

#[test]
fn refused_packets_are_not_counted() {
    let usage = SaUsage::new(Lifecycle::Valid);
    let limits = limits((u64::MAX, 2), NONE);
    for packets in [2, 1, 1, 7] {
        usage.charge(&limits, packets, 100, Moment(9)).unwrap();
    }
    assert_eq!((usage.packets(), usage.bytes()), (2, 100));
}

#[test]
fn first_and_last_use_are_kept() {
    let usage = SaUsage::new(Lifecycle::Valid);
    assert_eq!((usage.first_used(), usage.last_used()), (None, None));
    for at in [0, 7, 9] {
        usage.charge(&LifetimeLimits::default(), 1, 1, Moment(at)).unwrap();
    }
    assert_eq!((usage.first_used(), usage.last_used()), (Some(Moment(0)), Some(Moment(9))));
}

#[test]
fn failures_are_counted_by_kind() {
    let usage = SaUsage::new(Lifecycle::Valid);
    for reason in [
        DropReason::InTooOld,
        DropReason::InReplay,
        DropReason::InReplay,
        DropReason::InForged,
        DropReason::InEcn,
    ] {
        usage.count_failure(reason);
    }
    assert_eq!(usage.failures(), SaFailures { replay_window: 1, replay: 2, integrity_failed: 1 });
}

#[test]
fn parallel_workers_never_pass_limit_and_report_once() {
    const HARD: u64 = 10_000;
    let usage = SaUsage::new(Lifecycle::Valid);
    let limits = limits((HARD / 2, HARD), NONE);
    let all: Vec<(u64, Vec<ChargeOutcome>)> = std::thread::scope(|scope| {
        let work = |batch: u32| {
            let (mut passed, mut told) = (0, Vec::new());
            loop {
                let (mut packets, mut charge) =
                    (batch, usage.charge(&limits, batch, 1, Moment(1)).unwrap());
                if charge == NeedsPerPacket {
                    (packets, charge) = (1, usage.charge(&limits, 1, 1, Moment(1)).unwrap());
                }
                if matches!(charge, SoftLimit | HardLimit) {
                    told.push(charge);
                }
                if matches!(charge, HardLimit | Expired) {
                    return (passed, told);
                }
                passed += u64::from(packets);
            }
        };
        let threads: Vec<_> =
            [1, 3, 8, 32].into_iter().map(|batch| scope.spawn(move || work(batch))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let passed: u64 = all.iter().map(|(passed, _)| passed).sum();
    let told: Vec<_> = all.into_iter().flat_map(|(_, told)| told).collect();
    assert!(passed <= HARD && passed > HARD - 200, "{passed} passed");
    assert_eq!(usage.packets(), passed);
    assert_eq!(told.iter().filter(|charge| **charge == SoftLimit).count(), 1);
    assert_eq!(told.iter().filter(|charge| **charge == HardLimit).count(), 1);
}

/// Counts during a close are either in the returned counters or reported as late.
#[test]
fn counts_during_close_are_counted_once() {
    for _ in 0..50 {
        let (usage, limits) = (SaUsage::new(Lifecycle::Valid), LifetimeLimits::default());
        let begun = std::sync::atomic::AtomicBool::new(false);
        let charge = || {
            let (mut counted, mut late) = ((0, 0), (0, 0));
            for round in 0..2000 {
                begun.store(true, Ordering::Release);
                let (packets, bytes) = (1 + round % 3, 7);
                let not = usage.charge(&limits, packets, bytes, Moment(1)).err();
                let not = not.unwrap_or(LateCount { packets: 0, bytes: 0 });
                counted = (counted.0 + packets - not.packets, counted.1 + bytes - not.bytes);
                late = (late.0 + not.packets, late.1 + not.bytes);
            }
            (counted, late)
        };
        let (ended, charged) = std::thread::scope(|scope| {
            let workers = [scope.spawn(charge), scope.spawn(charge)];
            while !begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            (usage.end(), workers.map(|worker| worker.join().unwrap()))
        });
        let [(first, late), (second, more)] = charged;
        assert_eq!(ended, (first.1 + second.1, (first.0 + second.0).into()));
        assert_eq!(usage.end(), ended, "what came late was taken back");
        let all = first.1 + second.1 + late.1 + more.1;
        assert_eq!(all, 2 * 2000 * 7, "each is one or the other");
    }
}

//! The device's replay window against a naive one.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// All accepted numbers, and the highest.
#[derive(Default)]
struct Naive {
    seen: HashSet<u64>,
    head: u64,
}

impl Naive {
    fn takes(&mut self, number: u64, window: u64) -> bool {
        let new = number > 0 && number + window > self.head && self.seen.insert(number);
        if new {
            self.head = self.head.max(number);
        }
        new
    }
}

/// Numbers that mostly increase, with duplicates, late ones and gaps.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![
        6 => 1_i64..4,
        2 => -3_i64..1,
        1 => -300_i64..0,
        1 => 1_i64..300,
    ];
    prop::collection::vec(step, 1..120).prop_map(|steps| {
        let mut at = 0_i64;
        let walk = steps.into_iter().map(|step| {
            at = (at + step).max(0);
            at.unsigned_abs()
        });
        walk.collect()
    })
}

/// Keys that survive a restart.
#[test]
fn unreserved_or_pre_restart_numbers_are_refused() {
    let wrapping = IpsecSetup { window: 64, ..IpsecSetup::tunnel4() };
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let plain = datagrams(&wrapping, &[10]);
    let mut bed = TestBed::new("connectx6dx");
    let handle = bed.add_receiving(&wrapping, OffloadKind::Packet);
    let window = (37..=100).collect();
    let start = SaProgress { received: 100, window, ..SaProgress::default() };
    bed.port().open_state(handle, &start);
    bed.port().reserve_received(handle, 101..=200);
    let mut give = |bed: &mut TestBed, number| {
        let before = *bed.nic.drops();
        let passed = !bed.receive(vec![sender.esp(&plain[0], number)]).is_empty();
        let after = *bed.nic.drops();
        let reason = after.iter().find(|(drop, count)| *count > before.of(*drop));
        (passed, reason.map(|(drop, _)| drop), bed.nic.take_near_limit())
    };
    for number in [1, 50, 100] {
        let told = (false, Some(NicDrop::RxBeforeRestart), false);
        assert_eq!(give(&mut bed, number), told, "{number}");
    }
    assert_eq!(give(&mut bed, 101), (true, None, false));
    assert_eq!(give(&mut bed, 180), (true, None, true), "half of it is used");
    assert_eq!(give(&mut bed, 181), (true, None, false), "that is said once");
    assert_eq!(give(&mut bed, 181), (false, Some(NicDrop::RxReplay), false));
    assert_eq!(give(&mut bed, 201), (false, Some(NicDrop::RxReplayReserve), true));
    let counts = bed.counts(handle);
    assert_eq!((counts.received, counts.wanted), (181, 201));
    bed.port().reserve_received(handle, 101..=400);
    assert_eq!(give(&mut bed, 201), (true, None, false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn replay_window_matches_naive_window(
        numbers in numbers(),
        window in prop::sample::select(vec![32_u32, 64, 128, 256]),
        batch in 1_usize..20,
        esn in any::<bool>(),
    ) {
        let flags = if esn { SaFlags::ESN } else { SaFlags::empty() };
        let wrapping = IpsecSetup { window, flags, ..IpsecSetup::tunnel4() };
        let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
        let mut bed = TestBed::new("connectx6dx");
        let handle = bed.add_receiving(&wrapping, OffloadKind::Packet);
        let plain = datagrams(&wrapping, &[10]);
        let mut naive = Naive::default();
        let mut passed_in_all = 0;
        for some in numbers.chunks(batch) {
            let wire = some.iter().map(|number| sender.esp(&plain[0], *number)).collect();
            let passed = bed.receive(wire).len();
            let taken = some.iter().filter(|number| naive.takes(**number, window.into())).count();
            prop_assert_eq!(passed, taken);
            passed_in_all += taken;
        }
        let dropped = (numbers.len() - passed_in_all) as u64;
        prop_assert_eq!(bed.nic.drops().total(), dropped);
        let failures = bed.counts(handle).failures;
        let counted = failures.replay_window + failures.replay + failures.integrity_failed;
        // Number 0 is no failure of the SA, unless it counts as one of the next 2^32.
        let unnumbered = numbers.iter().filter(|number| **number == 0).count() as u64;
        let expected = dropped.saturating_sub(unnumbered)..=dropped;
        prop_assert!(expected.contains(&counted.into()), "{counted} of {expected:?}");
        prop_assert_eq!(bed.counts(handle).received, naive.head);
    }
}

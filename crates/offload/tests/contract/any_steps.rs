//! Any sequence of operations, three engines side by side.

use proptest::prelude::*;
use uxfrm_engine::{LifetimeLimits, SaFlags, SoftHardLimit};
use uxfrm_testkit::IpsecSetup;

use crate::{Step, compare_in, forms};

/// Numbers around where the peer would be: new ones, late ones, doubles and leaps.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![8 => 1_u64..60, 1 => 60_u64..200, 1 => 1_000_u64..1_040],
        1..6,
    )
}

/// Hard limits are above the soft ones, as drivers ask. The device's counts are looked at once a
/// second, and then a hard limit is told before the packet that would pass it (see the table of
/// exceptions): so no second passes here.
fn limits() -> impl Strategy<Value = LifetimeLimits> {
    let budget = prop_oneof![
        Just((u64::MAX, u64::MAX)),
        (1_u64..20, 1_u64..20).prop_map(|(soft, more)| (soft, soft + more)),
    ];
    budget.prop_map(|(soft, hard)| LifetimeLimits {
        packets: SoftHardLimit { soft, hard },
        ..LifetimeLimits::default()
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_usize..6).prop_map(Step::Send),
        6 => numbers().prop_map(Step::Receive),
        1 => numbers().prop_map(Step::ReceiveForged),
        2 => limits().prop_map(Step::Update),
        2 => (3_u8..200).prop_map(Step::Move),
        1 => (1_u64..80, 1_u64..80)
            .prop_map(|(sent, received)| Step::SetCounters { sent, received }),
        1 => Just(Step::AddNext),
        1 => Just(Step::DeletePrevious),
        1 => (1_u64..40, 1_u64..40)
            .prop_map(|(sent, received)| Step::Add { sent, received, window: vec![received] }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn devices_match_software(
        steps in prop::collection::vec(step(), 1..14),
        limits in limits(),
        esn in any::<bool>(),
        near_the_end in any::<bool>(),
        window in prop::sample::select(vec![32_u32, 64, 256]),
        like in prop::sample::select(forms::all(&IpsecSetup::tunnel4())),
    ) {
        let flags = if esn { SaFlags::ESN } else { SaFlags::empty() };
        let wrapping = IpsecSetup { window, flags, limits, ..like };
        let begin = if esn && near_the_end { (1 << 32) - 30 } else { 0 };
        let first = Step::Add { sent: begin, received: begin, window: Vec::new() };
        let steps: Vec<_> = std::iter::once(first)
            .chain(steps.into_iter().map(|step| shifted(step, begin)))
            .collect();
        compare_in("any", &wrapping, &steps);
    }
}

/// The same, so much further on.
fn shifted(step: Step, by: u64) -> Step {
    let all = |numbers: Vec<u64>| numbers.into_iter().map(|number| number + by).collect();
    match step {
        Step::Receive(numbers) => Step::Receive(all(numbers)),
        Step::ReceiveForged(numbers) => Step::ReceiveForged(all(numbers)),
        Step::SetCounters { sent, received } => {
            Step::SetCounters { sent: sent + by, received: received + by }
        }
        Step::Add { .. }
        | Step::Send(_)
        | Step::Update(_)
        | Step::Move(_)
        | Step::AddNext
        | Step::DeletePrevious
        | Step::Flush
        | Step::Wait(_) => step,
    }
}

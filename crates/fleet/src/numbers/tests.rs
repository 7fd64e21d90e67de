use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const ESN: u64 = u64::MAX;
const NO_ESN: u64 = u32::MAX as u64;

fn gateway(name: &str) -> GatewayName {
    name.parse().unwrap()
}

/// Draws 0, which is no prefix, and then 1, 2 and so on.
fn counting() -> impl FnMut() -> u32 {
    let mut next = 0;
    move || {
        next += 1;
        next - 1
    }
}

#[test]
fn ranges_follow_each_other() {
    let (a, b, mut draw) = (gateway("a"), gateway("b"), counting());
    let record = NumberRecord::unused(a.clone());
    let (record, one) = record.lease(&a, 100, NO_ESN, &mut draw).unwrap();
    let (record, two) = record.lease(&b, 50, NO_ESN, &mut draw).unwrap();
    let (record, three) = record.lease(&b, 10, NO_ESN, &mut draw).unwrap();
    assert_eq!((one.first, one.last, &one.prefixes[..]), (1, 100, &[1][..]));
    assert_eq!((two.first, two.last, &two.prefixes[..]), (101, 150, &[2][..]));
    assert_eq!((three.first, three.last, &three.prefixes[..]), (151, 160, &[2][..]));
    assert_eq!((record.next, &record.prefixes[..]), (161, &[1, 2][..]));
}

#[test]
fn an_upper_half_has_a_prefix_of_its_own() {
    let (a, mut draw) = (gateway("a"), counting());
    let record = NumberRecord { next: NO_ESN, holder: a.clone(), prefixes: vec![7] };
    let (record, lease) = record.lease(&a, 3, ESN, &mut draw).unwrap();
    assert_eq!((lease.first, lease.last, &lease.prefixes[..]), (NO_ESN, NO_ESN + 2, &[7, 1][..]));
    assert_eq!(lease.iv(NO_ESN), 7 << 32 | NO_ESN);
    assert_eq!(lease.iv(NO_ESN + 1), 1 << 32);
    let (_, next) = record.lease(&a, 1, ESN, &mut draw).unwrap();
    assert_eq!(next.prefixes, [1]);
    // And one that begins with a new upper half.
    let record = NumberRecord { next: NO_ESN + 1, holder: a.clone(), prefixes: vec![7] };
    assert_eq!(record.lease(&a, 1, ESN, &mut draw).unwrap().1.prefixes, [2]);
}

#[test]
fn a_key_ends_with_its_last_number() {
    let (a, mut draw) = (gateway("a"), counting());
    let record = NumberRecord { next: NO_ESN - 1, holder: a.clone(), prefixes: vec![7] };
    let (record, lease) = record.lease(&a, 100, NO_ESN, &mut draw).unwrap();
    assert_eq!((lease.first, lease.last), (NO_ESN - 1, NO_ESN));
    assert_eq!(record.lease(&a, 100, NO_ESN, &mut draw), Err(KeyUsedUp::Numbers));
    let record = NumberRecord { next: u64::MAX - 1, holder: a.clone(), prefixes: vec![7] };
    let (record, lease) = record.lease(&a, 100, ESN, &mut draw).unwrap();
    assert_eq!((lease.first, lease.last), (u64::MAX - 1, u64::MAX - 1));
    assert_eq!(record.lease(&a, 1, ESN, &mut draw), Err(KeyUsedUp::Numbers));
}

#[test]
fn a_key_ends_with_its_last_prefix() {
    let (a, b) = (gateway("a"), gateway("b"));
    let prefixes = (0..u32::try_from(MOST_PREFIXES).unwrap()).collect();
    let record = NumberRecord { next: 5, holder: a.clone(), prefixes };
    let mut draw = || u32::MAX;
    assert!(record.lease(&a, 1, ESN, &mut draw).is_ok());
    assert_eq!(record.lease(&b, 1, ESN, &mut draw), Err(KeyUsedUp::Prefixes));
}

proptest! {
    /// Gateways in any order, near the end of a lower half, with prefixes that are often the same.
    #[test]
    fn no_iv_comes_twice(
        turns in proptest::collection::vec((0_usize..3, 1_u64..6), 1..40),
        draws in proptest::collection::vec(0_u32..80, 1..400),
    ) {
        let gateways = [gateway("a"), gateway("b"), gateway("c")];
        let mut draws = draws.into_iter().cycle().zip(0_u32..).map(|(draw, n)| draw ^ (n / 200));
        let mut record = NumberRecord {
            next: u64::from(u32::MAX) - 20,
            holder: gateways[0].clone(),
            prefixes: Vec::new(),
        };
        let mut seen = HashSet::new();
        for (who, wanted) in turns {
            let taken = record.lease(&gateways[who], wanted, ESN, || draws.next().unwrap());
            let (next, lease) = taken.unwrap();
            for number in lease.first..=lease.last {
                prop_assert!(seen.insert(lease.iv(number)), "{number}");
            }
            record = next;
        }
    }
}

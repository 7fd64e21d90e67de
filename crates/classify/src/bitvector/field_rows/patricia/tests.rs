use super::*;
use crate::bitvector::field_rows::tests::{nested, numbers};

fn row(ends: &[(u128, u16)], value: u128) -> u16 {
    ends[ends.partition_point(|(end, _)| *end < value)].1
}

fn check(ends: &[(u128, u16)], values: impl IntoIterator<Item = u128>) {
    let patricia = PatriciaTrie::of(1, ends).unwrap();
    for value in values {
        let [high, low] = crate::bitvector::field_rows::row_index::halves(value);
        assert_eq!(patricia.number(&[7, high, low]), row(ends, value), "{value:x} of {ends:x?}");
    }
}

/// Against a search among the stretches: at their ends, beside them, and where one bit differs from
/// these.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn patricia_trie_agrees_with_search() {
    let mut next = numbers(3);
    for most in [1, 2, 3, 9, 40, 300, 900].into_iter().cycle().take(140) {
        let ends = nested(most, &mut next);
        let ends: Vec<_> =
            ends.iter().map(|(end, row)| (*end, u16::try_from(*row).unwrap())).collect();
        let some = ends.iter().map(|(end, _)| *end).step_by(1 + ends.len() / 50);
        let near = some.flat_map(|end| [end, end.wrapping_add(1), end ^ 1 << (next() % 128)]);
        check(&ends, near.chain([0, u128::MAX]).collect::<Vec<_>>());
    }
}

/// Prefixes that part at another bit each, so that no fork looks at all of them.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn patricia_trie_may_be_deep() {
    let hosts = |bit: u32| 1_u128 << (127 - bit);
    let mut ends: Vec<_> =
        (0..127).rev().flat_map(|bit| [(hosts(bit) - 1, 0), (hosts(bit), 1)]).collect();
    ends.push((u128::MAX, 0));
    let patricia = PatriciaTrie::of(0, &ends).unwrap();
    assert!(patricia.forks.len() > 4);
    let values =
        (0..127).flat_map(|bit| [hosts(bit) - 1, hosts(bit), hosts(bit) + 1, hosts(bit) | 3]);
    check(&ends, values);
}

/// Each inside the one before.
#[test]
fn patricia_trie_too_deep_nesting_is_none() {
    let inside = |count: u32| {
        let find_chunk = (0..count).map(|at| (u128::MAX << (127 - at)) - 1);
        find_chunk.zip(0..).chain([(u128::MAX, 99)]).collect::<Vec<(u128, u16)>>()
    };
    let most = u32::try_from(LEAF_ROWS).unwrap() - 1;
    assert!(PatriciaTrie::of(0, &inside(most)).is_some());
    assert!(PatriciaTrie::of(0, &inside(most + 1)).is_none());
    check(&inside(most), (0..128).map(|bit| u128::MAX << bit));
}

#[test]
fn patricia_trie_merges_equal_neighbours() {
    let one = PatriciaTrie::of(0, &[(5, 3), (9, 3), (u128::MAX, 3)]).unwrap();
    assert_eq!((one.leaves.len(), one.forks.len(), one.number(&[7, 7])), (1, 1, 3));
    assert!(PatriciaTrie::of(0, &[]).is_none());
}

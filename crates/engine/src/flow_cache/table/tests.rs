//! Sets beside a map: what is found is what was kept last, strays are found and only searched for where there are some.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: Epochs = Epochs { policies: 3, states: 1 };

fn key<const N: usize>(flow: u16) -> Key<N> {
    Key { words: [u64::from(flow); N], spi: u32::from(flow % 3) }
}

/// Every stray's home says where it is, or where another one like it is, and no line says anything of others.
fn assert_strays_are_known<const N: usize, const W: usize>(sets: &Sets<N, W>) {
    let mut strays = vec![Vec::new(); sets.lines.len()];
    for place in 0..sets.lines.len() * Sets::<N, W>::ABREAST {
        let (key, line) = (sets.key_of(place), place / Sets::<N, W>::ABREAST);
        let home = sets.home(&key);
        if sets.epochs(place).policies != 0 && home != line {
            assert_eq!(home / Sets::<N, W>::LINES, line / Sets::<N, W>::LINES, "within its set");
            strays[home].push((key, line));
        }
    }
    for (home, strays) in strays.iter().enumerate() {
        let lines: Vec<usize> = strays.iter().map(|(_, line)| *line).collect();
        for (key, _) in strays {
            let said = sets.stray(home, key);
            assert!(said.is_some_and(|said| lines.contains(&said)), "{said:?} of {lines:?}");
        }
        let word = sets.lines[home].0[W - 1];
        if W == 8 {
            let lanes = (0..4).filter(|lane| word >> (16 * lane) & 0xffff != 0);
            assert_eq!(lanes.count(), strays.len(), "of no others");
        } else if strays.is_empty() {
            assert_eq!(word >> Sets::<N, W>::STRAY, 0);
        }
    }
}

fn compare_with_a_map<const N: usize, const W: usize>(steps: &[(u16, bool)]) {
    let mut sets = Sets::<N, W>::new(64, 5);
    let mut kept = HashMap::new();
    let mut now = NOW;
    for (serial, (flow, changed)) in (0..).zip(steps) {
        if *changed {
            now.policies += 1;
        }
        let hashed = sets.hash(key::<N>(*flow));
        if let Some(near) = sets.find_near(&hashed, now) {
            assert_eq!(near, sets.find(&hashed, now));
        }
        match sets.find(&hashed, now) {
            Finding::Fresh(value) => {
                assert_eq!(Some(&(value.answer, now.policies)), kept.get(flow));
                if let Some(at_home) = sets.find_at_home(&hashed, now) {
                    assert_eq!(at_home, value);
                }
            }
            Finding::Stale(place) => {
                assert_ne!(kept[flow].1, now.policies);
                sets.renew(place, &hashed, serial, now);
                kept.insert(*flow, (serial, now.policies));
            }
            Finding::Absent => {
                assert_eq!(sets.find_at_home(&hashed, now), None);
                // In with its second knock.
                if (0..2).any(|_| sets.offer(&hashed, serial, now) != Settled::NotYet) {
                    kept.insert(*flow, (serial, now.policies));
                }
            }
        }
        assert!(sets.entries() <= sets.room());
        assert_strays_are_known(&sets);
    }
    sets.clear();
    assert!((0..400).all(|flow| sets.find(&sets.hash(key::<N>(flow)), now) == Finding::Absent));
}

proptest! {
    #[test]
    fn sets_hold_what_they_were_given(
        steps in proptest::collection::vec((0..400_u16, proptest::bool::weighted(0.01)), 1..600),
    ) {
        compare_with_a_map::<2, 4>(&steps);
        compare_with_a_map::<5, 8>(&steps);
    }
}

#[test]
fn a_set_holds_sixteen_flows_and_finds_them_all() {
    let mut sets = Sets::<2, 4>::new(16, 1);
    let keys: Vec<_> = (0..16).map(|flow| sets.hash(key::<2>(flow))).collect();
    for key in &keys {
        while sets.find(key, NOW) == Finding::Absent {
            let _ = sets.offer(key, 7, NOW);
        }
    }
    assert!(keys.iter().all(|key| matches!(sets.find(key, NOW), Finding::Fresh(_))));
    assert_eq!((sets.entries(), sets.room()), (16, 16));
}

#[test]
fn a_bundle_is_known_until_states_change() {
    let mut sets = Sets::<5, 8>::new(8, 1);
    let flow = sets.hash(key::<5>(1));
    let _ = (sets.offer(&flow, 7, NOW), sets.offer(&flow, 7, NOW));
    sets.teach(&flow, Value { answer: 7, bundle: 9 }, NOW);
    assert_eq!(sets.find_at_home(&flow, NOW), Some(Value { answer: 7, bundle: 9 }));
    let later = Epochs { states: 2, ..NOW };
    assert_eq!(sets.find_at_home(&flow, later), None);
    assert_eq!(sets.find(&flow, later), Finding::Fresh(Value { answer: 7, bundle: NO_BUNDLE }));
}

/// Keeps an answer for each flow that has none; how many of those that held had to go for that.
fn keep_all(sets: &mut Sets<2, 4>, flows: Range<u16>, now: Epochs) -> usize {
    let mut evicted = 0;
    for flow in flows {
        let key = sets.hash(key::<2>(flow));
        let settled = (0..8).map(|_| sets.offer(&key, 7, now)).find(|one| *one != Settled::NotYet);
        evicted += usize::from(settled == Some(Settled::Evicted));
    }
    evicted
}

#[test]
fn outdated_flows_keep_their_places_while_others_are_empty_and_are_not_evicted_by_those_that_come()
{
    let later = Epochs { policies: NOW.policies + 1, ..NOW };
    let mut sets = Sets::<2, 4>::new(16, 1);
    assert_eq!(keep_all(&mut sets, 0..10, NOW), 0);
    assert_eq!(keep_all(&mut sets, 10..16, later), 0);
    assert_eq!(sets.entries(), 16);
    let old =
        (0..10).filter(|flow| sets.find(&sets.hash(key::<2>(*flow)), later) != Finding::Absent);
    assert_eq!(old.count(), 10, "six places were empty");
    assert_eq!(keep_all(&mut sets, 16..26, later), 0, "what is outdated is not evicted");
    assert_eq!(sets.entries(), 16);
    assert_eq!(keep_all(&mut sets, 26..28, later), 2, "what holds is");
}

//! Sets beside a map: what is found is what was kept last, strays are found and only searched for
//! where there are some.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: Epochs = Epochs { policies: 3, states: 1 };

fn key<const N: usize>(flow: u16) -> CacheKey<N> {
    CacheKey { words: [u64::from(flow); N], spi: u32::from(flow % 3) }
}

/// Every stray's home says where it is, or where another one like it is, and no line says anything
/// of others.
fn assert_strays_are_known<const N: usize, const W: usize>(table: &FlowTable<N, W>) {
    let mut strays = vec![Vec::new(); table.lines.len()];
    for place in 0..table.lines.len() * FlowTable::<N, W>::PLACES {
        let (key, line) = (table.key_of(place), place / FlowTable::<N, W>::PLACES);
        let primary = table.primary(&key);
        if table.epochs(place).policies != 0 && primary != line {
            assert_eq!(
                primary / FlowTable::<N, W>::LINES,
                line / FlowTable::<N, W>::LINES,
                "within its set"
            );
            strays[primary].push((key, line));
        }
    }
    for (primary, strays) in strays.iter().enumerate() {
        let lines: Vec<usize> = strays.iter().map(|(_, line)| *line).collect();
        for (key, _) in strays {
            let said = table.overflow_line(primary, key);
            assert!(said.is_some_and(|said| lines.contains(&said)), "{said:?} of {lines:?}");
        }
        let word = table.lines[primary].0[W - 1];
        if W == 8 {
            let lanes = (0..4).filter(|lane| word >> (16 * lane) & 0xffff != 0);
            assert_eq!(lanes.count(), strays.len(), "of no others");
        } else if strays.is_empty() {
            assert_eq!(word >> FlowTable::<N, W>::HINT_SHIFT, 0);
        }
    }
}

fn compare_with_a_map<const N: usize, const W: usize>(steps: &[(u16, bool)]) {
    let mut table = FlowTable::<N, W>::new(64, 5);
    let mut kept = HashMap::new();
    let mut now = NOW;
    for (serial, (flow, changed)) in (0..).zip(steps) {
        if *changed {
            now.policies += 1;
        }
        let hashed = table.hash(key::<N>(*flow));
        if let Some(near) = table.find_near(&hashed, now) {
            assert_eq!(near, table.find(&hashed, now));
        }
        match table.find(&hashed, now) {
            ProbeResult::Fresh(value) => {
                assert_eq!(Some(&(value.answer, now.policies)), kept.get(flow));
                if let Some(at_home) = table.find_primary(&hashed, now) {
                    assert_eq!(at_home, value);
                }
            }
            ProbeResult::Stale(place) => {
                assert_ne!(kept[flow].1, now.policies);
                table.refresh(place, &hashed, serial, now);
                kept.insert(*flow, (serial, now.policies));
            }
            ProbeResult::Absent => {
                assert_eq!(table.find_primary(&hashed, now), None);
                // In with its second knock.
                if (0..2).any(|_| table.offer(&hashed, serial, now) != InsertOutcome::Deferred) {
                    kept.insert(*flow, (serial, now.policies));
                }
            }
        }
        assert!(table.entries() <= table.room());
        assert_strays_are_known(&table);
    }
    table.clear();
    assert!(
        (0..400).all(|flow| table.find(&table.hash(key::<N>(flow)), now) == ProbeResult::Absent)
    );
}

proptest! {
    #[test]
    fn flow_table_agrees_with_map(
        steps in proptest::collection::vec((0..400_u16, proptest::bool::weighted(0.01)), 1..600),
    ) {
        compare_with_a_map::<2, 4>(&steps);
        compare_with_a_map::<5, 8>(&steps);
    }
}

#[test]
fn flow_table_set_holds_sixteen_flows() {
    let mut table = FlowTable::<2, 4>::new(16, 1);
    let keys: Vec<_> = (0..16).map(|flow| table.hash(key::<2>(flow))).collect();
    for key in &keys {
        while table.find(key, NOW) == ProbeResult::Absent {
            let _ = table.offer(key, 7, NOW);
        }
    }
    assert!(keys.iter().all(|key| matches!(table.find(key, NOW), ProbeResult::Fresh(_))));
    assert_eq!((table.entries(), table.room()), (16, 16));
}

#[test]
fn flow_table_bundle_is_valid_until_sa_epoch_changes() {
    let mut table = FlowTable::<5, 8>::new(8, 1);
    let flow = table.hash(key::<5>(1));
    let _ = (table.offer(&flow, 7, NOW), table.offer(&flow, 7, NOW));
    table.set_bundle(&flow, Value { answer: 7, bundle: 9 }, NOW);
    assert_eq!(table.find_primary(&flow, NOW), Some(Value { answer: 7, bundle: 9 }));
    let later = Epochs { states: 2, ..NOW };
    assert_eq!(table.find_primary(&flow, later), None);
    assert_eq!(
        table.find(&flow, later),
        ProbeResult::Fresh(Value { answer: 7, bundle: NO_BUNDLE })
    );
}

/// Keeps an answer for each flow that has none; how many of those that held had to go for that.
fn keep_all(table: &mut FlowTable<2, 4>, flows: Range<u16>, now: Epochs) -> usize {
    let mut evicted = 0;
    for flow in flows {
        let key = table.hash(key::<2>(flow));
        let settled =
            (0..8).map(|_| table.offer(&key, 7, now)).find(|one| *one != InsertOutcome::Deferred);
        evicted += usize::from(settled == Some(InsertOutcome::Evicted));
    }
    evicted
}

#[test]
fn flow_table_fills_empty_then_stale_slots_without_eviction() {
    let later = Epochs { policies: NOW.policies + 1, ..NOW };
    let mut table = FlowTable::<2, 4>::new(16, 1);
    assert_eq!(keep_all(&mut table, 0..10, NOW), 0);
    assert_eq!(keep_all(&mut table, 10..16, later), 0);
    assert_eq!(table.entries(), 16);
    let old = (0..10)
        .filter(|flow| table.find(&table.hash(key::<2>(*flow)), later) != ProbeResult::Absent);
    assert_eq!(old.count(), 10, "six places were empty");
    assert_eq!(keep_all(&mut table, 16..26, later), 0, "what is outdated is not evicted");
    assert_eq!(table.entries(), 16);
    assert_eq!(keep_all(&mut table, 26..28, later), 2, "what holds is");
}

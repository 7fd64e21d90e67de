use proptest::prelude::*;

use super::*;
use crate::key::{V4, V6};
use crate::rule::MatchRule;
use crate::test_rules::{Family, TestEntry, TestRule, any as matches_all, keys, rules, selectors};

/// What happens to a matrix after it is made.
#[derive(Clone, Debug)]
enum Step {
    /// So many more come.
    Insert(usize),
    Remove(prop::sample::Index),
    Restore,
    Prepare,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_usize..9).prop_map(Step::Insert),
        8 => any::<prop::sample::Index>().prop_map(Step::Remove),
        2 => Just(Step::Restore),
        1 => Just(Step::Prepare),
    ]
}

/// That each key is answered as by a look at every rule, alone and with others.
fn assert_answers<W: Words>(
    bitvector: &ByteBitvector<W, TestEntry>,
    rules: &[Rule<W, TestEntry>],
    keys: &[Key<W>],
) {
    assert_eq!(bitvector.len(), rules.len());
    let mut bests = vec![Best::NONE; keys.len()];
    bitvector.find_each(keys, &mut bests);
    for (key, best) in keys.iter().zip(bests) {
        let fits =
            |rule: &&Rule<W, TestEntry>| rule.fits(&key.words) && fits_extra(&rule.entry, key);
        let first = rules.iter().filter(fits).map(|rule| rule.entry.precedence()).min();
        let mut alone = Best::NONE;
        bitvector.find(key, &mut alone);
        assert_eq!(best.entry().map(|entry| entry.precedence()), first);
        assert_eq!(alone.entry().map(|entry| entry.precedence()), first);
    }
}

fn check<W: Words>(coming: Vec<TestRule>, first: usize, targets: &[Step], keys: &[Key<W>]) {
    let mut waiting = rules::<W>(coming);
    let mut rules: Vec<_> = waiting.drain(..first.min(waiting.len())).collect();
    rules.sort_by_key(|rule| rule.entry.precedence());
    let mut bitvector = ByteBitvector::of(&rules);
    let mut gone = Vec::new();
    assert_answers(&bitvector, &rules, keys);
    for step in targets {
        match step {
            Step::Insert(count) => {
                for rule in waiting.drain(..*count.min(&waiting.len())) {
                    bitvector.insert(rule.clone());
                    rules.push(rule);
                }
            }
            Step::Remove(pick) if !rules.is_empty() => {
                let rule = rules.remove(pick.index(rules.len()));
                bitvector.remove(&rule);
                bitvector.remove(&rule);
                gone.push(rule);
            }
            Step::Restore | Step::Remove(_) => {
                if let Some(rule) = gone.pop() {
                    bitvector.insert(rule.clone());
                    rules.push(rule);
                }
            }
            Step::Prepare => bitvector.prepare(),
        }
        assert_answers(&bitvector, &rules, keys);
        let mut shown = 0;
        bitvector.each(&mut |_| shown += 1);
        assert_eq!(shown, rules.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// From rows of one word to some of a block and more.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv4_lookup_agrees_with_scan(
        coming in prop::collection::vec(selectors(Family::V4), 1..1400),
        first in prop::sample::select(vec![1, 60, 64, 65, 200, 500, 520, 1100]),
        targets in prop::collection::vec(step(), 0..30),
        keys in prop::collection::vec(keys::<V4>(Family::V4), 1..70),
    ) {
        check(coming, first, &targets, &keys);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv6_lookup_agrees_with_scan(
        coming in prop::collection::vec(selectors(Family::V6), 1..700),
        first in prop::sample::select(vec![1, 65, 200, 520]),
        targets in prop::collection::vec(step(), 0..30),
        keys in prop::collection::vec(keys::<V6>(Family::V6), 1..70),
    ) {
        check(coming, first, &targets, &keys);
    }
}

/// What comes is compared apart, but not for ever.
#[test]
fn byte_bitvector_many_recent_rules_rebuild_rows() {
    let port =
        |port: u16| matches_all(u32::from(port)).protocol(17).ports([0, port], [0, u16::MAX]);
    let mut rules = rules::<V4>((0..200).map(port).collect());
    let more = rules.split_off(100);
    let mut bitvector = ByteBitvector::of(&rules);
    let apart = |bitvector: &ByteBitvector<V4, TestEntry>| {
        simd_leaf::count::<V4, TestEntry>(&bitvector.recent)
    };
    for (count, rule) in more.into_iter().enumerate() {
        assert_eq!(apart(&bitvector), count % (MAX_RECENT + 1));
        bitvector.insert(rule);
    }
    bitvector.prepare();
    assert_eq!((apart(&bitvector), bitvector.len(), bitvector.planned), (1, 200, 100));
    for at in 0..FEW_RECENT {
        let rule = Rule::of(&bitvector.rules[at].entry);
        bitvector.remove(&rule);
        bitvector.insert(rule);
    }
    bitvector.prepare();
    assert_eq!((apart(&bitvector), bitvector.len()), (0, 200));
}

/// Nothing is left behind of rules that went.
#[test]
fn byte_bitvector_many_removals_rebuild_rows() {
    let port = |port: u16| matches_all(u32::from(port)).ports([port, 0], [u16::MAX, 0]);
    let rules = rules::<V6>((0..500).map(port).collect());
    let mut bitvector = ByteBitvector::of(&rules);
    for rule in &rules[..450] {
        bitvector.remove(rule);
        assert!(bitvector.rules.len() <= 2 * bitvector.len() + MAX_RECENT);
    }
    assert_answers(&bitvector, &rules[450..], &[Key { words: [0; 5], extra: 0 }, key_of(460)]);
}

fn key_of(port: u16) -> Key<V6> {
    Key { words: [0, 0, 0, 0, u64::from(port) << 48], extra: 0 }
}

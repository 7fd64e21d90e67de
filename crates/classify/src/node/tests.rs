use proptest::prelude::*;

use super::*;
use crate::LOOKUP_BATCH;
use crate::index::Index;
use crate::key::{V4, V6};
use crate::root_cuts::tests::firewall;
use crate::rule::fits_extra;
use crate::test_rules::{Family, TestEntry, any as matches_all, keys, rules, selectors, v4};

/// That every node knows the rank of its first rule, and says so to who asks for it.
fn assert_ranks<W: Words>(node: &Node<W, TestEntry>) {
    let first = node.rules().iter().map(Rule::rank).min();
    let first = first.unwrap_or(Rank::LAST);
    if let Node::TupleSpace { .. } = node {
        assert!(node.best_rank() <= first);
        return;
    }
    assert_eq!(node.best_rank(), first);
    if let Node::Cut { nodes, .. } = node {
        nodes.iter().for_each(assert_ranks);
    }
}

/// That each key is answered as by a look at every rule, alone and with others.
fn assert_answers<W: Words>(
    node: &Node<W, TestEntry>,
    rules: &[Rule<W, TestEntry>],
    keys: &[Key<W>],
) {
    let index = Index(node.clone());
    let together = keys.chunks(LOOKUP_BATCH).flat_map(|keys| {
        let mut bests = [Best::NONE; LOOKUP_BATCH];
        index.lookup_batch(keys, &mut bests);
        bests.into_iter().take(keys.len())
    });
    for (key, best) in keys.iter().zip(together) {
        let fits =
            |rule: &&Rule<W, TestEntry>| rule.fits(&key.words) && fits_extra(&rule.entry, key);
        let first = rules.iter().filter(fits).map(|rule| rule.entry.precedence()).min();
        assert_eq!(best.entry().map(|entry| entry.precedence()), first);
        assert_eq!(index.lookup(key).entry().map(|entry| entry.precedence()), first);
    }
}

/// A set that comes at once, then some more one by one, then goes; another copy follows.
pub(crate) fn check<W: Words>(
    mut coming: Vec<Rule<W, TestEntry>>,
    first: usize,
    gone: &[prop::sample::Index],
    keys: &[Key<W>],
) {
    let rules: Vec<_> = coming.drain(..first.min(coming.len())).collect();
    let mut index = Index::default();
    index.insert_all(&rules.iter().map(|rule| rule.entry.clone()).collect::<Vec<_>>());
    check_from(index.0, rules, coming, gone, keys);
}

/// The same of a node that has some rules.
pub(crate) fn check_from<W: Words>(
    mut node: Node<W, TestEntry>,
    mut rules: Vec<Rule<W, TestEntry>>,
    coming: Vec<Rule<W, TestEntry>>,
    gone: &[prop::sample::Index],
    keys: &[Key<W>],
) {
    let mut follower = node.clone();
    assert_ranks(&node);
    for rule in coming {
        node.insert(rule.clone(), ReplanTiming::Later);
        node.prepare(&rule);
        follower.follow(&node, &rule);
        rules.push(rule);
    }
    assert_ranks(&node);
    assert_answers(&node, &rules, keys);
    for pick in gone {
        if rules.is_empty() {
            break;
        }
        // Mostly the first, on which most depends.
        let first = (0..rules.len()).min_by_key(|at| rules[*at].entry.precedence()).unwrap_or(0);
        let at = pick.index(2 * rules.len()).checked_sub(rules.len()).unwrap_or(first);
        let rule = rules.swap_remove(at);
        node.remove(&rule);
        follower.follow(&node, &rule);
        assert_ranks(&node);
    }
    assert_ranks(&follower);
    assert_answers(&node, &rules, keys);
    assert_answers(&follower, &rules, keys);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv4_nodes_store_their_best_rank(
        rules_of in prop::collection::vec(selectors(Family::V4), 1..900),
        first in prop::sample::select(vec![1, 9, 70, 300, 700]),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V4>(Family::V4), 1..70),
    ) {
        check(rules(rules_of), first, &gone, &keys);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn ipv6_nodes_store_their_best_rank(
        rules_of in prop::collection::vec(selectors(Family::V6), 1..500),
        first in prop::sample::select(vec![1, 9, 70, 300]),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        keys in prop::collection::vec(keys::<V6>(Family::V6), 1..70),
    ) {
        check(rules(rules_of), first, &gone, &keys);
    }
}

/// A cut by each bit of the destination from the lowest on: what is shorter by so many bits is in
/// the rest.
fn trunk(rules: Vec<Rule<V4, TestEntry>>, bits: std::ops::Range<u8>) -> Node<V4, TestEntry> {
    if bits.is_empty() {
        return Node::of(rules);
    }
    let window = Window::new(0, 32 + bits.start, 1);
    let len = rules.len();
    let mut sets = [const { Vec::new() }; 3];
    rules.into_iter().for_each(|rule| sets[place(window, &rule).0].push(rule));
    let [zeros, ones, others] = sets;
    let rest = trunk(others, bits.start + 1..bits.end);
    let update_counts = Node::Counts { first: Rank::LAST, len, planned: len };
    let nodes: Arc<[_]> = [Node::of(zeros), Node::of(ones), rest, update_counts].into();
    Node::Cut { first: first_in(&nodes), window, rest: true, nodes }
}

/// However many cuts every key meets, and wherever the first stands.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn batch_lookup_follows_many_root_cuts() {
    // The shortest prefixes, which stand behind the last cuts, among the others or before them.
    let priorities: [fn(u32) -> u32; 2] = [|at| at * 7 % 101, |at| 25 - at % 25];
    for (cuts, priority) in
        [1, 2, 3, 15, 16, 17, 24].into_iter().flat_map(|cuts| priorities.map(|of| (cuts, of)))
    {
        let length = |at: u32| at % 25;
        let rule = |at: u32| {
            let address = v4(at.wrapping_mul(0x9e37_79b1) % 4);
            let protocol = u8::try_from(at / 100).unwrap();
            matches_all(priority(at)).to((address, 32 - length(at))).protocol(protocol)
        };
        let rules = rules::<V4>((0..400).map(rule).collect());
        let node = trunk(rules.clone(), 0..cuts);
        assert_ranks(&node);
        let key = |at: u32| {
            let any = [u64::from(at % 9) << 32, u64::from(at / 9) << 24];
            Key { words: any, extra: 0 }
        };
        assert_answers(&node, &rules, &Vec::from_iter((0..64).map(key)));
    }
}

/// Samples of what came in another order would be others, and some plans are better than others.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn replanned_tree_is_independent_of_insertion_order() {
    let rules = firewall(2500);
    let planned = |order: Vec<Rule<V4, TestEntry>>| {
        let mut index = Index::<V4, _>::default();
        order.iter().for_each(|rule| index.insert(&rule.entry, ReplanTiming::Now));
        let replanned = index.replanned();
        (replanned.memory(), replanned.depth())
    };
    let backwards = rules.iter().rev().cloned().collect();
    let interleaved = (0..7).flat_map(|first| rules.iter().skip(first).step_by(7).cloned());
    let expected = planned(rules.clone());
    assert_eq!((planned(backwards), planned(interleaved.collect())), (expected, expected));
}

/// Where two cuts are looked at together, twice as many keys come to matrices as there are.
#[test]
fn batch_lookup_visits_all_bitvectors() {
    let bitvector = |mut rules: Vec<Rule<V4, TestEntry>>| {
        rules.sort_by_key(|rule| rule.entry.precedence());
        let first = rules.iter().map(Rule::rank).min().unwrap();
        Node::ByteBits { first, bits: Arc::new(ByteBitvector::of(&rules)) }
    };
    let rule = |at: u32| {
        let length = if at.is_multiple_of(3) { 32 } else { 31 };
        matches_all(at * 7 % 101).to((v4(at / 3), length))
    };
    let rules = rules::<V4>((0..300).map(rule).collect());
    let cut = |rest: Node<V4, TestEntry>, bit: u8, rules: Vec<Rule<V4, TestEntry>>| {
        let (window, len) = (Window::new(0, 32 + bit, 1), rules.len());
        let (zeros, ones) = rules.into_iter().partition(|rule| place(window, rule).0 == 0);
        let update_counts = Node::Counts { first: Rank::LAST, len, planned: len };
        let nodes: Arc<[_]> = [bitvector(zeros), bitvector(ones), rest, update_counts].into();
        Node::Cut { first: first_in(&nodes), window, rest: true, nodes }
    };
    let (hosts, pairs) = rules.iter().cloned().partition(|rule| rule.mask[0].count_ones() == 32);
    let node = cut(cut(Node::EMPTY, 1, pairs), 0, hosts);
    let keys = (0..128).map(|host| Key { words: [host << 32, 0], extra: 0 });
    assert_answers(&node, &rules, &Vec::from_iter(keys));
}

use proptest::prelude::*;
use uxfrm_crypto::Backend;

use super::*;
use crate::spd::classifier::ternary::{V4, V6};
use crate::spd::table::tests::policy;
use crate::{
    Database, Direction, Family, FlowKey, Mark, Moment, Policy, PortMask, Prefix, Selector,
};

/// Selectors of few values, so that they overlap in all ways.
pub(in crate::spd::classifier) fn selectors(family: Family) -> impl Strategy<Value = Policy> {
    let lens = match family {
        Family::V4 => [0, 9, 16, 30, 32],
        Family::V6 => [0, 9, 64, 126, 128],
    };
    let prefix = (address(family), prop::sample::select(lens.to_vec()))
        .prop_map(|(address, len)| Prefix::new(address, len).unwrap());
    let port = (0_u16..600, prop::sample::select(vec![0, 0, 0xffff, 0xff00, 0x0003]))
        .prop_map(|(value, mask)| PortMask { value, mask });
    let mark = prop_oneof![9 => Just((0, 0)), 1 => (0_u32..3, Just(3))];
    let rest = (prop::sample::select(vec![0, 0, 6, 17]), mark, 0_u32..50);
    (prefix.clone(), prefix, port.clone(), port, rest).prop_map(
        move |(source, destination, source_port, destination_port, rest)| {
            let (protocol, (value, mask), priority) = rest;
            let any = Selector::any(family);
            let selector =
                Selector { source, destination, source_port, destination_port, protocol, ..any };
            Policy { selector, mark: Mark { value, mask }, ..policy(Direction::Out, priority) }
        },
    )
}

fn address(family: Family) -> impl Strategy<Value = std::net::IpAddr> + Clone {
    (0_u8..3, 0_u8..8).prop_map(move |(net, host)| match family {
        Family::V4 => std::net::Ipv4Addr::new(10, 64 * net, 0, host).into(),
        Family::V6 => {
            std::net::Ipv6Addr::new(0xfd00 + (u16::from(net) << 6), 0, 0, 0, 0, 0, 0, host.into())
                .into()
        }
    })
}

pub(in crate::spd::classifier) fn flows(family: Family) -> impl Strategy<Value = FlowKey> {
    let upper = (prop::sample::select(vec![6, 17, 1]), 0_u16..600, 0_u16..600, 0_u32..4);
    (address(family), address(family), upper).prop_map(|(source, destination, upper)| {
        let (protocol, source_port, destination_port, mark) = upper;
        let (if_id, ifindex) = (0, 0);
        FlowKey {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            mark,
            if_id,
            ifindex,
        }
    })
}

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

/// Rules of as many different policies.
pub(in crate::spd::classifier) fn rules<W: Words>(policies: Vec<Policy>) -> Vec<Rule<W>> {
    let mut database = Database::new(Backend::Portable, 1);
    let entries = database.apply(Moment(0), |change| {
        let add = |policy| change.add_policy(policy).ok();
        policies.into_iter().filter_map(add).collect::<Vec<_>>()
    });
    entries.iter().map(Rule::of).collect()
}

/// That each key is answered as by a look at every rule, alone and with others.
fn assert_answers<W: Words>(bitvector: &ByteBitvector<W>, rules: &[Rule<W>], keys: &[Key<W>]) {
    assert_eq!(bitvector.len(), rules.len());
    let mut bests = vec![Best::NONE; keys.len()];
    bitvector.find_each(keys, &mut bests);
    for (key, best) in keys.iter().zip(bests) {
        let fits = |rule: &&Rule<W>| rule.fits(&key.words) && fits_extra(&rule.entry, key);
        let first = rules.iter().filter(fits).map(|rule| rule.entry.precedence()).min();
        let mut alone = Best::NONE;
        bitvector.find(key, &mut alone);
        assert_eq!(best.entry().map(|entry| entry.precedence()), first);
        assert_eq!(alone.entry().map(|entry| entry.precedence()), first);
    }
}

fn check<W: Words>(policies: Vec<Policy>, first: usize, targets: &[Step], keys: &[Key<W>]) {
    let mut waiting = rules::<W>(policies);
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
    fn ipv4_lookup_agrees_with_scan(
        policies in prop::collection::vec(selectors(Family::V4), 1..1400),
        first in prop::sample::select(vec![1, 60, 64, 65, 200, 500, 520, 1100]),
        targets in prop::collection::vec(step(), 0..30),
        flows in prop::collection::vec(flows(Family::V4), 1..70),
    ) {
        let keys: Vec<Key<V4>> = flows.iter().filter_map(|flow| match (flow.destination, flow.source) {
            (std::net::IpAddr::V4(to), std::net::IpAddr::V4(from)) => Some(Key::v4(to, from, flow)),
            _ => None,
        }).collect();
        check(policies, first, &targets, &keys);
    }

    #[test]
    fn ipv6_lookup_agrees_with_scan(
        policies in prop::collection::vec(selectors(Family::V6), 1..700),
        first in prop::sample::select(vec![1, 65, 200, 520]),
        targets in prop::collection::vec(step(), 0..30),
        flows in prop::collection::vec(flows(Family::V6), 1..70),
    ) {
        let keys: Vec<Key<V6>> = flows.iter().filter_map(|flow| match (flow.destination, flow.source) {
            (std::net::IpAddr::V6(to), std::net::IpAddr::V6(from)) => Some(Key::v6(to, from, flow)),
            _ => None,
        }).collect();
        check(policies, first, &targets, &keys);
    }
}

/// What comes is compared apart, but not for ever.
#[test]
fn byte_bitvector_many_recent_policies_rebuild_rows() {
    let port = |port: u16| {
        let mut policy = policy(Direction::Out, u32::from(port));
        policy.selector.protocol = 17;
        policy.selector.destination_port = PortMask::exactly(port);
        policy
    };
    let mut rules = rules::<V4>((0..200).map(port).collect());
    let more = rules.split_off(100);
    let mut bitvector = ByteBitvector::of(&rules);
    let apart = |bitvector: &ByteBitvector<V4>| simd_leaf::count::<V4>(&bitvector.recent);
    for (count, rule) in more.into_iter().enumerate() {
        assert_eq!(apart(&bitvector), count % (MAX_RECENT + 1));
        bitvector.insert(rule);
    }
    bitvector.prepare();
    assert_eq!((apart(&bitvector), bitvector.len(), bitvector.planned), (1, 200, 100));
    for at in 0..FEW_RECENT {
        let rule = Rule::of(&bitvector.policies[at].entry);
        bitvector.remove(&rule);
        bitvector.insert(rule);
    }
    bitvector.prepare();
    assert_eq!((apart(&bitvector), bitvector.len()), (0, 200));
}

/// Nothing is left behind of policies that went.
#[test]
fn byte_bitvector_many_removals_rebuild_rows() {
    let port = |port: u16| {
        let mut policy = policy(Direction::Out, u32::from(port));
        policy.selector.source_port = PortMask::exactly(port);
        policy
    };
    let rules = rules::<V6>((0..500).map(port).map(v6).collect());
    let mut bitvector = ByteBitvector::of(&rules);
    for rule in &rules[..450] {
        bitvector.remove(rule);
        assert!(bitvector.policies.len() <= 2 * bitvector.len() + MAX_RECENT);
    }
    assert_answers(&bitvector, &rules[450..], &[Key { words: [0; 5], extra: 0 }, key_of(460)]);
}

fn v6(policy: Policy) -> Policy {
    let source_port = policy.selector.source_port;
    Policy { selector: Selector { source_port, ..Selector::any(Family::V6) }, ..policy }
}

fn key_of(port: u16) -> Key<V6> {
    Key { words: [0, 0, 0, 0, u64::from(port) << 48], extra: 0 }
}

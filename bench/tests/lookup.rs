//! Look-up compared with a linear scan: every profile, both families, all directions, with policies
//! added and removed in between.

use std::sync::Arc;

use uxfrm_bench::cases::lookup::{PolicyProfile, Random, matching_flow, unmatched_flow};
use uxfrm_crypto::Backend;
use uxfrm_engine::{
    CacheMode, CacheSettings, Database, Direction, Family, FlowKey, IfId, Mark, Moment, Policy,
    PolicyCache, PolicyEntry, PolicyKind, PolicyLookup, Spi,
};

/// Packets looked up in all.
const PAIRS: usize = 1_000_000;
const SIZES: [usize; 6] = [1, 7, 12, 60, 250, 700];

/// The expected policies in the order of matching.
#[derive(Default)]
struct ExpectedPolicies(Vec<Arc<PolicyEntry>>);

impl ExpectedPolicies {
    fn add(&mut self, entry: Arc<PolicyEntry>) {
        let key = |entry: &PolicyEntry| (entry.kind() == PolicyKind::Main, entry.precedence());
        let at = self.0.partition_point(|other| key(other) < key(&entry));
        self.0.insert(at, entry);
    }

    fn first(&self, direction: Direction, flow: &FlowKey) -> Option<&Arc<PolicyEntry>> {
        self.0.iter().find(|entry| entry.direction() == direction && entry.matches(flow))
    }
}

#[test]
fn classifier_and_cache_agree_with_linear_scan() {
    let mut random = Random::new(4);
    let directions = [Direction::In, Direction::Out, Direction::Forward];
    let rounds = PolicyProfile::ALL.len() * 2 * 3 * SIZES.len();
    for profile in PolicyProfile::ALL {
        for family in [Family::V4, Family::V6] {
            for direction in directions {
                for size in SIZES {
                    compare(profile, family, direction, size, PAIRS.div_ceil(rounds), &mut random);
                }
            }
        }
    }
}

/// Large enough for batched descent, and for parts that are built separately.
#[test]
fn large_sets_agree_with_linear_scan() {
    let mut random = Random::new(5);
    for profile in PolicyProfile::ALL {
        for family in [Family::V4, Family::V6] {
            compare(profile, family, Direction::Out, 9000, 3000, &mut random);
        }
    }
}

fn compare(
    profile: PolicyProfile,
    family: Family,
    direction: Direction,
    size: usize,
    pairs: usize,
    random: &mut Random,
) {
    let mut database = Database::new(Backend::Portable, 1);
    let mut model = ExpectedPolicies::default();
    // Small, so that flows evict each other.
    let settings = CacheSettings { mode: CacheMode::On, flows: 256 };
    let mut cache = PolicyCache::new(settings, 3);
    let mut known = Vec::new();
    let mut waiting = profile.policies(family, direction, size, random);
    waiting.iter_mut().for_each(|policy| vary(policy, random));
    for step in 0..4 {
        let pending = match step {
            0 => waiting.split_off(waiting.len() / 3),
            _ => waiting.split_off(waiting.len() / 2),
        };
        database.apply(Moment(0), |change| {
            for policy in pending {
                if let Ok(entry) = change.add_policy(policy) {
                    model.add(entry);
                }
            }
            for _ in 0..model.0.len() * step / 4 {
                let gone = model.0.remove(random.below(model.0.len()));
                change.delete_policy(&gone.key()).expect("it is in");
                if random.below(3) == 0 {
                    waiting.push(gone.policy());
                }
            }
        });
        let mut flows: Vec<FlowKey> =
            (0..pairs / 4 + 1).map(|_| packet(&model, family, random)).collect();
        repeat_flows(&mut flows, &known, random);
        ask(&database, &model, &mut cache, direction, &flows);
        known = flows;
    }
    let stats = cache.stats();
    // A single policy is never removed.
    let became_stale = stats.stale > 0 || size == 1;
    assert!(stats.hits > 0 && became_stale, "answers of the cache, old ones too: {stats:?}");
    let rest: Vec<_> = model.0.drain(..).collect();
    database.apply(Moment(0), |change| {
        for entry in rest {
            change.delete_policy(&entry.key()).expect("it is in");
        }
    });
    let spd = &database.snapshot().spd;
    assert_eq!((spd.len(), spd.footprint().depth), (0, 0), "nothing is left");
}

fn ask(
    database: &Database,
    model: &ExpectedPolicies,
    cache: &mut PolicyCache,
    direction: Direction,
    flows: &[FlowKey],
) {
    let snapshot = database.snapshot();
    let mut cached = Vec::new();
    cache.begin_batch(&snapshot.spd);
    cache.lookup_batch(&snapshot.spd, direction, flows, Spi(0), &mut cached);
    let mut together = Vec::new();
    snapshot.spd.lookup_batch(direction, flows, &mut together);
    for ((flow, together), cached) in flows.iter().zip(together).zip(cached) {
        let expected = model.first(direction, flow).map(|entry| entry.index());
        let index = |lookup: PolicyLookup<'_>| match lookup {
            PolicyLookup::Policy(entry) => Some(entry.index()),
            PolicyLookup::Default(_) => None,
        };
        assert_eq!(index(snapshot.spd.lookup(direction, flow)), expected, "{flow:?}");
        assert_eq!(index(together), expected, "in a batch: {flow:?}");
        let cached = cache.policies(cached);
        assert_eq!(cached.first().map(|entry| entry.index()), expected, "cached: {flow:?}");
    }
}

/// Repeats flows, some soon, some late, and some that were cached before policies changed.
fn repeat_flows(flows: &mut [FlowKey], known: &[FlowKey], random: &mut Random) {
    for at in 1..flows.len() {
        match random.below(8) {
            0 | 1 => flows[at] = flows[at - 1],
            2 | 3 => flows[at] = flows[random.below(at.min(100))],
            4 if !known.is_empty() => flows[at] = known[known.len() - 1 - random.below(50)],
            _ => {}
        }
    }
}

/// Mostly flows that match a policy, or nearly.
fn packet(model: &ExpectedPolicies, family: Family, random: &mut Random) -> FlowKey {
    if model.0.is_empty() || random.below(20) == 0 {
        return unmatched_flow(family, random);
    }
    let mut one = matching_flow(&model.0[random.below(model.0.len())].policy(), random);
    let other = matching_flow(&model.0[random.below(model.0.len())].policy(), random);
    match random.below(8) {
        0 => one.source = other.source,
        1 => one.destination = other.destination,
        2 => one.protocol = other.protocol,
        3 => one.destination_port = other.destination_port,
        4 => one.if_id = other.if_id,
        _ => {}
    }
    one
}

/// Varies what profiles leave out: marks, interfaces, ids, sub policies.
fn vary(policy: &mut Policy, random: &mut Random) {
    match random.below(24) {
        0 => policy.kind = PolicyKind::Sub,
        1 => policy.if_id = IfId(random.word() % 3),
        2 => policy.mark = Mark { value: random.word() % 4, mask: random.pick(&[1, 3, u32::MAX]) },
        3 => policy.selector.ifindex = random.word() % 4,
        4 => policy.selector.protocol = 0,
        _ => {}
    }
}

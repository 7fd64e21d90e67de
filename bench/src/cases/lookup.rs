//! `uxfrm bench lookup`: cycles per packet for parsing, finding the policies and reading the
//! verdict.
//!
//! Packets come in batches of 256 whose bytes are warm, as from a port. Rounds of all cache modes
//! and of parsing alone (the floor) take turns. The tables are those that workers use, behind a
//! [`Database`](uxfrm_engine::Database). What a whole worker does with a packet is the bench `esp`.

mod churn;
mod classbench;
mod measurement;
mod packets;
mod policy_set;
mod profile;
mod random;

use uxfrm_engine::{Direction, Family, FlowKey, Policy};

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{BenchReport, Case, Machine, Row, curves};
use measurement::PacketStream;
use policy_set::{LOAD_ORDERS, LoadOrder, PolicySet};
pub use profile::{PolicyProfile, matching_flow, policy, unmatched_flow};
pub use random::Random;

const SIZES: [usize; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// Numbers of flows that the packets repeat in turn.
const FLOWS: [FlowPattern; 4] = [
    FlowPattern::Repeated(4),
    FlowPattern::Repeated(16_384),
    FlowPattern::Repeated(1_048_576),
    FlowPattern::AlwaysNew,
];
const FAMILIES: [(Family, u8); 2] = [(Family::V4, 4), (Family::V6, 6)];
const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Out, "out"), (Direction::In, "in")];

/// Which policy of the set matches the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyMatch {
    First,
    Last,
    Random,
    None,
}

const MATCHES: [(PolicyMatch, &str); 4] = [
    (PolicyMatch::First, "first"),
    (PolicyMatch::Last, "last"),
    (PolicyMatch::Random, "random"),
    (PolicyMatch::None, "none"),
];

/// How flows repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowPattern {
    /// This many flows in turn.
    Repeated(usize),
    /// No flow repeats, as in a port scan.
    AlwaysNew,
}

/// Profile, family and direction of a policy set.
#[derive(Clone, Copy, Debug)]
struct SetShape {
    profile: PolicyProfile,
    family: Family,
    direction: Direction,
}

/// Measures what the options leave. By default `tunnels` has all kinds of matches and numbers of
/// flows, the other profiles 16,384 flows at random. Look-ups while policies change are measured
/// without a filter, and when the filter names `changes` or `templates`.
///
/// # Errors
/// A ClassBench file that cannot be read.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    if let Some(rules) = &options.rules {
        measure_rules(rules, options, &clock, &mut rows)?;
        return Ok(BenchReport { bench: "lookup", machine: Machine::here(clock.hz()), rows });
    }
    let sets = planned_sets(options);
    let with_traffic: Vec<_> = sets.iter().map(|set| (set, set.streams(options))).collect();
    let churn = if asks_for_changes(options) || options.only.is_empty() {
        churn::wanted(options)
    } else {
        Vec::new()
    };
    options.ensure_all_values_select()?;
    for (set, streams) in with_traffic {
        set.measure(streams, options, &clock, &mut rows);
    }
    for (tunnels, cases) in churn {
        churn::measure(tunnels, cases, options, &clock, &mut rows);
    }
    Ok(BenchReport { bench: "lookup", machine: Machine::here(clock.hz()), rows })
}

/// Checks, before anything is measured, that the rows that the options leave have curves.
///
/// # Errors
/// They have none; the error says which rows have.
pub(crate) fn find_curves(options: &BenchOptions) -> anyhow::Result<()> {
    let sets = match options.rules {
        Some(_) => Vec::new(),
        None => planned_sets(options),
    };
    let cases: Vec<Case> = sets
        .iter()
        .flat_map(|set| set.streams(options))
        .flat_map(|(.., case)| policy_set::cases(&case, options))
        .map(|(_, case)| case)
        .collect();
    // If no row is left at all, another error says so.
    let is_nothing = options.rules.is_none() && !asks_for_changes(options) && cases.is_empty();
    anyhow::ensure!(
        is_nothing || curves::are_of(cases),
        "bench lookup has no curves of these rows: they go over several numbers of `policies`, of tunnels or of several profiles; \
         --html takes an .html file for all rows"
    );
    Ok(())
}

/// Whether the filter asks for rows that are measured while policies change, and for no others.
fn asks_for_changes(options: &BenchOptions) -> bool {
    options.only.names("changes") || options.only.names("templates")
}

/// A policy set to measure, and the keys that its cases have in common.
struct PlannedSet {
    shape: SetShape,
    size: usize,
    load_order: LoadOrder,
    case: Case,
}

/// The policy sets that the options leave, without those of [`churn`].
fn planned_sets(options: &BenchOptions) -> Vec<PlannedSet> {
    let mut all = Vec::new();
    for profile in PolicyProfile::ALL.into_iter().filter(|_| !asks_for_changes(options)) {
        for (family, number) in FAMILIES {
            for (direction, word) in DIRECTIONS {
                let shape = SetShape { profile, family, direction };
                for size in SIZES.into_iter().filter(|size| !options.quick || *size <= 1000) {
                    let case = Case::new().with("profile", profile.to_string());
                    let case = case.with("family", number).with("direction", word);
                    all.extend(load_orders(&case, options).into_iter().map(
                        |(load_order, case)| PlannedSet {
                            shape,
                            size,
                            load_order,
                            case: case.with("policies", size),
                        },
                    ));
                }
            }
        }
    }
    all.retain(|set| options.only.may_admit(&set.case));
    all
}

fn measure_rules(
    rules: &std::path::Path,
    options: &BenchOptions,
    clock: &TscClock,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let policies = classbench::rules(rules)?;
    let flows = match &options.trace {
        Some(trace) => classbench::trace(trace)?,
        None => flows_for(&policies, PolicyMatch::Random, 16_384, Family::V4),
    };
    let name = rules.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let case = Case::new().with("profile", name).with("family", 4).with("direction", "out");
    let word = if options.trace.is_some() { "trace" } else { "random" };
    for (load_order, case) in load_orders(&case, options) {
        let set = PolicySet::load(policies.clone(), load_order);
        let case = case.with("policies", set.len()).with("match", word).with("flows", flows.len());
        set.measure(&case, &PacketStream::of(&flows, Direction::Out), options, clock, rows);
    }
    Ok(())
}

/// The load orders to measure, each with its case: in bulk, without a key, unless the filter names
/// `loaded`.
fn load_orders(case: &Case, options: &BenchOptions) -> Vec<(LoadOrder, Case)> {
    if !options.only.names("loaded") {
        return vec![(LoadOrder::Bulk, case.clone())];
    }
    LOAD_ORDERS.map(|(load_order, word)| (load_order, case.clone().with("loaded", word))).into()
}

impl PlannedSet {
    /// The packet streams that the options leave, each with the keys that its cases have in common.
    fn streams(&self, options: &BenchOptions) -> Vec<(PolicyMatch, FlowPattern, Case)> {
        let asked = ["match", "flows", "direction"].into_iter().any(|key| options.only.names(key));
        let pairs = MATCHES.iter().flat_map(|met| FLOWS.map(|flows| (*met, flows)));
        let usual = pairs.filter(|((wanted, _), flows)| {
            // Packets that match no policy have no ports to vary.
            let senseless = (*wanted, *flows) == (PolicyMatch::None, FlowPattern::AlwaysNew);
            !senseless && (asked || self.shape.usually_have(*wanted, *flows))
        });
        let cases = usual.map(|((wanted, word), flows)| {
            (wanted, flows, self.case.clone().with("match", word).with("flows", flows.word()))
        });
        cases
            .filter(|(_, flows, case)| {
                let takes_long = options.quick && flows.are_many();
                !takes_long
                    && options.only.may_admit(case)
                    && !policy_set::cases(case, options).is_empty()
            })
            .collect()
    }

    /// Makes the policies only if there is a stream to measure.
    fn measure(
        &self,
        streams: Vec<(PolicyMatch, FlowPattern, Case)>,
        options: &BenchOptions,
        clock: &TscClock,
        rows: &mut Vec<Row>,
    ) {
        if streams.is_empty() {
            return;
        }
        let SetShape { profile, family, direction } = self.shape;
        let mut random = Random::new(self.size as u64);
        let policies = profile.policies(family, direction, self.size, &mut random);
        let set = PolicySet::load(policies.clone(), self.load_order);
        for (wanted, flows, case) in streams {
            let stream = match flows {
                FlowPattern::Repeated(count) => {
                    PacketStream::of(&flows_for(&policies, wanted, count, family), direction)
                }
                FlowPattern::AlwaysNew => PacketStream::always_new(
                    &flows_for(&policies, wanted, 16_384, family),
                    direction,
                ),
            };
            set.measure(&case, &stream, options, clock, rows);
        }
    }
}

impl SetShape {
    /// Whether these are measured by default.
    fn usually_have(self, wanted: PolicyMatch, flows: FlowPattern) -> bool {
        let of_all = wanted == PolicyMatch::Random && flows == FlowPattern::Repeated(16_384);
        match (self.profile, self.direction) {
            (PolicyProfile::Tunnels, Direction::Out) => {
                flows != FlowPattern::AlwaysNew || wanted == PolicyMatch::Random
            }
            (PolicyProfile::Tunnels, Direction::In | Direction::Forward) => of_all,
            (_, Direction::Out) => of_all,
            (_, Direction::In | Direction::Forward) => false,
        }
    }
}

impl FlowPattern {
    fn word(self) -> serde_json::Value {
        match self {
            Self::Repeated(count) => count.into(),
            Self::AlwaysNew => "new".into(),
        }
    }

    /// Too many for `--quick`.
    const fn are_many(self) -> bool {
        matches!(self, Self::Repeated(count) if count > 16_384)
    }
}

/// Flows that match the wanted policies of a set.
fn flows_for(
    policies: &[Policy],
    wanted: PolicyMatch,
    count: usize,
    family: Family,
) -> Vec<FlowKey> {
    let mut random = Random::new(count as u64 + 1);
    // Of equal priorities `min_by_key` finds the oldest, `max_by_key` the youngest.
    let first = policies.iter().min_by_key(|policy| policy.priority);
    let last = policies.iter().max_by_key(|policy| policy.priority);
    let flow = |random: &mut Random| {
        let met = match wanted {
            PolicyMatch::First => first,
            PolicyMatch::Last => last,
            PolicyMatch::Random => policies.get(random.below(policies.len().max(1))),
            PolicyMatch::None => None,
        };
        match met {
            Some(policy) => FlowKey { mark: 0, ifindex: 0, ..matching_flow(policy, random) },
            None => unmatched_flow(family, random),
        }
    };
    (0..count).map(|_| flow(&mut random)).collect()
}

//! `uxfrm bench lookup`: cycles per packet for parsing, finding the policies and reading the verdict.
//!
//! Packets come in batches of 256 whose bytes are warm, as from a port. Rounds of all caches and of parsing alone (the
//! floor) take turns. The tables are those that workers use, behind a [`Database`](uxfrm_engine::Database); what a whole worker does with
//! a packet is another bench, `esp`.

mod churn;
mod classbench;
mod packets;
mod profile;
mod random;
mod set;
mod trial;

use uxfrm_engine::{Direction, Family, FlowKey, Policy};

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Case, Machine, Report, Row, curves};
pub use profile::{Profile, packet_for, policy, stray};
pub use random::Random;
use set::{LOADINGS, Loading, Set};
use trial::Traffic;

const SIZES: [usize; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// How many flows the packets are of, turn by turn.
const FLOWS: [Flows; 4] =
    [Flows::Few(4), Flows::Few(16_384), Flows::Few(1_048_576), Flows::EverNew];
const FAMILIES: [(Family, u8); 2] = [(Family::V4, 4), (Family::V6, 6)];
const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Out, "out"), (Direction::In, "in")];

/// Which policy the packets meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    First,
    Last,
    Random,
    None,
}

const MATCHES: [(Match, &str); 4] = [
    (Match::First, "first"),
    (Match::Last, "last"),
    (Match::Random, "random"),
    (Match::None, "none"),
];

/// Of which flows the packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flows {
    /// So many, again and again.
    Few(usize),
    /// None comes again, as in a scan of ports.
    EverNew,
}

/// What packets are made for: the keys of a case but the cache and the set's size.
#[derive(Clone, Copy, Debug)]
struct Axes {
    profile: Profile,
    family: Family,
    direction: Direction,
}

/// Measures what the options leave. Without a word about them `tunnels` has all kinds of matches and numbers of flows, and the other
/// profiles 16,384 flows at random. Look-ups while policies change are measured when nothing is left out, and when `changes` or `templates` is
/// asked for.
///
/// # Errors
/// A ClassBench file that cannot be read.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    if let Some(rules) = &options.rules {
        measure_rules(rules, options, &clock, &mut rows)?;
        return Ok(Report { bench: "lookup", machine: Machine::here(clock.hz()), rows });
    }
    let sets = planned(options);
    let with_traffic: Vec<_> = sets.iter().map(|set| (set, set.traffics(options))).collect();
    let churn = if asks_for_changes(options) || options.only.is_empty() {
        churn::wanted(options)
    } else {
        Vec::new()
    };
    options.ensure_all_values_select()?;
    for (set, traffics) in with_traffic {
        set.measure(traffics, options, &clock, &mut rows);
    }
    for (tunnels, cases) in churn {
        churn::measure(tunnels, cases, options, &clock, &mut rows);
    }
    Ok(Report { bench: "lookup", machine: Machine::here(clock.hz()), rows })
}

/// Why curves alone can't be had: what the options leave has none. Nothing is measured for that.
///
/// # Errors
/// That, and which rows have some.
pub(crate) fn find_curves(options: &Options) -> anyhow::Result<()> {
    let sets = match options.rules {
        Some(_) => Vec::new(),
        None => planned(options),
    };
    let cases: Vec<Case> = sets
        .iter()
        .flat_map(|set| set.traffics(options))
        .flat_map(|(.., case)| set::cases(&case, options))
        .map(|(_, case)| case)
        .collect();
    // What is left out altogether is told in other words.
    let is_nothing = options.rules.is_none() && !asks_for_changes(options) && cases.is_empty();
    anyhow::ensure!(
        is_nothing || curves::are_of(cases),
        "bench lookup has no curves of these rows: they go over several numbers of `policies`, of tunnels or of several profiles; \
         --html takes an .html file for all rows"
    );
    Ok(())
}

/// Whether only rows are asked for that are measured while policies change.
fn asks_for_changes(options: &Options) -> bool {
    options.only.names("changes") || options.only.names("templates")
}

/// A set of policies that is to be measured, and how its cases begin.
struct Planned {
    axes: Axes,
    size: usize,
    loading: Loading,
    case: Case,
}

/// Those that the options leave, without the ones for changes.
fn planned(options: &Options) -> Vec<Planned> {
    let mut all = Vec::new();
    for profile in Profile::ALL.into_iter().filter(|_| !asks_for_changes(options)) {
        for (family, number) in FAMILIES {
            for (direction, word) in DIRECTIONS {
                let axes = Axes { profile, family, direction };
                for size in SIZES.into_iter().filter(|size| !options.quick || *size <= 1000) {
                    let case = Case::new().with("profile", profile.to_string());
                    let case = case.with("family", number).with("direction", word);
                    all.extend(loadings(&case, options).into_iter().map(|(loading, case)| {
                        Planned { axes, size, loading, case: case.with("policies", size) }
                    }));
                }
            }
        }
    }
    all.retain(|set| options.only.may_admit(&set.case));
    all
}

fn measure_rules(
    rules: &std::path::Path,
    options: &Options,
    clock: &TscClock,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let policies = classbench::rules(rules)?;
    let flows = match &options.trace {
        Some(trace) => classbench::trace(trace)?,
        None => flows_for(&policies, Match::Random, 16_384, Family::V4),
    };
    let name = rules.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let case = Case::new().with("profile", name).with("family", 4).with("direction", "out");
    let word = if options.trace.is_some() { "trace" } else { "random" };
    for (loading, case) in loadings(&case, options) {
        let set = Set::load(policies.clone(), loading);
        let case = case.with("policies", set.len()).with("match", word).with("flows", flows.len());
        set.measure(&case, &Traffic::of(&flows, Direction::Out), options, clock, rows);
    }
    Ok(())
}

/// The ways a set is loaded that are asked for; together, and not a word about it, when none is.
fn loadings(case: &Case, options: &Options) -> Vec<(Loading, Case)> {
    if !options.only.names("loaded") {
        return vec![(Loading::Together, case.clone())];
    }
    LOADINGS.map(|(loading, word)| (loading, case.clone().with("loaded", word))).into()
}

impl Planned {
    /// Which policies packets meet, of which flows they are, and how the cases of that begin.
    fn traffics(&self, options: &Options) -> Vec<(Match, Flows, Case)> {
        let asked = ["match", "flows", "direction"].into_iter().any(|key| options.only.names(key));
        let pairs = MATCHES.iter().flat_map(|met| FLOWS.map(|flows| (*met, flows)));
        let usual = pairs.filter(|((wanted, _), flows)| {
            // Packets that no policy is for have no ports to be new.
            let senseless = (*wanted, *flows) == (Match::None, Flows::EverNew);
            !senseless && (asked || self.axes.usually_have(*wanted, *flows))
        });
        let cases = usual.map(|((wanted, word), flows)| {
            (wanted, flows, self.case.clone().with("match", word).with("flows", flows.word()))
        });
        cases
            .filter(|(_, flows, case)| {
                let takes_long = options.quick && flows.are_many();
                !takes_long && options.only.may_admit(case) && !set::cases(case, options).is_empty()
            })
            .collect()
    }

    /// The policies are made once there is something to be measured with them.
    fn measure(
        &self,
        traffics: Vec<(Match, Flows, Case)>,
        options: &Options,
        clock: &TscClock,
        rows: &mut Vec<Row>,
    ) {
        if traffics.is_empty() {
            return;
        }
        let Axes { profile, family, direction } = self.axes;
        let mut random = Random::new(self.size as u64);
        let policies = profile.policies(family, direction, self.size, &mut random);
        let set = Set::load(policies.clone(), self.loading);
        for (wanted, flows, case) in traffics {
            let traffic = match flows {
                Flows::Few(count) => {
                    Traffic::of(&flows_for(&policies, wanted, count, family), direction)
                }
                Flows::EverNew => {
                    Traffic::ever_new(&flows_for(&policies, wanted, 16_384, family), direction)
                }
            };
            set.measure(&case, &traffic, options, clock, rows);
        }
    }
}

impl Axes {
    /// Whether these are measured when nobody asked for certain ones.
    fn usually_have(self, wanted: Match, flows: Flows) -> bool {
        let of_all = wanted == Match::Random && flows == Flows::Few(16_384);
        match (self.profile, self.direction) {
            (Profile::Tunnels, Direction::Out) => {
                flows != Flows::EverNew || wanted == Match::Random
            }
            (Profile::Tunnels, Direction::In | Direction::Forward) => of_all,
            (_, Direction::Out) => of_all,
            (_, Direction::In | Direction::Forward) => false,
        }
    }
}

impl Flows {
    fn word(self) -> serde_json::Value {
        match self {
            Self::Few(count) => count.into(),
            Self::EverNew => "new".into(),
        }
    }

    /// More than a proof that the bench works needs.
    const fn are_many(self) -> bool {
        matches!(self, Self::Few(count) if count > 16_384)
    }
}

/// Packets that meet certain policies of a set.
fn flows_for(policies: &[Policy], wanted: Match, count: usize, family: Family) -> Vec<FlowKey> {
    let mut random = Random::new(count as u64 + 1);
    // The first of equals is the oldest, `min_by_key` finds that; `max_by_key` the youngest.
    let first = policies.iter().min_by_key(|policy| policy.priority);
    let last = policies.iter().max_by_key(|policy| policy.priority);
    let flow = |random: &mut Random| {
        let met = match wanted {
            Match::First => first,
            Match::Last => last,
            Match::Random => policies.get(random.below(policies.len().max(1))),
            Match::None => None,
        };
        match met {
            Some(policy) => FlowKey { mark: 0, ifindex: 0, ..packet_for(policy, random) },
            None => stray(family, random),
        }
    };
    (0..count).map(|_| flow(&mut random)).collect()
}

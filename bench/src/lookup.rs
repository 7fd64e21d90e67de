//! `uxfrm bench lookup`: cycles per packet for parsing, finding the policies and reading the verdict.
//!
//! Packets come in batches of 256 whose bytes are warm, as from a port. Rounds of all caches and of parsing alone (the
//! floor) take turns. The tables are those that workers use, behind a [`Database`].

mod churn;
mod classbench;
pub(crate) mod curves;
mod packets;
mod profile;
pub(crate) mod published;
mod random;

use std::time::Instant;

use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Action, AnswerId, CacheMode, CacheSettings, Database, Direction, Family, FlowKey, Lookup,
    Moment, Policy, PolicyCache, Ruling, Snapshot, Spi,
};

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Case, Machine, Report, Row, Sample};
use packets::Head;
pub use profile::{Profile, packet_for, policy, stray};
pub use random::Random;

const SIZES: [usize; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
const FLOWS: [usize; 3] = [4, 16_384, 1_048_576];
const MODES: [(CacheMode, &str); 3] =
    [(CacheMode::Off, "off"), (CacheMode::On, "on"), (CacheMode::Auto, "auto")];
/// Packets of a batch.
const BATCH: usize = 256;
/// Packets of a round.
const ROUND: usize = 1 << 16;

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

/// Measures what the options leave. Without a word about them, only `tunnels` has all kinds of matches and numbers of flows. Look-ups while
/// policies change are measured when nothing is left out, and when `changes` is asked for.
///
/// # Errors
/// A ClassBench file that cannot be read.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    if let Some(rules) = &options.rules {
        let policies = classbench::rules(rules)?;
        let flows = match &options.trace {
            Some(trace) => classbench::trace(trace)?,
            None => flows_for(&policies, Match::Random, 16_384, Family::V4),
        };
        let name = rules.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let set = Set::load(policies);
        let case = Case::new().with("profile", name).with("family", 4);
        let case = set.sized(case).with("match", "trace").with("flows", flows.len());
        set.measure(&case, &flows, options, &clock, &mut rows);
        return Ok(Report { bench: "lookup", machine: Machine::here(clock.hz()), rows });
    }
    let only_changes = options.only.names("changes");
    for profile in Profile::ALL.into_iter().filter(|_| !only_changes) {
        for (family, number) in [(Family::V4, 4), (Family::V6, 6)] {
            for size in SIZES.into_iter().filter(|size| !options.quick || *size <= 1000) {
                let case = Case::new().with("profile", profile.to_string()).with("family", number);
                let case = case.with("policies", size);
                if options.only.may_admit(&case) {
                    measure_set(profile, family, size, &case, options, &clock, &mut rows);
                }
            }
        }
    }
    if only_changes || options.only.is_empty() {
        churn::measure(options, &clock, &mut rows);
    }
    Ok(Report { bench: "lookup", machine: Machine::here(clock.hz()), rows })
}

fn measure_set(
    profile: Profile,
    family: Family,
    size: usize,
    case: &Case,
    options: &Options,
    clock: &TscClock,
    rows: &mut Vec<Row>,
) {
    let policies = profile.policies(family, Direction::Out, size, &mut Random::new(size as u64));
    let mut set = None;
    for (wanted, word) in MATCHES {
        for count in FLOWS.into_iter().filter(|count| !options.quick || *count <= 16_384) {
            let case = case.clone().with("match", word).with("flows", count);
            let usual = profile == Profile::Tunnels || (wanted, count) == (Match::Random, 16_384);
            let asked = options.only.names("match") || options.only.names("flows");
            if options.only.may_admit(&case) && (usual || asked) {
                let set = set.get_or_insert_with(|| Set::load(policies.clone()));
                let flows = flows_for(&policies, wanted, count, family);
                set.measure(&case, &flows, options, clock, rows);
            }
        }
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

/// A loaded set of policies.
struct Set {
    database: Database,
    load_seconds: f64,
    bytes_per_policy: f64,
}

impl Set {
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    fn load(policies: Vec<Policy>) -> Self {
        let mut database = Database::new(Backend::Portable);
        let start = Instant::now();
        database.apply(Moment(0), |change| {
            for policy in policies {
                // Two of one name are one.
                let _ = change.add_policy(policy);
            }
        });
        let load_seconds = start.elapsed().as_secs_f64();
        let footprint = database.snapshot().spd.footprint();
        let bytes_per_policy = footprint.bytes as f64 / footprint.policies.max(1) as f64;
        Self { database, load_seconds, bytes_per_policy }
    }

    fn sized(&self, case: Case) -> Case {
        case.with("policies", self.database.snapshot().spd.len())
    }

    /// One row for each cache.
    fn measure(
        &self,
        case: &Case,
        flows: &[FlowKey],
        options: &Options,
        clock: &TscClock,
        rows: &mut Vec<Row>,
    ) {
        let trials = MODES.map(|(mode, word)| (mode, case.clone().with("cache", word)));
        let mut trials: Vec<Trial> = trials
            .into_iter()
            .filter(|(_, case)| options.only.admits(case))
            .map(|(mode, case)| Trial::new(mode, case))
            .collect();
        let heads: Vec<Head> = flows.iter().map(Head::of).collect();
        let snapshot = self.database.snapshot();
        let (rounds, warm) = if options.quick { (2, 1) } else { (15, 3) };
        // As often as it takes for a cache to grow and to know all flows before the first figure.
        let warm = (6 * heads.len()).div_ceil(ROUND).max(warm) + 1;
        let mut floor = Sample::default();
        let mut at = 0;
        for round in 0..warm + rounds {
            let from = at;
            let parsing = pass(&heads, &mut at, |flows| flows.len());
            for trial in &mut trials {
                at = from;
                let cycles = trial.round(&snapshot, &heads, &mut at);
                if round >= warm {
                    trial.sample.push(cycles);
                }
            }
            if round >= warm {
                floor.push(parsing);
            }
        }
        for trial in trials {
            let mut row = Row::of_packets(trial.case, &trial.sample, 64, clock.hz());
            row.figure("floor_cycles", floor.median(), 1);
            row.figure("load_seconds", self.load_seconds, 3);
            row.figure("bytes_per_policy", self.bytes_per_policy, 1);
            row.figure("depth", snapshot.spd.footprint().depth.into(), 0);
            rows.push(row);
        }
    }
}

/// One row in the making.
struct Trial {
    case: Case,
    mode: CacheMode,
    cache: PolicyCache,
    sample: Sample,
    ids: Vec<AnswerId>,
}

impl Trial {
    fn new(mode: CacheMode, case: Case) -> Self {
        let cache = PolicyCache::new(CacheSettings { mode, ..CacheSettings::default() }, 1);
        Self { case, mode, cache, sample: Sample::default(), ids: Vec::with_capacity(BATCH) }
    }

    fn round(&mut self, snapshot: &Snapshot, heads: &[Head], at: &mut usize) -> f64 {
        let Self { cache, ids, .. } = self;
        let spd = &snapshot.spd;
        match self.mode {
            CacheMode::Off => {
                let mut found = Vec::with_capacity(BATCH);
                pass(heads, at, |flows| {
                    found.clear();
                    spd.lookup_each(Direction::Out, flows, &mut found);
                    let allowed = |lookup: &&Lookup<'_>| match lookup {
                        Lookup::Policy(entry) => entry.action() == Action::Allow,
                        Lookup::Default(action) => *action == Action::Allow,
                    };
                    found.iter().filter(allowed).count()
                })
            }
            CacheMode::On | CacheMode::Auto => pass(heads, at, |flows| {
                ids.clear();
                cache.begin(spd);
                cache.lookup_each(spd, Direction::Out, flows, Spi(0), ids);
                let allowed = |id: &&AnswerId| match id.ruling() {
                    Ruling::Pass | Ruling::Protect => true,
                    Ruling::Block => false,
                    Ruling::Default => spd.defaults().outbound == Action::Allow,
                };
                ids.iter().filter(allowed).count()
            }),
        }
    }
}

/// Cycles per packet of one round: parses batch after batch from `at` on, round and round, and gives the flows to `work`. It is the median
/// batch's figure, so that what else runs on the machine does not count.
fn pass(heads: &[Head], at: &mut usize, mut work: impl FnMut(&[FlowKey]) -> usize) -> f64 {
    let mut batch: Vec<Head> = Vec::with_capacity(BATCH);
    let mut flows: Vec<FlowKey> = Vec::with_capacity(BATCH);
    let mut sample = Sample::default();
    for _ in 0..ROUND / BATCH {
        batch.clear();
        flows.clear();
        for _ in 0..BATCH {
            batch.push(heads[*at]);
            *at = (*at + 1) % heads.len();
        }
        let from = TscClock::now();
        flows.extend(batch.iter().filter_map(Head::flow));
        std::hint::black_box(work(std::hint::black_box(&flows)));
        sample.push(TscClock::per_packet(from, BATCH));
    }
    sample.median()
}

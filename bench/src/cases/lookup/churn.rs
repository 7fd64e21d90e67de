//! Policy changes: their rate, and their effect on look-ups.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uxfrm_engine::{
    CacheMode, CacheSettings, Database, Direction, Family, FlowKey, Moment, Policy, PolicyCache,
    PolicyKey, PolicyName, Published, Spi, VerdictId,
};
use uxfrm_io::heap;

use super::profile::{with_own_template, with_unlike_template};
use super::{LoadOrder, PolicyMatch, PolicyProfile, PolicySet, Random, flows_for};
use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{Case, Row, Samples};

const SIZES: [usize; 3] = [1000, 100_000, 1_000_000];
const RATES: [ChangeRate; 4] = [
    ChangeRate::PerSecond(0),
    ChangeRate::PerSecond(10_000),
    ChangeRate::PerSecond(100_000),
    ChangeRate::Most,
];
const CACHES: [(&str, CacheMode); 3] =
    [("off", CacheMode::Off), ("on", CacheMode::On), ("auto", CacheMode::Auto)];
/// Packets that are timed as one.
const GROUP: usize = 32;
/// How often look-ups without changes and look-ups beside changes take turns.
const TURNS: u32 = 4;
/// Changes that are timed individually.
const SINGLE: usize = 2000;
/// Changes that are published together otherwise.
const BURST: usize = 100;

/// How many policies another thread adds, and removes again.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangeRate {
    PerSecond(u32),
    /// As fast as possible.
    Most,
}

impl ChangeRate {
    /// Policies of one burst.
    const fn burst(self) -> usize {
        match self {
            Self::PerSecond(rate) => (rate / 1000) as usize,
            Self::Most => BURST,
        }
    }

    /// Time from one burst to the next.
    const fn pause(self) -> Duration {
        match self {
            Self::PerSecond(_) => Duration::from_millis(1),
            Self::Most => Duration::ZERO,
        }
    }
}

impl fmt::Display for ChangeRate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerSecond(rate) => write!(out, "{rate}/s"),
            Self::Most => out.write_str("most"),
        }
    }
}

/// For each rate the caches that are measured.
type RateCases = Vec<(ChangeRate, Vec<(CacheMode, Case)>)>;

/// The policies' templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateKind {
    /// No templates.
    None,
    /// A tunnel for each policy, to a peer whose address is close to the network behind it.
    Own,
    /// A tunnel for each policy, to peers whose addresses have nothing in common.
    Unlike,
}

impl TemplateKind {
    fn of(self, policy: Policy) -> Policy {
        match self {
            Self::None => policy,
            Self::Own => with_own_template(policy),
            Self::Unlike => with_unlike_template(policy),
        }
    }
}

impl fmt::Display for TemplateKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Own => "own",
            Self::Unlike => "unlike",
        })
    }
}

/// Tunnels to many sites.
#[derive(Clone, Copy, Debug)]
pub(super) struct TunnelSet {
    family: Family,
    templates: TemplateKind,
    size: usize,
}

/// The sizes and rates that the options leave. IPv6, and policies with templates, are measured only
/// while nothing changes.
pub(super) fn wanted(options: &BenchOptions) -> Vec<(TunnelSet, RateCases)> {
    let mut wanted = Vec::new();
    for size in SIZES.into_iter().filter(|size| !options.quick || *size <= 1000) {
        for (family, templates, rates) in [
            (Family::V4, TemplateKind::None, &RATES[..]),
            (Family::V6, TemplateKind::None, &RATES[..1]),
            (Family::V4, TemplateKind::Own, &RATES[..1]),
            (Family::V6, TemplateKind::Own, &RATES[..1]),
            (Family::V6, TemplateKind::Unlike, &RATES[..1]),
        ] {
            let tunnels = TunnelSet { family, templates, size };
            let cases: Vec<_> =
                rates.iter().map(|rate| (*rate, tunnels.cases(*rate, options))).collect();
            if cases.iter().any(|(_, cases)| !cases.is_empty()) {
                wanted.push((tunnels, cases));
            }
        }
    }
    wanted
}

impl TunnelSet {
    /// The cache modes that are measured at this rate and that the options leave.
    fn cases(self, rate: ChangeRate, options: &BenchOptions) -> Vec<(CacheMode, Case)> {
        let is_usual = self.family == Family::V4 && self.templates == TemplateKind::None;
        let caches = if is_usual { &CACHES[..] } else { &CACHES[..1] };
        let cases = caches.iter().map(|(name, mode)| (*mode, self.case(name, rate)));
        cases.filter(|(_, case)| options.only.admits(case)).collect()
    }

    fn case(self, cache: &str, rate: ChangeRate) -> Case {
        let family = if self.family == Family::V4 { 4 } else { 6 };
        let case =
            Case::new().with("profile", PolicyProfile::Tunnels.to_string()).with("family", family);
        let case = case.with("policies", self.size).with("match", "random").with("flows", 16_384);
        let case = case.with("cache", cache).with("templates", self.templates.to_string());
        case.with("changes", rate.to_string())
    }
}

/// One row for each case.
pub(super) fn measure(
    tunnels: TunnelSet,
    cases: RateCases,
    options: &BenchOptions,
    clock: &TscClock,
    rows: &mut Vec<Row>,
) {
    let TunnelSet { family, templates, size } = tunnels;
    heap::release_free();
    let before = heap::resident();
    let mut random = Random::new(7);
    let count = if options.quick { 2 * SINGLE } else { 100_000 };
    // All of one set, so that none that is added later is a duplicate.
    let mut policies =
        PolicyProfile::Tunnels.policies(family, Direction::Out, size + count, &mut random);
    let pending = PendingPolicies { policies: policies.split_off(size), templates };
    let flows = flows_for(&policies, PolicyMatch::Random, 16_384, family);
    // Templates are added on loading, so that only the database has memory for them.
    let mut set =
        PolicySet::load(policies.into_iter().map(|policy| templates.of(policy)), LoadOrder::Bulk);
    let others = pending.policies.capacity() * size_of::<Policy>() + size_of_val(&*flows);
    let memory = set.memory_per_policy(before, others);
    let speed = pending.speed(&mut set.database);
    let time = Duration::from_millis(if options.quick { 50 } else { 500 });
    for (rate, cases) in cases {
        let worker = |(mode, case)| LookupWorker::new(mode, case, &flows, time);
        let mut workers: Vec<_> = cases.into_iter().map(worker).collect();
        // In turns, because changes leave another search structure behind.
        for _ in 0..TURNS {
            for worker in &mut workers {
                worker.take_turn(&mut set.database, &pending, rate);
            }
        }
        rows.extend(workers.iter().map(|worker| {
            let mut row = worker.row(clock);
            row.figure("adds_per_second", speed.adds, 0);
            row.figure("removes_per_second", speed.removes, 0);
            row.figure("one_add_us", speed.one.median(), 2);
            row.figure("one_add_p999_us", speed.one.quantile(0.999), 2);
            row.figure("load_seconds", set.load_seconds, 3);
            row.figure("bytes_per_policy", set.bytes_per_policy, 1);
            if let Some(memory) = memory {
                row.figure("memory_per_policy", memory, 1);
            }
            row
        }));
    }
}

impl PolicySet {
    /// The bytes that the process has grown by for each policy since `before`, less `others`;
    /// `None` below 100,000 policies, where it would mean nothing.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    fn memory_per_policy(&self, before: Option<usize>, others: usize) -> Option<f64> {
        let policies = self.database.current().spd.len();
        heap::release_free();
        let taken = heap::resident()?.checked_sub(before? + others)?;
        (policies >= 100_000).then(|| taken as f64 / policies as f64)
    }
}

/// Policies that are not yet in the database.
struct PendingPolicies {
    policies: Vec<Policy>,
    templates: TemplateKind,
}

/// How fast the database changes without look-ups.
struct ChangeSpeed {
    /// Policies added a second, in bursts.
    adds: f64,
    removes: f64,
    /// Microseconds to change one policy and publish it.
    one: Samples,
}

impl PendingPolicies {
    fn speed(&self, database: &mut Database) -> ChangeSpeed {
        let mut one = Samples::default();
        for policy in &self.policies[..SINGLE] {
            let start = Instant::now();
            self.add(database, std::slice::from_ref(policy));
            one.push(start.elapsed().as_secs_f64() * 1e6);
        }
        remove(database, &self.policies[..SINGLE]);
        let adds = self.rate(|burst| self.add(database, burst));
        let removes = self.rate(|burst| remove(database, burst));
        ChangeSpeed { adds, removes, one }
    }

    /// Adds some of the policies.
    fn add(&self, database: &mut Database, policies: &[Policy]) {
        database.apply(Moment(0), |change| {
            for policy in policies {
                // A duplicate is dropped.
                let _ = change.add_policy(self.templates.of(policy.clone()));
            }
        });
    }

    /// Policies a second that `change` handles.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    fn rate(&self, mut change: impl FnMut(&[Policy])) -> f64 {
        let start = Instant::now();
        self.policies.chunks(BURST).for_each(&mut change);
        self.policies.len() as f64 / start.elapsed().as_secs_f64()
    }
}

/// Looks up as workers do, whatever the cache mode.
struct LookupWorker<'a> {
    case: Case,
    flows: &'a [FlowKey],
    time: Duration,
    cache: PolicyCache,
    /// Cycles per packet of many small batches, while policies change and while they do not.
    sample: Samples,
    quiet: Samples,
    /// Of look-ups beside changes.
    hits: u64,
    packets: u64,
    /// Policies changed a second, summed over the turns.
    reached: f64,
}

impl<'a> LookupWorker<'a> {
    fn new(mode: CacheMode, case: Case, flows: &'a [FlowKey], time: Duration) -> Self {
        let cache = PolicyCache::new(CacheSettings { mode, ..CacheSettings::default() }, 1);
        let [sample, quiet] = [Samples::default(), Samples::default()];
        Self { case, flows, time, cache, sample, quiet, hits: 0, packets: 0, reached: 0.0 }
    }

    fn take_turn(&mut self, database: &mut Database, pending: &PendingPolicies, rate: ChangeRate) {
        let published = database.published();
        Self::look_up(&mut self.cache, &published, self.flows, self.time, &mut self.quiet);
        let (hits, packets) = self.counts();
        let done = AtomicBool::new(false);
        self.reached += std::thread::scope(|scope| {
            let writer = scope.spawn(|| change_until(database, pending, rate, &done));
            Self::look_up(&mut self.cache, &published, self.flows, self.time, &mut self.sample);
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap_or(f64::NAN)
        });
        let after = self.counts();
        self.hits += after.0 - hits;
        self.packets += after.1 - packets;
    }

    fn look_up(
        cache: &mut PolicyCache,
        published: &Published,
        flows: &[FlowKey],
        time: Duration,
        sample: &mut Samples,
    ) {
        let start = Instant::now();
        let mut found: Vec<VerdictId> = Vec::with_capacity(GROUP);
        for flows in flows.chunks_exact(GROUP).cycle() {
            if start.elapsed() > time {
                break;
            }
            found.clear();
            let from = TscClock::now();
            let snapshot = published.load();
            cache.begin_batch(&snapshot.spd);
            cache.lookup_batch(&snapshot.spd, Direction::Out, flows, Spi(0), &mut found);
            std::hint::black_box(found.len());
            sample.push(TscClock::per_packet(from, GROUP));
        }
    }

    /// Cache hits, and packets.
    fn counts(&self) -> (u64, u64) {
        let stats = self.cache.stats();
        (stats.hits, stats.hits + stats.misses + stats.stale + stats.bypassed)
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    fn row(&self, clock: &TscClock) -> Row {
        let Self { sample, quiet, .. } = self;
        let mut row = Row::of_packets(self.case.clone(), sample, 64, clock.hz());
        // A mean, because batches right after a change differ from the others.
        row.figure("mean_cycles", sample.mean(), 1);
        row.figure("quiet_mean_cycles", quiet.mean(), 1);
        row.figure("hit_share", self.hits as f64 / self.packets as f64, 3);
        let nanoseconds = |of: &Samples, share: f64| of.quantile(share) / clock.hz() * 1e9;
        row.figure("p50_ns", nanoseconds(sample, 0.5), 1);
        row.figure("p99_ns", nanoseconds(sample, 0.99), 1);
        row.figure("p999_ns", nanoseconds(sample, 0.999), 1);
        row.figure("quiet_p999_ns", nanoseconds(quiet, 0.999), 1);
        row.figure("changes_per_second", self.reached / f64::from(TURNS), 0);
        row
    }
}

/// Adds bursts of policies and removes each when the next was added, until `done`; returns policies
/// a second.
#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn change_until(
    database: &mut Database,
    pending: &PendingPolicies,
    rate: ChangeRate,
    done: &AtomicBool,
) -> f64 {
    let burst = rate.burst();
    let (mut changes, start) = (0_usize, Instant::now());
    let mut added: Option<&[Policy]> = None;
    let mut bursts = pending.policies.chunks_exact(burst.max(1)).cycle();
    let mut next = start;
    while !done.load(Ordering::Relaxed) {
        if burst != 0
            && let Some(burst) = bursts.next()
        {
            pending.add(database, burst);
            if let Some(old) = added.replace(burst) {
                remove(database, old);
            }
            changes += burst.len();
        }
        next += rate.pause();
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    if let Some(old) = added {
        remove(database, old);
    }
    changes as f64 / start.elapsed().as_secs_f64()
}

fn remove(database: &mut Database, policies: &[Policy]) {
    database.apply(Moment(0), |change| {
        for policy in policies {
            // A duplicate was not added.
            let _ = change.delete_policy(&PolicyKey {
                direction: policy.direction,
                kind: policy.kind,
                mark: policy.mark,
                if_id: policy.if_id,
                name: PolicyName::Selector(policy.selector),
            });
        }
    });
}

//! A stream of packets, and the measurement of one cache mode.

use std::ops::Range;

use uxfrm_engine::{
    Action, CacheMode, CacheSettings, CacheStats, Direction, FlowKey, PolicyCache, PolicyOutcome,
    Snapshot, Spi, VerdictId,
};

use super::packets::PacketHead;
use crate::clock::TscClock;
use crate::report::{Case, Row, Samples};

/// Packets of a batch.
const BATCH: usize = 256;

/// Packets of some flows in turn.
pub(super) struct PacketStream {
    heads: Vec<PacketHead>,
    direction: Direction,
    always_new: bool,
}

/// The measurement of one row.
pub(super) struct LookupMeasurement {
    pub(super) case: Case,
    pub(super) sample: Samples,
    mode: CacheMode,
    cache: PolicyCache,
    ids: Vec<VerdictId>,
    /// Cache statistics before the last round, and of it.
    before: CacheStats,
    round: CacheStats,
    packets: usize,
}

impl PacketStream {
    pub(super) fn of(flows: &[FlowKey], direction: Direction) -> Self {
        Self { heads: flows.iter().map(PacketHead::of).collect(), direction, always_new: false }
    }

    /// Uses another source port in each turn, so that no flow repeats.
    pub(super) fn always_new(flows: &[FlowKey], direction: Direction) -> Self {
        Self { always_new: true, ..Self::of(flows, direction) }
    }

    /// Flows of a turn.
    pub(super) const fn flows(&self) -> usize {
        self.heads.len()
    }

    /// Parses packets batch by batch and passes the flows to `work`; returns the cycles per packet
    /// of the median batch, so that other load on the machine does not count.
    pub(super) fn pass(
        &self,
        packets: Range<usize>,
        mut work: impl FnMut(&[FlowKey]) -> usize,
    ) -> f64 {
        let mut batch: Vec<PacketHead> = Vec::with_capacity(BATCH);
        let mut flows: Vec<FlowKey> = Vec::with_capacity(BATCH);
        let mut sample = Samples::default();
        for start in packets.step_by(BATCH) {
            batch.clear();
            batch.extend((start..start + BATCH).map(|at| self.head(at)));
            flows.clear();
            let begun = TscClock::now();
            batch.iter().for_each(|head| head.parse(&mut flows));
            std::hint::black_box(work(std::hint::black_box(&flows)));
            sample.push(TscClock::per_packet(begun, BATCH));
        }
        sample.median()
    }

    /// The engine's estimate of the cycles of a look-up without a cache and without cache misses,
    /// averaged over some flows.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(super) fn weigh(&self, snapshot: &Snapshot) -> f64 {
        let mut flows = Vec::new();
        self.heads.iter().take(512).for_each(|head| head.parse(&mut flows));
        let all: usize =
            flows.iter().map(|flow| snapshot.spd.estimate_cost(self.direction, flow)).sum();
        all as f64 / flows.len() as f64 / 10.0
    }

    fn head(&self, at: usize) -> PacketHead {
        let mut head = self.heads[at % self.heads.len()];
        if self.always_new {
            let turn = at / self.heads.len();
            head.set_source_port(u16::try_from(turn & 0xffff).unwrap_or(0));
        }
        head
    }
}

impl LookupMeasurement {
    pub(super) fn new(mode: CacheMode, case: Case) -> Self {
        Self {
            case,
            sample: Samples::default(),
            mode,
            cache: PolicyCache::new(CacheSettings { mode, ..CacheSettings::default() }, 1),
            ids: Vec::with_capacity(BATCH),
            before: CacheStats::default(),
            round: CacheStats::default(),
            packets: 0,
        }
    }

    /// Cycles per packet of one round.
    pub(super) fn round(
        &mut self,
        snapshot: &Snapshot,
        stream: &PacketStream,
        packets: Range<usize>,
    ) -> f64 {
        self.packets = packets.len();
        let cycles = self.pass(snapshot, stream, packets);
        let stats = self.cache.stats();
        self.round = CacheStats {
            hits: stats.hits - self.before.hits,
            bypassed: stats.bypassed - self.before.bypassed,
            ..stats
        };
        self.before = stats;
        cycles
    }

    /// Adds the cache's figures of the last round.
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    pub(super) fn tell(&self, row: &mut Row) {
        if self.mode != CacheMode::Off {
            let share = |part: u64| part as f64 / self.packets as f64;
            row.figure("hit_share", share(self.round.hits), 3);
            row.figure("bypassed_share", share(self.round.bypassed), 3);
            row.figure("cache_bytes", self.cache.memory() as f64, 0);
        }
    }

    /// Looks up as workers do, whatever the cache mode.
    fn pass(&mut self, snapshot: &Snapshot, stream: &PacketStream, packets: Range<usize>) -> f64 {
        let Self { cache, ids, .. } = self;
        let spd = &snapshot.spd;
        let (spi, default) = match stream.direction {
            Direction::Out => (Spi(0), spd.defaults().outbound),
            Direction::In => (Spi(0x1000), spd.defaults().inbound),
            Direction::Forward => (Spi(0x1000), spd.defaults().forward),
        };
        stream.pass(packets, |flows| {
            ids.clear();
            cache.begin_batch(spd);
            cache.lookup_batch(spd, stream.direction, flows, spi, ids);
            let allowed = |id: &&VerdictId| match id.outcome() {
                PolicyOutcome::Bypass | PolicyOutcome::Protect => true,
                PolicyOutcome::Block => false,
                PolicyOutcome::Default => default == Action::Allow,
            };
            ids.iter().filter(allowed).count()
        })
    }
}

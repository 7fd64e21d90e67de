//! A worker's flow cache: the verdict of the policies on each flow, and the bundle by which it
//! leaves.
//!
//! The key holds all that a look-up reads: direction, family, addresses, ports or what stands for
//! them, protocol, mark, interface, interface id; and, for inbound checks, the SPI of the SA. "No
//! policy" is cached like any other verdict. Policies and SAs have separate generations. A policy
//! change makes verdicts stale for flows that it can affect, and these are looked up again when
//! packets come; an SA change keeps verdicts and invalidates bundles only. Larval SAs make no
//! bundle, so none is cached. For inbound flows the entry holds the SA by which they may pass, in
//! place of the bundle.
//!
//! The cache must never make look-ups slower: a flow is admitted with its second packet, the table
//! grows when flows evict each other, and with too few hits it is bypassed while sampling watches
//! for flows that recur. Each worker has its own: no lock, and no allocation once warm.

pub(crate) mod admission;
pub(crate) mod counters;
mod family_cache;
mod key;
mod probe;
mod sub_main_pairs;
mod table;
pub(crate) mod validity;
mod verdicts;

use std::sync::Arc;

use family_cache::FamilyCache;
use key::{ContextNumbers, KeyBuilder};
use table::{Epochs, Value};
use uxfrm_classify::LOOKUP_BATCH;
use uxfrm_packet::Version;
use validity::ScopeEpochs;
use verdicts::{VerdictTable, is_sub};

use crate::spd::rules::{Best, policy_of, verdict_of};
use crate::{
    ByFamily, Direction, FlowKey, Moment, PolicyEntry, PolicyKind, Sa, Spd, Spi, VerdictId,
};

pub use counters::published::SharedCacheStats;
pub(crate) use probe::FlowProbe;

/// When a flow cache is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Wherever a hit is no slower than a look-up: any number of flows with thousands of policies,
    /// tens of thousands with fewer, few flows with a single policy. Bypassed while half of the
    /// packets miss, or as many as make up for the saved look-ups.
    On,
    /// Never.
    Off,
    /// While enough packets hit for it to pay: the fewer policies, the more hits are needed.
    #[default]
    Auto,
}

/// Settings of the cache of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// When it is used.
    pub mode: CacheMode,
    /// Upper limit of flows, rounded down to sets of sixteen; 34 bytes each for IPv4, 66 for IPv6,
    /// allocated as flows come, besides the memory for matched policies. With twice the expected
    /// flows hardly any evict each other.
    pub flows: usize,
}

/// Settings of the caches of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFamilySettings {
    /// IPv4.
    pub v4: CacheSettings,
    /// IPv6.
    pub v6: CacheSettings,
}

/// Settings of a worker's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCacheSettings {
    /// Outbound.
    pub outbound: CacheFamilySettings,
    /// Inbound: policies `in` and `fwd`.
    pub inbound: CacheFamilySettings,
}

/// Statistics of a cache. A run of packets of one flow counts as one packet. `lookups == hits +
/// misses + stale + bypassed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Flows cached now.
    pub entries: u64,
    /// Flows that fit now.
    pub room: u64,
    /// Bytes allocated. Memory shared by both families is counted with the busier one.
    pub bytes: u64,
    /// Packets whose verdict was cached.
    pub hits: u64,
    /// Packets whose flow was not cached.
    pub misses: u64,
    /// Packets whose cached verdict a policy change may have made wrong.
    pub stale: u64,
    /// Flows evicted for others.
    pub evicted: u64,
    /// Packets looked up without the cache while it was bypassed.
    pub bypassed: u64,
}

/// Cached verdict of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedVerdict {
    pub(crate) verdict: VerdictId,
    bundle: u32,
}

/// An SA's [insertion number](crate::Sa::insertion_seq) as an entry holds it. Those that do not fit
/// are [`InsertionSeq::UNKNOWN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InsertionSeq(u32);

/// The flow cache of one worker and direction.
#[derive(Debug)]
pub struct PolicyCache {
    v4: FamilyCache<2, 4>,
    v6: FamilyCache<5, 8>,
    verdicts: VerdictTable,
    contexts: ContextNumbers,
    /// Generation of the policies.
    generation: Option<u64>,
    concerned: ScopeEpochs,
    /// Epochs that stand for the generations of policies and bundles in entries.
    now: Epochs,
}

/// Context that all flows of a look-up share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupContext<'a> {
    spd: &'a Spd,
    direction: Direction,
    now: Epochs,
    concerned: &'a ScopeEpochs,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { mode: CacheMode::default(), flows: 1 << 21 }
    }
}

impl CacheSettings {
    /// Upper limit of bytes per flow: IPv4, IPv6.
    pub const BYTES_PER_FLOW: [usize; 2] = [34, 66];
    /// Smallest cache.
    pub const MIN_FLOWS: usize = table::WAYS;
}

impl From<CacheSettings> for CacheFamilySettings {
    fn from(both: CacheSettings) -> Self {
        Self { v4: both, v6: both }
    }
}

impl From<CacheSettings> for WorkerCacheSettings {
    fn from(all: CacheSettings) -> Self {
        Self { outbound: all.into(), inbound: all.into() }
    }
}

impl CacheStats {
    /// Sum of two caches.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            room: self.room + other.room,
            bytes: self.bytes + other.bytes,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            stale: self.stale + other.stale,
            evicted: self.evicted + other.evicted,
            bypassed: self.bypassed + other.bypassed,
        }
    }

    /// Number of look-ups.
    const fn lookups(&self) -> u64 {
        self.hits + self.misses + self.stale + self.bypassed
    }
}

impl CachedVerdict {
    /// The bundle by which the flow leaves, if valid under the current SAs.
    #[inline]
    pub(crate) fn bundle(self) -> Option<u32> {
        (self.bundle != table::NO_BUNDLE).then_some(self.bundle)
    }

    /// Whether packets of the flow that came by this SA alone may pass, under the current SAs.
    #[inline]
    pub(crate) fn sa_satisfies(self, turn: InsertionSeq) -> bool {
        self.bundle == turn.0 && turn != InsertionSeq::UNKNOWN
    }
}

impl InsertionSeq {
    const UNKNOWN: Self = Self(table::NO_BUNDLE);

    #[inline]
    pub(crate) fn of(sa: &Sa) -> Self {
        let fits = u32::try_from(sa.insertion_seq()).ok().filter(|turn| *turn < table::NO_BUNDLE);
        fits.map_or(Self::UNKNOWN, Self)
    }

    /// Hash slot among `slots`, a power of two.
    #[inline]
    pub(crate) const fn slot(self, slots: usize) -> usize {
        self.0 as usize & (slots - 1)
    }
}

impl PolicyCache {
    /// An empty cache. The seed makes collisions unpredictable: each worker has its own.
    #[must_use]
    pub fn new(settings: impl Into<CacheFamilySettings>, seed: u64) -> Self {
        let CacheFamilySettings { v4, v6 } = settings.into();
        Self {
            v4: FamilyCache::new(v4, seed),
            v6: FamilyCache::new(v6, seed),
            verdicts: VerdictTable::default(),
            contexts: ContextNumbers::default(),
            generation: None,
            concerned: ScopeEpochs::default(),
            now: Epochs { policies: 1, states: 1 },
        }
    }

    /// To be called before a batch: invalidates verdicts after policy changes, and grows the table
    /// if flows evicted each other.
    #[inline]
    pub fn begin_batch(&mut self, spd: &Spd) {
        self.v4.grow_if_wanted();
        self.v6.grow_if_wanted();
        if self.generation != Some(spd.generation()) {
            self.begin_anew(spd);
        }
    }

    #[inline(never)]
    fn begin_anew(&mut self, spd: &Spd) {
        let before = self.generation.replace(spd.generation());
        self.verdicts.invalidate();
        if self.verdicts.drop_surplus_pairs(spd.len()) {
            self.forget();
        }
        self.now.policies = self.next(self.now.policies);
        if self.v4.is_enabled() || self.v6.is_enabled() {
            let concerns = before.and_then(|before| spd.scopes_since(before));
            self.concerned.note(concerns, self.now.policies);
        }
    }

    /// Invalidates all bundles.
    pub(crate) fn invalidate_bundles(&mut self) {
        self.now.states = self.next(self.now.states);
    }

    /// The verdict on a flow: that of [`Spd::lookup`], and of the main policy behind a sub one.
    /// `spi` is that of the SA by which a packet came, 0 without one.
    #[inline]
    pub fn lookup(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flow: &FlowKey,
        spi: Spi,
    ) -> VerdictId {
        self.lookup_cached(spd, direction, flow, spi).verdict
    }

    /// [`PolicyCache::lookup`] with the cached bundle.
    #[inline]
    pub(crate) fn lookup_cached(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flow: &FlowKey,
        spi: Spi,
    ) -> CachedVerdict {
        if self.contexts.are_full() {
            self.forget();
        }
        let lookup = LookupContext { spd, direction, now: self.now, concerned: &self.concerned };
        let context = self.contexts.number(flow);
        let known = if is_v4(flow) {
            let key = key::v4(flow, direction, context, spi);
            self.v4.lookup_one(&lookup, flow, key, &mut self.verdicts)
        } else {
            let key = key::v6(flow, direction, context, spi);
            self.v6.lookup_one(&lookup, flow, key, &mut self.verdicts)
        };
        if !self.verdicts.fit_near_cache() {
            self.verdicts.prefetch(known.verdict);
        }
        known
    }

    /// [`PolicyCache::lookup`] of each flow, into `found`.
    pub fn lookup_batch(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: Spi,
        found: &mut Vec<VerdictId>,
    ) {
        self.lookup_groups(
            spd,
            direction,
            flows,
            |_| spi,
            |known| found.extend(known.iter().map(|known| known.verdict)),
        );
    }

    /// [`PolicyCache::lookup`] of each flow with its SPI (0 where `spis` has none), with the cached
    /// bundles.
    pub(crate) fn lookup_cached_batch(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spis: &[Spi],
        found: &mut Vec<CachedVerdict>,
    ) {
        let spi = |at: usize| spis.get(at).copied().unwrap_or(Spi(0));
        let before = found.len();
        self.lookup_groups(spd, direction, flows, spi, |known| found.extend_from_slice(known));
        if !self.verdicts.fit_near_cache() {
            found[before..].iter().for_each(|known| self.verdicts.prefetch(known.verdict));
        }
    }

    /// Prefetches what [`PolicyCache::count_first`] writes, unless it is cached anyway.
    #[inline]
    pub(crate) fn prefetch_counters(&self, answer: VerdictId) {
        if !self.verdicts.fit_near_cache() {
            self.verdicts.prefetch(answer);
        }
    }

    /// Counts a hit on a verdict that the caller had remembered.
    #[inline]
    pub(crate) fn count_revalidated(&mut self, version: Version) {
        match version {
            Version::V4 => self.v4.count_revalidated(),
            Version::V6 => self.v6.count_revalidated(),
        }
    }

    /// Stores the bundle of a flow.
    pub(crate) fn set_bundle(&mut self, flow: &FlowKey, answer: VerdictId, bundle: u32) {
        self.note(Direction::Out, flow, Spi(0), Value { answer: answer.0, bundle });
    }

    /// Stores the SA by which packets of a flow may pass.
    pub(crate) fn set_inbound_pass(
        &mut self,
        direction: Direction,
        flow: &FlowKey,
        answer: VerdictId,
        sa: &Sa,
    ) {
        let InsertionSeq(turn) = InsertionSeq::of(sa);
        self.note(direction, flow, sa.id().spi, Value { answer: answer.0, bundle: turn });
    }

    fn note(&mut self, direction: Direction, flow: &FlowKey, spi: Spi, value: Value) {
        let context = self.contexts.number(flow);
        if is_v4(flow) {
            self.v4.set_bundle(key::v4(flow, direction, context, spi), value, self.now);
        } else {
            self.v6.set_bundle(key::v6(flow, direction, context, spi), value, self.now);
        }
    }

    /// The policies of a verdict: the first, and the main one behind a sub policy. None means the
    /// direction's default.
    #[must_use]
    #[inline]
    pub fn policies(&self, id: VerdictId) -> &[Arc<PolicyEntry>] {
        self.verdicts.policies(id)
    }

    /// Counts packets for the policies of a verdict, up to the first that blocks.
    #[inline]
    pub(crate) fn count(&mut self, id: VerdictId, packets: u32, bytes: u64) {
        self.verdicts.count(id, packets, bytes);
    }

    /// [`PolicyCache::count`] for the first policy only.
    #[inline]
    pub(crate) fn count_first(&mut self, id: VerdictId, packets: u32, bytes: u64) {
        self.verdicts.count_first(id, packets, bytes);
    }

    /// To be called after a batch: flushes policy counters, small ones a little later.
    #[inline]
    pub(crate) fn flush_due(&mut self, now: Moment) {
        self.verdicts.flush_due(now);
    }

    /// To be called about once a second, between batches: drops references to removed policies,
    /// some each time.
    pub fn release_stale(&mut self, spd: &Spd) {
        self.begin_batch(spd);
        self.verdicts.release_stale(self.now.policies);
    }

    /// Flushes policy counters.
    pub(crate) fn flush(&mut self) {
        self.verdicts.flush();
    }

    /// Whether counters are pending.
    pub(crate) const fn has_pending(&self) -> bool {
        self.verdicts.has_pending()
    }

    /// Statistics of both families together.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let ByFamily { v4, v6 } = self.stats_by_family();
        v4.plus(v6)
    }

    /// Statistics of each family; the busier one has the memory that both share.
    #[must_use]
    pub fn stats_by_family(&self) -> ByFamily<CacheStats> {
        let (mut v4, mut v6) = (self.v4.stats(), self.v6.stats());
        let busier = if v6.lookups() > v4.lookups() { &mut v6 } else { &mut v4 };
        busier.bytes += self.memory_shared() as u64;
        ByFamily { v4, v6 }
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + self.memory_shared()
    }

    /// Bytes that serve both families.
    fn memory_shared(&self) -> usize {
        self.verdicts.memory() + self.contexts.memory() + self.concerned.memory()
    }

    /// Cached verdicts of flows, some at a time.
    #[inline]
    fn lookup_groups(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: impl Fn(usize) -> Spi,
        mut found: impl FnMut(&[CachedVerdict]),
    ) {
        if self.contexts.are_full() {
            self.forget();
        }
        let lookup = LookupContext { spd, direction, now: self.now, concerned: &self.concerned };
        let (verdicts, contexts) = (&mut self.verdicts, &mut self.contexts);
        let mut rest = flows;
        while let Some(first) = rest.first() {
            let v4 = is_v4(first);
            let alike = rest.iter().position(|flow| is_v4(flow) != v4).unwrap_or(rest.len());
            let before = flows.len() - rest.len();
            let these;
            (these, rest) = rest.split_at(alike);
            let keys = KeyBuilder { direction, contexts: &mut *contexts, before, spi: &spi };
            if v4 {
                self.v4.lookup_batch(&lookup, these, keys, verdicts, &mut found);
            } else {
                self.v6.lookup_batch(&lookup, these, keys, verdicts, &mut found);
            }
        }
    }

    /// Epochs wrap after 65,535 changes; older entries must not seem fresh.
    fn next(&mut self, epoch: u16) -> u16 {
        match epoch.checked_add(1) {
            Some(next) => next,
            None => {
                self.forget();
                1
            }
        }
    }

    fn forget(&mut self) {
        self.v4.forget();
        self.v6.forget();
        self.contexts.clear();
        self.concerned = ScopeEpochs::default();
    }
}

impl CachedVerdict {
    /// No policy.
    const NOTHING: Self = Self::without_bundle(VerdictId::NONE);

    /// A verdict without bundle.
    pub(crate) const fn without_bundle(answer: VerdictId) -> Self {
        Self { verdict: answer, bundle: table::NO_BUNDLE }
    }
}

#[inline]
fn is_v4(flow: &FlowKey) -> bool {
    flow.destination.is_ipv4()
}

impl LookupContext<'_> {
    /// Looks up at most [`LOOKUP_BATCH`] flows in the SPD.
    #[inline]
    fn query_policies(
        &self,
        verdicts: &mut VerdictTable,
        flows: &[FlowKey],
        found: &mut [VerdictId; LOOKUP_BATCH],
    ) {
        let mut bests = [Best::NONE; LOOKUP_BATCH];
        self.spd.find_each(self.direction, flows, &mut bests);
        let bests = &bests[..flows.len().min(LOOKUP_BATCH)];
        if self.spd.has_subs(self.direction) {
            for ((flow, best), found) in flows.iter().zip(bests).zip(found) {
                let both = |entry| self.sub_and_main(verdicts, flow, entry);
                *found = policy_of(best).map_or(VerdictId::NONE, both);
            }
        } else {
            let mut strangers = false;
            for (best, found) in bests.iter().zip(found) {
                *found = verdict_of(best);
                strangers |= *found != VerdictId::NONE && !verdicts.is_known(*found);
            }
            if strangers {
                let met =
                    bests.iter().filter_map(|best| Some((verdict_of(best), policy_of(best)?)));
                verdicts.record_matches(&met.collect());
            }
        }
    }

    /// Verdict of a policy and, if it is a sub policy, of the main one behind it.
    fn sub_and_main(
        &self,
        verdicts: &mut VerdictTable,
        flow: &FlowKey,
        entry: &Arc<PolicyEntry>,
    ) -> VerdictId {
        if !is_sub(entry) {
            return verdicts.record_match(entry.verdict(), entry);
        }
        match self.spd.lookup_kind(PolicyKind::Main, self.direction, flow) {
            None => verdicts.record_match(entry.verdict(), entry),
            Some(behind) => verdicts.pair(entry, behind),
        }
    }
}

#[cfg(test)]
mod tests;

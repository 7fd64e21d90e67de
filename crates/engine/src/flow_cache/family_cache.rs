//! The flow cache of one address family: table, admission control, statistics.

use arrayvec::ArrayVec;
use uxfrm_classify::LOOKUP_BATCH;

use super::admission::hit_rate::{Decision, HitBenefit, HitRateWindow, WindowContext};
use super::admission::lookup_cost::{LookupCost, MANY, SMALLEST};
use super::admission::miss_cost::MissCost;
use super::admission::reuse::{ReuseSampler, SamplerSettings};
use super::key::{BuildKeys, CacheKey};
use super::table::{Epochs, FlowTable, HashedKey, InsertOutcome, ProbeResult, Value};
use super::verdicts::VerdictTable;
use super::{CacheMode, CacheSettings, CacheStats, CachedVerdict, LookupContext};
use crate::FlowKey;
use crate::spd::verdict::VerdictId;

/// Flows of one family: keys of `N` words in slots of `W`.
#[derive(Debug)]
pub(super) struct FamilyCache<const N: usize, const W: usize> {
    settings: CacheSettings,
    seed: u64,
    table: FlowTable<N, W>,
    state: CacheState,
    hit_rate: HitRateWindow,
    sampler: ReuseSampler,
    cost: MissCost,
    /// Requested table size.
    wanted_room: Option<usize>,
    stats: CacheStats,
}

/// Whether the cache is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    Active,
    Bypassed,
    Off,
}

/// Hashed keys of flows that are looked up together.
type HashedGroup<const N: usize> = ArrayVec<HashedKey<N>, LOOKUP_BATCH>;

/// A miss: index among the flows, key, and probe result.
type Miss<const N: usize> = (usize, HashedKey<N>, ProbeResult);

/// Growth factor of the table.
const GROWTH: usize = 4;
/// Rounds of rest between sampling rounds: with fewer than [`MANY`] policies, and with more.
const REST_ROUNDS: usize = 16;
const REST_ROUNDS_MANY: usize = 3;
/// Packets without sampling while look-ups are cheaper than hits.
const REST_WHEN_CHEAP: usize = 1 << 18;
/// Tables up to this many bytes are read without prefetching.
const NEAR: usize = 1 << 19;
/// Flows looked up together in larger tables: overflow lines are waited for once.
const FLOWS_AHEAD: usize = 4 * LOOKUP_BATCH;

impl<const N: usize, const W: usize> FamilyCache<N, W> {
    pub(super) fn new(settings: CacheSettings, seed: u64) -> Self {
        let state = match settings.mode {
            CacheMode::Off => CacheState::Off,
            CacheMode::On | CacheMode::Auto => CacheState::Active,
        };
        Self {
            settings,
            seed,
            // Most gateways have traffic of one family only.
            table: FlowTable::new(0, seed),
            state,
            hit_rate: HitRateWindow::default(),
            sampler: ReuseSampler::default(),
            cost: MissCost::default(),
            wanted_room: None,
            stats: CacheStats::default(),
        }
    }

    /// Grows the table, which empties it, if that was requested.
    #[inline]
    pub(super) fn grow_if_wanted(&mut self) {
        if self.wanted_room.is_some() {
            self.grow();
        }
    }

    #[inline(never)]
    fn grow(&mut self) {
        if let Some(room) = self.wanted_room.take() {
            self.resize(room);
        }
    }

    /// Resizes the table, which empties it; grace follows, so that flows can recur.
    #[cold]
    fn resize(&mut self, room: usize) {
        self.table = FlowTable::new(room, self.seed);
        self.hit_rate.refill(self.table.room());
    }

    /// Whether it may be used at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.state != CacheState::Off
    }

    pub(super) fn forget(&mut self) {
        match self.state {
            CacheState::Active => self.table.clear(),
            // Room is allocated when it is used again.
            CacheState::Bypassed | CacheState::Off => self.table = FlowTable::new(0, self.seed),
        }
    }

    pub(super) fn set_bundle(&mut self, key: CacheKey<N>, value: Value, now: Epochs) {
        if self.state == CacheState::Active {
            let key = self.table.hash(key);
            self.table.set_bundle(&key, value, now);
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.table.entries() as u64,
            room: self.table.room() as u64,
            bytes: self.memory() as u64,
            ..self.stats
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.table.memory() + self.sampler.memory()
    }

    /// Looks up flows in the cache, and misses in the SPD.
    #[inline]
    pub(super) fn lookup_batch(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        mut keys: impl BuildKeys<N>,
        verdicts: &mut VerdictTable,
        found: &mut impl FnMut(&[CachedVerdict]),
    ) {
        match self.state {
            CacheState::Active => self.lookup_table(lookup, flows, keys, verdicts, found),
            CacheState::Off => self.bypass(lookup, flows, verdicts, found),
            CacheState::Bypassed => {
                if !self.sampler.is_resting(flows.len()) {
                    self.sample(lookup, flows, &mut keys);
                }
                self.bypass(lookup, flows, verdicts, found);
            }
        }
    }

    /// Counts a verdict that the caller remembered.
    #[inline]
    pub(super) fn count_revalidated(&mut self) {
        match self.state {
            CacheState::Active => self.stats.hits += 1,
            CacheState::Bypassed | CacheState::Off => self.stats.bypassed += 1,
        }
    }

    /// Hashes a key.
    #[inline(always)]
    pub(super) fn hash(&self, key: CacheKey<N>) -> HashedKey<N> {
        self.table.hash(key)
    }

    /// Prefetches what [`FamilyCache::find_primary`] reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, key: &HashedKey<N>) {
        self.table.prefetch(key);
    }

    /// Cached verdict of a flow in its primary line. Does not count, and does not ask the SPD.
    #[inline(always)]
    pub(super) fn find_primary(&self, key: &HashedKey<N>, now: Epochs) -> Option<CachedVerdict> {
        if self.state != CacheState::Active {
            return None;
        }
        let Value { answer, bundle } = self.table.find_primary(key, now)?;
        Some(CachedVerdict { verdict: VerdictId(answer), bundle })
    }

    /// [`FamilyCache::find_primary`] in all lines.
    #[inline(never)]
    pub(super) fn find_overflow(&self, key: &HashedKey<N>, now: Epochs) -> Option<CachedVerdict> {
        if self.state != CacheState::Active {
            return None;
        }
        match self.table.find(key, now) {
            ProbeResult::Fresh(Value { answer, bundle }) => {
                Some(CachedVerdict { verdict: VerdictId(answer), bundle })
            }
            ProbeResult::Stale(_) | ProbeResult::Absent => None,
        }
    }

    /// Prefetches what [`FamilyCache::find_overflow`] mostly reads.
    #[inline(always)]
    pub(super) fn prefetch_overflow(&self, key: &HashedKey<N>) {
        self.table.prefetch_overflow(key);
    }

    /// Counts hits.
    pub(super) fn count_found(&mut self, lookup: &LookupContext<'_>, flows: usize) {
        self.stats.hits += flows as u64;
        if self.hit_rate.note(flows, flows, 0) {
            self.decide(lookup);
        }
    }

    /// [`FamilyCache::lookup_batch`] of one flow, which mostly hits its primary line.
    #[inline]
    pub(super) fn lookup_one(
        &mut self,
        lookup: &LookupContext<'_>,
        flow: &FlowKey,
        key: CacheKey<N>,
        verdicts: &mut VerdictTable,
    ) -> CachedVerdict {
        match self.find_hit(lookup, key) {
            Some(known) => known,
            None => self.lookup_miss(lookup, flow, key, verdicts),
        }
    }

    /// Cached verdict of a flow in its primary line.
    #[inline]
    fn find_hit(&mut self, lookup: &LookupContext<'_>, key: CacheKey<N>) -> Option<CachedVerdict> {
        if self.state != CacheState::Active {
            return None;
        }
        let key = self.table.hash(key);
        let Value { answer, bundle } = self.table.find_primary(&key, lookup.now)?;
        self.stats.hits += 1;
        if self.hit_rate.note(1, 1, 0) {
            self.decide(lookup);
        }
        Some(CachedVerdict { verdict: VerdictId(answer), bundle })
    }

    #[inline(never)]
    fn lookup_miss(
        &mut self,
        lookup: &LookupContext<'_>,
        flow: &FlowKey,
        key: CacheKey<N>,
        verdicts: &mut VerdictTable,
    ) -> CachedVerdict {
        let mut found = CachedVerdict::NOTHING;
        self.lookup_batch(
            lookup,
            std::slice::from_ref(flow),
            key,
            verdicts,
            &mut |known: &[CachedVerdict]| {
                found = known.first().copied().unwrap_or(found);
            },
        );
        found
    }

    /// Looks flows up in the SPD only.
    fn bypass(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        verdicts: &mut VerdictTable,
        found: &mut impl FnMut(&[CachedVerdict]),
    ) {
        self.stats.bypassed += flows.len() as u64;
        for flows in flows.chunks(LOOKUP_BATCH) {
            let mut known = [VerdictId::NONE; LOOKUP_BATCH];
            lookup.query_policies(verdicts, flows, &mut known);
            found(&known.map(CachedVerdict::without_bundle)[..flows.len()]);
        }
    }

    /// Samples flows while the cache is bypassed.
    fn sample(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        keys: &mut impl BuildKeys<N>,
    ) {
        for (at, flow) in flows.iter().enumerate() {
            if self.sampler.is_sampled(flow) {
                let hash = self.table.hash(keys.key(at, flow)).hash();
                let LookupContext { direction, now, scopes, .. } = *lookup;
                let outdated = |since| scopes.is_stale(direction, flow, since);
                self.sampler.note(hash, now.policies, outdated);
            }
        }
        if self.cost.is_sample_due(flows.len()) {
            flows.first().into_iter().for_each(|flow| self.cost.sample(lookup, flow));
        }
        let search = LookupCost::of::<N>(lookup);
        let sampler_settings = SamplerSettings {
            most: search.most().min(self.settings.flows),
            min_reuse: self.worth(search).resume_above(),
            // With many policies sampling is cheap compared with a look-up, and reuse is worth
            // more.
            rest: if lookup.spd.len() < MANY { REST_ROUNDS } else { REST_ROUNDS_MANY },
        };
        if let Some(room) = self.sampler.decide_resume(flows.len(), sampler_settings) {
            let room = room.max(SMALLEST).min(sampler_settings.most);
            if self.cost.is_below_hit(room * CacheSettings::BYTES_PER_FLOW[usize::from(N != 2)]) {
                return self.sampler.begin(REST_WHEN_CHEAP);
            }
            self.state = CacheState::Active;
            if FlowTable::<N, W>::room_for(room) > self.table.room() {
                self.wanted_room = Some(room);
            } else {
                // Its entries are stale or of other flows, but no more than these.
                self.hit_rate.refill(room / ReuseSampler::ROOM);
            }
        }
    }

    #[inline]
    fn lookup_table(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        mut keys: impl BuildKeys<N>,
        verdicts: &mut VerdictTable,
        found: &mut impl FnMut(&[CachedVerdict]),
    ) {
        if self.table.room() < FlowTable::<N, W>::room_for(SMALLEST.min(self.settings.flows)) {
            self.resize(SMALLEST.min(self.settings.flows));
        }
        if self.table.memory() <= NEAR {
            for (flows, from) in flows.chunks(LOOKUP_BATCH).zip((0..).step_by(LOOKUP_BATCH)) {
                let hashed = |table: &FlowTable<N, W>, at: usize| {
                    table.hash(keys.key(from + at, &flows[at]))
                };
                self.lookup_chunk(lookup, flows, hashed, verdicts, found);
            }
            return;
        }
        let first = flows.iter().enumerate().take(LOOKUP_BATCH);
        let mut fetched: HashedGroup<N> =
            first.map(|flow| fetch(&self.table, &mut keys, flow)).collect();
        for (these, from) in flows.chunks(FLOWS_AHEAD).zip((0..).step_by(FLOWS_AHEAD)) {
            // Prefetches one line while another is read, so that memory is never idle nor
            // overloaded.
            let hashed = |table: &FlowTable<N, W>, at: usize| {
                let this = fetched[at % LOOKUP_BATCH];
                let ahead = from + LOOKUP_BATCH + at;
                if let Some(flow) = flows.get(ahead) {
                    fetched[at % LOOKUP_BATCH] = fetch(table, &mut keys, (ahead, flow));
                }
                this
            };
            self.lookup_chunk(lookup, these, hashed, verdicts, found);
        }
    }

    /// Looks up at most [`FLOWS_AHEAD`] flows.
    #[inline]
    fn lookup_chunk(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        mut hashed: impl FnMut(&FlowTable<N, W>, usize) -> HashedKey<N>,
        verdicts: &mut VerdictTable,
        found: &mut impl FnMut(&[CachedVerdict]),
    ) {
        let mut known = ArrayVec::<CachedVerdict, FLOWS_AHEAD>::new();
        let mut others = ArrayVec::<_, FLOWS_AHEAD>::new();
        for at in 0..flows.len().min(FLOWS_AHEAD) {
            let key = hashed(&self.table, at);
            known.push(match self.table.find_primary(&key, lookup.now) {
                Some(Value { answer, bundle }) => {
                    CachedVerdict { verdict: VerdictId(answer), bundle }
                }
                None => {
                    self.table.prefetch_overflow(&key);
                    others.push((at, key));
                    CachedVerdict::NOTHING
                }
            });
        }
        let (mut missed, mut evicted) = (0, 0);
        for others in others.chunks(LOOKUP_BATCH) {
            let open = self.find_rest(lookup, flows, others, verdicts, &mut known);
            missed += open.len();
            evicted += self.lookup_misses(lookup, flows, &open, verdicts, &mut known);
        }
        let hits = known.len() - missed;
        self.stats.hits += hits as u64;
        if self.hit_rate.note(known.len(), hits, evicted) {
            self.cost.sample(lookup, &flows[0]);
            self.decide(lookup);
        }
        found(&known);
    }

    /// Looks up flows that are not in their primary line: overflowed, without bundle, stale or
    /// absent.
    #[inline(never)]
    fn find_rest(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        others: &[(usize, HashedKey<N>)],
        verdicts: &mut VerdictTable,
        known: &mut [CachedVerdict],
    ) -> ArrayVec<Miss<N>, LOOKUP_BATCH> {
        let mut open = ArrayVec::new();
        let mut far = ArrayVec::<_, LOOKUP_BATCH>::new();
        for (at, key) in others {
            match self.table.find_near(key, lookup.now) {
                Some(probe_result) => {
                    match self.validate(lookup, &flows[*at], probe_result, verdicts) {
                        Some(found) => known[*at] = found,
                        None => open.push((*at, *key, probe_result)),
                    }
                }
                None => {
                    self.table.prefetch_rest_of_set(key);
                    far.push((*at, *key));
                }
            }
        }
        for (at, key) in &far {
            let probe_result = self.table.find(key, lookup.now);
            match self.validate(lookup, &flows[*at], probe_result, verdicts) {
                Some(found) => known[*at] = found,
                None => open.push((*at, *key, probe_result)),
            }
        }
        open.iter().for_each(|(_, key, _)| self.table.prefetch_doorkeeper(key));
        open
    }

    /// Turns a probe result into a verdict; a stale one is valid if no policy change affected the
    /// flow.
    #[inline]
    fn validate(
        &mut self,
        lookup: &LookupContext<'_>,
        flow: &FlowKey,
        probe_result: ProbeResult,
        verdicts: &mut VerdictTable,
    ) -> Option<CachedVerdict> {
        let place = match probe_result {
            ProbeResult::Fresh(Value { answer, bundle }) => {
                return Some(CachedVerdict { verdict: VerdictId(answer), bundle });
            }
            ProbeResult::Stale(place) => place,
            ProbeResult::Absent => return None,
        };
        let LookupContext { direction, now, scopes, .. } = *lookup;
        let (since, Value { answer, bundle }) = self.table.outdated(place, now);
        let answer = VerdictId(answer);
        let holds = !scopes.is_stale(direction, flow, since) && verdicts.revalidate(answer, since);
        holds.then(|| {
            self.table.confirm(place, now);
            CachedVerdict { verdict: answer, bundle }
        })
    }

    /// Looks up misses in the SPD and stores the verdicts; returns the number of evictions.
    #[inline(never)]
    fn lookup_misses(
        &mut self,
        lookup: &LookupContext<'_>,
        flows: &[FlowKey],
        open: &[Miss<N>],
        verdicts: &mut VerdictTable,
        known: &mut [CachedVerdict],
    ) -> usize {
        let missed: ArrayVec<FlowKey, LOOKUP_BATCH> =
            open.iter().map(|(at, ..)| flows[*at]).collect();
        let mut found = [VerdictId::NONE; LOOKUP_BATCH];
        lookup.query_policies(verdicts, &missed, &mut found);
        if self.cost.is_sample_due(missed.len()) {
            missed.first().into_iter().for_each(|flow| self.cost.sample(lookup, flow));
        }
        let mut evicted = 0;
        for ((at, key, probe_result), answer) in open.iter().zip(&found) {
            known[*at] = CachedVerdict::without_bundle(*answer);
            let settled = self.store_miss(key, *probe_result, answer.0, lookup.now);
            evicted += usize::from(settled == InsertOutcome::Evicted);
        }
        self.stats.evicted += evicted as u64;
        evicted
    }

    fn store_miss(
        &mut self,
        key: &HashedKey<N>,
        probe_result: ProbeResult,
        answer: u32,
        now: Epochs,
    ) -> InsertOutcome {
        match probe_result {
            ProbeResult::Fresh(_) => InsertOutcome::Stored,
            ProbeResult::Stale(place) => {
                self.stats.stale += 1;
                self.hit_rate.note_outdated();
                self.table.refresh(place, key, answer, now);
                InsertOutcome::Stored
            }
            ProbeResult::Absent => {
                self.stats.misses += 1;
                self.table.offer(key, answer, now)
            }
        }
    }

    /// Benefit of a hit, in this mode.
    const fn worth(&self, search: LookupCost) -> HitBenefit {
        match (self.settings.mode, search) {
            // Requested, where a hit takes about as long.
            (CacheMode::On, LookupCost::Glance | LookupCost::Short) | (CacheMode::Off, _) => {
                HitBenefit::Much
            }
            (CacheMode::On | CacheMode::Auto, _) => search.worth(),
        }
    }

    /// Decides after a window.
    fn decide(&mut self, lookup: &LookupContext<'_>) {
        if self.cost.is_below_hit(self.table.memory()) {
            self.state = CacheState::Bypassed;
            return self.sampler.begin(REST_WHEN_CHEAP);
        }
        let search = LookupCost::of::<N>(lookup);
        let (most, room) = (search.most().min(self.settings.flows), self.table.room());
        let may_double = 2 * room <= FlowTable::<N, W>::room_for(most);
        let worth = match self.settings.mode {
            // Requested, but with so many flows it would be slower than no cache.
            CacheMode::On if !may_double && search.most() < self.settings.flows => search.worth(),
            CacheMode::On | CacheMode::Off | CacheMode::Auto => self.worth(search),
        };
        // Growing empties the table: not worth it for little more room.
        let prospects = WindowContext { may_grow: may_double, worth, known: self.table.entries() };
        match self.hit_rate.decide(prospects) {
            Decision::Continue => {}
            Decision::Grow => self.wanted_room = Some((room * GROWTH).min(most)),
            Decision::Bypass(packets) => {
                self.state = CacheState::Bypassed;
                self.sampler.begin(packets);
            }
        }
    }
}

/// Hashes a flow's key and prefetches its line.
#[inline(always)]
fn fetch<const N: usize, const W: usize>(
    table: &FlowTable<N, W>,
    keys: &mut impl BuildKeys<N>,
    (at, flow): (usize, &FlowKey),
) -> HashedKey<N> {
    let hashed = table.hash(keys.key(at, flow));
    table.prefetch(&hashed);
    hashed
}

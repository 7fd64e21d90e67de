//! A worker's memory of what was found out about which flow: the policies that decide over it, and the bundle by which it leaves.
//!
//! The key is everything that a look-up reads: direction, family, addresses, ports or what stands in their place, protocol, mark,
//! interface, interface id; and, for a check of what came in, the SPI it came by. "No policy" is an answer like any other. Policies
//! and states have generations of their own: when policies change, answers become stale of flows between addresses that the change may concern, and are
//! looked up again as these come; when states change, the answers stay and only bundles are asked for again. Larval states make no bundle, so none is known here.
//! Of flows that came in it is known by which state they may pass, in the bundle's place.
//!
//! It must never lose: a flow is let in with its second packet; where flows push each other out the cache takes more room; and when too few packets
//! find their flows it steps aside, and looks out for flows that come again. One worker's own: no lock, no allocation once it is warm.

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
use uxfrm_packet::Version;
use validity::Concerned;
use verdicts::{VerdictTable, is_sub};

use crate::spd::classifier::{BestMatch, LOOKUP_BATCH};
use crate::{AnswerId, Direction, FlowKey, Moment, PolicyEntry, PolicyKind, Sa, Spd, Spi};

pub use counters::published::CacheCounts;
pub(crate) use probe::Trail;

/// When a flow cache is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Wherever a hit is no slower than finding the policy: with any number of flows beside thousands of policies, with tens of thousands beside
    /// fewer, with few flows beside one. Not while half of the packets do not find their flows, or as many of them as a search makes up for.
    On,
    /// Never.
    Off,
    /// While enough packets find their flows for it to pay: the fewer policies there are, the more.
    #[default]
    Auto,
}

/// How the cache of one family is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// When it is used.
    pub mode: CacheMode,
    /// Flows that there is room for at the most, rounded down to whole sets of sixteen; 34 bytes each for IPv4, 66 for IPv6, taken as they come, beside
    /// what the policies take that they meet.
    /// Twice as many as flows are expected lose hardly any to others of the same set.
    pub flows: usize,
}

/// How the caches of one direction are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFamilies {
    /// IPv4.
    pub v4: CacheSettings,
    /// IPv6.
    pub v6: CacheSettings,
}

/// How a worker's caches are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// For what leaves.
    pub outbound: CacheFamilies,
    /// For what came in, policies `in` and `fwd`.
    pub inbound: CacheFamilies,
}

/// What a cache did. Neighbours of one flow are asked for together, and count as one packet. `lookups == hits + misses + stale + bypassed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Flows in it now.
    pub entries: u64,
    /// Flows that it has room for now.
    pub room: u64,
    /// Bytes of that room and of all else that it keeps. What both families share is told with the one that is asked more.
    pub bytes: u64,
    /// Packets that found their answer.
    pub hits: u64,
    /// Packets whose flow was not in it.
    pub misses: u64,
    /// Packets whose flow had an answer of other policies, which their change may have made another.
    pub stale: u64,
    /// Flows that had to go for others.
    pub evicted: u64,
    /// Packets that it was not asked for, because it stood aside.
    pub bypassed: u64,
}

/// What is known of one packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) answer: AnswerId,
    bundle: u32,
}

/// A state's [turn](crate::Sa::turn) as an entry holds it. Those of states put in late do not fit, and are [`Turn::UNKNOWN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u32);

/// What was found out by flow, for one worker and direction.
#[derive(Debug)]
pub struct PolicyCache {
    v4: FamilyCache<2, 4>,
    v6: FamilyCache<5, 8>,
    verdicts: VerdictTable,
    contexts: ContextNumbers,
    /// The policies' generation.
    generation: Option<u64>,
    concerned: Concerned,
    /// What stands for the generations of policies and of bundles in entries.
    now: Epochs,
}

/// What all flows of one look-up share.
#[derive(Clone, Copy, Debug)]
struct LookupContext<'a> {
    spd: &'a Spd,
    direction: Direction,
    now: Epochs,
    concerned: &'a Concerned,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { mode: CacheMode::default(), flows: 1 << 21 }
    }
}

impl CacheSettings {
    /// Bytes of each flow's room, at the most: of IPv4, of IPv6.
    pub const BYTES: [usize; 2] = [34, 66];
    /// Flows that every cache has room for, however few are asked for.
    pub const LEAST: usize = table::WAYS;
}

impl From<CacheSettings> for CacheFamilies {
    fn from(both: CacheSettings) -> Self {
        Self { v4: both, v6: both }
    }
}

impl From<CacheSettings> for Caches {
    fn from(all: CacheSettings) -> Self {
        Self { outbound: all.into(), inbound: all.into() }
    }
}

impl CacheStats {
    /// The sum of two caches'.
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

    /// Packets that asked.
    const fn lookups(&self) -> u64 {
        self.hits + self.misses + self.stale + self.bypassed
    }
}

impl Known {
    /// The bundle by which the flow leaves, if it was found out under these states.
    #[inline]
    pub(crate) fn bundle(self) -> Option<u32> {
        (self.bundle != table::NO_BUNDLE).then_some(self.bundle)
    }

    /// Whether packets of the flow that came by the state of this turn alone may pass, as was found out under these states.
    #[inline]
    pub(crate) fn passes_by(self, turn: Turn) -> bool {
        self.bundle == turn.0 && turn != Turn::UNKNOWN
    }
}

impl Turn {
    const UNKNOWN: Self = Self(table::NO_BUNDLE);

    #[inline]
    pub(crate) fn of(sa: &Sa) -> Self {
        let fits = u32::try_from(sa.turn()).ok().filter(|turn| *turn < table::NO_BUNDLE);
        fits.map_or(Self::UNKNOWN, Self)
    }

    /// A place among `slots`, a power of two.
    #[inline]
    pub(crate) const fn slot(self, slots: usize) -> usize {
        self.0 as usize & (slots - 1)
    }
}

impl PolicyCache {
    /// An empty cache. The seed makes collisions unforeseeable: a different one in every worker.
    #[must_use]
    pub fn new(settings: impl Into<CacheFamilies>, seed: u64) -> Self {
        let CacheFamilies { v4, v6 } = settings.into();
        Self {
            v4: FamilyCache::new(v4, seed),
            v6: FamilyCache::new(v6, seed),
            verdicts: VerdictTable::default(),
            contexts: ContextNumbers::default(),
            generation: None,
            concerned: Concerned::default(),
            now: Epochs { policies: 1, states: 1 },
        }
    }

    /// To be called before a batch: makes answers stale that may be others than before, when policies have changed.
    /// Takes more room when too many flows push each other out.
    #[inline]
    pub fn begin(&mut self, spd: &Spd) {
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
            let concerns = before.and_then(|before| spd.concerned_since(before));
            self.concerned.note(concerns, self.now.policies);
        }
    }

    /// Has all bundles asked for again.
    pub(crate) fn forget_bundles(&mut self) {
        self.now.states = self.next(self.now.states);
    }

    /// The policies that decide over a flow: what [`Spd::lookup`] says, and the main policy behind a sub one. `spi` is that of the state that a
    /// packet came by, 0 without one.
    #[inline]
    pub fn lookup(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flow: &FlowKey,
        spi: Spi,
    ) -> AnswerId {
        self.know(spd, direction, flow, spi).answer
    }

    /// As [`PolicyCache::lookup`], with the bundle that is known.
    #[inline]
    pub(crate) fn know(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flow: &FlowKey,
        spi: Spi,
    ) -> Known {
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
            self.verdicts.prefetch(known.answer);
        }
        known
    }

    /// As [`PolicyCache::lookup`] of each flow, into `found`.
    pub fn lookup_each(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: Spi,
        found: &mut Vec<AnswerId>,
    ) {
        self.lookup_groups(
            spd,
            direction,
            flows,
            |_| spi,
            |known| found.extend(known.iter().map(|known| known.answer)),
        );
    }

    /// As [`PolicyCache::lookup`] of each flow, each with the SPI in its place (0 where `spis` has none), with the bundles that are known.
    pub(crate) fn know_each(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spis: &[Spi],
        found: &mut Vec<Known>,
    ) {
        let spi = |at: usize| spis.get(at).copied().unwrap_or(Spi(0));
        let before = found.len();
        self.lookup_groups(spd, direction, flows, spi, |known| found.extend_from_slice(known));
        if !self.verdicts.fit_near_cache() {
            found[before..].iter().for_each(|known| self.verdicts.prefetch(known.answer));
        }
    }

    /// Asks for what [`PolicyCache::count_first`] writes, where that is far away.
    #[inline]
    pub(crate) fn fetch(&self, answer: AnswerId) {
        if !self.verdicts.fit_near_cache() {
            self.verdicts.prefetch(answer);
        }
    }

    /// Counts a flow of which somebody else remembered what is known.
    #[inline]
    pub(crate) fn know_again(&mut self, version: Version) {
        match version {
            Version::V4 => self.v4.count_revalidated(),
            Version::V6 => self.v6.count_revalidated(),
        }
    }

    /// Notes by which bundle a flow leaves under an answer.
    pub(crate) fn teach(&mut self, flow: &FlowKey, answer: AnswerId, bundle: u32) {
        self.note(Direction::Out, flow, Spi(0), Value { answer: answer.0, bundle });
    }

    /// Notes that packets of a flow may pass under an answer if they came by this state alone.
    pub(crate) fn teach_passing(
        &mut self,
        direction: Direction,
        flow: &FlowKey,
        answer: AnswerId,
        sa: &Sa,
    ) {
        let Turn(turn) = Turn::of(sa);
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

    /// The policies of an answer: the first, and the main one behind a sub policy. None means the direction's default.
    #[must_use]
    #[inline]
    pub fn answer(&self, id: AnswerId) -> &[Arc<PolicyEntry>] {
        self.verdicts.policies(id)
    }

    /// Notes packets for the policies of an answer, up to the first that blocks.
    #[inline]
    pub(crate) fn count(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        self.verdicts.count(id, packets, bytes);
    }

    /// As [`PolicyCache::count`], for the first policy only.
    #[inline]
    pub(crate) fn count_first(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        self.verdicts.count_first(id, packets, bytes);
    }

    /// To be called after a batch: charges policies with what was noted, few packets of one of them a little later.
    #[inline]
    pub(crate) fn settle(&mut self, now: Moment) {
        self.verdicts.flush_due(now);
    }

    /// To be called about once a second, between batches: lets go of policies that are gone, some of them each time.
    pub fn let_go(&mut self, spd: &Spd) {
        self.begin(spd);
        self.verdicts.release_stale(self.now.policies);
    }

    /// Charges policies with what was noted.
    pub(crate) fn charge(&mut self) {
        self.verdicts.flush();
    }

    /// Whether anything is noted.
    pub(crate) const fn owes(&self) -> bool {
        self.verdicts.has_pending()
    }

    /// What it did so far, both families together.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let [v4, v6] = self.stats_by_family();
        v4.plus(v6)
    }

    /// What it did so far: for IPv4, for IPv6.
    #[must_use]
    pub fn stats_by_family(&self) -> [CacheStats; 2] {
        let mut families = [self.v4.stats(), self.v6.stats()];
        let shared = usize::from(families[1].lookups() > families[0].lookups());
        families[shared].bytes += self.memory_shared() as u64;
        families
    }

    /// Bytes that it has taken.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + self.memory_shared()
    }

    /// Bytes that serve both families.
    fn memory_shared(&self) -> usize {
        self.verdicts.memory() + self.contexts.memory() + self.concerned.memory()
    }

    /// What is known of each flow, some at a time.
    #[inline]
    fn lookup_groups(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: impl Fn(usize) -> Spi,
        mut found: impl FnMut(&[Known]),
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

    /// After 65,535 changes the numbers begin again; entries from back then must not seem fresh.
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
        self.concerned = Concerned::default();
    }
}

impl Known {
    /// No policy.
    const NOTHING: Self = Self::only(AnswerId::NONE);

    /// The policies, but not the bundle.
    pub(crate) const fn only(answer: AnswerId) -> Self {
        Self { answer, bundle: table::NO_BUNDLE }
    }
}

#[inline]
fn is_v4(flow: &FlowKey) -> bool {
    flow.destination.is_ipv4()
}

impl LookupContext<'_> {
    /// Asks the policies themselves, about [`LOOKUP_BATCH`] flows at the most.
    #[inline]
    fn query_policies(
        &self,
        verdicts: &mut VerdictTable,
        flows: &[FlowKey],
        found: &mut [AnswerId; LOOKUP_BATCH],
    ) {
        let mut bests = [BestMatch::NONE; LOOKUP_BATCH];
        self.spd.find_each(self.direction, flows, &mut bests);
        let bests = &bests[..flows.len().min(LOOKUP_BATCH)];
        if self.spd.has_subs(self.direction) {
            for ((flow, best), found) in flows.iter().zip(bests).zip(found) {
                let both = |entry| self.sub_and_main(verdicts, flow, entry);
                *found = best.entry().map_or(AnswerId::NONE, both);
            }
        } else {
            let mut strangers = false;
            for (best, found) in bests.iter().zip(found) {
                *found = best.answer();
                strangers |= *found != AnswerId::NONE && !verdicts.is_known(*found);
            }
            if strangers {
                let met = bests.iter().filter_map(|best| Some((best.answer(), best.entry()?)));
                verdicts.record_matches(&met.collect());
            }
        }
    }

    /// The answer of a policy and, if it is a sub one, of the main one behind it.
    fn sub_and_main(
        &self,
        verdicts: &mut VerdictTable,
        flow: &FlowKey,
        entry: &Arc<PolicyEntry>,
    ) -> AnswerId {
        if !is_sub(entry) {
            return verdicts.record_match(entry.answer(), entry);
        }
        match self.spd.lookup_kind(PolicyKind::Main, self.direction, flow) {
            None => verdicts.record_match(entry.answer(), entry),
            Some(behind) => verdicts.pair(entry, behind),
        }
    }
}

#[cfg(test)]
mod tests;

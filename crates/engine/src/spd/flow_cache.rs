//! A worker's memory of which policies decided over which flow.
//!
//! The key is everything that a look-up reads: direction, family, addresses, ports or what stands in their place, protocol, mark,
//! interface, interface id; and, for a check of what came in, the SPI it came by. "No policy" is an answer like any other. When the policies change, all
//! answers become stale at once and are looked up again as their flows come; states do not matter here, so a rekey forgets nothing.
//!
//! It must never lose: a flow is let in with its second packet, and when too few packets find their flows, the cache first takes more room, then steps aside but
//! for one look-up of some, by which it sees when to come back. One worker's own: no lock, no allocation once it is warm.

mod sets;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::classifier::TOGETHER;
use super::classifier::ternary::{Key, V4, V6, Words};
use crate::{Direction, FlowKey, Lookup, PolicyEntry, PolicyKind, Spd, Spi};
use sets::{Finding, Hashed, Sets, Settled};

/// When a flow cache is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Always, but for traffic of which hardly any packet has a flow in it.
    On,
    /// Never.
    Off,
    /// While more than half of the packets find their flows, and where there are enough policies for it to pay.
    #[default]
    Auto,
}

/// How a cache is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// When it is used.
    pub mode: CacheMode,
    /// Flows of each family that there is room for at the most; 41 bytes each for IPv4, 65 for IPv6, taken as they come.
    pub flows: usize,
}

/// What a cache did. `lookups == hits + misses + stale + bypassed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Flows in it now.
    pub entries: u64,
    /// Packets that found their answer.
    pub hits: u64,
    /// Packets whose flow was not in it.
    pub misses: u64,
    /// Packets whose flow had an answer of other policies.
    pub stale: u64,
    /// Flows that had to go for others.
    pub evicted: u64,
    /// Packets that it was not asked for, because it stood aside.
    pub bypassed: u64,
}

/// The policies that decide over a flow, by their place in the cache; it holds until the next [`PolicyCache::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerId(u32);

/// Policies by flow, for one worker and direction.
#[derive(Debug)]
pub struct PolicyCache {
    settings: CacheSettings,
    seed: u64,
    v4: Option<Sets<4>>,
    v6: Option<Sets<7>>,
    /// Policies by their slots, as far as they were met.
    met: Vec<Option<Arc<PolicyEntry>>>,
    /// Sub policies with the main ones behind them.
    pairs: Vec<[Arc<PolicyEntry>; 2]>,
    pair_of: HashMap<[usize; 2], u32, foldhash::fast::RandomState>,
    /// The policies' generation, and a short number that stands for it in entries.
    generation: u64,
    epoch: u16,
    pace: Pace,
    stats: CacheStats,
}

/// Whether the cache stands aside, decided anew after every window.
#[derive(Debug, Default)]
struct Pace {
    aside: bool,
    /// More room may help.
    crowded: bool,
    asked: u32,
    found: u32,
    /// Look-ups that passed by.
    passed: u32,
    /// Packets that pass by before it is even tried again, longer with each time that this was in vain.
    sits_out: u32,
    lapses: u32,
    /// Packets that may yet come before it is judged: an empty cache needs each flow two times.
    patience: u32,
}

const WINDOW: u32 = 4096;
/// Flows that a cache begins with, and how many times as many it takes when they are too few.
const SMALLEST: usize = 2048;
const GROWTH: usize = 8;
/// Hits of a hundred packets with which it takes no more room.
const ENOUGH: u32 = 85;
/// In mode `auto`, room for so many flows always, and for so many of each policy: memory far larger than the policies' own is slower than they are.
const ALWAYS: usize = 1 << 17;
const EACH: usize = 8;
/// Of so many look-ups one asks the cache when it stands aside.
const SAMPLE: u32 = 32;
/// For so many packets at first it does not ask at all.
const SITS_OUT: u32 = 1 << 18;
/// Pairs of which no flow may know any more are dropped when there are so many more than policies.
const SURPLUS: usize = 4096;

impl Default for CacheSettings {
    fn default() -> Self {
        Self { mode: CacheMode::default(), flows: 1 << 20 }
    }
}

impl PolicyCache {
    /// An empty cache. The seed makes collisions unforeseeable: a different one in every worker.
    #[must_use]
    pub fn new(settings: CacheSettings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            v4: None,
            v6: None,
            met: Vec::new(),
            pairs: Vec::new(),
            pair_of: HashMap::default(),
            generation: u64::MAX,
            epoch: 0,
            pace: Pace::default(),
            stats: CacheStats::default(),
        }
    }

    /// To be called before a batch: makes all answers stale when the policies are others than before.
    /// Takes more room when too many flows push each other out.
    pub fn begin(&mut self, spd: &Spd) {
        if self.pace.crowded {
            let most = self.most(spd);
            Self::grow(&mut self.v4, most, self.seed);
            Self::grow(&mut self.v6, most, self.seed);
            let (v4, v6) = (self.v4.as_ref().map(Sets::room), self.v6.as_ref().map(Sets::room));
            let room = v4.max(v6).unwrap_or(0);
            self.pace = Pace { patience: patience(room), ..Pace::default() };
        }
        if self.generation == spd.generation() {
            return;
        }
        self.generation = spd.generation();
        if self.pairs.len() > spd.len() + SURPLUS {
            self.pairs.clear();
            self.pair_of.clear();
            self.epoch = u16::MAX;
        }
        // After 65,535 changes the numbers begin again; entries from back then must not seem fresh.
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.epoch = 1;
            self.v4.iter_mut().for_each(Sets::clear);
            self.v6.iter_mut().for_each(Sets::clear);
        }
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
        let mut found = ArrayVec::<_, 1>::new();
        self.lookup_some(spd, direction, std::slice::from_ref(flow), spi, |id| found.push(id));
        found.first().copied().unwrap_or(AnswerId::NONE)
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
        for flows in flows.chunks(TOGETHER) {
            self.lookup_some(spd, direction, flows, spi, |id| found.push(id));
        }
    }

    /// The policies of an answer: the first, and the main one behind a sub policy. None means the direction's default.
    #[must_use]
    #[inline]
    pub fn answer(&self, id: AnswerId) -> &[Arc<PolicyEntry>] {
        match id {
            AnswerId::NONE => &[],
            AnswerId(pair) if pair & PAIR != 0 => &self.pairs[(pair & !PAIR) as usize],
            AnswerId(slot) => self.met[slot as usize].as_slice(),
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let v4 = self.v4.as_ref().map_or(0, Sets::entries);
        let v6 = self.v6.as_ref().map_or(0, Sets::entries);
        CacheStats { entries: (v4 + v6) as u64, ..self.stats }
    }

    /// Bytes that it has taken.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.as_ref().map_or(0, Sets::memory)
            + self.v6.as_ref().map_or(0, Sets::memory)
            + self.met.capacity() * size_of::<Option<Arc<PolicyEntry>>>()
            + self.pairs.capacity() * size_of::<[Arc<PolicyEntry>; 2]>()
    }

    /// Room for a family at the most, under these policies.
    fn most(&self, spd: &Spd) -> usize {
        match self.settings.mode {
            CacheMode::On | CacheMode::Off => self.settings.flows,
            CacheMode::Auto => self.settings.flows.min(ALWAYS.max(spd.len() * EACH)),
        }
    }

    /// More room, empty.
    fn grow<const N: usize>(sets: &mut Option<Sets<N>>, most: usize, seed: u64) {
        if let Some(full) = sets.as_ref().filter(|sets| sets.room() < most) {
            *sets = Some(Sets::new((full.room() * GROWTH).min(most), seed));
        }
    }

    /// Of [`TOGETHER`] flows at the most.
    fn lookup_some(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: Spi,
        mut found: impl FnMut(AnswerId),
    ) {
        let (settings, seed) = (self.settings, self.seed);
        for flows in flows.chunk_by(|a, b| a.destination.is_ipv4() == b.destination.is_ipv4()) {
            let v4 = flows.first().is_some_and(|flow| flow.destination.is_ipv4());
            let idle = match settings.mode {
                CacheMode::Off => true,
                CacheMode::On => self.pace.is_aside(flows.len()),
                CacheMode::Auto => spd.is_small(direction, v4) || self.pace.is_aside(flows.len()),
            };
            if idle {
                self.stats.bypassed += flows.len() as u64;
                self.look_up(spd, direction, flows, &mut found);
            } else if v4 {
                let mut sets =
                    self.v4.take().unwrap_or_else(|| Sets::new(settings.flows.min(SMALLEST), seed));
                self.through(&mut sets, v4_key, spd, direction, flows, spi, &mut found);
                self.v4 = Some(sets);
            } else {
                let mut sets =
                    self.v6.take().unwrap_or_else(|| Sets::new(settings.flows.min(SMALLEST), seed));
                self.through(&mut sets, v6_key, spd, direction, flows, spi, &mut found);
                self.v6 = Some(sets);
            }
        }
    }

    /// Asks the cache, then the policies for what it does not know.
    #[expect(clippy::too_many_arguments, reason = "the parts of one look-up")]
    fn through<const N: usize>(
        &mut self,
        sets: &mut Sets<N>,
        key: fn(&FlowKey, Direction, Spi) -> [u64; N],
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        spi: Spi,
        found: &mut impl FnMut(AnswerId),
    ) {
        let mut keys = ArrayVec::<Hashed<N>, TOGETHER>::new();
        for flow in flows {
            let key = sets.hash(key(flow, direction, spi));
            if flows.len() > 1 {
                sets.prefetch(&key);
            }
            keys.push(key);
        }
        if flows.len() > 1 {
            keys.iter().for_each(|key| sets.prefetch_key(key));
        }
        let mut ids = ArrayVec::<u32, TOGETHER>::new();
        let mut open = ArrayVec::<(usize, Finding), TOGETHER>::new();
        for (at, key) in keys.iter().enumerate() {
            match sets.find(key, self.epoch) {
                Finding::Fresh(answer) => ids.push(answer),
                finding @ (Finding::Stale { .. } | Finding::Absent) => {
                    open.push((at, finding));
                    ids.push(0);
                }
            }
        }
        let hits = flows.len() - open.len();
        self.stats.hits += hits as u64;
        if !open.is_empty() {
            let missed: ArrayVec<FlowKey, TOGETHER> =
                open.iter().map(|(at, _)| flows[*at]).collect();
            let mut answers = ArrayVec::<u32, TOGETHER>::new();
            self.look_up(spd, direction, &missed, |id| answers.push(id.0));
            for ((at, finding), answer) in open.iter().zip(answers) {
                ids[*at] = answer;
                self.settle(sets, &keys[*at], *finding, answer);
            }
        }
        let growth = self.most(spd).saturating_sub(sets.room());
        self.pace.note(flows.len(), hits, sets.room(), growth, self.settings.mode);
        ids.into_iter().for_each(|id| found(AnswerId(id)));
    }

    fn settle<const N: usize>(
        &mut self,
        sets: &mut Sets<N>,
        key: &Hashed<N>,
        finding: Finding,
        answer: u32,
    ) {
        match finding {
            Finding::Fresh(_) => {}
            Finding::Stale { way, .. } => {
                self.stats.stale += 1;
                sets.renew(key, way, answer, self.epoch);
            }
            Finding::Absent => {
                self.stats.misses += 1;
                let settled = sets.offer(key, answer, self.epoch);
                self.stats.evicted += u64::from(settled == Settled::Evicted);
            }
        }
    }

    /// Asks the policies themselves.
    fn look_up(
        &mut self,
        spd: &Spd,
        direction: Direction,
        flows: &[FlowKey],
        mut found: impl FnMut(AnswerId),
    ) {
        let mut together = ArrayVec::<Lookup<'_>, TOGETHER>::new();
        spd.lookup_some(direction, flows, &mut together);
        for (flow, lookup) in flows.iter().zip(together) {
            found(match lookup {
                Lookup::Default(_) => AnswerId::NONE,
                Lookup::Policy(entry) => match entry.kind() {
                    PolicyKind::Main => self.meet(entry),
                    PolicyKind::Sub => match spd.lookup_kind(PolicyKind::Main, direction, flow) {
                        None => self.meet(entry),
                        Some(behind) => self.pair(entry, behind),
                    },
                },
            });
        }
    }

    /// The answer of one policy.
    #[inline]
    fn meet(&mut self, entry: &Arc<PolicyEntry>) -> AnswerId {
        let slot = entry.slot() as usize;
        if self.met.len() <= slot {
            self.met.resize(slot + 1, None);
        }
        let met = &mut self.met[slot];
        // Who knew the policy that had the slot before is stale since it went.
        if !met.as_ref().is_some_and(|met| Arc::ptr_eq(met, entry)) {
            *met = Some(Arc::clone(entry));
        }
        AnswerId(entry.slot())
    }

    fn pair(&mut self, sub: &Arc<PolicyEntry>, main: &Arc<PolicyEntry>) -> AnswerId {
        let pairs = &mut self.pairs;
        let addresses = [Arc::as_ptr(sub).addr(), Arc::as_ptr(main).addr()];
        let pair = self.pair_of.entry(addresses).or_insert_with(|| {
            pairs.push([Arc::clone(sub), Arc::clone(main)]);
            u32::try_from(pairs.len() - 1).unwrap_or(u32::MAX)
        });
        AnswerId(*pair | PAIR)
    }
}

impl AnswerId {
    /// No policy.
    const NONE: Self = Self(u32::MAX);
}

/// Marks answers that are pairs; the others are slots of policies.
const PAIR: u32 = 1 << 31;

/// Packets until a cache with that much room is as full as it will be.
fn patience(room: usize) -> u32 {
    u32::try_from(room).unwrap_or(u32::MAX).saturating_mul(3)
}

impl Pace {
    /// Below how many hits of a hundred packets it steps aside, and above how many it comes back.
    const fn limits(mode: CacheMode) -> (u32, u32) {
        match mode {
            CacheMode::On | CacheMode::Off => (10, 20),
            CacheMode::Auto => (50, 60),
        }
    }

    /// Whether this look-up goes past the cache.
    #[inline]
    fn is_aside(&mut self, packets: usize) -> bool {
        if !self.aside {
            return false;
        }
        if self.sits_out > 0 {
            self.sits_out = self.sits_out.saturating_sub(u32::try_from(packets).unwrap_or(0));
            return true;
        }
        self.passed = self.passed.wrapping_add(1);
        !self.passed.is_multiple_of(SAMPLE)
    }

    /// `growth` is how many flows more there could be room for.
    #[inline]
    fn note(&mut self, asked: usize, found: usize, room: usize, growth: usize, mode: CacheMode) {
        self.asked += u32::try_from(asked).unwrap_or(0);
        self.found += u32::try_from(found).unwrap_or(0);
        let window = if self.aside { WINDOW / 4 } else { WINDOW };
        if self.asked < window {
            return;
        }
        self.patience = self.patience.saturating_sub(self.asked);
        let percent = self.found * 100 / self.asked;
        let (leave, come) = Self::limits(mode);
        match (self.aside, self.patience) {
            (true, _) if percent >= come => {
                (self.aside, self.patience) = (false, patience(room));
            }
            (false, 0) if percent < ENOUGH && growth > 0 => self.crowded = true,
            (false, 0) if percent < leave => {
                self.aside = true;
                self.sits_out = SITS_OUT << self.lapses;
                self.lapses = (self.lapses + 1).min(8);
            }
            (false, 0) => self.lapses = self.lapses.saturating_sub(1),
            (true | false, _) => {}
        }
        (self.asked, self.found) = (0, 0);
    }
}

#[inline]
fn v4_key(flow: &FlowKey, direction: Direction, spi: Spi) -> [u64; 4] {
    let key: Key<V4> = match (flow.destination, flow.source) {
        (IpAddr::V4(destination), IpAddr::V4(source)) => Key::v4(destination, source, flow),
        // Of two families: no policy fits, whatever else the key says.
        (IpAddr::V4(_) | IpAddr::V6(_), _) => {
            Key { words: Words::new([0; 2], [0; 2], 0xff), extra: 0 }
        }
    };
    let [addresses, upper] = key.words;
    [addresses, upper | direction as u64, key.extra, ids(flow, spi)]
}

#[inline]
fn v6_key(flow: &FlowKey, direction: Direction, spi: Spi) -> [u64; 7] {
    let key: Key<V6> = match (flow.destination, flow.source) {
        (IpAddr::V6(destination), IpAddr::V6(source)) => Key::v6(destination, source, flow),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => {
            Key { words: Words::new([0; 2], [0; 2], 0xff), extra: 0 }
        }
    };
    let [a, b, c, d, upper] = key.words;
    [a, b, c, d, upper | direction as u64, key.extra, ids(flow, spi)]
}

#[inline]
fn ids(flow: &FlowKey, spi: Spi) -> u64 {
    u64::from(flow.if_id) << 32 | u64::from(spi.0)
}

#[cfg(test)]
mod tests;

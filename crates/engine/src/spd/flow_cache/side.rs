//! One family's half of a flow cache: its table, whether that pays, and what it did.

use arrayvec::ArrayVec;

use super::answers::{AnswerId, Answers};
use super::key::Key;
use super::pace::{Decision, Pace, Worth};
use super::sets::{Epochs, Finding, Hashed, NO_BUNDLE, Sets, Settled, Value};
use super::{CacheMode, CacheSettings, CacheStats, Known, Question};
use crate::spd::classifier::TOGETHER;
use crate::{Direction, FlowKey, Spd};

/// Flows of one family: keys of `N` words in places of `W`.
#[derive(Debug)]
pub(super) struct Side<const N: usize, const W: usize> {
    settings: CacheSettings,
    seed: u64,
    sets: Sets<N, W>,
    pace: Pace,
    /// More room that may help.
    wanted: Option<usize>,
    stats: CacheStats,
}

/// A flow without an answer: its place among those asked for, and what the cache says of it.
type Open = (usize, Finding);

/// Flows that a cache begins with, and how many times as many it takes when they are too few.
const SMALLEST: usize = 2048;
const GROWTH: usize = 8;
/// In mode `auto`, room for so many flows always, and for so many of each policy: memory far larger than the policies' own is slower than they are.
const ALWAYS: usize = 1 << 17;
const EACH: usize = 8;
/// In mode `auto`, room where policies are so few that comparing them costs no more than a hit out of the second-level cache.
const WITH_FEW: usize = SMALLEST;

impl<const N: usize, const W: usize> Side<N, W> {
    pub(super) fn new(settings: CacheSettings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            // Most gateways have traffic of one family.
            sets: Sets::new(0, seed),
            pace: Pace::default(),
            wanted: None,
            stats: CacheStats::default(),
        }
    }

    /// Takes more room, empty, when too many flows push each other out.
    pub(super) fn make_room(&mut self) {
        if let Some(room) = self.wanted.take() {
            self.sets = Sets::new(room, self.seed);
            self.pace = Pace::of_room(self.sets.room());
        }
    }

    pub(super) fn forget(&mut self) {
        self.sets.clear();
    }

    pub(super) fn teach(&mut self, key: Key<N>, value: Value, now: Epochs) {
        if self.settings.mode == CacheMode::Off || self.pace.stands_aside() {
            return;
        }
        let key = self.sets.hash(key);
        self.sets.teach(&key, value, now);
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.sets.entries() as u64,
            room: self.sets.room() as u64,
            bytes: self.sets.memory() as u64,
            ..self.stats
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.sets.memory()
    }

    /// Asks the cache, then the policies for what it does not know; of [`TOGETHER`] flows at the most.
    #[inline]
    pub(super) fn ask(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        mut key: impl FnMut(usize, &FlowKey) -> Key<N>,
        answers: &mut Answers,
        found: &mut impl FnMut(&[Known]),
    ) {
        if self.settings.mode == CacheMode::Off || self.pace.is_aside(flows.len()) {
            self.stats.bypassed += flows.len() as u64;
            let mut known = ArrayVec::<Known, TOGETHER>::new();
            let without = |answer| known.push(Known { answer, bundle: NO_BUNDLE });
            question.look_up(answers, flows, without);
            return found(&known);
        }
        if self.sets.room() < Sets::<N, W>::room_for(SMALLEST.min(self.settings.flows)) {
            self.sets = Sets::new(SMALLEST.min(self.settings.flows), self.seed);
        }
        let mut keys = [Hashed::NONE; TOGETHER];
        let keys = &mut keys[..flows.len().min(TOGETHER)];
        for (at, (hashed, flow)) in keys.iter_mut().zip(flows).enumerate() {
            *hashed = self.sets.hash(key(at, flow));
            self.sets.prefetch(hashed);
        }
        let mut known = [Known::NOTHING; TOGETHER];
        let known = &mut known[..keys.len()];
        let open = self.find(keys, known, question.now);
        let hits = keys.len() - open.len();
        self.stats.hits += hits as u64;
        if !open.is_empty() {
            self.fill_in(question, flows, keys, &open, answers, known);
        }
        if self.pace.note(keys.len(), hits) {
            let most = self.most(question.spd, question.direction);
            let worth = match (self.settings.mode, most) {
                (CacheMode::On | CacheMode::Off, _) => Worth::Asked,
                (CacheMode::Auto, WITH_FEW) => Worth::Little,
                (CacheMode::Auto, _) => Worth::Much,
            };
            let room = self.sets.room();
            if self.pace.decide(room, Sets::<N, W>::room_for(most), worth) == Decision::TakeRoom {
                self.wanted = Some((room * GROWTH).min(most));
            }
        }
        found(known);
    }

    /// What the cache knows, with gaps where it does not.
    #[inline]
    fn find(
        &self,
        keys: &[Hashed<N>],
        known: &mut [Known],
        now: Epochs,
    ) -> ArrayVec<Open, TOGETHER> {
        let mut likely = [0; TOGETHER];
        for (likely, key) in likely.iter_mut().zip(keys) {
            *likely = self.sets.likely(key);
        }
        let mut others = ArrayVec::<usize, TOGETHER>::new();
        for (at, ((key, likely), known)) in keys.iter().zip(likely).zip(&mut *known).enumerate() {
            match self.sets.find_at(likely, key, now) {
                Some(Value { answer, bundle }) => {
                    *known = Known { answer: AnswerId(answer), bundle };
                }
                None => others.push(at),
            }
        }
        if others.is_empty() {
            ArrayVec::new()
        } else {
            self.find_others(&others, keys, known, now)
        }
    }

    /// What is not where it is likely to be: in another place, without its bundle, stale, or not there.
    #[inline(never)]
    fn find_others(
        &self,
        others: &[usize],
        keys: &[Hashed<N>],
        known: &mut [Known],
        now: Epochs,
    ) -> ArrayVec<Open, TOGETHER> {
        let mut open = ArrayVec::new();
        for at in others {
            match self.sets.find(&keys[*at], now) {
                Finding::Fresh(Value { answer, bundle }) => {
                    known[*at] = Known { answer: AnswerId(answer), bundle };
                }
                finding @ (Finding::Stale(_) | Finding::Absent) => open.push((*at, finding)),
            }
        }
        open
    }

    /// Asks the policies about the gaps, and keeps what they say.
    #[inline(never)]
    fn fill_in(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        keys: &[Hashed<N>],
        open: &ArrayVec<Open, TOGETHER>,
        answers: &mut Answers,
        known: &mut [Known],
    ) {
        let missed: ArrayVec<FlowKey, TOGETHER> = open.iter().map(|(at, _)| flows[*at]).collect();
        let mut found = ArrayVec::<AnswerId, TOGETHER>::new();
        question.look_up(answers, &missed, |id| found.push(id));
        for ((at, finding), answer) in open.iter().zip(found) {
            known[*at] = Known { answer, bundle: NO_BUNDLE };
            self.settle(&keys[*at], *finding, answer.0, question.now);
        }
    }

    fn settle(&mut self, key: &Hashed<N>, finding: Finding, answer: u32, now: Epochs) {
        match finding {
            Finding::Fresh(_) => {}
            Finding::Stale(place) => {
                self.stats.stale += 1;
                self.sets.renew(place, key, answer, now);
            }
            Finding::Absent => {
                self.stats.misses += 1;
                let settled = self.sets.offer(key, answer, now);
                self.stats.evicted += u64::from(settled == Settled::Evicted);
            }
        }
    }

    /// Room at the most, under these policies.
    fn most(&self, spd: &Spd, direction: Direction) -> usize {
        let most = match self.settings.mode {
            CacheMode::On | CacheMode::Off => usize::MAX,
            CacheMode::Auto if spd.is_small(direction, N == 2) => WITH_FEW,
            CacheMode::Auto => ALWAYS.max(spd.len() * EACH),
        };
        self.settings.flows.min(most)
    }
}

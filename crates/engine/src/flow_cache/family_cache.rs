//! One family's half of a flow cache: its table, whether that pays, and what it did.

use arrayvec::ArrayVec;

use super::admission::hit_rate::{Decision, Pace, Prospects, Worth};
use super::admission::lookup_cost::{MANY, SMALLEST, Search};
use super::admission::miss_cost::SearchCost;
use super::admission::reuse::{Lookout, Orders};
use super::key::{Key, KeysOf};
use super::table::{Epochs, Finding, Hashed, Sets, Settled, Value};
use super::verdicts::Answers;
use super::{CacheMode, CacheSettings, CacheStats, Known, Question};
use crate::FlowKey;
use crate::spd::classifier::TOGETHER;
use crate::spd::verdict::AnswerId;

/// Flows of one family: keys of `N` words in places of `W`.
#[derive(Debug)]
pub(super) struct Side<const N: usize, const W: usize> {
    settings: CacheSettings,
    seed: u64,
    sets: Sets<N, W>,
    standing: Standing,
    pace: Pace,
    lookout: Lookout,
    cost: SearchCost,
    /// More room that may help.
    wanted: Option<usize>,
    stats: CacheStats,
}

/// Whether a cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Used,
    Aside,
    Never,
}

/// Flows with their hashes, as far as they are looked up together.
type Group<const N: usize> = ArrayVec<Hashed<N>, TOGETHER>;

/// A flow without an answer: its place among those asked for, its key, and what the cache says of it.
type Open<const N: usize> = (usize, Hashed<N>, Finding);

/// How many times as many flows a cache takes when its room is too little.
const GROWTH: usize = 4;
/// Among fewer than [`MANY`], it rests for so many spells after each in which it looks out; and among so many.
const REST: usize = 16;
const REST_BESIDE_MANY: usize = 3;
/// While searches cost less than hits, nobody looks out for so many packets.
const CHEAP: usize = 1 << 18;
/// Tables of so many bytes are near enough to be read without being fetched ahead.
const NEAR: usize = 1 << 19;
/// Flows asked of larger ones together: those that are not at home are waited for once.
const SPAN: usize = 4 * TOGETHER;

impl<const N: usize, const W: usize> Side<N, W> {
    pub(super) fn new(settings: CacheSettings, seed: u64) -> Self {
        let standing = match settings.mode {
            CacheMode::Off => Standing::Never,
            CacheMode::On | CacheMode::Auto => Standing::Used,
        };
        Self {
            settings,
            seed,
            // Most gateways have traffic of one family.
            sets: Sets::new(0, seed),
            standing,
            pace: Pace::default(),
            lookout: Lookout::default(),
            cost: SearchCost::default(),
            wanted: None,
            stats: CacheStats::default(),
        }
    }

    /// Takes more room, empty, when too many flows push each other out.
    #[inline]
    pub(super) fn make_room(&mut self) {
        if self.wanted.is_some() {
            self.begin_anew();
        }
    }

    #[inline(never)]
    fn begin_anew(&mut self) {
        if let Some(room) = self.wanted.take() {
            self.begin_with(room);
        }
    }

    /// Takes room, empty: it is not judged before flows had time to come again.
    #[cold]
    fn begin_with(&mut self, room: usize) {
        self.sets = Sets::new(room, self.seed);
        self.pace.refill(self.sets.room());
    }

    /// Whether it is ever used.
    pub(super) fn may_know(&self) -> bool {
        self.standing != Standing::Never
    }

    pub(super) fn forget(&mut self) {
        match self.standing {
            Standing::Used => self.sets.clear(),
            // It takes room when it comes back.
            Standing::Aside | Standing::Never => self.sets = Sets::new(0, self.seed),
        }
    }

    pub(super) fn teach(&mut self, key: Key<N>, value: Value, now: Epochs) {
        if self.standing == Standing::Used {
            let key = self.sets.hash(key);
            self.sets.teach(&key, value, now);
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.sets.entries() as u64,
            room: self.sets.room() as u64,
            bytes: self.memory() as u64,
            ..self.stats
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.sets.memory() + self.lookout.memory()
    }

    /// Asks the cache, then the policies for what it does not know.
    #[inline]
    pub(super) fn ask(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        mut keys: impl KeysOf<N>,
        answers: &mut Answers,
        found: &mut impl FnMut(&[Known]),
    ) {
        match self.standing {
            Standing::Used => self.ask_sets(question, flows, keys, answers, found),
            Standing::Never => self.pass_by(question, flows, answers, found),
            Standing::Aside => {
                if !self.lookout.rests(flows.len()) {
                    self.look_out(question, flows, &mut keys);
                }
                self.pass_by(question, flows, answers, found);
            }
        }
    }

    /// Counts a flow that is remembered elsewhere.
    #[inline]
    pub(super) fn know_again(&mut self) {
        match self.standing {
            Standing::Used => self.stats.hits += 1,
            Standing::Aside | Standing::Never => self.stats.bypassed += 1,
        }
    }

    /// A key as it is looked for.
    #[inline(always)]
    pub(super) fn hash(&self, key: Key<N>) -> Hashed<N> {
        self.sets.hash(key)
    }

    /// Asks for what [`Side::find_at_home`] reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, key: &Hashed<N>) {
        self.sets.prefetch(key);
    }

    /// What is known of a flow, if it is where it is likely to be. Nothing is counted, and the policies are not asked.
    #[inline(always)]
    pub(super) fn find_at_home(&self, key: &Hashed<N>, now: Epochs) -> Option<Known> {
        if self.standing != Standing::Used {
            return None;
        }
        let Value { answer, bundle } = self.sets.find_at_home(key, now)?;
        Some(Known { answer: AnswerId(answer), bundle })
    }

    /// As [`Side::find_at_home`], wherever it is.
    #[inline(never)]
    pub(super) fn find_stray(&self, key: &Hashed<N>, now: Epochs) -> Option<Known> {
        if self.standing != Standing::Used {
            return None;
        }
        match self.sets.find(key, now) {
            Finding::Fresh(Value { answer, bundle }) => {
                Some(Known { answer: AnswerId(answer), bundle })
            }
            Finding::Stale(_) | Finding::Absent => None,
        }
    }

    /// Asks for what [`Side::find_stray`] mostly reads.
    #[inline(always)]
    pub(super) fn prefetch_stray(&self, key: &Hashed<N>) {
        self.sets.prefetch_stray(key);
    }

    /// Counts flows that were found.
    pub(super) fn count_found(&mut self, question: &Question<'_>, flows: usize) {
        self.stats.hits += flows as u64;
        if self.pace.note(flows, flows, 0) {
            self.decide(question);
        }
    }

    /// As [`Side::ask`], of one flow, which mostly is known and at home.
    #[inline]
    pub(super) fn ask_alone(
        &mut self,
        question: &Question<'_>,
        flow: &FlowKey,
        key: Key<N>,
        answers: &mut Answers,
    ) -> Known {
        match self.recall(question, key) {
            Some(known) => known,
            None => self.find_out(question, flow, key, answers),
        }
    }

    /// What is known of a flow, if it is where it is likely to be.
    #[inline]
    fn recall(&mut self, question: &Question<'_>, key: Key<N>) -> Option<Known> {
        if self.standing != Standing::Used {
            return None;
        }
        let key = self.sets.hash(key);
        let Value { answer, bundle } = self.sets.find_at_home(&key, question.now)?;
        self.stats.hits += 1;
        if self.pace.note(1, 1, 0) {
            self.decide(question);
        }
        Some(Known { answer: AnswerId(answer), bundle })
    }

    #[inline(never)]
    fn find_out(
        &mut self,
        question: &Question<'_>,
        flow: &FlowKey,
        key: Key<N>,
        answers: &mut Answers,
    ) -> Known {
        let mut found = Known::NOTHING;
        self.ask(question, std::slice::from_ref(flow), key, answers, &mut |known: &[Known]| {
            found = known.first().copied().unwrap_or(found);
        });
        found
    }

    /// Asks the policies alone.
    fn pass_by(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        answers: &mut Answers,
        found: &mut impl FnMut(&[Known]),
    ) {
        self.stats.bypassed += flows.len() as u64;
        for flows in flows.chunks(TOGETHER) {
            let mut known = [AnswerId::NONE; TOGETHER];
            question.look_up(answers, flows, &mut known);
            found(&known.map(Known::only)[..flows.len()]);
        }
    }

    /// Watches for flows that come again while the cache stands aside.
    fn look_out(&mut self, question: &Question<'_>, flows: &[FlowKey], keys: &mut impl KeysOf<N>) {
        for (at, flow) in flows.iter().enumerate() {
            if self.lookout.chooses(flow) {
                let hash = self.sets.hash(keys.key(at, flow)).hash();
                let Question { direction, now, concerned, .. } = *question;
                let outdated = |since| concerned.is(direction, flow, since);
                self.lookout.note(hash, now.policies, outdated);
            }
        }
        if self.cost.is_due(flows.len()) {
            flows.first().into_iter().for_each(|flow| self.cost.weigh(question, flow));
        }
        let search = Search::of::<N>(question);
        let orders = Orders {
            most: search.most().min(self.settings.flows),
            come: self.worth(search).come(),
            // A glance at a packet costs little beside a look-up among many policies, and flows that come again are worth more there.
            rest: if question.spd.len() < MANY { REST } else { REST_BESIDE_MANY },
        };
        if let Some(room) = self.lookout.report(flows.len(), orders) {
            let room = room.max(SMALLEST).min(orders.most);
            if self.cost.is_below_a_hit(room * CacheSettings::BYTES[usize::from(N != 2)]) {
                return self.lookout.begin(CHEAP);
            }
            self.standing = Standing::Used;
            if Sets::<N, W>::room_for(room) > self.sets.room() {
                self.wanted = Some(room);
            } else {
                // What it knows is outdated, or of others; but there is no more to come than this.
                self.pace.refill(room / Lookout::ROOM);
            }
        }
    }

    #[inline]
    fn ask_sets(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        mut keys: impl KeysOf<N>,
        answers: &mut Answers,
        found: &mut impl FnMut(&[Known]),
    ) {
        if self.sets.room() < Sets::<N, W>::room_for(SMALLEST.min(self.settings.flows)) {
            self.begin_with(SMALLEST.min(self.settings.flows));
        }
        if self.sets.memory() <= NEAR {
            for (flows, from) in flows.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
                let hashed =
                    |sets: &Sets<N, W>, at: usize| sets.hash(keys.key(from + at, &flows[at]));
                self.answer(question, flows, hashed, answers, found);
            }
            return;
        }
        let first = flows.iter().enumerate().take(TOGETHER);
        let mut fetched: Group<N> = first.map(|flow| fetch(&self.sets, &mut keys, flow)).collect();
        for (these, from) in flows.chunks(SPAN).zip((0..).step_by(SPAN)) {
            // Each flow's line is asked for while another's is read, so that memory is never idle, nor asked for more than it takes at once.
            let hashed = |sets: &Sets<N, W>, at: usize| {
                let this = fetched[at % TOGETHER];
                let ahead = from + TOGETHER + at;
                if let Some(flow) = flows.get(ahead) {
                    fetched[at % TOGETHER] = fetch(sets, &mut keys, (ahead, flow));
                }
                this
            };
            self.answer(question, these, hashed, answers, found);
        }
    }

    /// What is known of at most [`SPAN`] flows; what is not is found out.
    #[inline]
    fn answer(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        mut hashed: impl FnMut(&Sets<N, W>, usize) -> Hashed<N>,
        answers: &mut Answers,
        found: &mut impl FnMut(&[Known]),
    ) {
        let mut known = ArrayVec::<Known, SPAN>::new();
        let mut others = ArrayVec::<_, SPAN>::new();
        for at in 0..flows.len().min(SPAN) {
            let key = hashed(&self.sets, at);
            known.push(match self.sets.find_at_home(&key, question.now) {
                Some(Value { answer, bundle }) => Known { answer: AnswerId(answer), bundle },
                None => {
                    self.sets.prefetch_stray(&key);
                    others.push((at, key));
                    Known::NOTHING
                }
            });
        }
        let (mut missed, mut evicted) = (0, 0);
        for others in others.chunks(TOGETHER) {
            let open = self.find_others(question, flows, others, answers, &mut known);
            missed += open.len();
            evicted += self.fill_in(question, flows, &open, answers, &mut known);
        }
        let hits = known.len() - missed;
        self.stats.hits += hits as u64;
        if self.pace.note(known.len(), hits, evicted) {
            self.cost.weigh(question, &flows[0]);
            self.decide(question);
        }
        found(&known);
    }

    /// What is not as it is likely to be: away from home, without its bundle, stale, or not there.
    #[inline(never)]
    fn find_others(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        others: &[(usize, Hashed<N>)],
        answers: &mut Answers,
        known: &mut [Known],
    ) -> ArrayVec<Open<N>, TOGETHER> {
        let mut open = ArrayVec::new();
        let mut far = ArrayVec::<_, TOGETHER>::new();
        for (at, key) in others {
            match self.sets.find_near(key, question.now) {
                Some(finding) => match self.judge(question, &flows[*at], finding, answers) {
                    Some(found) => known[*at] = found,
                    None => open.push((*at, *key, finding)),
                },
                None => {
                    self.sets.prefetch_elsewhere(key);
                    far.push((*at, *key));
                }
            }
        }
        for (at, key) in &far {
            let finding = self.sets.find(key, question.now);
            match self.judge(question, &flows[*at], finding, answers) {
                Some(found) => known[*at] = found,
                None => open.push((*at, *key, finding)),
            }
        }
        open.iter().for_each(|(_, key, _)| self.sets.prefetch_door(key));
        open
    }

    /// What is known by a finding: an answer that is of other policies holds if their change did not concern it.
    #[inline]
    fn judge(
        &mut self,
        question: &Question<'_>,
        flow: &FlowKey,
        finding: Finding,
        answers: &mut Answers,
    ) -> Option<Known> {
        let place = match finding {
            Finding::Fresh(Value { answer, bundle }) => {
                return Some(Known { answer: AnswerId(answer), bundle });
            }
            Finding::Stale(place) => place,
            Finding::Absent => return None,
        };
        let Question { direction, now, concerned, .. } = *question;
        let (since, Value { answer, bundle }) = self.sets.outdated(place, now);
        let answer = AnswerId(answer);
        let holds = !concerned.is(direction, flow, since) && answers.meet_again(answer, since);
        holds.then(|| {
            self.sets.confirm(place, now);
            Known { answer, bundle }
        })
    }

    /// Asks the policies about the gaps, and keeps what they say; how many flows had to go for that.
    #[inline(never)]
    fn fill_in(
        &mut self,
        question: &Question<'_>,
        flows: &[FlowKey],
        open: &[Open<N>],
        answers: &mut Answers,
        known: &mut [Known],
    ) -> usize {
        let missed: ArrayVec<FlowKey, TOGETHER> = open.iter().map(|(at, ..)| flows[*at]).collect();
        let mut found = [AnswerId::NONE; TOGETHER];
        question.look_up(answers, &missed, &mut found);
        if self.cost.is_due(missed.len()) {
            missed.first().into_iter().for_each(|flow| self.cost.weigh(question, flow));
        }
        let mut evicted = 0;
        for ((at, key, finding), answer) in open.iter().zip(&found) {
            known[*at] = Known::only(*answer);
            let settled = self.settle(key, *finding, answer.0, question.now);
            evicted += usize::from(settled == Settled::Evicted);
        }
        self.stats.evicted += evicted as u64;
        evicted
    }

    fn settle(&mut self, key: &Hashed<N>, finding: Finding, answer: u32, now: Epochs) -> Settled {
        match finding {
            Finding::Fresh(_) => Settled::Kept,
            Finding::Stale(place) => {
                self.stats.stale += 1;
                self.pace.note_outdated();
                self.sets.renew(place, key, answer, now);
                Settled::Kept
            }
            Finding::Absent => {
                self.stats.misses += 1;
                self.sets.offer(key, answer, now)
            }
        }
    }

    /// What is gained by a hit, in this mode.
    const fn worth(&self, search: Search) -> Worth {
        match (self.settings.mode, search) {
            // Asked for where a hit takes about as long.
            (CacheMode::On, Search::Glance | Search::Short) | (CacheMode::Off, _) => Worth::Much,
            (CacheMode::On | CacheMode::Auto, _) => search.worth(),
        }
    }

    /// After a window.
    fn decide(&mut self, question: &Question<'_>) {
        if self.cost.is_below_a_hit(self.sets.memory()) {
            self.standing = Standing::Aside;
            return self.lookout.begin(CHEAP);
        }
        let search = Search::of::<N>(question);
        let (most, room) = (search.most().min(self.settings.flows), self.sets.room());
        let may_double = 2 * room <= Sets::<N, W>::room_for(most);
        let worth = match self.settings.mode {
            // Asked for, but with so many flows it would be slower than no cache.
            CacheMode::On if !may_double && search.most() < self.settings.flows => search.worth(),
            CacheMode::On | CacheMode::Off | CacheMode::Auto => self.worth(search),
        };
        // Growing loses all that is known: for little more room that is not worth it.
        let prospects = Prospects { may_grow: may_double, worth, known: self.sets.entries() };
        match self.pace.decide(prospects) {
            Decision::GoOn => {}
            Decision::TakeRoom => self.wanted = Some((room * GROWTH).min(most)),
            Decision::StepAside(packets) => {
                self.standing = Standing::Aside;
                self.lookout.begin(packets);
            }
        }
    }
}

/// Hashes a flow's key, and fetches what is known of it.
#[inline(always)]
fn fetch<const N: usize, const W: usize>(
    sets: &Sets<N, W>,
    keys: &mut impl KeysOf<N>,
    (at, flow): (usize, &FlowKey),
) -> Hashed<N> {
    let hashed = sets.hash(keys.key(at, flow));
    sets.prefetch(&hashed);
    hashed
}

//! A set-associative table from flows to what was found out about them: sixteen flows a set, each at home in one cache line of it.
//!
//! A look-up reads the line that the flow's hash names, which holds two flows of IPv4 or one of IPv6: key, policies and bundle. So it
//! waits for memory once. A flow that finds its home full stays elsewhere in its set, and its home says in which line: IPv6's [`OverflowHints`], IPv4's where
//! the latest of them does. That is read next, and the whole set only for the others.
//! All memory comes zeroed from the allocator and is touched only as flows come.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use overflow::OverflowHints;

use super::key::CacheKey;
use crate::spd::classifier::ternary::mix;

/// Flows of one family: keys of `N` words in places of `W`, which divides a line's eight.
#[derive(Debug)]
pub(crate) struct FlowTable<const N: usize, const W: usize> {
    /// `2 * W` lines of each set.
    lines: Box<[CacheLine]>,
    /// Of each set, what flows [left](FlowTable::seen_before) with their first packets.
    doorkeeper: Box<[[u16; DOORKEEPER_SLOTS]]>,
    seed: [u64; 4],
    coin: u64,
    entries: usize,
}

/// A cache line of places. A place is the key's words, the SPI over the [epochs](Epochs), and the bundle over the answer. The line's word `W - 1`
/// also says where [strays](FlowTable::overflow_line) are.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u64; 8]);

/// Places of a set.
pub(super) const WAYS: usize = 16;
/// First packets that a set remembers.
const DOORKEEPER_SLOTS: usize = 16;
/// Lines in which a stray is looked for first, when it is not in the one that its home names.
const LIKELY: usize = 4;

/// A key with its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashedKey<const N: usize> {
    key: CacheKey<N>,
    hash: u64,
}

/// Under which policies and states something was found out; 0 is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epochs {
    pub(crate) policies: u16,
    pub(crate) states: u16,
}

/// What is known of a flow: its policies, and the bundle by which it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) answer: u32,
    pub(crate) bundle: u32,
}

/// No bundle is known.
pub(crate) const NO_BUNDLE: u32 = u32::MAX >> 3;

/// Bits of a place's last word; those above are of a [stray](FlowTable::HINT_SHIFT).
const BUNDLE_AND_ANSWER: u64 = (NO_BUNDLE as u64) << 32 | u32::MAX as u64;

/// What a set says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// The policies, which hold; the bundle if it does.
    Fresh(Value),
    /// It was there, but the policies have changed since.
    Stale(usize),
    /// It is not there.
    Absent,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// It is kept, in an empty place or in that of an outdated one.
    Stored,
    /// It is kept in the place of another that held.
    Evicted,
    /// It was the flow's first packet.
    Deferred,
}

impl<const N: usize> HashedKey<N> {
    /// Any bits of it are as good as any others.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}

impl<const N: usize, const W: usize> FlowTable<N, W> {
    /// Places of a line.
    const PLACES: usize = 8 / W;
    /// Lines of a set.
    const LINES: usize = WAYS / Self::PLACES;
    /// From this bit on, word `W - 1` of a line of IPv4, its first place's last one, says in which line of the set, counted from this one by
    /// exclusive or, the latest flow stays whose home this one is; 0 if there is none. In IPv6 no place has that word, and it is [`OverflowHints`].
    const HINT_SHIFT: u32 = u64::BITS - Self::LINES.ilog2();
    /// Whether a line has a word for strays alone.
    const HAS_HINT_WORD: bool = Self::PLACES * (N + 2) < 8;

    /// Room for `flows`, rounded down to whole sets, of which there is one at least.
    pub(crate) fn new(flows: usize, seed: u64) -> Self {
        let table = Self::room_for(flows) / WAYS;
        Self {
            lines: zeroed(table * Self::LINES),
            doorkeeper: zeroed(table),
            seed: [1, 2, 3, 4].map(|salt: u64| {
                mix(seed ^ 0x9e37_79b9_7f4a_7c15, salt.wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1
            }),
            coin: seed,
            entries: 0,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: CacheKey<N>) -> HashedKey<N> {
        let mut hash = u64::from(key.spi).wrapping_mul(self.seed[3]);
        let (pairs, rest) = key.words.as_chunks::<2>();
        for ([a, b], seed) in pairs.iter().zip(self.seed) {
            hash ^= mix(a ^ seed, b ^ seed.rotate_left(32));
        }
        if let [last] = rest {
            hash = mix(hash ^ self.seed[2], last ^ self.seed[1]);
        }
        HashedKey { key, hash }
    }

    /// Fetches a key's home.
    #[inline]
    pub(crate) fn prefetch(&self, key: &HashedKey<N>) {
        uxfrm_packet::prefetch_far(&self.lines[self.primary(key)]);
    }

    /// Fetches what [`FlowTable::find_near`] reads beside a key's home.
    #[inline]
    pub(crate) fn prefetch_overflow(&self, key: &HashedKey<N>) {
        if let Some(overflow_line) = self.overflow_line(self.primary(key), key) {
            uxfrm_packet::prefetch_far(&self.lines[overflow_line]);
        }
    }

    /// Fetches what [`FlowTable::find`] mostly reads beyond that.
    pub(crate) fn prefetch_rest_of_set(&self, key: &HashedKey<N>) {
        let likely = Self::other_lines(self.primary(key)).take(LIKELY);
        likely.for_each(|line| uxfrm_packet::prefetch_far(&self.lines[line]));
    }

    /// Fetches where [`FlowTable::offer`] looks first.
    #[inline]
    pub(crate) fn prefetch_doorkeeper(&self, key: &HashedKey<N>) {
        uxfrm_packet::prefetch_far(&self.doorkeeper[self.primary(key) / Self::LINES]);
    }

    /// All that is known of a key, if it is at home and nothing has changed since; else see [`FlowTable::find`].
    #[inline]
    pub(crate) fn find_primary(&self, key: &HashedKey<N>, now: Epochs) -> Option<Value> {
        let places = self.lines[self.primary(key)].0.as_chunks::<W>().0;
        let fresh = u64::from(key.key.spi) << 32 | u64::from(now.bits());
        let fits = |words: &[u64; W]| differing(words, &key.key) | (words[N] ^ fresh) == 0;
        // A branch for each place would often be foretold wrongly.
        let words = &places[usize::from(!fits(&places[0])) % Self::PLACES];
        fits(words).then(|| Value::of(words[N + 1]))
    }

    /// What is known of a key at home and where its home says. None: only [`FlowTable::find`] can tell.
    #[inline]
    pub(crate) fn find_near(&self, key: &HashedKey<N>, now: Epochs) -> Option<ProbeResult> {
        let primary = self.primary(key);
        match (self.seek_near(key, primary), self.overflow_line(primary, key)) {
            (Some(place), _) => Some(self.read(place, now)),
            (None, Some(_)) => None,
            (None, None) => Some(ProbeResult::Absent),
        }
    }

    /// What is known of a key.
    pub(crate) fn find(&self, key: &HashedKey<N>, now: Epochs) -> ProbeResult {
        self.seek(key).map_or(ProbeResult::Absent, |place| self.read(place, now))
    }

    /// What was found out under other policies, and in which of their epochs; its bundle if that holds.
    #[inline]
    pub(crate) fn outdated(&self, place: usize, now: Epochs) -> (u16, Value) {
        let Epochs { policies, states } = self.epochs(place);
        let value = Value::of(self.place(place)[N + 1]);
        let bundle = if states == now.states { value.bundle } else { NO_BUNDLE };
        (policies, Value { bundle, ..value })
    }

    /// What was found out under other policies holds under these.
    #[inline]
    pub(crate) fn confirm(&mut self, place: usize, now: Epochs) {
        let Epochs { states, .. } = self.epochs(place);
        let words =
            &mut self.lines[place / Self::PLACES].0.as_chunks_mut::<W>().0[place % Self::PLACES];
        words[N] = words[N] & !u64::from(u32::MAX) | u64::from(Epochs { states, ..now }.bits());
    }

    /// An answer that was stale is known again; a bundle that was found under these policies has to be resolved anew.
    pub(crate) fn refresh(&mut self, place: usize, key: &HashedKey<N>, answer: u32, now: Epochs) {
        // Another flow of the same batch may have taken the place.
        if is(self.place(place), &key.key) {
            self.write(place, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        }
    }

    /// The bundle of a flow whose policies are known.
    pub(crate) fn set_bundle(&mut self, key: &HashedKey<N>, value: Value, now: Epochs) {
        if let Some(place) = self.seek(key)
            && matches!(self.read(place, now), ProbeResult::Fresh(held) if held.answer == value.answer)
        {
            self.write(place, &key.key, value, now);
        }
    }

    /// Keeps an answer for a flow that has none, from its second packet on.
    pub(crate) fn offer(&mut self, key: &HashedKey<N>, answer: u32, now: Epochs) -> InsertOutcome {
        let primary = self.primary(key);
        // Several packets of one flow may come in one batch.
        if !self.seen_before(primary / Self::LINES, key) || self.seek(key).is_some() {
            return InsertOutcome::Deferred;
        }
        let place = self.place_for(key, primary, now);
        let settled = self.evict(place, now);
        self.add_hint(primary, key, place / Self::PLACES);
        self.write(place, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        settled
    }

    /// Forgets all. What nobody touched of a large table is not touched for that: its memory goes, and fresh memory comes.
    pub(crate) fn clear(&mut self) {
        let lines = std::mem::take(&mut self.lines).len();
        self.lines = zeroed(lines);
        self.entries = 0;
    }

    /// Flows that there is room for when `flows` are asked for.
    pub(crate) fn room_for(flows: usize) -> usize {
        (flows / WAYS).max(1) * WAYS
    }

    /// Flows that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.doorkeeper.len() * WAYS
    }

    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.doorkeeper)
    }

    /// Whether a flow was here before, of late: each set has sixteen doors, at which flows leave a part of their hash with their first packet.
    fn seen_before(&mut self, set: usize, key: &HashedKey<N>) -> bool {
        let [low, high, at, ..] = key.hash.to_le_bytes();
        let seen_before = u16::from_le_bytes([low, high]) | 1;
        let doorkeeper = &mut self.doorkeeper[set];
        if let Some(seen) = doorkeeper.iter_mut().find(|seen| **seen == seen_before) {
            *seen = 0;
            return true;
        }
        // Flows before one door, turn by turn, would keep each other out for ever.
        self.coin = self.coin.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        match doorkeeper.iter_mut().find(|seen| **seen == 0) {
            Some(free) => *free = seen_before,
            None if self.coin >> 63 == 0 => {
                doorkeeper[usize::from(at) % DOORKEEPER_SLOTS] = seen_before
            }
            None => {}
        }
        false
    }

    /// Which line is a key's home.
    #[inline]
    fn primary(&self, key: &HashedKey<N>) -> usize {
        (((key.hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// The set's other lines, in the order in which a flow of this home takes them.
    #[inline]
    fn other_lines(primary: usize) -> impl Iterator<Item = usize> {
        (1..Self::LINES).map(move |distance| primary ^ distance)
    }

    #[inline]
    fn places(line: usize) -> Range<usize> {
        line * Self::PLACES..(line + 1) * Self::PLACES
    }

    /// The line in which a key may be whose home is this one, but who stays elsewhere.
    #[inline]
    fn overflow_line(&self, primary: usize, key: &HashedKey<N>) -> Option<usize> {
        let word = self.lines[primary].0[W - 1];
        let distance = if Self::HAS_HINT_WORD {
            OverflowHints(word).distance(key.hash)
        } else {
            let [distance, ..] = (word >> Self::HINT_SHIFT).to_le_bytes();
            (distance != 0).then_some(distance.into())
        };
        distance.map(|distance| primary ^ distance)
    }

    /// Has a home say that a key stays in this line, if that is another. It can say of one more: see [`FlowTable::place_for`].
    fn add_hint(&mut self, primary: usize, key: &HashedKey<N>, line: usize) {
        if line != primary {
            let word = &mut self.lines[primary].0[W - 1];
            *word = if Self::HAS_HINT_WORD {
                OverflowHints(*word)
                    .with(key.hash, line ^ primary)
                    .map_or(*word, |OverflowHints(with)| with)
            } else {
                *word & !(u64::MAX << Self::HINT_SHIFT)
                    | ((line ^ primary) as u64) << Self::HINT_SHIFT
            };
        }
    }

    /// Has a home say no more that somebody stays in this line; of another one, if there is one.
    fn remove_hint(&mut self, primary: usize, line: usize) {
        if Self::HAS_HINT_WORD {
            let word = &mut self.lines[primary].0[W - 1];
            *word = OverflowHints(*word).without(line ^ primary).0;
        } else {
            let other = self.find_overflow(primary).map_or(0, |other| other ^ primary) as u64;
            let word = &mut self.lines[primary].0[W - 1];
            *word = *word & !(u64::MAX << Self::HINT_SHIFT) | other << Self::HINT_SHIFT;
        }
    }

    /// Where a key is.
    fn seek(&self, key: &HashedKey<N>) -> Option<usize> {
        let primary = self.primary(key);
        let far = |_| Self::other_lines(primary).find_map(|line| self.seek_in(line, key));
        self.seek_near(key, primary).or_else(|| self.overflow_line(primary, key).and_then(far))
    }

    /// Where a key is, of its home and of where that says.
    #[inline]
    fn seek_near(&self, key: &HashedKey<N>, primary: usize) -> Option<usize> {
        let other_lines =
            || self.overflow_line(primary, key).and_then(|line| self.seek_in(line, key));
        self.seek_in(primary, key).or_else(other_lines)
    }

    #[inline]
    fn seek_in(&self, line: usize, key: &HashedKey<N>) -> Option<usize> {
        let is_it = |at: &usize| self.epochs(*at).policies != 0 && is(self.place(*at), &key.key);
        Self::places(line).find(is_it)
    }

    /// Where a flow of this home is to stay: where nobody is, rather than where somebody is whose flow may well come again, and there rather than where
    /// an answer holds; but at home where that can say of no more who stay elsewhere.
    fn place_for(&self, key: &HashedKey<N>, primary: usize, now: Epochs) -> usize {
        if Self::HAS_HINT_WORD && OverflowHints(self.lines[primary].0[W - 1]).is_full() {
            return primary * Self::PLACES;
        }
        let all =
            || std::iter::once(primary).chain(Self::other_lines(primary)).flat_map(Self::places);
        let empty = all().find(|at| self.epochs(*at).policies == 0);
        let outdated = || all().find(|at| self.epochs(*at).policies != now.policies);
        // Whichever: the hash is as good as a die, and one set's flows have different ones.
        let die = usize::from(key.hash.to_le_bytes()[3]) % WAYS;
        empty.or_else(outdated).unwrap_or(primary / Self::LINES * WAYS + die)
    }

    /// Has whoever is in a place forgotten. Its home tells of another one, if there is one.
    fn evict(&mut self, place: usize, now: Epochs) -> InsertOutcome {
        let held = self.epochs(place).policies;
        if held == 0 {
            self.entries += 1;
            return InsertOutcome::Stored;
        }
        let (line, primary) = (place / Self::PLACES, self.primary_of(place));
        self.write(place, &CacheKey { words: [0; N], spi: 0 }, Value::NONE, Epochs::NEVER);
        if line != primary {
            self.remove_hint(primary, line);
        }
        if held == now.policies { InsertOutcome::Evicted } else { InsertOutcome::Stored }
    }

    /// The line of some flow that stays elsewhere, but is at home here.
    fn find_overflow(&self, primary: usize) -> Option<usize> {
        let is_one = |at: usize| self.epochs(at).policies != 0 && self.primary_of(at) == primary;
        Self::other_lines(primary).find(|line| Self::places(*line).any(is_one))
    }

    /// The home of who is in a place.
    fn primary_of(&self, place: usize) -> usize {
        self.primary(&self.key_of(place))
    }

    /// Who is in a place.
    fn key_of(&self, place: usize) -> HashedKey<N> {
        let words = self.place(place);
        self.hash(CacheKey { words: std::array::from_fn(|at| words[at]), spi: upper(words[N]) })
    }

    #[inline]
    fn place(&self, place: usize) -> &[u64; W] {
        &self.lines[place / Self::PLACES].0.as_chunks().0[place % Self::PLACES]
    }

    #[inline]
    fn epochs(&self, place: usize) -> Epochs {
        Epochs::of(self.place(place)[N])
    }

    #[inline]
    fn read(&self, place: usize, now: Epochs) -> ProbeResult {
        let words = self.place(place);
        let held = self.epochs(place);
        if held.policies != now.policies {
            return ProbeResult::Stale(place);
        }
        let value = Value::of(words[N + 1]);
        let bundle = if held.states == now.states { value.bundle } else { NO_BUNDLE };
        ProbeResult::Fresh(Value { bundle, ..value })
    }

    fn write(&mut self, place: usize, key: &CacheKey<N>, value: Value, now: Epochs) {
        let line = &mut self.lines[place / Self::PLACES].0;
        let words = &mut line.as_chunks_mut::<W>().0[place % Self::PLACES];
        words[..N].copy_from_slice(&key.words);
        words[N] = u64::from(key.spi) << 32 | u64::from(now.bits());
        let last = u64::from(value.bundle.min(NO_BUNDLE)) << 32 | u64::from(value.answer);
        words[N + 1] = words[N + 1] & !BUNDLE_AND_ANSWER | last;
    }
}

impl Value {
    /// Stands in places that nobody is in.
    const NONE: Self = Self { answer: 0, bundle: 0 };

    /// That in a place's last word.
    #[inline]
    fn of(word: u64) -> Self {
        Self { answer: lower(word), bundle: upper(word) & NO_BUNDLE }
    }
}

impl Epochs {
    /// Of no time.
    const NEVER: Self = Self { policies: 0, states: 0 };

    /// Both in one word.
    #[inline]
    fn bits(self) -> u32 {
        u32::from(self.policies) << 16 | u32::from(self.states)
    }

    /// Those in the word behind a place's key.
    #[inline]
    fn of(word: u64) -> Self {
        let [.., a, b, c, d] = word.to_be_bytes();
        Self { policies: u16::from_be_bytes([a, b]), states: u16::from_be_bytes([c, d]) }
    }
}

/// Without being touched: the system gives zeroed memory page by page.
fn zeroed<T: FromZeros>(len: usize) -> Box<[T]> {
    let none = |_| handle_alloc_error(Layout::new::<T>());
    <[T]>::new_box_zeroed_with_elems(len).unwrap_or_else(none)
}

/// Whether a place is a key's.
#[inline]
fn is<const N: usize, const W: usize>(words: &[u64; W], key: &CacheKey<N>) -> bool {
    differing(words, key) == 0 && upper(words[N]) == key.spi
}

/// The bits in which a place's flow is not a key's, SPI apart.
#[inline]
fn differing<const N: usize, const W: usize>(words: &[u64; W], key: &CacheKey<N>) -> u64 {
    (0..N).fold(0, |all, at| all | (words[at] ^ key.words[at]))
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
const fn lower(word: u64) -> u32 {
    word as u32
}

#[inline]
const fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}

mod overflow;
#[cfg(test)]
mod tests;

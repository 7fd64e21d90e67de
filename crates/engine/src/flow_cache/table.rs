//! A set-associative hash table of flows: sixteen flows per set, each with a primary cache line in
//! it.
//!
//! A look-up reads the primary line, given by the hash: two flows of IPv4 or one of IPv6, with key,
//! verdict and bundle; so it waits for memory once. A flow that finds its primary line full goes to
//! another line of the set, and the primary line holds a hint to it: IPv6 has [`OverflowHints`],
//! IPv4 the line of the latest such flow. That line is read next, and the whole set only if it is
//! not there. All memory is zeroed by the allocator and touched only as flows come.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Range;

use overflow::OverflowHints;
use uxfrm_classify::mix;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::key::CacheKey;

/// Flows of one family: keys of `N` words in slots of `W`, which divides the eight words of a line.
#[derive(Debug)]
pub(crate) struct FlowTable<const N: usize, const W: usize> {
    /// `2 * W` lines per set.
    lines: Box<[CacheLine]>,
    /// Tags of flows with one packet so far, by set; see [`FlowTable::seen_before`].
    doorkeeper: Box<[[u16; DOORKEEPER_SLOTS]]>,
    seed: [u64; 4],
    coin: u64,
    entries: usize,
}

/// A cache line of slots. A slot holds the key's words, the SPI over the [epochs](Epochs), and the
/// bundle over the verdict. Word `W - 1` of the line also holds [hints](FlowTable::overflow_line).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct CacheLine([u64; 8]);

/// Slots of a set.
pub(super) const WAYS: usize = 16;
/// First packets that a set remembers.
const DOORKEEPER_SLOTS: usize = 16;
/// Lines that are prefetched for an overflowed flow without a hint.
const LIKELY: usize = 4;

/// A key with its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashedKey<const N: usize> {
    key: CacheKey<N>,
    hash: u64,
}

/// Epochs of policies and SAs under which an entry was made; 0 is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epochs {
    pub(crate) policies: u16,
    pub(crate) states: u16,
}

/// Verdict of a flow, and the bundle by which it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) answer: u32,
    pub(crate) bundle: u32,
}

/// No bundle.
pub(crate) const NO_BUNDLE: u32 = u32::MAX >> 3;

/// Bits of a slot's last word that hold bundle and verdict; those above may hold a
/// [hint](FlowTable::HINT_SHIFT).
const BUNDLE_AND_ANSWER: u64 = (NO_BUNDLE as u64) << 32 | u32::MAX as u64;

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// A valid verdict, with its bundle if that is valid.
    Fresh(Value),
    /// Found, but policies have changed since.
    Stale(usize),
    /// Not found.
    Absent,
}

/// Outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// Stored in an empty or stale slot.
    Stored,
    /// Stored in the slot of another valid entry.
    Evicted,
    /// Not stored: it was the flow's first packet.
    Deferred,
}

impl<const N: usize> HashedKey<N> {
    /// All bits are equally random.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}

impl<const N: usize, const W: usize> FlowTable<N, W> {
    /// Slots of a line.
    const PLACES: usize = 8 / W;
    /// Lines of a set.
    const LINES: usize = WAYS / Self::PLACES;
    /// Bits from here on of word `W - 1` of an IPv4 line (its first slot's last word) hold the
    /// distance, by exclusive or, to the line of the latest flow that overflowed from this one; 0
    /// if none. In IPv6 no slot uses that word, and it holds [`OverflowHints`].
    const HINT_SHIFT: u32 = u64::BITS - Self::LINES.ilog2();
    /// Whether a line has a spare word for hints.
    const HAS_HINT_WORD: bool = Self::PLACES * (N + 2) < 8;

    /// A table for `flows`, rounded down to whole sets, at least one.
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

    /// Prefetches a key's primary line.
    #[inline]
    pub(crate) fn prefetch(&self, key: &HashedKey<N>) {
        uxfrm_packet::prefetch_far(&self.lines[self.primary(key)]);
    }

    /// Prefetches the line that a hint names.
    #[inline]
    pub(crate) fn prefetch_overflow(&self, key: &HashedKey<N>) {
        if let Some(overflow_line) = self.overflow_line(self.primary(key), key) {
            uxfrm_packet::prefetch_far(&self.lines[overflow_line]);
        }
    }

    /// Prefetches what [`FlowTable::find`] mostly reads beyond that.
    pub(crate) fn prefetch_rest_of_set(&self, key: &HashedKey<N>) {
        let likely = Self::other_lines(self.primary(key)).take(LIKELY);
        likely.for_each(|line| uxfrm_packet::prefetch_far(&self.lines[line]));
    }

    /// Prefetches what [`FlowTable::offer`] reads first.
    #[inline]
    pub(crate) fn prefetch_doorkeeper(&self, key: &HashedKey<N>) {
        uxfrm_packet::prefetch_far(&self.doorkeeper[self.primary(key) / Self::LINES]);
    }

    /// The entry of a key, if it is in the primary line and entirely valid; else see
    /// [`FlowTable::find`].
    #[inline]
    pub(crate) fn find_primary(&self, key: &HashedKey<N>, now: Epochs) -> Option<Value> {
        let places = self.lines[self.primary(key)].0.as_chunks::<W>().0;
        let fresh = u64::from(key.key.spi) << 32 | u64::from(now.bits());
        let fits = |words: &[u64; W]| differing(words, &key.key) | (words[N] ^ fresh) == 0;
        // A branch per slot would be mispredicted.
        let words = &places[usize::from(!fits(&places[0])) % Self::PLACES];
        fits(words).then(|| Value::of(words[N + 1]))
    }

    /// Probes the primary line and the one that a hint names. `None`: only [`FlowTable::find`] can
    /// tell.
    #[inline]
    pub(crate) fn find_near(&self, key: &HashedKey<N>, now: Epochs) -> Option<ProbeResult> {
        let primary = self.primary(key);
        match (self.seek_near(key, primary), self.overflow_line(primary, key)) {
            (Some(place), _) => Some(self.read(place, now)),
            (None, Some(_)) => None,
            (None, None) => Some(ProbeResult::Absent),
        }
    }

    /// Probes the whole set, if needed.
    pub(crate) fn find(&self, key: &HashedKey<N>, now: Epochs) -> ProbeResult {
        self.seek(key).map_or(ProbeResult::Absent, |place| self.read(place, now))
    }

    /// A stale entry: its policy epoch, verdict, and bundle if valid.
    #[inline]
    pub(crate) fn outdated(&self, place: usize, now: Epochs) -> (u16, Value) {
        let Epochs { policies, states } = self.epochs(place);
        let value = Value::of(self.place(place)[N + 1]);
        let bundle = if states == now.states { value.bundle } else { NO_BUNDLE };
        (policies, Value { bundle, ..value })
    }

    /// Marks a stale verdict as valid.
    #[inline]
    pub(crate) fn confirm(&mut self, place: usize, now: Epochs) {
        let Epochs { states, .. } = self.epochs(place);
        let words =
            &mut self.lines[place / Self::PLACES].0.as_chunks_mut::<W>().0[place % Self::PLACES];
        words[N] = words[N] & !u64::from(u32::MAX) | u64::from(Epochs { states, ..now }.bits());
    }

    /// Stores a new verdict in a stale slot, without bundle.
    pub(crate) fn refresh(&mut self, place: usize, key: &HashedKey<N>, answer: u32, now: Epochs) {
        // Another flow of the batch may have taken the slot.
        if is(self.place(place), &key.key) {
            self.write(place, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        }
    }

    /// Stores the bundle of a flow whose verdict is cached.
    pub(crate) fn set_bundle(&mut self, key: &HashedKey<N>, value: Value, now: Epochs) {
        if let Some(place) = self.seek(key)
            && matches!(self.read(place, now), ProbeResult::Fresh(held) if held.answer == value.answer)
        {
            self.write(place, &key.key, value, now);
        }
    }

    /// Stores the verdict of a flow, from its second packet on.
    pub(crate) fn offer(&mut self, key: &HashedKey<N>, answer: u32, now: Epochs) -> InsertOutcome {
        let primary = self.primary(key);
        // A batch may have several packets of one flow.
        if !self.seen_before(primary / Self::LINES, key) || self.seek(key).is_some() {
            return InsertOutcome::Deferred;
        }
        let place = self.place_for(key, primary, now);
        let settled = self.evict(place, now);
        self.add_hint(primary, key, place / Self::PLACES);
        self.write(place, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        settled
    }

    /// Empties the table. Fresh zeroed memory replaces it, so that untouched pages stay untouched.
    pub(crate) fn clear(&mut self) {
        let lines = std::mem::take(&mut self.lines).len();
        self.lines = zeroed(lines);
        self.entries = 0;
    }

    /// Capacity of a table for `flows`.
    pub(crate) fn room_for(flows: usize) -> usize {
        (flows / WAYS).max(1) * WAYS
    }

    /// Capacity in flows.
    pub(crate) fn room(&self) -> usize {
        self.doorkeeper.len() * WAYS
    }

    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.doorkeeper)
    }

    /// Doorkeeper: whether the flow had a packet recently. A first packet leaves a tag of the hash,
    /// of which each set remembers sixteen.
    fn seen_before(&mut self, set: usize, key: &HashedKey<N>) -> bool {
        let [low, high, at, ..] = key.hash.to_le_bytes();
        let seen_before = u16::from_le_bytes([low, high]) | 1;
        let doorkeeper = &mut self.doorkeeper[set];
        if let Some(seen) = doorkeeper.iter_mut().find(|seen| **seen == seen_before) {
            *seen = 0;
            return true;
        }
        // Random replacement: otherwise alternating flows would displace each other for ever.
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

    /// Primary line of a key.
    #[inline]
    fn primary(&self, key: &HashedKey<N>) -> usize {
        (((key.hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// The set's other lines, in the order in which flows of this line overflow.
    #[inline]
    fn other_lines(primary: usize) -> impl Iterator<Item = usize> {
        (1..Self::LINES).map(move |distance| primary ^ distance)
    }

    #[inline]
    fn places(line: usize) -> Range<usize> {
        line * Self::PLACES..(line + 1) * Self::PLACES
    }

    /// The line that the primary line's hint names for a key.
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

    /// Adds a hint to the primary line, if the key is in another one. For the limit see
    /// [`FlowTable::place_for`].
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

    /// Removes the hint to a line; IPv4 then names another overflowed flow, if any.
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

    /// Finds the slot of a key.
    fn seek(&self, key: &HashedKey<N>) -> Option<usize> {
        let primary = self.primary(key);
        let far = |_| Self::other_lines(primary).find_map(|line| self.seek_in(line, key));
        self.seek_near(key, primary).or_else(|| self.overflow_line(primary, key).and_then(far))
    }

    /// Finds the slot of a key in its primary line or the line that a hint names.
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

    /// Chooses a slot: an empty one, else a stale one, else a random one; but the primary line if
    /// it has no room for another hint.
    fn place_for(&self, key: &HashedKey<N>, primary: usize, now: Epochs) -> usize {
        if Self::HAS_HINT_WORD && OverflowHints(self.lines[primary].0[W - 1]).is_full() {
            return primary * Self::PLACES;
        }
        let all =
            || std::iter::once(primary).chain(Self::other_lines(primary)).flat_map(Self::places);
        let empty = all().find(|at| self.epochs(*at).policies == 0);
        let outdated = || all().find(|at| self.epochs(*at).policies != now.policies);
        // The hash serves as random number.
        let die = usize::from(key.hash.to_le_bytes()[3]) % WAYS;
        empty.or_else(outdated).unwrap_or(primary / Self::LINES * WAYS + die)
    }

    /// Frees a slot, and updates the hints.
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

    /// Line of some flow that overflowed from this one.
    fn find_overflow(&self, primary: usize) -> Option<usize> {
        let is_one = |at: usize| self.epochs(at).policies != 0 && self.primary_of(at) == primary;
        Self::other_lines(primary).find(|line| Self::places(*line).any(is_one))
    }

    /// Primary line of the flow in a slot.
    fn primary_of(&self, place: usize) -> usize {
        self.primary(&self.key_of(place))
    }

    /// Key of the flow in a slot.
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
    /// Value of empty slots.
    const NONE: Self = Self { answer: 0, bundle: 0 };

    /// Decodes a slot's last word.
    #[inline]
    fn of(word: u64) -> Self {
        Self { answer: lower(word), bundle: upper(word) & NO_BUNDLE }
    }
}

impl Epochs {
    /// Epochs of empty slots.
    const NEVER: Self = Self { policies: 0, states: 0 };

    /// Both epochs in one word.
    #[inline]
    fn bits(self) -> u32 {
        u32::from(self.policies) << 16 | u32::from(self.states)
    }

    /// Decodes the word behind a slot's key.
    #[inline]
    fn of(word: u64) -> Self {
        let [.., a, b, c, d] = word.to_be_bytes();
        Self { policies: u16::from_be_bytes([a, b]), states: u16::from_be_bytes([c, d]) }
    }
}

/// Allocates without touching pages: the system zeroes them on demand.
fn zeroed<T: FromZeros>(len: usize) -> Box<[T]> {
    let none = |_| handle_alloc_error(Layout::new::<T>());
    <[T]>::new_box_zeroed_with_elems(len).unwrap_or_else(none)
}

/// Whether a slot holds a key.
#[inline]
fn is<const N: usize, const W: usize>(words: &[u64; W], key: &CacheKey<N>) -> bool {
    differing(words, key) == 0 && upper(words[N]) == key.spi
}

/// Bits in which a slot's key differs, without the SPI.
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

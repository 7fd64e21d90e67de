//! A set-associative table from flows to what was found out about them: eight flows a set, one byte of each one's hash side by side.
//!
//! A look-up reads eight bytes that say where in its set a flow may be, and then that place: 32 bytes for IPv4, 64 for IPv6, within
//! one cache line. All memory comes zeroed from the allocator and is touched only as flows come.

use super::key::Key;
use crate::spd::classifier::ternary::mix;

/// Flows of one family: keys of `N` words in places of `W`.
#[derive(Debug)]
pub(crate) struct Sets<const N: usize, const W: usize> {
    /// Eight bits of each way's hash, the first lowest; 0 is a free place.
    tags: Box<[u64]>,
    /// Places of `W` words, from the first one on that is aligned to a place's size.
    words: Box<[u64]>,
    aligned: usize,
    /// Hashes of flows seen once: what is met here again is let in.
    door: Box<[u16]>,
    seed: [u64; 4],
    coin: u64,
    entries: usize,
}

const WAYS: usize = 8;
/// Door places for each set.
const DOORS: usize = 8;

/// A key with its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashed<const N: usize> {
    key: Key<N>,
    hash: u64,
}

impl<const N: usize> Hashed<N> {
    /// Stands where there is no key yet.
    pub(crate) const NONE: Self = Self { key: Key { words: [0; N], spi: 0 }, hash: 0 };
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
pub(crate) const NO_BUNDLE: u32 = u32::MAX;

/// What a set says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The policies, which hold; the bundle if it does.
    Fresh(Value),
    /// It was there, but the policies have changed since.
    Stale(usize),
    /// It is not there.
    Absent,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is kept.
    Kept,
    /// It is kept in another's place.
    Evicted,
    /// It was the flow's first packet.
    NotYet,
}

impl<const N: usize, const W: usize> Sets<N, W> {
    /// Room for `flows`, rounded up to a power of two.
    pub(crate) fn new(flows: usize, seed: u64) -> Self {
        let sets = flows.div_ceil(WAYS).max(1).next_power_of_two();
        let words: Box<[u64]> = vec![0; sets * WAYS * W + W - 1].into();
        let beyond = words.as_ptr().addr() / size_of::<u64>() % W;
        Self {
            tags: vec![0; sets].into(),
            aligned: (W - beyond) % W,
            words,
            door: vec![0; sets * DOORS].into(),
            seed: [1, 2, 3, 4].map(|salt: u64| {
                mix(seed ^ 0x9e37_79b9_7f4a_7c15, salt.wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1
            }),
            coin: seed,
            entries: 0,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: Key<N>) -> Hashed<N> {
        let mut hash = u64::from(key.spi).wrapping_mul(self.seed[3]);
        let (pairs, rest) = key.words.as_chunks::<2>();
        for ([a, b], seed) in pairs.iter().zip(self.seed) {
            hash ^= mix(a ^ seed, b ^ seed.rotate_left(32));
        }
        if let [last] = rest {
            hash = mix(hash ^ self.seed[2], last ^ self.seed[1]);
        }
        Hashed { key, hash }
    }

    /// Fetches the tags of a key's set.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Hashed<N>) {
        uxfrm_packet::prefetch(&self.tags[self.set(key)]);
    }

    /// Where a key is if it is anywhere and nothing is in its way; fetched for [`Sets::find_at`].
    #[inline]
    pub(crate) fn likely(&self, key: &Hashed<N>) -> usize {
        let set = self.set(key);
        let place = set * WAYS + first(matching(self.tags[set], tag(key))) % WAYS;
        uxfrm_packet::prefetch(self.place(place));
        place
    }

    /// All that is known of a key, if it is where it is likely to be and nothing has changed since; else see [`Sets::find`].
    #[inline]
    pub(crate) fn find_at(&self, likely: usize, key: &Hashed<N>, now: Epochs) -> Option<Value> {
        let words = self.place(likely);
        let same = is(words, &key.key) & (lower(words[N + 1]) == now.bits());
        same.then_some(Value { answer: lower(words[N]), bundle: upper(words[N + 1]) })
    }

    /// What is known of a key.
    pub(crate) fn find(&self, key: &Hashed<N>, now: Epochs) -> Finding {
        self.seek(key).map_or(Finding::Absent, |place| self.read(place, now))
    }

    /// An answer that was stale is known again; a bundle that was found under these policies has to be resolved anew.
    pub(crate) fn renew(&mut self, place: usize, key: &Hashed<N>, answer: u32, now: Epochs) {
        // Another flow of the same batch may have taken the place.
        if self.is(place, &key.key) {
            self.write(place, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        }
    }

    /// The bundle of a flow whose policies are known.
    pub(crate) fn teach(&mut self, key: &Hashed<N>, value: Value, now: Epochs) {
        if let Some(place) = self.seek(key)
            && matches!(self.read(place, now), Finding::Fresh(held) if held.answer == value.answer)
        {
            self.write(place, &key.key, value, now);
        }
    }

    /// Keeps an answer for a flow that has none, from its second packet on.
    pub(crate) fn offer(&mut self, key: &Hashed<N>, answer: u32, now: Epochs) -> Settled {
        let set = self.set(key);
        let [_, _, high, low, at, die, ..] = key.hash.to_be_bytes();
        let door = &mut self.door[set * DOORS + usize::from(at) % DOORS];
        let knock = u16::from_be_bytes([high, low]) | 1;
        if *door != knock {
            // Two flows before one door, turn by turn, would keep each other out for ever.
            self.coin = self.coin.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            if *door == 0 || self.coin >> 63 == 0 {
                *door = knock;
            }
            return Settled::NotYet;
        }
        *door = 0;
        // Several packets of one flow may come in one batch.
        if self.seek(key).is_some() {
            return Settled::NotYet;
        }
        let tags = self.tags[set].to_le_bytes();
        let free = tags.iter().position(|tag| *tag == 0);
        let stale = || (0..WAYS).find(|way| self.epochs(set * WAYS + way).policies != now.policies);
        let (way, settled) = match (free, stale()) {
            (Some(way), _) => (way, Settled::Kept),
            (None, Some(way)) => (way, Settled::Evicted),
            // Whichever: the hash is as good as a die, and one set's flows have different ones.
            (None, None) => (usize::from(die) % WAYS, Settled::Evicted),
        };
        self.entries += usize::from(settled == Settled::Kept);
        let shift = 8 * way;
        self.tags[set] = self.tags[set] & !(0xff << shift) | u64::from(tag(key)) << shift;
        self.write(set * WAYS + way, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        settled
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.tags.fill(0);
        self.entries = 0;
    }

    /// Flows that there is room for.
    pub(crate) const fn room(&self) -> usize {
        self.tags.len() * WAYS
    }

    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.tags) + size_of_val(&*self.words) + size_of_val(&*self.door)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fewer sets than that")]
    fn set(&self, key: &Hashed<N>) -> usize {
        key.hash as usize & (self.tags.len() - 1)
    }

    /// Where a key is.
    fn seek(&self, key: &Hashed<N>) -> Option<usize> {
        let set = self.set(key);
        let mut found = matching(self.tags[set], tag(key));
        while found != 0 {
            let place = set * WAYS + first(found);
            if self.is(place, &key.key) {
                return Some(place);
            }
            found &= found - 1;
        }
        None
    }

    #[inline]
    fn place(&self, place: usize) -> &[u64; W] {
        &self.words[self.aligned..].as_chunks().0[place]
    }

    #[inline]
    fn is(&self, place: usize, key: &Key<N>) -> bool {
        is(self.place(place), key)
    }

    #[inline]
    fn epochs(&self, place: usize) -> Epochs {
        Epochs::of(self.place(place)[N + 1])
    }

    #[inline]
    fn read(&self, place: usize, now: Epochs) -> Finding {
        let words = self.place(place);
        let (answer, bundle) = (lower(words[N]), upper(words[N + 1]));
        let held = self.epochs(place);
        if held.policies != now.policies {
            return Finding::Stale(place);
        }
        let bundle = if held.states == now.states { bundle } else { NO_BUNDLE };
        Finding::Fresh(Value { answer, bundle })
    }

    fn write(&mut self, place: usize, key: &Key<N>, value: Value, now: Epochs) {
        let from = self.aligned + place * W;
        let words = &mut self.words[from..from + W];
        words[..N].copy_from_slice(&key.words);
        words[N] = u64::from(key.spi) << 32 | u64::from(value.answer);
        words[N + 1] = u64::from(value.bundle) << 32 | u64::from(now.bits());
    }
}

impl Epochs {
    /// Both in one word.
    #[inline]
    fn bits(self) -> u32 {
        u32::from(self.policies) << 16 | u32::from(self.states)
    }

    /// Those in a place's last word.
    #[inline]
    fn of(word: u64) -> Self {
        let [.., a, b, c, d] = word.to_be_bytes();
        Self { policies: u16::from_be_bytes([a, b]), states: u16::from_be_bytes([c, d]) }
    }
}

/// Whether a place is a key's.
#[inline]
fn is<const N: usize, const W: usize>(words: &[u64; W], key: &Key<N>) -> bool {
    let differing = (0..N).fold(0, |all, at| all | (words[at] ^ key.words[at]));
    differing | (words[N] >> 32 ^ u64::from(key.spi)) == 0
}

/// The byte that stands for a key among its set's; never 0.
#[inline]
fn tag<const N: usize>(key: &Hashed<N>) -> u8 {
    key.hash.to_be_bytes()[0].max(1)
}

/// The uppermost bit of each byte in which a tag may stand; now and then one byte too many, above one that is right.
#[inline]
const fn matching(tags: u64, tag: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zero_where_equal = tags ^ (ONES * tag as u64);
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & ONES << 7
}

#[inline]
const fn first(found: u64) -> usize {
    (found.trailing_zeros() / 8) as usize
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

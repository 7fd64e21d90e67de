//! A set-associative table from flows to what was found out about them: seven flows a set, one byte of each one's hash side by side before them.
//!
//! A look-up reads eight bytes that say where in its set a flow may be, and then that place: 32 bytes for IPv4, 64 for IPv6, within
//! one cache line. A set is within one page, but for some, whatever the pages' size: finding the page is a good part of the cost of a read at
//! random. All memory comes zeroed from the allocator and is touched only as flows come.

use super::key::Key;
use crate::spd::classifier::ternary::mix;

/// Flows of one family: keys of `N` words in places of `W`.
#[derive(Debug)]
pub(crate) struct Sets<const N: usize, const W: usize> {
    /// Places of `W` words, eight of each set: what is known of the set, then its flows. From the first word on that is aligned to a
    /// place's size.
    words: Box<[u64]>,
    aligned: usize,
    sets: usize,
    seed: [u64; 4],
    coin: u64,
    entries: usize,
}

/// Places of a set, the first for the set itself: a word of tags, eight bits of each flow's hash, 0 for a free place and for this one;
/// two words of [doors](Sets::knock); the rest is 0, and no flow is ever found here.
const PLACES: usize = 8;
/// Flows of a set.
const WAYS: usize = PLACES - 1;
const TAGS: usize = 0;
const DOORS: [usize; 2] = [1, 2];

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
    /// Room for `flows`, rounded down to whole sets, of which there is one at least.
    pub(crate) fn new(flows: usize, seed: u64) -> Self {
        let sets = Self::room_for(flows) / WAYS;
        let words: Box<[u64]> = vec![0; sets * PLACES * W + W - 1].into();
        let beyond = words.as_ptr().addr() / size_of::<u64>() % W;
        Self {
            words,
            aligned: (W - beyond) % W,
            sets,
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
        uxfrm_packet::prefetch(self.place(self.set(key)));
    }

    /// Where a key is if it is anywhere and nothing is in its way; fetched for [`Sets::find_at`].
    #[inline]
    pub(crate) fn likely(&self, key: &Hashed<N>) -> usize {
        let set = self.set(key);
        let place = set + first(matching(self.tags(set), tag(key))) % PLACES;
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
        if !self.knock(set, key) {
            return Settled::NotYet;
        }
        // Several packets of one flow may come in one batch.
        if self.seek(key).is_some() {
            return Settled::NotYet;
        }
        let tags = self.tags(set).to_le_bytes();
        let free = (1..PLACES).find(|place| tags[*place] == 0);
        let stale = || (1..PLACES).find(|at| self.epochs(set + at).policies != now.policies);
        let (at, settled) = match (free, stale()) {
            (Some(at), _) => (at, Settled::Kept),
            (None, Some(at)) => (at, Settled::Evicted),
            // Whichever: the hash is as good as a die, and one set's flows have different ones.
            (None, None) => (1 + usize::from(key.hash.to_le_bytes()[3]) % WAYS, Settled::Evicted),
        };
        self.entries += usize::from(settled == Settled::Kept);
        let shift = 8 * at;
        let tags = self.tags(set) & !(0xff << shift) | u64::from(tag(key)) << shift;
        self.place_mut(set)[TAGS] = tags;
        self.write(set + at, &key.key, Value { answer, bundle: NO_BUNDLE }, now);
        settled
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        (0..self.sets).for_each(|set| self.place_mut(set * PLACES)[TAGS] = 0);
        self.entries = 0;
    }

    /// Flows that there is room for when `flows` are asked for.
    pub(crate) fn room_for(flows: usize) -> usize {
        (flows / WAYS).max(1) * WAYS
    }

    /// Flows that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.sets * WAYS
    }

    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Whether a flow was here before, of late: each set has eight doors, at which flows leave a part of their hash with their first packet.
    fn knock(&mut self, set: usize, key: &Hashed<N>) -> bool {
        let [_, low, high, at, ..] = key.hash.to_le_bytes();
        let knock = u16::from_le_bytes([low, high]) | 1;
        let at_doors: [u16; 8] = std::array::from_fn(|door| {
            let [a, b, ..] = (self.place(set)[DOORS[door / 4]] >> (door % 4 * 16)).to_le_bytes();
            u16::from_le_bytes([a, b])
        });
        if let Some(door) = at_doors.iter().position(|seen| *seen == knock) {
            self.leave(set, door, 0);
            return true;
        }
        // Flows before one door, turn by turn, would keep each other out for ever.
        self.coin = self.coin.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        match at_doors.iter().position(|seen| *seen == 0) {
            Some(door) => self.leave(set, door, knock),
            None if self.coin >> 63 == 0 => self.leave(set, usize::from(at >> 5), knock),
            None => {}
        }
        false
    }

    fn leave(&mut self, set: usize, door: usize, knock: u16) {
        let doors = &mut self.place_mut(set)[DOORS[door / 4]];
        let shift = door % 4 * 16;
        *doors = *doors & !(0xffff << shift) | u64::from(knock) << shift;
    }

    /// The first place of a key's set.
    #[inline]
    fn set(&self, key: &Hashed<N>) -> usize {
        (((key.hash >> 32) * self.sets as u64) >> 32) as usize * PLACES
    }

    #[inline]
    fn tags(&self, set: usize) -> u64 {
        self.place(set)[TAGS]
    }

    /// Where a key is.
    fn seek(&self, key: &Hashed<N>) -> Option<usize> {
        let set = self.set(key);
        let mut found = matching(self.tags(set), tag(key));
        while found != 0 {
            let place = set + first(found);
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
    fn place_mut(&mut self, place: usize) -> &mut [u64; W] {
        &mut self.words[self.aligned..].as_chunks_mut().0[place]
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
        let words = self.place_mut(place);
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
    key.hash.to_le_bytes()[0].max(1)
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

//! A set-associative table from flows to answers: eight flows a set, what tells them apart in one cache line.

use crate::spd::classifier::ternary::mix;

/// Flows of one family. `N` words are a key.
#[derive(Debug)]
pub(crate) struct Sets<const N: usize> {
    lines: Box<[Line]>,
    keys: Box<[Keys<N>]>,
    /// Hashes of flows seen once: what is met here again is let in.
    door: Box<[u16]>,
    seed: [u64; 4],
    entries: usize,
}

/// What is known of a set without its keys.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    /// Sixteen bits of each way's hash, the first lowest.
    tags: u128,
    /// Under which epoch an answer held; 0 is a free place.
    epochs: [u16; WAYS],
    answers: [u32; WAYS],
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Keys<const N: usize>([[u64; N]; WAYS]);

const WAYS: usize = 8;
/// Door places for each set.
const DOORS: usize = 8;

/// A key with its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashed<const N: usize> {
    key: [u64; N],
    hash: u64,
}

/// What a set says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The answer, which holds.
    Fresh(u32),
    /// It was there, but something has changed since.
    Stale { way: u32, answer: u32 },
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

impl<const N: usize> Sets<N> {
    /// Room for `flows`, rounded up to a power of two.
    pub(crate) fn new(flows: usize, seed: u64) -> Self {
        let sets = flows.div_ceil(WAYS).max(1).next_power_of_two();
        Self {
            lines: vec![Line::default(); sets].into(),
            keys: vec![Keys([[0; N]; WAYS]); sets].into(),
            door: vec![0; sets * DOORS].into(),
            seed: [1, 2, 3, 4].map(|salt: u64| {
                mix(seed ^ 0x9e37_79b9_7f4a_7c15, salt.wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1
            }),
            entries: 0,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: [u64; N]) -> Hashed<N> {
        let mut hash = 0;
        let (pairs, rest) = key.as_chunks::<2>();
        for ([a, b], seed) in pairs.iter().zip(self.seed) {
            hash ^= mix(a ^ seed, b ^ seed.rotate_left(32));
        }
        if let [last] = rest {
            hash ^= last.wrapping_mul(self.seed[3]);
        }
        Hashed { key, hash: mix(hash, self.seed[0]) }
    }

    /// Fetches the set of a key.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Hashed<N>) {
        uxfrm_packet::prefetch(&self.lines[self.set(key)]);
    }

    /// Fetches the key that a set may have at the place of this one.
    #[inline]
    pub(crate) fn prefetch_key(&self, key: &Hashed<N>) {
        let set = self.set(key);
        if let Some(way) = ways(self.lines[set].tags, tag(key)).next() {
            uxfrm_packet::prefetch(&self.keys[set].0[way]);
        }
    }

    #[inline]
    pub(crate) fn find(&self, key: &Hashed<N>, epoch: u16) -> Finding {
        let set = self.set(key);
        let line = &self.lines[set];
        for way in ways(line.tags, tag(key)) {
            if line.epochs[way] != 0 && self.keys[set].0[way] == key.key {
                let answer = line.answers[way];
                return match line.epochs[way] == epoch {
                    true => Finding::Fresh(answer),
                    false => Finding::Stale { way: u32::try_from(way).unwrap_or(0), answer },
                };
            }
        }
        Finding::Absent
    }

    /// An answer that was stale is known again.
    pub(crate) fn renew(&mut self, key: &Hashed<N>, way: u32, answer: u32, epoch: u16) {
        let set = self.set(key);
        let way = way as usize % WAYS;
        // Another flow of the same batch may have taken the place.
        if self.keys[set].0[way] == key.key {
            self.lines[set].epochs[way] = epoch;
            self.lines[set].answers[way] = answer;
        }
    }

    /// Keeps an answer for a flow that has none, from its second packet on.
    pub(crate) fn offer(&mut self, key: &Hashed<N>, answer: u32, epoch: u16) -> Settled {
        let set = self.set(key);
        let door = &mut self.door[set * DOORS + usize::from(key.hash.to_be_bytes()[3]) % DOORS];
        let knock = u16::from_be_bytes([key.hash.to_be_bytes()[4], key.hash.to_be_bytes()[2]]) | 1;
        if *door != knock {
            *door = knock;
            return Settled::NotYet;
        }
        // Several packets of one flow may come in one batch.
        if self.find(key, epoch) != Finding::Absent {
            return Settled::NotYet;
        }
        let line = &mut self.lines[set];
        let free = line.epochs.iter().position(|held| *held == 0);
        let stale = || line.epochs.iter().position(|held| *held != epoch);
        let (way, settled) = match (free, stale()) {
            (Some(way), _) => (way, Settled::Kept),
            (None, Some(way)) => (way, Settled::Evicted),
            // Whichever: the hash is as good as a die, and one set's flows have different ones.
            (None, None) => (usize::from(key.hash.to_be_bytes()[5]) % WAYS, Settled::Evicted),
        };
        self.entries += usize::from(settled == Settled::Kept);
        line.tags &= !(0xffff << (16 * way));
        line.tags |= u128::from(tag(key)) << (16 * way);
        line.epochs[way] = epoch;
        line.answers[way] = answer;
        self.keys[set].0[way] = key.key;
        settled
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.lines.fill(Line::default());
        self.entries = 0;
    }

    /// Flows that there is room for.
    pub(crate) const fn room(&self) -> usize {
        self.lines.len() * WAYS
    }

    pub(crate) const fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.keys) + size_of_val(&*self.door)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fewer sets than that")]
    fn set(&self, key: &Hashed<N>) -> usize {
        key.hash as usize & (self.lines.len() - 1)
    }
}

#[inline]
fn tag<const N: usize>(key: &Hashed<N>) -> u16 {
    let [high, low, ..] = key.hash.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Where in `tags` a tag may stand; now and then one place too many.
#[inline]
fn ways(tags: u128, tag: u16) -> impl Iterator<Item = usize> + use<> {
    const ONES: u128 = 0x0001_0001_0001_0001_0001_0001_0001_0001;
    let zero_where_equal = tags ^ (ONES * u128::from(tag));
    let mut found = zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & ONES << 15;
    std::iter::from_fn(move || {
        (found != 0).then(|| {
            let way = found.trailing_zeros() / 16;
            found &= found - 1;
            way as usize
        })
    })
}

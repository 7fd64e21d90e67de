//! IVs of an SA: a random prefix, then the low half of the sequence number.
//!
//! Counter modes break when one key meets one IV twice. A sender never repeats a number, but
//! numbers alone are not enough: manual SAs often have *one key for both directions*, a key may
//! serve several SAs, and a lost file of used numbers begins at 1 again. So the upper half of the
//! 64-bit IV counter is 32 random bits, drawn for each SA, each start and each upper half of the
//! number, and never computed from addresses. An owner that keeps numbers across restarts draws
//! none that it knows for the key; see `docs/sequence-numbers.md`. The kernel's `crypto/seqiv.c`
//! masks the number with random bits per SA, too.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::Sa;

/// Upper half of the IVs for the 2^32 sequence numbers that share an upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvPrefix {
    /// Upper half of the sequence numbers.
    upper: u32,
    /// Zero if none was drawn.
    bits: u32,
}

impl IvPrefix {
    /// Serves no number.
    pub(crate) const NONE: Self = Self { upper: u32::MAX, bits: 0 };

    /// `bits` for all sequence numbers whose upper half is `upper`.
    #[must_use]
    pub const fn new(upper: u32, bits: NonZeroU32) -> Self {
        Self { upper, bits: bits.get() }
    }

    /// The IV counter of a sequence number; `None` if it has another upper half.
    #[must_use]
    #[inline(always)]
    pub const fn counter(self, sequence: u64) -> Option<u64> {
        if sequence >> 32 == self.upper as u64 && self.bits != 0 {
            Some((self.bits as u64) << 32 | sequence & 0xffff_ffff)
        } else {
            None
        }
    }

    /// XOR mask from sequence numbers to IV counters for `count` numbers from `first` on; `None`
    /// unless all have this upper half.
    #[inline(always)]
    pub(crate) const fn over(self, first: u64, count: usize) -> Option<u64> {
        let last = first.saturating_add(count as u64);
        if self.counter(first).is_some() && self.counter(last).is_some() {
            Some(((self.upper ^ self.bits) as u64) << 32)
        } else {
            None
        }
    }

    /// Upper half of the sequence numbers.
    #[must_use]
    pub const fn upper(self) -> u32 {
        self.upper
    }

    /// The random bits.
    #[must_use]
    pub const fn bits(self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.bits)
    }

    /// For an SA whose owner draws only the first prefix: each upper half has another one, never
    /// the first.
    pub(crate) fn derived(first: NonZeroU32, upper: u32) -> Self {
        // An odd step reaches every value once, so no two halves of an SA share a prefix; 0 maps to
        // the value left out.
        let bits = first.get().wrapping_add(upper.wrapping_mul(0x9e37_79b1));
        Self { upper, bits: if bits == 0 { u32::MAX } else { bits } }
    }
}

impl Sa {
    /// IV prefix of the next number to send, for callers that keep it: [`IvPrefix::counter`] tells
    /// when it no longer serves.
    #[must_use]
    pub fn next_iv_prefix(&self) -> IvPrefix {
        let next = self.sequence().last().saturating_add(1);
        self.iv_prefix(upper_half(next)).unwrap_or(IvPrefix::NONE)
    }

    /// The IV prefix for an upper half, if it was drawn.
    #[must_use]
    pub fn iv_prefix(&self, upper: u32) -> Option<IvPrefix> {
        let first = self.first();
        let drawn = NonZeroU32::new(first.iv_prefix.load(Ordering::Relaxed));
        let set = || first.live_if_used().and_then(|live| live.ivs.of(upper));
        match (upper, drawn) {
            (0, _) => drawn.map(|bits| IvPrefix::new(0, bits)),
            // Without an owner, later halves are derived.
            (_, Some(bits)) if !self.shared.keeper.is_some() => {
                Some(set().unwrap_or_else(|| IvPrefix::derived(bits, upper)))
            }
            (_, Some(_) | None) => set(),
        }
    }

    /// Sets the prefix for numbers with its upper half, before any of them is
    /// [reserved](crate::Sequence::reserve). With a [`ReplayStore`](crate::ReplayStore) the owner
    /// sets that of each upper half; without one, all follow from the first.
    pub fn set_iv_prefix(&self, prefix: IvPrefix) {
        let first = self.first();
        match (prefix.upper(), prefix.bits()) {
            (0, bits) => first.iv_prefix.store(bits.map_or(0, NonZeroU32::get), Ordering::Relaxed),
            _ => first.live().ivs.set(prefix),
        }
    }

    /// The IV counter of a number that was handed out.
    ///
    /// # Panics
    /// When no prefix was drawn for the number: an IV must not be guessed. Workers panic so, too,
    /// where an owner with a [`ReplayStore`](crate::ReplayStore) reserves numbers from 2^32 on
    /// without [drawing](Sa::set_iv_prefix) first.
    #[must_use]
    #[cold]
    pub fn iv_counter(&self, sequence: u64) -> u64 {
        self.iv_prefix(upper_half(sequence))
            .and_then(|prefix| prefix.counter(sequence))
            .expect("a prefix is drawn before its numbers are reserved")
    }

    /// Keeps another generation's prefixes for numbers above `sent`.
    pub(super) fn keep_iv_prefixes(&self, old: &Self, sent: u64) {
        let upper = upper_half(sent);
        [0, upper, upper.saturating_add(1)]
            .into_iter()
            .filter_map(|upper| old.iv_prefix(upper))
            .for_each(|prefix| self.set_iv_prefix(prefix));
    }
}

const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}

/// Prefixes of two consecutive upper halves: all that batches in flight may need.
#[derive(Debug, Default)]
pub(crate) struct IvPrefixes([AtomicU64; 2]);

impl IvPrefixes {
    /// Sets the prefix of an upper half, in the slot of the one two halves before.
    pub(crate) fn set(&self, prefix: IvPrefix) {
        let word = u64::from(prefix.upper) << 32 | u64::from(prefix.bits);
        self.0[prefix.upper as usize & 1].store(word, Ordering::Relaxed);
    }

    /// The prefix of an upper half, if it was drawn.
    pub(crate) fn of(&self, upper: u32) -> Option<IvPrefix> {
        let word = self.0[upper as usize & 1].load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let (found, bits) = ((word >> 32) as u32, word as u32);
        (found == upper && bits != 0).then_some(IvPrefix { upper, bits })
    }
}

/// Draws prefixes for the SAs of a database from a random seed.
#[derive(Debug)]
pub(crate) struct IvPrefixSource(u64);

impl IvPrefixSource {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Sets the prefix of the first numbers of a new SA.
    pub(crate) fn give(&mut self, sa: &Sa) {
        // Set as the first half's prefix, from which others are derived.
        sa.set_iv_prefix(IvPrefix::new(0, self.next()));
    }

    /// The next value of a pseudo-random sequence (splitmix64). Prefixes are no secrets: packets
    /// carry them.
    fn next(&mut self) -> NonZeroU32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        #[expect(clippy::cast_possible_truncation, reason = "32 of the bits are meant")]
        NonZeroU32::new((z ^ (z >> 31)) as u32).unwrap_or(NonZeroU32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn bits(bits: u32) -> NonZeroU32 {
        NonZeroU32::new(bits).unwrap()
    }

    #[test]
    fn iv_is_prefix_then_low_half_of_the_number() {
        let prefix = IvPrefix::new(2, bits(0xdead_beef));
        assert_eq!(prefix.counter(2 << 32 | 7), Some(0xdead_beef_0000_0007));
        for other in [7, 1 << 32 | 7, 3 << 32 | 7] {
            assert_eq!(prefix.counter(other), None);
        }
        assert_eq!(IvPrefix::NONE.counter(u64::MAX), None);
        let over = prefix.over(2 << 32 | 7, 256).unwrap();
        assert_eq!((2 << 32 | 200) ^ over, prefix.counter(2 << 32 | 200).unwrap());
        assert_eq!(prefix.over((3 << 32) - 5, 9), None, "they end in the next half");
        assert_eq!(prefix.over((2 << 32) - 5, 9), None, "they begin in the half before");
        assert_eq!(IvPrefix::NONE.over(u64::MAX - 5, 2), None);
    }

    #[test]
    fn prefixes_of_two_consecutive_halves_are_kept() {
        let prefixes = IvPrefixes::default();
        assert_eq!(prefixes.of(0), None, "none was drawn yet");
        for upper in 0..5 {
            prefixes.set(IvPrefix::new(upper, bits(100 + upper)));
            assert_eq!(prefixes.of(upper), Some(IvPrefix::new(upper, bits(100 + upper))));
            assert_eq!(prefixes.of(upper.wrapping_sub(1)).is_some(), upper > 0);
            assert_eq!(prefixes.of(upper.wrapping_sub(2)), None);
        }
    }

    #[test]
    fn derived_prefixes_of_one_state_differ() {
        let first = bits(0x1234_5678);
        let all: HashSet<_> =
            (0..100_000).map(|half| IvPrefix::derived(first, half).bits).collect();
        assert_eq!(all.len(), 100_000);
        assert!(!all.contains(&0));
    }
}

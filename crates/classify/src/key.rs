//! Keys and rules as words: a rule is a value under a mask and matches where `(key ^ value) & mask`
//! is 0.

use std::convert::Infallible;

use crate::LOOKUP_BATCH;
use crate::bitvector::{BitLine, FieldRows};
use crate::compact_rule::{CompactRule, CompactRules};
use crate::entry::Entry;
use crate::simd_leaf::{RuleBlock, RuleBlock8};
use crate::ternary_block::{self, TernaryBlock};

/// Addresses, ports and protocol of a key, or of a rule's values or masks.
#[derive(Clone, Copy, Debug, Default)]
pub struct FiveTuple {
    /// Destination address; one of 32 bits is the upper half of the first word.
    pub destination: [u64; 2],
    /// Source address.
    pub source: [u64; 2],
    /// Source and destination port.
    pub ports: [u16; 2],
    /// Upper-layer protocol.
    pub protocol: u8,
    /// What few rules match on: compared last.
    pub extra: u64,
}

/// Words of a [`FiveTuple`]: [`V4`] or [`V6`]. The last one holds source port, destination port,
/// protocol, and 24 bits that are 0 in keys.
pub(crate) trait Words: WordArray {
    /// Eight rules, for SIMD comparison.
    type RuleBlock8<E: Entry>: RuleBlock<Self, E>;
    /// Compact form of a rule.
    type Compact<E: Entry>: CompactRules<Self, E>;
    /// Address length in bits.
    const ADDRESS_BITS: u8;

    /// Assembles words.
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self;
    /// Destination and source, as [`Words::new`] takes them.
    fn ends(&self) -> [[u64; 2]; 2];
}

/// What words of any number can do.
pub(crate) trait WordArray:
    Copy + Ord + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static
{
    /// Words of many keys, transposed.
    type WordColumns: AsRef<[[u64; LOOKUP_BATCH]]>;
    /// Number of words.
    const COUNT: usize;
    /// Bits that keys use.
    const SIGNIFICANT: Self;
    /// All zero.
    const ZERO: Self;
    /// Columns of no keys.
    const NO_COLUMNS: Self::WordColumns;

    /// Transposes the words of at most [`LOOKUP_BATCH`] keys.
    fn columns(keys: &[Key<Self>], columns: &mut Self::WordColumns);
    /// Which rules of each block match; see [`ternary_block::match_blocks`].
    fn match_blocks<'a>(pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a Self)>, fits: &mut [u8]);
    /// See [`FieldRows::find_first_batch`].
    fn find_first_batch(
        rows: &FieldRows,
        keys: &[Key<Self>],
        candidates: &[BitLine],
        found: &mut [u32],
    );
    /// Builds words one by one.
    fn each(word: impl FnMut(usize) -> u64) -> Self;
    /// One word; `at` is below [`WordArray::COUNT`].
    fn word(&self, at: usize) -> u64;
    /// All words.
    fn all(&self) -> &[u64];
    /// These words under a mask.
    fn masked(&self, mask: &Self) -> Self;
    /// Bitwise or.
    fn union(&self, other: &Self) -> Self;
    /// Sets bits in the last word.
    fn or_last_word(self, bits: u64) -> Self;
    /// Differences from `value` under `mask`, without the last word's 24 unused bits.
    fn difference(&self, value: &Self, mask: &Self) -> u64;
}

/// Bits of the last word that keys do not use.
pub(crate) const UNUSED_BITS: u64 = 0xff_ffff;

/// IPv4: both addresses in one word, upper layer.
pub type V4 = [u64; 2];
/// IPv6: two words per address, upper layer.
pub type V6 = [u64; 5];

/// Words of a key, of a rule's values or of its masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<W> {
    pub(crate) words: W,
    /// See [`FiveTuple::extra`].
    pub(crate) extra: u64,
}

impl<W: Words> AsRef<[u64]> for Key<W> {
    #[inline]
    fn as_ref(&self) -> &[u64] {
        self.words.all()
    }
}

impl<const N: usize> AsRef<[u64; N]> for Key<[u64; N]> {
    #[inline]
    fn as_ref(&self) -> &[u64; N] {
        &self.words
    }
}

#[expect(private_bounds, reason = "keys are of two or of five words")]
impl<W: Words> Key<W> {
    /// The words of some fields.
    #[must_use]
    #[inline]
    pub fn of(fields: &FiveTuple) -> Self {
        let FiveTuple { destination, source, ports, protocol, extra } = *fields;
        Self { words: W::new(destination, source, upper(ports, protocol)), extra }
    }
}

impl Words for V4 {
    type RuleBlock8<E: Entry> = RuleBlock8<2, E>;
    type Compact<E: Entry> = Infallible;
    const ADDRESS_BITS: u8 = 32;

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0] | source[0] >> 32, upper]
    }

    fn ends(&self) -> [[u64; 2]; 2] {
        [[self[0] >> 32 << 32, 0], [self[0] << 32, 0]]
    }
}

impl Words for V6 {
    type RuleBlock8<E: Entry> = RuleBlock8<5, E>;
    type Compact<E: Entry> = CompactRule<E>;
    const ADDRESS_BITS: u8 = 128;

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0], destination[1], source[0], source[1], upper]
    }

    fn ends(&self) -> [[u64; 2]; 2] {
        [[self[0], self[1]], [self[2], self[3]]]
    }
}

impl<const N: usize> WordArray for [u64; N] {
    type WordColumns = [[u64; LOOKUP_BATCH]; N];
    const COUNT: usize = N;
    const SIGNIFICANT: Self = {
        let mut all = [u64::MAX; N];
        all[N - 1] = !UNUSED_BITS;
        all
    };
    const ZERO: Self = [0; N];
    const NO_COLUMNS: Self::WordColumns = [[0; LOOKUP_BATCH]; N];

    /// Not inlined: otherwise the words of all keys compete for registers.
    #[inline(never)]
    fn columns(keys: &[Key<Self>], columns: &mut Self::WordColumns) {
        for (at, key) in keys.iter().enumerate() {
            for (column, word) in columns.iter_mut().zip(key.words) {
                column[at % LOOKUP_BATCH] = word;
            }
        }
    }

    #[inline]
    fn match_blocks<'a>(
        pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a Self)>,
        fits: &mut [u8],
    ) {
        ternary_block::match_blocks(pairs, !UNUSED_BITS, fits);
    }

    #[inline]
    fn find_first_batch(
        rows: &FieldRows,
        keys: &[Key<Self>],
        candidates: &[BitLine],
        found: &mut [u32],
    ) {
        rows.find_first_batch(keys, candidates, found);
    }

    fn each(word: impl FnMut(usize) -> u64) -> Self {
        std::array::from_fn(word)
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        if N.is_power_of_two() { self[at % N] } else { self.get(at).copied().unwrap_or(0) }
    }

    #[inline]
    fn all(&self) -> &[u64] {
        self
    }

    #[inline]
    fn masked(&self, mask: &Self) -> Self {
        std::array::from_fn(|at| self[at] & mask[at])
    }

    #[inline]
    fn union(&self, other: &Self) -> Self {
        std::array::from_fn(|at| self[at] | other[at])
    }

    #[inline]
    fn or_last_word(mut self, bits: u64) -> Self {
        self[N - 1] |= bits;
        self
    }

    #[inline]
    fn difference(&self, value: &Self, mask: &Self) -> u64 {
        let differs = |at: usize| (self[at] ^ value[at]) & mask[at];
        (0..N - 1).fold(differs(N - 1) >> 24, |all, at| all | differs(at))
    }
}

/// Folded product: each input bit reaches each output bit.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline]
pub(crate) fn upper(ports: [u16; 2], protocol: u8) -> u64 {
    u64::from(ports[0]) << 48 | u64::from(ports[1]) << 32 | u64::from(protocol) << 24
}

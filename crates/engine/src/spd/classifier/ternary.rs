//! Packets and selectors as words: a selector is a value under a mask and matches where `(packet ^
//! value) & mask` is 0.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_classify::{BitLine, FieldRows, TernaryBlock};
use zerocopy::{Immutable, IntoBytes};

use super::LOOKUP_BATCH;
use super::compact_rule::{CompactRule, CompactRules};
use super::simd_leaf::{RuleBlock, RuleBlock8};
use crate::{FlowKey, PolicyEntry, Prefix, Selector};

/// Words of a packet's addresses, ports and protocol: [`V4`] or [`V6`]. The last one holds source
/// port, destination port, protocol, and 24 bits that are 0 in packets.
pub(crate) trait Words:
    Copy + Ord + std::hash::Hash + std::fmt::Debug + IntoBytes + Immutable + Send + Sync + 'static
{
    /// Eight selectors, for SIMD comparison.
    type RuleBlock8: RuleBlock<Self>;
    /// Compact form of a rule.
    type Compact: CompactRules<Self>;
    /// Words of many packets, transposed.
    type WordColumns: AsRef<[[u64; LOOKUP_BATCH]]> + Default;
    /// Number of words.
    const COUNT: usize;
    /// Address length in bits.
    const ADDRESS_BITS: u8;
    /// Bits that packets use.
    const SIGNIFICANT: Self;
    /// All zero.
    const ZERO: Self;

    /// Assembles words.
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self;
    /// Destination and source, as [`Words::new`] takes them.
    fn ends(&self) -> [[u64; 2]; 2];
    /// Transposes the words of at most [`LOOKUP_BATCH`] packets.
    fn columns(packets: &[Key<Self>], columns: &mut Self::WordColumns);
    /// Which selectors of each block match; see [`uxfrm_classify::match_blocks`].
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
    /// One word; `at` is below [`Words::COUNT`].
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

/// Bits of the last word that packets do not use.
pub(crate) const UNUSED_BITS: u64 = 0xff_ffff;

/// IPv4: both addresses in one word, upper layer.
pub(crate) type V4 = [u64; 2];
/// IPv6: two words per address, upper layer.
pub(crate) type V6 = [u64; 5];

/// Words of a packet, of selector values or of selector masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<W> {
    pub(crate) words: W,
    /// Mark and interface.
    pub(crate) extra: u64,
}

/// A selector with its mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ternary<W> {
    pub(crate) value: Key<W>,
    pub(crate) mask: Key<W>,
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

impl<W: Words> Key<W> {
    #[inline]
    fn of(destination: [u64; 2], source: [u64; 2], flow: &FlowKey) -> Self {
        let upper = upper([flow.source_port, flow.destination_port], flow.protocol);
        Self { words: W::new(destination, source, upper), extra: extra(flow.mark, flow.ifindex) }
    }
}

impl Key<V4> {
    #[inline]
    pub(crate) fn v4(destination: Ipv4Addr, source: Ipv4Addr, flow: &FlowKey) -> Self {
        Self::of(v4_bits(destination), v4_bits(source), flow)
    }
}

impl Key<V6> {
    #[inline]
    pub(crate) fn v6(destination: Ipv6Addr, source: Ipv6Addr, flow: &FlowKey) -> Self {
        Self::of(v6_bits(destination), v6_bits(source), flow)
    }
}

impl<W: Words> Ternary<W> {
    /// What a policy matches, without direction, family and interface id.
    pub(crate) fn of(policy: &PolicyEntry) -> Self {
        let selector = policy.selector();
        let (value, words) = selector_bits::<W>(&selector);
        let ifindex = if selector.ifindex == 0 { 0 } else { u32::MAX };
        let mask = Key { words, extra: extra(policy.mark().mask, ifindex) };
        let extra = extra(policy.mark().value, selector.ifindex);
        Self { value: Key { words: value, extra }, mask }
    }
}

/// Value and mask of a selector.
pub(crate) fn selector_bits<W: Words>(selector: &Selector) -> (W, W) {
    let high = |prefix: Prefix| {
        let len = u32::from(prefix.prefix_len());
        halves(u128::MAX.checked_shl(128 - len).unwrap_or(0))
    };
    let Selector { source, destination, source_port, destination_port, protocol, .. } = *selector;
    let asked = if protocol == 0 { 0 } else { u8::MAX };
    let mask = upper([source_port.mask, destination_port.mask], asked);
    let mask = W::new(high(destination), high(source), mask);
    let value = upper([source_port.value, destination_port.value], protocol);
    let value = W::new(bits(destination), bits(source), value);
    (value.masked(&mask), mask)
}

impl Words for V4 {
    type RuleBlock8 = RuleBlock8<2>;
    type WordColumns = [[u64; LOOKUP_BATCH]; 2];
    type Compact = Infallible;
    const COUNT: usize = 2;
    const ADDRESS_BITS: u8 = 32;
    const SIGNIFICANT: Self = [u64::MAX, !UNUSED_BITS];
    const ZERO: Self = [0; 2];

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0] | source[0] >> 32, upper]
    }

    fn ends(&self) -> [[u64; 2]; 2] {
        [[self[0] >> 32 << 32, 0], [self[0] << 32, 0]]
    }

    #[inline]
    fn match_blocks<'a>(
        pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a Self)>,
        fits: &mut [u8],
    ) {
        uxfrm_classify::match_blocks(pairs, !UNUSED_BITS, fits);
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

    #[inline]
    fn columns(packets: &[Key<Self>], columns: &mut Self::WordColumns) {
        fill(packets, columns);
    }

    fn each(word: impl FnMut(usize) -> u64) -> Self {
        std::array::from_fn(word)
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self[at % 2]
    }

    #[inline]
    fn all(&self) -> &[u64] {
        self
    }

    #[inline]
    fn masked(&self, mask: &Self) -> Self {
        [self[0] & mask[0], self[1] & mask[1]]
    }

    #[inline]
    fn union(&self, other: &Self) -> Self {
        [self[0] | other[0], self[1] | other[1]]
    }

    #[inline]
    fn or_last_word(self, bits: u64) -> Self {
        [self[0], self[1] | bits]
    }

    #[inline]
    fn difference(&self, value: &Self, mask: &Self) -> u64 {
        (self[0] ^ value[0]) & mask[0] | ((self[1] ^ value[1]) & mask[1]) >> 24
    }
}

impl Words for V6 {
    type RuleBlock8 = RuleBlock8<5>;
    type WordColumns = [[u64; LOOKUP_BATCH]; 5];
    type Compact = CompactRule;
    const COUNT: usize = 5;
    const ADDRESS_BITS: u8 = 128;
    const SIGNIFICANT: Self = [u64::MAX, u64::MAX, u64::MAX, u64::MAX, !UNUSED_BITS];
    const ZERO: Self = [0; 5];

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0], destination[1], source[0], source[1], upper]
    }

    fn ends(&self) -> [[u64; 2]; 2] {
        [[self[0], self[1]], [self[2], self[3]]]
    }

    #[inline]
    fn match_blocks<'a>(
        pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a Self)>,
        fits: &mut [u8],
    ) {
        uxfrm_classify::match_blocks(pairs, !UNUSED_BITS, fits);
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

    #[inline]
    fn columns(packets: &[Key<Self>], columns: &mut Self::WordColumns) {
        fill(packets, columns);
    }

    fn each(word: impl FnMut(usize) -> u64) -> Self {
        std::array::from_fn(word)
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.get(at).copied().unwrap_or(0)
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
        self[4] |= bits;
        self
    }

    #[inline]
    fn difference(&self, value: &Self, mask: &Self) -> u64 {
        let last = ((self[4] ^ value[4]) & mask[4]) >> 24;
        (0..4).fold(last, |all, at| all | (self[at] ^ value[at]) & mask[at])
    }
}

/// Not inlined: otherwise the words of all packets compete for registers.
#[inline(never)]
fn fill<const N: usize>(packets: &[Key<[u64; N]>], columns: &mut [[u64; LOOKUP_BATCH]; N]) {
    for (at, packet) in packets.iter().enumerate() {
        for (ranked_entry, word) in columns.iter_mut().zip(packet.words) {
            ranked_entry[at % LOOKUP_BATCH] = word;
        }
    }
}

/// Folded product: each input bit reaches each output bit.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(crate) const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline]
pub(crate) fn upper(ports: [u16; 2], protocol: u8) -> u64 {
    u64::from(ports[0]) << 48 | u64::from(ports[1]) << 32 | u64::from(protocol) << 24
}

#[inline]
fn extra(mark: u32, ifindex: u32) -> u64 {
    u64::from(mark) << 32 | u64::from(ifindex)
}

fn bits(prefix: Prefix) -> [u64; 2] {
    match prefix.address() {
        IpAddr::V4(v4) => v4_bits(v4),
        IpAddr::V6(v6) => v6_bits(v6),
    }
}

#[inline]
fn v4_bits(address: Ipv4Addr) -> [u64; 2] {
    [u64::from(address.to_bits()) << 32, 0]
}

#[inline]
fn v6_bits(address: Ipv6Addr) -> [u64; 2] {
    halves(address.to_bits())
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
const fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

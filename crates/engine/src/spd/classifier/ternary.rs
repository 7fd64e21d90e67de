//! Packets and selectors as words of bits: a selector is a value under a mask, and fits where `(packet ^ value) & mask` is 0.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{FlowKey, Policy, Prefix};

/// Words that hold a packet's addresses, ports and protocol: [`V4`] or [`V6`]. The last one is
/// source port, destination port, protocol, and 24 bits that are 0 in packets and masks.
pub(crate) trait Words: Copy + Eq + std::fmt::Debug + Send + Sync {
    /// Bits of an address.
    const BITS: u8;
    /// From which prefix lengths on addresses are told apart by a [`Sieve`](super::sieve::Sieve)'s cells.
    const CELLS: &'static [u8];

    /// Puts words together.
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self;
    /// Destination address, its first bit uppermost.
    fn destination(&self) -> [u64; 2];
    /// Source address.
    fn source(&self) -> [u64; 2];
    /// Ports and protocol.
    fn upper(&self) -> u64;
    /// These words under a mask, with 24 more bits in the last.
    fn under(&self, mask: &Self, more: u64) -> Self;
    /// The bits under `mask` in which these differ from `value`.
    fn difference(&self, value: &Self, mask: &Self) -> u64;
    /// All of it in 64 bits.
    fn hash(&self) -> u64;
}

/// Words of IPv4: both addresses, upper layer.
pub(crate) type V4 = [u64; 2];
/// Words of IPv6: two for each address, upper layer.
pub(crate) type V6 = [u64; 5];

/// A packet, a selector's values or a selector's masks.
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

/// Which bits count: what all selectors of one tuple share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) destination: u8,
    pub(crate) source: u8,
    pub(crate) ports: [u16; 2],
    pub(crate) protocol: u8,
    pub(crate) mark: u32,
    pub(crate) ifindex: u32,
}

impl<W: Words> Key<W> {
    #[inline]
    fn of(destination: [u64; 2], source: [u64; 2], flow: &FlowKey) -> Self {
        let upper = upper([flow.source_port, flow.destination_port], flow.protocol);
        Self { words: W::new(destination, source, upper), extra: extra(flow.mark, flow.ifindex) }
    }

    /// What of a packet a tuple with this mask looks for in its table.
    #[inline]
    pub(crate) fn under(&self, mask: &Self) -> W {
        self.words.under(&mask.words, fold(self.extra & mask.extra))
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
    /// What a policy asks of packets, direction, family and interface id apart.
    pub(crate) fn of(policy: &Policy) -> Self {
        let selector = &policy.selector;
        let mask = Shape::of(policy).mask();
        let ports = [selector.source_port.value, selector.destination_port.value];
        let (destination, source) = (bits(selector.destination), bits(selector.source));
        let words = W::new(destination, source, upper(ports, selector.protocol));
        let extra = extra(policy.mark.value, selector.ifindex) & mask.extra;
        Self { value: Key { words: words.under(&mask.words, 0), extra }, mask }
    }

    #[inline]
    pub(crate) fn fits(&self, key: &Key<W>) -> bool {
        let extra = (key.extra ^ self.value.extra) & self.mask.extra;
        key.words.difference(&self.value.words, &self.mask.words) | extra == 0
    }
}

impl Shape {
    /// Of a policy's selector and mark.
    pub(crate) fn of(policy: &Policy) -> Self {
        let selector = &policy.selector;
        Self {
            destination: selector.destination.prefix_len(),
            source: selector.source.prefix_len(),
            ports: [selector.source_port.mask, selector.destination_port.mask],
            protocol: if selector.protocol == 0 { 0 } else { u8::MAX },
            mark: policy.mark.mask,
            ifindex: if selector.ifindex == 0 { 0 } else { u32::MAX },
        }
    }

    pub(crate) fn mask<W: Words>(&self) -> Key<W> {
        let start = usize::from(128 - W::BITS);
        let high = |len: u8| {
            let bits = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            debug_assert!(start == 0 || len <= 32, "an IPv4 prefix");
            halves(bits)
        };
        let words =
            W::new(high(self.destination), high(self.source), upper(self.ports, self.protocol));
        Key { words, extra: extra(self.mark, self.ifindex) }
    }

    /// Whether all that counts here counts in `other` too, so that a selector of that shape can stand in a table of this one.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        self.destination <= other.destination
            && self.source <= other.source
            && self.ports[0] & !other.ports[0] == 0
            && self.ports[1] & !other.ports[1] == 0
            && self.protocol & !other.protocol == 0
            && self.mark & !other.mark == 0
            && self.ifindex & !other.ifindex == 0
    }

    /// How many bits count.
    pub(crate) fn weight(&self) -> u32 {
        u32::from(self.destination)
            + u32::from(self.source)
            + self.ports.iter().map(|mask| mask.count_ones()).sum::<u32>()
            + self.protocol.count_ones()
            + self.mark.count_ones()
            + self.ifindex.count_ones()
    }
}

impl Words for V4 {
    const BITS: u8 = 32;
    const CELLS: &'static [u8] = &[0, 8, 16, 24];

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0] | source[0] >> 32, upper]
    }

    #[inline]
    fn destination(&self) -> [u64; 2] {
        [self[0] & !0xffff_ffff, 0]
    }

    #[inline]
    fn source(&self) -> [u64; 2] {
        [self[0] << 32, 0]
    }

    #[inline]
    fn upper(&self) -> u64 {
        self[1]
    }

    #[inline]
    fn under(&self, mask: &Self, more: u64) -> Self {
        [self[0] & mask[0], self[1] & mask[1] | more]
    }

    #[inline]
    fn difference(&self, value: &Self, mask: &Self) -> u64 {
        (self[0] ^ value[0]) & mask[0] | (self[1] ^ value[1]) & mask[1]
    }

    #[inline]
    fn hash(&self) -> u64 {
        mix(self[0] ^ SALT[0], self[1] ^ SALT[1])
    }
}

impl Words for V6 {
    const BITS: u8 = 128;
    const CELLS: &'static [u8] = &[0, 16, 32, 48, 64];

    #[inline]
    fn new(destination: [u64; 2], source: [u64; 2], upper: u64) -> Self {
        [destination[0], destination[1], source[0], source[1], upper]
    }

    #[inline]
    fn destination(&self) -> [u64; 2] {
        [self[0], self[1]]
    }

    #[inline]
    fn source(&self) -> [u64; 2] {
        [self[2], self[3]]
    }

    #[inline]
    fn upper(&self) -> u64 {
        self[4]
    }

    #[inline]
    fn under(&self, mask: &Self, more: u64) -> Self {
        let mut under = std::array::from_fn(|at| self[at] & mask[at]);
        under[4] |= more;
        under
    }

    #[inline]
    fn difference(&self, value: &Self, mask: &Self) -> u64 {
        (0..5).fold(0, |all, at| all | (self[at] ^ value[at]) & mask[at])
    }

    #[inline]
    fn hash(&self) -> u64 {
        let destination = mix(self[0] ^ SALT[0], self[1] ^ SALT[1]);
        let source = mix(self[2] ^ SALT[2], self[3] ^ SALT[3]);
        mix(destination ^ self[4], source ^ SALT[1])
    }
}

/// Digits of pi.
const SALT: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// A product's halves over each other: every bit of both words reaches every bit of the result.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(crate) const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// 24 bits of mark and interface; 0 for none. Others with the same bits share a place in a table, and are told apart there.
#[inline]
const fn fold(extra: u64) -> u64 {
    extra.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

#[inline]
fn upper(ports: [u16; 2], protocol: u8) -> u64 {
    u64::from(ports[0]) << 48 | u64::from(ports[1]) << 32 | u64::from(protocol) << 24
}

/// The protocol in an upper word.
#[inline]
pub(crate) fn protocol(upper: u64) -> usize {
    usize::from(upper.to_be_bytes()[4])
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
pub(crate) const fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

//! Keys of the flow cache: all that decides over a packet, in two words for IPv4 and five for IPv6.

use std::collections::HashMap;
use std::net::IpAddr;

use uxfrm_packet::Ipv4FlowKey;

use crate::{Direction, FlowKey, Spi};

/// Addresses, then ports, protocol, direction and context in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheKey<const N: usize> {
    pub(crate) words: [u64; N],
    /// SPI of the SA by which a packet came; 0 without one.
    pub(crate) spi: u32,
}

/// IPv4: one word of addresses.
pub(crate) type V4 = CacheKey<2>;
/// IPv6: four.
pub(crate) type V6 = CacheKey<5>;

/// Numbers for combinations of mark and interfaces: most packets have none, and the others few
/// different ones.
#[derive(Debug, Default)]
pub(crate) struct ContextNumbers {
    numbers: HashMap<Context, u32, foldhash::fast::RandomState>,
    last: (Context, u32),
}

/// Builds the keys of a batch of flows.
#[derive(Debug)]
pub(crate) struct KeyBuilder<'a, S> {
    pub(crate) direction: Direction,
    pub(crate) contexts: &'a mut ContextNumbers,
    /// Number of flows before this batch.
    pub(crate) before: usize,
    /// SPI by packet index.
    pub(crate) spi: &'a S,
}

/// Builds keys of one family. Always inlined: a call per packet costs a fifth of a hit.
pub(crate) trait BuildKeys<const N: usize> {
    /// Key of packet `at` of the batch.
    fn key(&mut self, at: usize, flow: &FlowKey) -> CacheKey<N>;
}

/// Mark, interface id, interface.
type Context = [u32; 3];

/// Upper limit of contexts; their numbers have 22 bits.
const MAX_CONTEXTS: usize = 1 << 16;

impl<const N: usize> CacheKey<N> {
    /// Key of all packets between two families, which no policy matches. Unique, as no context has
    /// all bits set.
    const MIXED_FAMILIES: Self = Self { words: [u64::MAX; N], spi: 0 };
}

impl<S: Fn(usize) -> Spi> BuildKeys<2> for KeyBuilder<'_, S> {
    #[inline(always)]
    fn key(&mut self, at: usize, flow: &FlowKey) -> V4 {
        v4(flow, self.direction, self.contexts.number(flow), (self.spi)(self.before + at))
    }
}

impl<S: Fn(usize) -> Spi> BuildKeys<5> for KeyBuilder<'_, S> {
    #[inline(always)]
    fn key(&mut self, at: usize, flow: &FlowKey) -> V6 {
        v6(flow, self.direction, self.contexts.number(flow), (self.spi)(self.before + at))
    }
}

/// For the look-up of a single flow.
impl<const N: usize> BuildKeys<N> for CacheKey<N> {
    #[inline(always)]
    fn key(&mut self, _: usize, _: &FlowKey) -> Self {
        *self
    }
}

impl ContextNumbers {
    /// Number of a packet's context; 0 if it has none.
    #[inline(always)]
    pub(crate) fn number(&mut self, flow: &FlowKey) -> u32 {
        self.number_of([flow.mark, flow.if_id, flow.ifindex])
    }

    /// [`ContextNumbers::number`] of mark, interface id and interface.
    #[inline(always)]
    pub(crate) fn number_of(&mut self, context: [u32; 3]) -> u32 {
        if context == [0; 3] { 0 } else { self.intern(context) }
    }

    /// Whether numbers must be reassigned, which invalidates all keys.
    pub(crate) fn are_full(&self) -> bool {
        self.numbers.len() >= MAX_CONTEXTS
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn memory(&self) -> usize {
        self.numbers.capacity() * (size_of::<Context>() + size_of::<u32>())
    }

    #[inline(never)]
    fn intern(&mut self, context: Context) -> u32 {
        if self.last.0 != context {
            let next = u32::try_from(self.numbers.len()).unwrap_or(0) + 1;
            self.last = (context, *self.numbers.entry(context).or_insert(next));
        }
        self.last.1
    }
}

/// Key of an IPv4 packet.
#[inline(always)]
pub(crate) fn v4(flow: &FlowKey, direction: Direction, context: u32, spi: Spi) -> V4 {
    let (IpAddr::V4(destination), IpAddr::V4(source)) = (flow.destination, flow.source) else {
        return CacheKey::MIXED_FAMILIES;
    };
    let [destination, source] = [destination, source].map(|one| u32::from_ne_bytes(one.octets()));
    let addresses = u64::from(destination) << 32 | u64::from(source);
    CacheKey { words: [addresses, upper(flow, direction, context)], spi: spi.0 }
}

/// [`v4`] for an outbound packet that came by no SA.
#[inline(always)]
pub(crate) fn outbound(flow: &Ipv4FlowKey, context: u32) -> V4 {
    let Ipv4FlowKey { source, destination, .. } = *flow;
    let upper = u64::from(flow.ports) << 32
        | u64::from(flow.protocol.0) << 24
        | (Direction::Out as u64) << 22
        | u64::from(context);
    CacheKey { words: [u64::from(destination) << 32 | u64::from(source), upper], spi: 0 }
}

/// Key of an IPv6 packet.
#[inline(always)]
pub(crate) fn v6(flow: &FlowKey, direction: Direction, context: u32, spi: Spi) -> V6 {
    let (IpAddr::V6(destination), IpAddr::V6(source)) = (flow.destination, flow.source) else {
        return CacheKey::MIXED_FAMILIES;
    };
    let ([a, b], [c, d]) = (halves(destination.to_bits()), halves(source.to_bits()));
    CacheKey { words: [a, b, c, d, upper(flow, direction, context)], spi: spi.0 }
}

#[inline(always)]
fn upper(flow: &FlowKey, direction: Direction, context: u32) -> u64 {
    u64::from(flow.source_port) << 48
        | u64::from(flow.destination_port) << 32
        | u64::from(flow.protocol) << 24
        | (direction as u64) << 22
        | u64::from(context)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
const fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use uxfrm_packet::Protocol;

    use super::*;

    proptest! {
        #[test]
        fn cache_key_from_words_equals_key_from_flow(
            ends: [[u8; 4]; 2], ports: [u16; 2], tcp: bool, context in 0..1_u32 << 22,
        ) {
            let protocol = if tcp { Protocol::TCP } else { Protocol::UDP };
            let [source, destination] = ends.map(|end| Ipv4Addr::from(end).into());
            let flow = FlowKey {
                protocol: protocol.0,
                source_port: ports[0],
                destination_port: ports[1],
                ..FlowKey::between(source, destination)
            };
            let words = Ipv4FlowKey {
                source: u32::from_ne_bytes(ends[0]),
                destination: u32::from_ne_bytes(ends[1]),
                ports: u32::from(ports[0]) << 16 | u32::from(ports[1]),
                protocol,
                len: 24,
            };
            prop_assert_eq!(outbound(&words, context), v4(&flow, Direction::Out, context, Spi(0)));
        }
    }
}

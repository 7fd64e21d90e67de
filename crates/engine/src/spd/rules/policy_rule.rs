//! Policies as entries of an index, and flows as its keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use uxfrm_classify::{AddressEnd, Entry, FiveTuple, Key, MaskTemplate, Rank, Ternary, V4, V6};

use crate::{Direction, FlowKey, Mark, PolicyEntry, PolicyPrecedence, Prefix, Selector, VerdictId};

/// A policy in an index.
#[derive(Clone, Debug)]
pub(crate) struct PolicyRule(pub(crate) Arc<PolicyEntry>);

/// All priorities from here on share a rank.
const LAST_PRIORITY: u32 = (1 << 22) - 1;

impl PolicyRule {
    pub(crate) fn of(entry: &Arc<PolicyEntry>) -> Self {
        Self(Arc::clone(entry))
    }
}

impl Entry for PolicyRule {
    type Precedence = PolicyPrecedence;

    const NO_TAG: u32 = VerdictId::NONE.compact();

    #[inline]
    fn precedence(&self) -> PolicyPrecedence {
        self.0.precedence()
    }

    /// Offloaded policies first, then by priority, as far as 22 bits tell.
    fn rank(&self) -> Rank {
        let place = self.precedence();
        Rank::new(u32::from(place.is_software()) << 22 | place.priority().0.min(LAST_PRIORITY))
    }

    fn tag(&self) -> u32 {
        self.0.verdict().compact()
    }

    /// Without direction, family and interface id.
    fn ternary(&self) -> Ternary {
        ternary(&self.0.selector(), self.0.mark())
    }

    fn far_end(&self) -> AddressEnd {
        far_end(self.0.direction())
    }

    fn mask_template(&self) -> Option<&Arc<MaskTemplate>> {
        self.0.mask_template()
    }
}

/// What a selector and a mark match.
pub(crate) fn ternary(selector: &Selector, mark: Mark) -> Ternary {
    let Selector { source, destination, source_port, destination_port, protocol, ifindex, .. } =
        *selector;
    let value = FiveTuple {
        destination: bits(destination.address()),
        source: bits(source.address()),
        ports: [source_port.value, destination_port.value],
        protocol,
        extra: extra(mark.value, ifindex),
    };
    let mask = FiveTuple {
        destination: network(destination),
        source: network(source),
        ports: [source_port.mask, destination_port.mask],
        protocol: if protocol == 0 { 0 } else { u8::MAX },
        extra: extra(mark.mask, if ifindex == 0 { 0 } else { u32::MAX }),
    };
    Ternary { value, mask }
}

/// The remote end.
pub(crate) const fn far_end(direction: Direction) -> AddressEnd {
    match direction {
        Direction::Out => AddressEnd::Destination,
        Direction::In | Direction::Forward => AddressEnd::Source,
    }
}

#[inline]
pub(super) fn v4_key(destination: Ipv4Addr, source: Ipv4Addr, flow: &FlowKey) -> Key<V4> {
    Key::of(&five_tuple(v4_bits(destination), v4_bits(source), flow))
}

#[inline]
pub(super) fn v6_key(destination: Ipv6Addr, source: Ipv6Addr, flow: &FlowKey) -> Key<V6> {
    Key::of(&five_tuple(v6_bits(destination), v6_bits(source), flow))
}

#[inline]
fn five_tuple(destination: [u64; 2], source: [u64; 2], flow: &FlowKey) -> FiveTuple {
    let FlowKey { source_port, destination_port, protocol, mark, ifindex, .. } = *flow;
    let (ports, extra) = ([source_port, destination_port], extra(mark, ifindex));
    FiveTuple { destination, source, ports, protocol, extra }
}

#[inline]
fn extra(mark: u32, ifindex: u32) -> u64 {
    u64::from(mark) << 32 | u64::from(ifindex)
}

/// Mask of a prefix.
fn network(prefix: Prefix) -> [u64; 2] {
    halves(u128::MAX.checked_shl(128 - u32::from(prefix.prefix_len())).unwrap_or(0))
}

fn bits(address: IpAddr) -> [u64; 2] {
    match address {
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

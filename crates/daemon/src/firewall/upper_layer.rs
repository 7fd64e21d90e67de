//! A selector's protocol and ports as conditions of the packet filter.
//!
//! What stands for ports differs by protocol ([`uxfrm_packet::FlowPorts`]), so one selector may
//! need several alternatives: a packet fits the selector if it meets all conditions of one of them.

use uxfrm_engine::{PortMask, Selector};
use uxfrm_io::nftables::Condition;
use uxfrm_packet::gre::{CHECKSUM, KEY, ROUTING, VERSION};

/// Where a protocol has its ports.
struct PortLayout {
    protocol: u8,
    /// What its first four bytes have to be.
    head: &'static [HeaderVariant],
    source: PortOffset,
    destination: PortOffset,
}

#[derive(Clone, Copy)]
enum HeaderVariant {
    /// The first two, under a mask: (value, mask).
    Flags(u16, u16),
    /// The other two.
    Carries(u16),
    CarriesOther(u16),
}

/// Where a port is, from the start of the upper layer.
#[derive(Clone, Copy)]
enum PortOffset {
    Byte(u8),
    Pair(u8),
    /// Not there: it counts as 0.
    Nowhere,
}

const fn ports(protocol: u8) -> PortLayout {
    PortLayout {
        protocol,
        head: &[],
        source: PortOffset::Pair(0),
        destination: PortOffset::Pair(2),
    }
}

const fn kind_and_code(protocol: u8) -> PortLayout {
    PortLayout {
        protocol,
        head: &[],
        source: PortOffset::Byte(0),
        destination: PortOffset::Byte(1),
    }
}

/// GRE with the given head; which of them has a key where, [`uxfrm_packet::FlowPorts`] says.
const fn gre(
    head: &'static [HeaderVariant],
    source: PortOffset,
    destination: PortOffset,
) -> PortLayout {
    PortLayout { protocol: 47, head, source, destination }
}

const fn without_key(head: &'static [HeaderVariant]) -> PortLayout {
    gre(head, PortOffset::Nowhere, PortOffset::Nowhere)
}

/// `flags` are those that a key's place depends on, all of them.
const fn keyed(flags: u16) -> HeaderVariant {
    HeaderVariant::Flags(flags, CHECKSUM | ROUTING | KEY | VERSION)
}

const PPP: u16 = 0x880b;

const LAYOUTS: [PortLayout; 17] = [
    ports(6),   // TCP
    ports(17),  // UDP
    ports(33),  // DCCP
    ports(132), // SCTP
    ports(136), // UDP-Lite
    kind_and_code(1),
    kind_and_code(58),
    PortLayout {
        protocol: 135, // mobility header
        head: &[],
        source: PortOffset::Byte(2),
        destination: PortOffset::Nowhere,
    },
    gre(&[keyed(KEY)], PortOffset::Pair(4), PortOffset::Pair(6)),
    gre(&[keyed(KEY | CHECKSUM)], PortOffset::Pair(8), PortOffset::Pair(10)),
    // PPTP's, whose upper half is a length.
    gre(&[keyed(KEY | 1), HeaderVariant::Carries(PPP)], PortOffset::Nowhere, PortOffset::Pair(6)),
    gre(
        &[keyed(KEY | CHECKSUM | 1), HeaderVariant::Carries(PPP)],
        PortOffset::Nowhere,
        PortOffset::Pair(10),
    ),
    without_key(&[HeaderVariant::Flags(0, KEY)]),
    without_key(&[HeaderVariant::Flags(KEY | ROUTING, KEY | ROUTING)]),
    // Version 1 of something else; 2, 3, 6 and 7; 4 and 5.
    without_key(&[
        HeaderVariant::Flags(KEY | 1, KEY | ROUTING | VERSION),
        HeaderVariant::CarriesOther(PPP),
    ]),
    without_key(&[HeaderVariant::Flags(KEY | 2, KEY | ROUTING | 2)]),
    without_key(&[HeaderVariant::Flags(KEY | 4, KEY | ROUTING | 6)]),
];

/// The alternatives of a selector's protocol and ports.
pub(super) fn alternatives(selector: &Selector) -> Vec<Vec<Condition>> {
    let protocol = selector.protocol;
    let (source, destination) = (selector.source_port, selector.destination_port);
    if source.mask == 0 && destination.mask == 0 {
        let named = (protocol != 0).then(|| Condition::protocol(protocol));
        return vec![named.into_iter().collect()];
    }
    let layouts = LAYOUTS.iter().filter(|layout| protocol == 0 || protocol == layout.protocol);
    let mut all: Vec<_> =
        layouts.filter_map(|layout| with_layout(layout, source, destination)).collect();
    let is_known = LAYOUTS.iter().any(|layout| protocol == layout.protocol);
    if !is_known && source.fits(0) && destination.fits(0) {
        all.push(without_ports(protocol));
    }
    all
}

/// The conditions of ports where a layout has them; `None` when no packet can meet them.
fn with_layout(
    layout: &PortLayout,
    source: PortMask,
    destination: PortMask,
) -> Option<Vec<Condition>> {
    let protocol = Condition::protocol(layout.protocol);
    let head = layout.head.iter().map(|head| head.condition());
    let ports = [at(layout.source, source)?, at(layout.destination, destination)?];
    Some([protocol].into_iter().chain(head).chain(ports.into_iter().flatten()).collect())
}

impl HeaderVariant {
    fn condition(self) -> Condition {
        match self {
            Self::Flags(value, mask) => Condition::upper_pair(0, value, mask),
            Self::Carries(protocol) => Condition::upper_pair(2, protocol, u16::MAX),
            Self::CarriesOther(protocol) => Condition::other_upper_pair(2, protocol),
        }
    }
}

/// The condition on one port: `None` when no value meets it, `Some(None)` when all do.
fn at(place: PortOffset, port: PortMask) -> Option<Option<Condition>> {
    let value = port.value & port.mask;
    let ([high_mask, low_mask], [high, low]) = (port.mask.to_be_bytes(), value.to_be_bytes());
    match place {
        PortOffset::Pair(_) if port.mask == 0 => Some(None),
        PortOffset::Pair(offset) => Some(Some(Condition::upper_pair(offset, value, port.mask))),
        PortOffset::Byte(_) if high_mask & high != 0 => None,
        PortOffset::Byte(_) if low_mask == 0 => Some(None),
        PortOffset::Byte(offset) => Some(Some(Condition::upper_byte(offset, low, low_mask))),
        PortOffset::Nowhere => port.fits(0).then_some(None),
    }
}

/// A protocol that has none: this one, or if it is 0 any that is in no layout.
fn without_ports(protocol: u8) -> Vec<Condition> {
    if protocol != 0 {
        return vec![Condition::protocol(protocol)];
    }
    LAYOUTS.iter().map(|layout| Condition::other_protocol(layout.protocol)).collect()
}

#[cfg(test)]
mod tests {
    use uxfrm_engine::Family;

    use super::*;

    fn selector(protocol: u8, source: PortMask, destination: PortMask) -> Selector {
        let any = Selector::any(Family::V4);
        Selector { protocol, source_port: source, destination_port: destination, ..any }
    }

    const ANY: PortMask = PortMask { value: 0, mask: 0 };

    #[test]
    fn selector_without_ports_has_protocol_condition_only() {
        assert_eq!(alternatives(&selector(0, ANY, ANY)), [vec![]]);
        assert_eq!(alternatives(&selector(47, ANY, ANY)), [vec![Condition::protocol(47)]]);
    }

    #[test]
    fn selector_ports_match_pairs_and_icmp_bytes() {
        let masked = PortMask { value: 0x1234, mask: 0xff00 };
        assert_eq!(
            alternatives(&selector(17, masked, PortMask::exactly(53))),
            [vec![
                Condition::protocol(17),
                Condition::upper_pair(0, 0x1200, 0xff00),
                Condition::upper_pair(2, 53, 0xffff),
            ]]
        );
        assert_eq!(
            alternatives(&selector(1, PortMask::exactly(8), ANY)),
            [vec![Condition::protocol(1), Condition::upper_byte(0, 8, 0xff)]]
        );
    }

    #[test]
    fn impossible_selector_yields_no_alternative() {
        assert!(alternatives(&selector(1, PortMask::exactly(256), ANY)).is_empty());
        assert!(alternatives(&selector(135, ANY, PortMask::exactly(1))).is_empty());
        assert!(alternatives(&selector(89, PortMask::exactly(1), ANY)).is_empty());
    }

    #[test]
    fn protocol_without_ports_matches_zero_ports() {
        let zero = PortMask::exactly(0);
        assert_eq!(alternatives(&selector(89, zero, ANY)), [vec![Condition::protocol(89)]]);
        let any_protocol = alternatives(&selector(0, zero, zero));
        assert_eq!(any_protocol.len(), LAYOUTS.len() + 1);
        assert!(any_protocol[LAYOUTS.len()].contains(&Condition::other_protocol(6)));
    }

    #[test]
    fn gre_key_offset_depends_on_checksum() {
        let key = alternatives(&selector(47, PortMask::exactly(1), PortMask::exactly(2)));
        assert_eq!(
            key,
            [
                vec![
                    Condition::protocol(47),
                    Condition::upper_pair(0, 0x2000, 0xe007),
                    Condition::upper_pair(4, 1, 0xffff),
                    Condition::upper_pair(6, 2, 0xffff),
                ],
                vec![
                    Condition::protocol(47),
                    Condition::upper_pair(0, 0xa000, 0xe007),
                    Condition::upper_pair(8, 1, 0xffff),
                    Condition::upper_pair(10, 2, 0xffff),
                ],
            ]
        );
    }

    #[test]
    fn gre_key_of_16_bits_matches_pptp() {
        let key = alternatives(&selector(47, PortMask::exactly(0), PortMask::exactly(2)));
        assert_eq!(
            key[2..],
            [(0x2001, 6), (0xa001, 10)].map(|(flags, place)| vec![
                Condition::protocol(47),
                Condition::upper_pair(0, flags, 0xe007),
                Condition::upper_pair(2, 0x880b, 0xffff),
                Condition::upper_pair(place, 2, 0xffff),
            ])
        );
    }
}

//! A selector's protocol and ports as conditions of the packet filter.
//!
//! What stands for ports differs by protocol ([`uxfrm_packet::FlowPorts`]), so one selector may need several
//! alternatives: a packet fits the selector if it meets all conditions of one of them.

use uxfrm_engine::{PortMask, Selector};
use uxfrm_io::nftables::Condition;

/// Where a protocol has its ports.
struct Layout {
    protocol: u8,
    /// What the first two bytes have to be under a mask: (value, mask).
    flags: Option<(u16, u16)>,
    source: Place,
    destination: Place,
}

/// Where a port is, from the start of the upper layer.
#[derive(Clone, Copy)]
enum Place {
    Byte(u8),
    Pair(u8),
    /// Not there: it counts as 0.
    Nowhere,
}

const fn ports(protocol: u8) -> Layout {
    Layout { protocol, flags: None, source: Place::Pair(0), destination: Place::Pair(2) }
}

const fn kind_and_code(protocol: u8) -> Layout {
    Layout { protocol, flags: None, source: Place::Byte(0), destination: Place::Byte(1) }
}

/// GRE with the given flags (RFC 2890 §2): checksum and key present, key alone, no key.
const fn gre(flags: (u16, u16), source: Place, destination: Place) -> Layout {
    Layout { protocol: 47, flags: Some(flags), source, destination }
}

const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;

const LAYOUTS: [Layout; 11] = [
    ports(6),   // TCP
    ports(17),  // UDP
    ports(33),  // DCCP
    ports(132), // SCTP
    ports(136), // UDP-Lite
    kind_and_code(1),
    kind_and_code(58),
    Layout {
        protocol: 135, // mobility header
        flags: None,
        source: Place::Byte(2),
        destination: Place::Nowhere,
    },
    gre((KEY, KEY | CHECKSUM), Place::Pair(4), Place::Pair(6)),
    gre((KEY | CHECKSUM, KEY | CHECKSUM), Place::Pair(8), Place::Pair(10)),
    gre((0, KEY), Place::Nowhere, Place::Nowhere),
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
fn with_layout(layout: &Layout, source: PortMask, destination: PortMask) -> Option<Vec<Condition>> {
    let flags = layout.flags.map(|(value, mask)| Condition::upper_pair(0, value, mask));
    let source = at(layout.source, source)?;
    let destination = at(layout.destination, destination)?;
    let protocol = Condition::protocol(layout.protocol);
    Some([Some(protocol), flags, source, destination].into_iter().flatten().collect())
}

/// The condition on one port: `None` when no value meets it, `Some(None)` when all do.
fn at(place: Place, port: PortMask) -> Option<Option<Condition>> {
    let value = port.value & port.mask;
    let ([high_mask, low_mask], [high, low]) = (port.mask.to_be_bytes(), value.to_be_bytes());
    match place {
        Place::Pair(_) if port.mask == 0 => Some(None),
        Place::Pair(offset) => Some(Some(Condition::upper_pair(offset, value, port.mask))),
        Place::Byte(_) if high_mask & high != 0 => None,
        Place::Byte(_) if low_mask == 0 => Some(None),
        Place::Byte(offset) => Some(Some(Condition::upper_byte(offset, low, low_mask))),
        Place::Nowhere => port.fits(0).then_some(None),
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
    fn a_protocol_alone_is_one_condition_and_no_protocol_none() {
        assert_eq!(alternatives(&selector(0, ANY, ANY)), [vec![]]);
        assert_eq!(alternatives(&selector(47, ANY, ANY)), [vec![Condition::protocol(47)]]);
    }

    #[test]
    fn ports_are_pairs_and_icmp_has_bytes() {
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
    fn what_no_packet_can_be_is_no_alternative() {
        assert!(alternatives(&selector(1, PortMask::exactly(256), ANY)).is_empty());
        assert!(alternatives(&selector(135, ANY, PortMask::exactly(1))).is_empty());
        assert!(alternatives(&selector(89, PortMask::exactly(1), ANY)).is_empty());
    }

    #[test]
    fn protocols_without_ports_have_zeroes() {
        let zero = PortMask::exactly(0);
        assert_eq!(alternatives(&selector(89, zero, ANY)), [vec![Condition::protocol(89)]]);
        let any_protocol = alternatives(&selector(0, zero, zero));
        assert_eq!(any_protocol.len(), LAYOUTS.len() + 1);
        assert!(any_protocol[LAYOUTS.len()].contains(&Condition::other_protocol(6)));
    }

    #[test]
    fn a_gre_key_is_behind_the_checksum_if_there_is_one() {
        let key = alternatives(&selector(47, PortMask::exactly(1), PortMask::exactly(2)));
        assert_eq!(
            key,
            [
                vec![
                    Condition::protocol(47),
                    Condition::upper_pair(0, 0x2000, 0xa000),
                    Condition::upper_pair(4, 1, 0xffff),
                    Condition::upper_pair(6, 2, 0xffff),
                ],
                vec![
                    Condition::protocol(47),
                    Condition::upper_pair(0, 0xa000, 0xa000),
                    Condition::upper_pair(8, 1, 0xffff),
                    Condition::upper_pair(10, 2, 0xffff),
                ],
            ]
        );
    }
}

//! Between which addresses and ports a policy's traffic is, in few bytes: there may be a million policies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Family, PortMask, Prefix, Selector};

/// Both prefixes of a selector as they were given, its protocol, and what its ports must be under their masks.
#[derive(Clone, Debug)]
pub(super) enum Ends {
    V4 { lens: [u8; 2], protocol: u8, ports: [u16; 2], addresses: [[u8; 4]; 2] },
    V6 { lens: [u8; 2], protocol: u8, ports: [u16; 2], addresses: Box<[Ipv6Addr; 2]> },
}

impl Ends {
    /// Those of a selector whose prefixes are of one family.
    pub(super) fn of(selector: &Selector) -> Self {
        let (source, destination) = (selector.source, selector.destination);
        let lens = [source.prefix_len(), destination.prefix_len()];
        let protocol = selector.protocol;
        let ports = [selector.source_port.value, selector.destination_port.value];
        match (source.address(), destination.address()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::V4 {
                lens,
                protocol,
                ports,
                addresses: [source.octets(), destination.octets()],
            },
            (source, destination) => Self::V6 {
                lens,
                protocol,
                ports,
                addresses: Box::new([source, destination].map(v6)),
            },
        }
    }

    pub(super) const fn family(&self) -> Family {
        match self {
            Self::V4 { .. } => Family::V4,
            Self::V6 { .. } => Family::V6,
        }
    }

    pub(super) const fn protocol(&self) -> u8 {
        match self {
            Self::V4 { protocol, .. } | Self::V6 { protocol, .. } => *protocol,
        }
    }

    /// Source and destination, with the masks that were given.
    pub(super) fn ports(&self, masks: [u16; 2]) -> [PortMask; 2] {
        let (Self::V4 { ports, .. } | Self::V6 { ports, .. }) = self;
        [0, 1].map(|end| PortMask { value: ports[end], mask: masks[end] })
    }

    /// Source and destination.
    pub(super) fn prefixes(&self) -> [Prefix; 2] {
        match self {
            Self::V4 { lens, addresses, .. } => {
                let [source, destination] = addresses.map(|octets| Ipv4Addr::from(octets).into());
                [prefix(source, lens[0]), prefix(destination, lens[1])]
            }
            Self::V6 { lens, addresses, .. } => {
                let [source, destination] = addresses.map(IpAddr::from);
                [prefix(source, lens[0]), prefix(destination, lens[1])]
            }
        }
    }
}

/// One of IPv4 beside one of IPv6 does not get this far.
fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(v6) => v6,
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
    }
}

/// The length came from a prefix of the same family.
fn prefix(address: IpAddr, len: u8) -> Prefix {
    Prefix::new(address, len).unwrap_or_else(|_| Prefix::host(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_come_back_with_their_host_bits_and_ports() {
        for words in [
            [("10.1.2.3", 8), ("192.0.2.9", 32)],
            [("0.0.0.0", 0), ("255.255.255.255", 31)],
            [("fd00::1", 7), ("2001:db8::ffff", 128)],
            [("::", 0), ("::ffff:10.0.0.1", 96)],
        ] {
            let prefixes =
                words.map(|(address, len)| Prefix::new(address.parse().unwrap(), len).unwrap());
            let any = Selector::any(prefixes[0].family());
            let [source, destination] = prefixes;
            let ports = [PortMask::exactly(9), PortMask { value: 0xff07, mask: 0xf0 }];
            let [source_port, destination_port] = ports;
            let selector = Selector {
                source,
                destination,
                protocol: 132,
                source_port,
                destination_port,
                ..any
            };
            let ends = Ends::of(&selector);
            assert_eq!((ends.prefixes(), ends.protocol()), (prefixes, 132));
            assert_eq!(ends.ports([u16::MAX, 0xf0]), ports, "as given, bits outside a mask too");
            assert_eq!(ends.family(), prefixes[0].family());
        }
        assert_eq!(size_of::<Ends>(), 16);
    }
}

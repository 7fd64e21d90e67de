//! Names of networks, addresses, states and policies.

use std::net::{IpAddr, Ipv4Addr};

/// The name of a state on the wire: destination and SPI.
pub(super) type Name = (IpAddr, u32);

/// A gateway's address in a network behind it.
pub(super) fn inner(site: usize, net: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, u8::try_from(site + 1).unwrap(), net, 1)
}

/// A gateway's address on the wire; it has several.
pub(super) fn outer(site: usize, place: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2 + place, u8::try_from(site + 1).unwrap())
}

/// Networks behind each gateway.
pub(super) const NETS: u8 = 6;
/// Addresses of each on the wire.
pub(super) const PLACES: u8 = 2;

/// A network behind a gateway: indices of both.
pub(super) type Net = (usize, u8);

/// The direction of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PolicySide {
    Out,
    In,
}

/// The name of a policy: direction, source, destination.
pub(super) type PolicyName = (PolicySide, Net, Net);

/// The gateway that has an address.
pub(super) fn site_of(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(v4) = address else { return None };
    match v4.octets() {
        [10, site, ..] | [192, 0, _, site] => usize::from(site).checked_sub(1),
        _ => None,
    }
}

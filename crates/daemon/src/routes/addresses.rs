//! The host's addresses, and those of policies as the kernel's tables have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_engine::Prefix;
use uxfrm_io::rtnetlink::{self, Address, Rtnetlink};
use uxfrm_packet::Version;

use super::destinations::Destination;

/// All addresses of the host, and those of them that may be sources: the kernel takes no route
/// with one that it does not yet use, or that is of another link alone.
pub(super) fn of_host(rtnetlink: &mut Rtnetlink) -> Result<[Vec<IpAddr>; 2], rtnetlink::Error> {
    let all = rtnetlink.addresses()?;
    let address = |own: &Address| own.prefix.address();
    let sources = all.iter().filter(|own| own.is_usable).map(address);
    Ok([all.iter().map(address).collect(), sources.filter(|own| !is_link_local(*own)).collect()])
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// An own address that the policy's source holds: the very one it names, else the first.
pub(super) fn source(prefix: Prefix, sources: &[IpAddr]) -> Option<IpAddr> {
    if sources.contains(&prefix.address()) {
        return Some(prefix.address());
    }
    sources.iter().copied().find(|address| prefix.contains(*address) && !address.is_loopback())
}

/// A prefix as tables have it, without its host bits.
pub(super) fn net(prefix: Prefix) -> Destination {
    (prefix.network().address(), prefix.prefix_len())
}

/// The same as rtnetlink has it.
pub(super) fn prefix((address, length): Destination) -> rtnetlink::RoutePrefix {
    rtnetlink::RoutePrefix::new(address, length)
        .unwrap_or_else(|| rtnetlink::RoutePrefix::host(address))
}

/// All addresses of a version.
pub(super) fn default_net(version: Version) -> rtnetlink::RoutePrefix {
    prefix(match version {
        Version::V4 => (Ipv4Addr::UNSPECIFIED.into(), 0),
        Version::V6 => (Ipv6Addr::UNSPECIFIED.into(), 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_source_is_own_policy_address() {
        let own: Vec<IpAddr> =
            ["127.0.0.1", "14.0.0.9", "14.0.0.52"].map(|own| own.parse().unwrap()).into();
        let named = Prefix::new("14.0.0.52".parse().unwrap(), 24).unwrap();
        assert_eq!(source(named, &own), Some(own[2]));
        let net = Prefix::new("14.0.0.0".parse().unwrap(), 24).unwrap();
        assert_eq!(source(net, &own), Some(own[1]));
        let all = Prefix::new("0.0.0.0".parse().unwrap(), 0).unwrap();
        assert_eq!(source(all, &own), Some(own[1]));
        let other = Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap();
        assert_eq!(source(other, &own), None);
    }
}

//! Host mode: routes that bring outbound policies' traffic to the TUN, and keep it from leaving any other way.
//!
//! As wg-quick does it: a rule sends every packet *without* our mark to a table of our own; in it, each outbound
//! policy that protects or blocks has a route to the TUN. Our own sockets carry the mark, so what they send takes the
//! ordinary way. Beneath each route lies an `unreachable` one: when the TUN is gone (`kill -9`), packets are refused, not sent plain. A
//! start clears what an earlier run left behind; an orderly end removes everything.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Context as _;
use uxfrm_engine::{Action, Direction, Policy, Prefix, Spd};
use uxfrm_io::rtnetlink::{self, FirewallMark, Route, Rtnetlink, Rule, Via};
use uxfrm_packet::Version;

/// Metric of the `unreachable` routes beneath.
const BENEATH: u32 = u32::MAX - 1;

/// Priority of our rules: before the main table's 32766, behind anything that an administrator numbers by hand.
const PRIORITY: u32 = 32_700;

/// Rules and routes of one gateway.
#[derive(Debug)]
pub(crate) struct HostRoutes {
    rtnetlink: Rtnetlink,
    table: u32,
    mark: u32,
    tun: u32,
    installed: BTreeSet<Wanted>,
}

/// A destination that must go to the TUN, and the source that local packets get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    destination: IpAddr,
    length: u8,
    source: Option<IpAddr>,
}

impl HostRoutes {
    /// Clears what an earlier run left in `table`, and adds the rules that lead to it.
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn open(tun: u32, table: u32, mark: u32) -> anyhow::Result<Self> {
        let mut rtnetlink = Rtnetlink::open()?;
        clear(&mut rtnetlink, table)?;
        let mut routes = Self { rtnetlink, table, mark, tun, installed: BTreeSet::new() };
        for version in [Version::V4, Version::V6] {
            routes.rtnetlink.add_rule(&routes.rule(version))?;
        }
        Ok(routes)
    }

    /// Makes the routes those of the outbound policies in `spd`: adds what is missing first, then removes what is no longer wanted.
    ///
    /// # Errors
    /// The kernel's; routes already changed stay so.
    pub(crate) fn follow(&mut self, spd: &Spd) -> anyhow::Result<()> {
        let own: Vec<_> =
            self.rtnetlink.addresses()?.iter().map(|own| own.prefix.address()).collect();
        let wanted = wanted(spd, &own);
        let missing: Vec<_> = wanted.difference(&self.installed).copied().collect();
        for route in missing {
            self.replace(route)?;
        }
        for gone in self.installed.difference(&wanted) {
            if !wanted.iter().any(|route| route.same_destination(gone)) {
                for route in gone.routes(self.tun, self.table) {
                    forgive_absent(self.rtnetlink.delete_route(&route))?;
                }
            }
        }
        self.installed = wanted;
        Ok(())
    }

    /// Removes rules, routes and all.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        for version in [Version::V4, Version::V6] {
            let rule = self.rule(version);
            forgive_absent(self.rtnetlink.delete_rule(&rule))?;
        }
        clear(&mut self.rtnetlink, self.table)
    }

    /// The largest IP packet that the network takes towards all of `peers`; `None` without a route to any of them.
    pub(crate) fn wire_mtu(&mut self, peers: impl Iterator<Item = IpAddr>) -> Option<u32> {
        peers
            .filter_map(|peer| self.rtnetlink.route_to(peer, self.mark).ok())
            .map(|way| way.mtu)
            .min()
    }

    /// The host's own addresses.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn addresses(&mut self) -> anyhow::Result<Vec<IpAddr>> {
        Ok(self.rtnetlink.addresses()?.iter().map(|own| own.prefix.address()).collect())
    }

    fn replace(&mut self, wanted: Wanted) -> anyhow::Result<()> {
        for route in wanted.routes(self.tun, self.table) {
            if let Err(rtnetlink::Error::Exists { .. }) = self.rtnetlink.add_route(&route) {
                self.rtnetlink.delete_route(&route)?;
                self.rtnetlink
                    .add_route(&route)
                    .with_context(|| format!("can't add route {route}"))?;
            }
        }
        Ok(())
    }

    fn rule(&self, version: Version) -> Rule {
        Rule {
            version,
            mark: FirewallMark::IsNot(self.mark, u32::MAX),
            table: self.table,
            priority: PRIORITY,
            suppress_prefix_length: None,
        }
    }
}

impl Wanted {
    fn same_destination(&self, other: &Self) -> bool {
        (self.destination, self.length) == (other.destination, other.length)
    }

    /// The route to the TUN and the one beneath it.
    fn routes(self, tun: u32, table: u32) -> impl Iterator<Item = Route> {
        let destination = rtnetlink::Prefix::new(self.destination, self.length);
        destination.into_iter().flat_map(move |destination| {
            let to_tun = Route {
                table,
                source: self.source,
                metric: Some(1),
                ..Route::new(destination, Via::Link(tun))
            };
            let beneath =
                Route { table, metric: Some(BENEATH), ..Route::new(destination, Via::Unreachable) };
            [beneath, to_tun]
        })
    }
}

/// The destinations of all outbound policies that do not simply let pass.
fn wanted(spd: &Spd, own: &[IpAddr]) -> BTreeSet<Wanted> {
    spd.iter()
        .map(|entry| entry.policy())
        .filter(|policy| policy.direction == Direction::Out && !passes_plain(policy))
        .map(|policy| {
            let destination = policy.selector.destination;
            Wanted {
                destination: network(destination),
                length: destination.prefix_len(),
                source: source(policy.selector.source, own),
            }
        })
        .collect()
}

fn passes_plain(policy: &Policy) -> bool {
    policy.action == Action::Allow && policy.templates.is_empty()
}

/// An own address that the policy's source holds: the very one it names, else the first.
fn source(prefix: Prefix, own: &[IpAddr]) -> Option<IpAddr> {
    if own.contains(&prefix.address()) {
        return Some(prefix.address());
    }
    own.iter().copied().find(|address| prefix.contains(*address) && !address.is_loopback())
}

/// A prefix's address without its host bits.
fn network(prefix: Prefix) -> IpAddr {
    let host_bits = u32::from(prefix.family().bits() - prefix.prefix_len());
    match prefix.address() {
        IpAddr::V4(address) => {
            IpAddr::V4((address.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            IpAddr::V6((address.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into())
        }
    }
}

fn clear(rtnetlink: &mut Rtnetlink, table: u32) -> anyhow::Result<()> {
    for version in [Version::V4, Version::V6] {
        for rule in rtnetlink.rules(version)?.iter().filter(|rule| rule.table == table) {
            forgive_absent(rtnetlink.delete_rule(rule))?;
        }
    }
    for route in rtnetlink.routes(table)? {
        forgive_absent(rtnetlink.delete_route(&route))?;
    }
    Ok(())
}

/// What is not there need not be deleted: the kernel takes a device's routes along with it.
fn forgive_absent(result: Result<(), rtnetlink::Error>) -> anyhow::Result<()> {
    match result {
        Ok(()) | Err(rtnetlink::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_address_that_the_policy_names_if_it_is_ours() {
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

    #[test]
    fn networks_lose_their_host_bits() {
        let net = Prefix::new("14.0.0.52".parse().unwrap(), 24).unwrap();
        assert_eq!(network(net).to_string(), "14.0.0.0");
        let all = Prefix::new("fd00::1".parse().unwrap(), 0).unwrap();
        assert_eq!(network(all).to_string(), "::");
        let host = Prefix::new("fd00::1".parse().unwrap(), 128).unwrap();
        assert_eq!(network(host).to_string(), "fd00::1");
    }
}

//! IPv4 multicast groups that policies name, and the source of what is sent there.
//!
//! The kernel sends what is for a group, and has an address already, by that address's device and
//! asks no route. So a mark leads nothing there into the TUN: a route must do it before a source is
//! chosen.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_engine::{Direction, PolicyEntry, Spd};
use uxfrm_io::rtnetlink::Rtnetlink;

use super::{addresses::net, destinations::Destination};

/// All of them.
pub(super) const ALL: Destination = (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4);

/// More are not asked about.
const MOST: usize = 64;

/// Nets of groups, each with the source that a packet to there has without uxfrm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MulticastGroups(pub(super) Vec<(Destination, IpAddr)>);

impl MulticastGroups {
    /// Those of the policies `out` in `spd`, as packets with `mark`, which go past uxfrm, would be
    /// sent to them. Groups without a route are left to the table of destinations.
    pub(super) fn of(spd: &Spd, rtnetlink: &mut Rtnetlink, mark: u32) -> Self {
        let of_out = spd.iter().filter(|entry| entry.direction() == Direction::Out);
        let mut nets: Vec<_> = of_out.filter_map(|entry| named_by(entry)).collect();
        nets.sort_unstable_by_key(|(address, length)| (*length, *address));
        nets.dedup();
        let source = |net: Destination| {
            let chosen = rtnetlink.route_to(net.0, mark).ok()?;
            chosen.source.map(|source| (net, source))
        };
        Self(nets.into_iter().take(MOST).filter_map(source).collect())
    }
}

/// Counts of policies that lead multicast into the TUN.
#[derive(Debug, Default)]
pub(super) struct GroupPolicies {
    count: usize,
    /// Whether it has changed since the last time.
    news: bool,
}

impl GroupPolicies {
    /// A policy comes.
    pub(super) fn count_in(&mut self, entry: &PolicyEntry) {
        if named_by(entry).is_some() {
            (self.count, self.news) = (self.count + 1, true);
        }
    }

    /// A policy goes.
    pub(super) fn count_out(&mut self, entry: &PolicyEntry) {
        if named_by(entry).is_some() {
            (self.count, self.news) = (self.count.saturating_sub(1), true);
        }
    }

    /// Whether there are any.
    pub(super) fn are_any(&self) -> bool {
        self.count > 0
    }

    /// Whether the plan is to follow at once, as no mark leads groups' packets. Not where there are
    /// many: each plan looks at all policies.
    pub(super) fn take_urgency(&mut self) -> bool {
        std::mem::take(&mut self.news) && self.count <= MOST
    }
}

/// The groups among a policy's destinations.
pub(super) fn named_by(entry: &PolicyEntry) -> Option<Destination> {
    let prefix = entry.selector().destination;
    let net = net(prefix);
    match net.0 {
        IpAddr::V4(address) if address.is_multicast() && net.1 >= ALL.1 => Some(net),
        IpAddr::V4(_) if prefix.contains(ALL.0) => Some(ALL),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

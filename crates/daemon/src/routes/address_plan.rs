//! Which packets find their way into the TUN by their source and destination alone: the common
//! case, for which the kernel need not ask the packet filter.
//!
//! A source that policies name has a table of its own. In it a destination leads to the TUN where
//! all packets there meet a policy that protects or blocks, and out of the table where a better one
//! lets some pass, or where that depends on more than addresses. So the plan may say less than the
//! policies, never more (but between two peers, one of whose policies asks for more): what has no
//! way from a table is looked at once more by the packet filter ([`crate::firewall`]).
//!
//! A source of all addresses has no table: what has no address yet would come from it as well, and
//! get another than without uxfrm. The host's own addresses stand for it. To multicast groups alone
//! unbound sockets are led as well, from the address that they would have (`multicast.rs`).

mod unreachable;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use uxfrm_engine::{Action, Direction, Mode, PolicyEntry, PolicyKind, Prefix, Spd, Template};

pub(crate) use super::multicast::MulticastGroups;
pub(crate) use unreachable::UnreachableRoutes;

use super::{addresses::net, destinations::Destination, multicast, route_demand::passes_plain};

/// Sources that have a table; each is a rule that all packets of a family walk along.
pub(crate) const MOST_SOURCES: usize = 27;

/// With more policies `out` there is no plan: it would be made anew too often, and most packets are
/// others'.
const MOST_POLICIES: usize = 256;

/// Policies that are looked at for those.
const MOST_LOOKED_AT: usize = 4 * MOST_POLICIES;

/// Where a destination of a table leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// To the TUN.
    Tun,
    /// To the rules behind.
    On,
}

/// A source, and where its packets are led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) net: Destination,
    pub(crate) leads: Vec<(Destination, Lead)>,
}

/// A net of groups, and where unbound sockets' packets to there are led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) net: Destination,
    pub(crate) lead: Lead,
    /// Their source.
    pub(crate) source: IpAddr,
}

/// The sources and groups of both families, in the order of their rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressPlan {
    pub(crate) sources: Vec<Source>,
    pub(crate) groups: Vec<Group>,
    pub(crate) closing: UnreachableRoutes,
}

/// The addresses that a policy selects.
#[derive(Clone, Copy, Debug)]
struct PolicyAddresses {
    source: Destination,
    destination: Destination,
    lead: Lead,
    /// Whether it says so of all packets between them, whatever other policies do.
    is_whole: bool,
    /// Whether it is for all packets between them, and the last word about them.
    is_of_all: bool,
}

impl AddressPlan {
    /// That of the policies `out` in `spd`, for a host with these addresses and ways to groups.
    pub(crate) fn of(spd: &Spd, own: &[IpAddr], groups: &MulticastGroups) -> Self {
        let groups = if groups.0.is_empty() {
            Vec::new()
        } else {
            let said = said_first(spd.iter().filter(|entry| multicast::named_by(entry).is_some()));
            led_groups(groups, &said.unwrap_or_default())
        };
        let few = (spd.len() <= MOST_LOOKED_AT).then(|| said_first(spd.iter())).flatten();
        let all = few.unwrap_or_default();
        let (mut sources, mut closing) = (Vec::new(), UnreachableRoutes::default());
        for is_v4 in [true, false] {
            let said: Vec<_> =
                all.iter().filter(|said| said.source.0.is_ipv4() == is_v4).copied().collect();
            let of_source = |net| {
                let leads = leads(net, &said);
                (!leads.is_empty()).then_some(Source { net, leads })
            };
            sources.extend(nets(&said, own).into_iter().filter_map(of_source).take(MOST_SOURCES));
            closing.add(everywhere(is_v4), &said, own);
        }
        Self { sources, groups, closing }
    }

    /// Those of one family, with their numbers.
    pub(crate) fn of_family(&self, is_v4: bool) -> impl Iterator<Item = (usize, &Source)> {
        self.sources.iter().filter(move |source| source.net.0.is_ipv4() == is_v4).enumerate()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, length) = self.net;
        let leads: Vec<_> = self.leads.iter().map(|(net, lead)| told(*net, *lead)).collect();
        write!(out, "from {source}/{length}: {}", leads.join(", "))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} from {}", told(self.net, self.lead), self.source)
    }
}

fn told((net, length): Destination, lead: Lead) -> String {
    let to = match lead {
        Lead::Tun => "to uxfrm",
        Lead::On => "as ever",
    };
    format!("{net}/{length} {to}")
}

/// What the policies `out` say, the first one first; `None` where there are too many.
fn said_first<'a>(
    entries: impl Iterator<Item = &'a Arc<PolicyEntry>>,
) -> Option<Vec<PolicyAddresses>> {
    let of_out = entries.filter(|entry| entry.direction() == Direction::Out);
    let mut out: Vec<_> = of_out.take(MOST_POLICIES + 1).collect();
    if out.len() > MOST_POLICIES {
        return None;
    }
    out.sort_unstable_by_key(|entry| (entry.kind() == PolicyKind::Main, entry.precedence()));
    Some(out.into_iter().map(|entry| said(entry)).collect())
}

fn said(entry: &PolicyEntry) -> PolicyAddresses {
    let selector = entry.selector();
    let is_sub_that_passes =
        entry.kind() == PolicyKind::Sub && entry.action() == Action::Allow && passes_plain(entry);
    let asks_for_more = selector.protocol != 0
        || selector.source_port.mask != 0
        || selector.destination_port.mask != 0
        || selector.ifindex != 0
        || entry.mark().mask != 0
        || entry.if_id().0 != 0;
    // What is led by its mark alone has the kernel note the TUN's MTU for the path of ESP.
    let has_esps_path =
        !passes_plain(entry) && entry.templates().any(|template| leads_to_peer(entry, &template));
    let is_of_all = !asks_for_more && !is_sub_that_passes;
    PolicyAddresses {
        source: net(selector.source),
        destination: net(selector.destination),
        lead: if passes_plain(entry) { Lead::On } else { Lead::Tun },
        is_whole: has_esps_path || is_of_all,
        is_of_all,
    }
}

/// Whether what a policy protects goes where its ESP does.
fn leads_to_peer(entry: &PolicyEntry, template: &Template) -> bool {
    let destination = entry.selector().destination;
    let is_host = destination.prefix_len() == destination.family().bits();
    template.mode == Mode::Transport || is_host && destination.address() == template.destination
}

/// The sources that have a table.
fn nets(said: &[PolicyAddresses], own: &[IpAddr]) -> Vec<Destination> {
    let mut nets: Vec<Destination> = Vec::new();
    let mut add = |net| {
        if !nets.contains(&net) {
            nets.push(net)
        }
    };
    for PolicyAddresses { source, .. } in
        said.iter().filter(|said| said.is_whole && said.lead == Lead::Tun)
    {
        if source.0.is_unspecified() {
            let inside = own.iter().filter(|own| !own.is_loopback()).map(|own| host(*own));
            inside.filter(|own| holds(*source, *own)).for_each(&mut add);
        } else {
            add(*source);
        }
    }
    nets
}

/// Where packets from a source are led; nothing where none is.
fn leads(source: Destination, said: &[PolicyAddresses]) -> Vec<(Destination, Lead)> {
    let concerned: Vec<_> = said.iter().filter(|said| meet(said.source, source)).collect();
    leads_of(concerned.iter().copied(), |net| lead(source, net, &concerned))
}

/// Where packets are led to the destinations that policies name, shortest prefixes first.
fn leads_of<'a>(
    said: impl Iterator<Item = &'a PolicyAddresses>,
    lead: impl Fn(Destination) -> Lead,
) -> Vec<(Destination, Lead)> {
    let mut nets: Vec<_> = said.map(|said| said.destination).collect();
    nets.sort_unstable_by_key(|(address, length)| (*length, *address));
    nets.dedup();
    let mut leads: Vec<(Destination, Lead)> = Vec::new();
    for net in nets {
        let lead = lead(net);
        // The longest of those around it is the last one.
        let around = leads.iter().rev().find(|(other, _)| holds(*other, net));
        if around.map_or(Lead::On, |(_, lead)| *lead) != lead {
            leads.push((net, lead));
        }
    }
    leads
}

/// Where unbound sockets' packets to groups are led; nothing where none is.
fn led_groups(groups: &MulticastGroups, said: &[PolicyAddresses]) -> Vec<Group> {
    let mut led: Vec<Group> = Vec::new();
    for (net, source) in groups.0.iter().copied() {
        let own = host(source);
        let concerned: Vec<_> = said.iter().filter(|said| meet(said.source, own)).collect();
        let group = Group { net, lead: lead(own, net, &concerned), source };
        let around = led.iter().rev().find(|other| holds(other.net, net));
        let is_said = around.map_or(group.lead == Lead::On, |around| {
            around.lead == group.lead && (around.source == source || group.lead == Lead::On)
        });
        if !is_said {
            led.push(group);
        }
    }
    led
}

/// Where packets go from a source to a net, as far as no policy names a part of it.
fn lead(source: Destination, net: Destination, said: &[&PolicyAddresses]) -> Lead {
    let decides = |said: &&&PolicyAddresses| said.is_whole && holds(said.source, source);
    // One that leads some of them there changes nothing where the rest goes there as well.
    let counts = |said: &&&PolicyAddresses| {
        holds(said.destination, net) && (said.lead == Lead::On || decides(said))
    };
    said.iter().find(counts).map_or(Lead::On, |said| said.lead)
}

/// All addresses of a family.
fn everywhere(is_v4: bool) -> Destination {
    let none =
        if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv6Addr::UNSPECIFIED) };
    (none, 0)
}

fn host(address: IpAddr) -> Destination {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

/// Whether one net holds all of another.
fn holds((outer, length): Destination, (inner, longer): Destination) -> bool {
    Prefix::new(outer, length).is_ok_and(|outer| length <= longer && outer.contains(inner))
}

/// Whether one net holds the other, or the other way round.
fn meet(one: Destination, other: Destination) -> bool {
    holds(one, other) || holds(other, one)
}

#[cfg(test)]
mod tests;

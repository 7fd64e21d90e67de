//! Policies that take what the gateway itself sends to the net behind it.

use std::net::IpAddr;

use uxfrm_engine::{Action, Direction, Mode, PolicyEntry, Prefix, explain::too_big::HostErrorWay};

use super::{Finding, Subject};
use crate::wording;

/// Policies `out` from a net in which the gateway has an address, to nets that hold this one too,
/// as `src 10.1.0.0/24 dst 0.0.0.0/0`: its answers and ICMP errors to its own hosts would go into
/// the tunnel.
pub(super) fn into_the_tunnel(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(own) = &subject.host.addresses else { return Vec::new() };
    let wide =
        subject.snapshot.spd.iter().map(|entry| &**entry).filter(|entry| covers_itself(entry));
    let taken = wide.filter_map(|entry| {
        let net = entry.selector().source;
        let mut here: Vec<_> =
            own.iter().copied().filter(|address| net.contains(*address)).collect();
        here.sort_unstable();
        let from = here.into_iter().find(|from| {
            let host = neighbour(*from, net).filter(|host| !own.contains(host));
            host.is_some_and(|host| takes(subject, entry, *from, host))
        });
        Some(finding(entry, from?))
    });
    taken.collect()
}

fn finding(entry: &PolicyEntry, from: IpAddr) -> Finding {
    let (policy, net) = (wording::policy(entry), entry.selector().source);
    let priority = entry.precedence().priority().0;
    Finding::warning(
        format!(
            "`{policy} priority {priority}` takes what the gateway sends from {from} to hosts in \
             {net} as well: they get no answers and no ICMP from it, as about packets too big"
        ),
        wording::plain_between(net, net),
    )
}

/// Whether packets from a net to the same net are among those that a policy protects, whatever they
/// carry. Of all addresses nobody knows which are behind the gateway.
fn covers_itself(entry: &PolicyEntry) -> bool {
    let selector = entry.selector();
    let (net, to) = (selector.source, selector.destination);
    let is_net = (1..net.family().bits()).contains(&net.prefix_len());
    entry.direction() == Direction::Out
        && entry.action() == Action::Allow
        && entry.templates().any(|template| template.mode == Mode::Tunnel)
        && selector.protocol == 0
        && is_net
        && to.covers(net)
}

/// Whether a policy decides about ICMP of the gateway to a host.
fn takes(subject: &Subject<'_>, entry: &PolicyEntry, source: IpAddr, destination: IpAddr) -> bool {
    match HostErrorWay::of(&subject.snapshot.spd, source, destination) {
        HostErrorWay::IntoTunnel(deciding) => deciding.index() == entry.index(),
        HostErrorWay::Plain | HostErrorWay::Blocked(_) => false,
    }
}

/// The address beside another in its net.
fn neighbour(address: IpAddr, net: Prefix) -> Option<IpAddr> {
    let beside = match address {
        IpAddr::V4(address) => IpAddr::from((u32::from(address) ^ 1).to_be_bytes()),
        IpAddr::V6(address) => IpAddr::from((u128::from(address) ^ 1).to_be_bytes()),
    };
    net.contains(beside).then_some(beside)
}

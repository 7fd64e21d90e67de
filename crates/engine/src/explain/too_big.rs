//! What becomes of ICMP errors about a packet that is too large for its tunnel.
//!
//! The host sends one where its own MTU is exceeded, the engine where the tunnel's is. Either is a
//! packet of the gateway that policies judge: one that covers all destinations takes it into the
//! tunnel, and its sender never hears of it.

use std::net::IpAddr;
use std::sync::Arc;

use crate::worker::icmp_source::{IcmpErrorWay, MOST_ADDRESSES};
use crate::{
    Action, Direction, Family, FlowKey, PolicyEntry, PolicyLookup, Settings, Snapshot, Spd,
};

/// Who hears that packets of a flow are too large.
#[derive(Clone, Debug)]
pub struct TooBigExplanation {
    /// How the engine's error gets to the sender.
    pub engine: IcmpErrorWay,
    /// Whether the packet itself comes out of a tunnel: the host's error quotes it in plaintext.
    pub comes_by_tunnel: bool,
    /// The host's error, by the own address that it may come from; of 64 addresses at most.
    pub host: Vec<(IpAddr, HostErrorWay)>,
}

/// What policies do with an ICMP error of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostErrorWay {
    /// It leaves plain, to its sender.
    Plain,
    /// This policy takes it into a tunnel.
    IntoTunnel(Arc<PolicyEntry>),
    /// It is dropped, by this policy or else by the default.
    Blocked(Option<Arc<PolicyEntry>>),
}

impl TooBigExplanation {
    /// About packets of this flow; `settings` are a worker's, with the host of the snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot, settings: &Settings, flow: &FlowKey) -> Self {
        let spd = &snapshot.spd;
        let error = error_flow(flow.destination, flow.source);
        let back = FlowKey { mark: 0, ..flow.reversed() };
        let comes = [Direction::In, Direction::Forward].iter().any(|direction| {
            let mut deciding = spd.deciding(*direction, flow);
            deciding.any(|entry| entry.templates().next().is_some())
        });
        let own = settings.addresses.of_family(Family::of(flow.source));
        let host = own.take(MOST_ADDRESSES);
        Self {
            engine: IcmpErrorWay::judge(spd, &settings.addresses, &error, Some(&back)),
            comes_by_tunnel: comes,
            host: host.map(|own| (own, HostErrorWay::of(spd, own, flow.source))).collect(),
        }
    }
}

impl HostErrorWay {
    /// Of one that the host sends from an own address to the sender of a packet.
    #[must_use]
    pub fn of(spd: &Spd, own: IpAddr, sender: IpAddr) -> Self {
        match spd.lookup(Direction::Out, &error_flow(own, sender)) {
            PolicyLookup::Default(Action::Allow) => Self::Plain,
            PolicyLookup::Default(Action::Block) => Self::Blocked(None),
            PolicyLookup::Policy(entry) => match entry.action() {
                Action::Block => Self::Blocked(Some(Arc::clone(entry))),
                Action::Allow if entry.templates().next().is_none() => Self::Plain,
                Action::Allow => Self::IntoTunnel(Arc::clone(entry)),
            },
        }
    }
}

/// "Fragmentation needed", or "packet too big" of IPv6.
fn error_flow(source: IpAddr, destination: IpAddr) -> FlowKey {
    let (protocol, source_port, destination_port) = match source {
        IpAddr::V4(_) => (1, 3, 4),
        IpAddr::V6(_) => (58, 2, 0),
    };
    FlowKey {
        source,
        destination,
        protocol,
        source_port,
        destination_port,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    }
}

//! From which address a sender hears that its packet was too big.
//!
//! The engine's ICMP errors come from the destination of the packet that they are about, which is
//! right wherever they pass. A reader of `traceroute` expects an address of the gateway, as
//! `net/ipv4/icmp.c: __icmp_send` chooses it: by the route to the sender. Who has a socket of the
//! host may send them from there, where no policy takes such a message.

use uxfrm_packet::{IpPacket, PacketBuf};

use super::Worker;
use crate::datapath::inbound::slow::icmp_flow::icmp_inner_flow;
use crate::{Action, Direction, Family, FlowKey, HostAddresses, PolicyLookup, Spd};

/// Own addresses that are looked at: which one the host would choose is not known here.
pub(crate) const MOST_ADDRESSES: usize = 64;

/// How an ICMP error of the engine gets to the sender of the packet that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorWay {
    /// Plain, from an address of the host, by a socket.
    FromHost,
    /// By the host's port, from the packet's destination: `out` policies judge it.
    ThroughHostPort,
    /// Not at all: it would leave plain, and quotes what policies protect.
    Withheld,
}

impl Worker {
    /// The way of an ICMP error that [`Worker::outbound`] has made.
    ///
    /// The host sends it where no policy protects or blocks what goes to the sender, neither from
    /// the host nor from the destination of the packet that the error is about. Where the packet
    /// came out of a tunnel, or its answers go into one, the error goes in there or nowhere.
    #[cold]
    #[must_use]
    pub fn icmp_error_way(&mut self, answer: &PacketBuf) -> IcmpErrorWay {
        let Ok(ip) = IpPacket::parse(answer.bytes()) else { return IcmpErrorWay::Withheld };
        let flow = FlowKey::of_bytes(&ip, answer.bytes());
        let spd = &self.snapshots.load().spd;
        let back = icmp_inner_flow(answer.bytes(), &flow);
        IcmpErrorWay::judge(spd, &self.settings.addresses, &flow, back.as_ref())
    }
}

impl IcmpErrorWay {
    /// The way of an error of the flow `error`. `back` is what answers the packet that it quotes;
    /// `None` if that can't be told.
    pub(crate) fn judge(
        spd: &Spd,
        addresses: &HostAddresses,
        error: &FlowKey,
        back: Option<&FlowKey>,
    ) -> Self {
        if back.is_none_or(|back| is_protected(spd, back)) {
            return match protects(spd, Direction::Out, error) {
                true => Self::ThroughHostPort,
                false => Self::Withheld,
            };
        }
        let own = addresses.of_family(Family::of(error.destination));
        let own: Vec<_> = own.take(MOST_ADDRESSES + 1).collect();
        let sources = own.iter().map(|source| FlowKey { source: *source, ..*error });
        let leaves = std::iter::once(*error).chain(sources).all(|flow| leaves_plain(spd, &flow));
        match leaves && own.len() <= MOST_ADDRESSES {
            true => Self::FromHost,
            false => Self::ThroughHostPort,
        }
    }
}

/// Whether policies protect the answers of a quoted packet, or the packet on its way in.
fn is_protected(spd: &Spd, back: &FlowKey) -> bool {
    let quoted = back.reversed();
    protects(spd, Direction::Out, back)
        || protects(spd, Direction::In, &quoted)
        || protects(spd, Direction::Forward, &quoted)
}

fn protects(spd: &Spd, direction: Direction, flow: &FlowKey) -> bool {
    spd.deciding(direction, flow).any(|entry| entry.templates().next().is_some())
}

fn leaves_plain(spd: &Spd, flow: &FlowKey) -> bool {
    match spd.lookup(Direction::Out, flow) {
        PolicyLookup::Policy(entry) => {
            entry.action() == Action::Allow && entry.templates().next().is_none()
        }
        PolicyLookup::Default(action) => action == Action::Allow,
    }
}

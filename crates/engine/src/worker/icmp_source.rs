//! From which address a sender hears that its packet was too big.
//!
//! The engine's ICMP errors come from the destination of the packet that they are about, which is
//! right wherever they pass. A reader of `traceroute` expects an address of the gateway, as
//! `net/ipv4/icmp.c: __icmp_send` chooses it: by the route to the sender. Who has a socket of the
//! host may send them from there, where no policy takes such a message.

use uxfrm_packet::{IpPacket, PacketBuf};

use super::Worker;
use crate::{Action, Direction, Family, FlowKey, PolicyLookup, Spd};

/// Own addresses that are looked at: which one the host would choose is not known here.
const MOST_ADDRESSES: usize = 64;

impl Worker {
    /// Whether the host may send an ICMP error of [`Worker::outbound`] from an address of its own:
    /// no policy protects or blocks what goes to the sender, neither from the host nor from the
    /// destination of the packet that the error is about. Else it would be led into a tunnel, or
    /// leave plain what has come out of one.
    #[cold]
    #[must_use]
    pub fn host_may_answer(&mut self, answer: &PacketBuf) -> bool {
        let Ok(ip) = IpPacket::parse(answer.bytes()) else { return false };
        let flow = FlowKey::of_bytes(&ip, answer.bytes());
        let family = Family::of(ip.destination);
        let snapshot = self.snapshots.load();
        let own = self.settings.addresses.of_family(family).take(MOST_ADDRESSES);
        let own = own.map(|source| FlowKey { source, ..flow });
        std::iter::once(flow).chain(own).all(|flow| leaves_plain(&snapshot.spd, &flow))
    }
}

fn leaves_plain(spd: &Spd, flow: &FlowKey) -> bool {
    match spd.lookup(Direction::Out, flow) {
        PolicyLookup::Policy(entry) => {
            entry.action() == Action::Allow && entry.templates().next().is_none()
        }
        PolicyLookup::Default(action) => action == Action::Allow,
    }
}

//! The kernel's neighbour table.
//!
//! A sender past the kernel must report its traffic ([`Rtnetlink::use_neighbour`]), or the kernel
//! expires the neighbour as unused and never checks whether it has moved.

use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
    NeighbourState as KernelState,
};
use uxfrm_packet::ethernet::MacAddr;

use super::{Error, Rtnetlink};

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of its device.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its state.
    pub state: NeighbourState,
}

/// States of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Reachable.
    Known(MacAddr),
    /// Reachable some time ago; senders should report their use.
    Stale(MacAddr),
    /// The kernel is resolving it.
    Resolving,
    /// Resolution failed.
    Failed,
    /// No entry, as after `ip neigh flush` or while a device was down: nobody resolves it until
    /// somebody sends.
    Removed,
}

impl Rtnetlink {
    /// The entry of one neighbour; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn neighbour(&mut self, link: u32, address: IpAddr) -> Result<Option<Neighbour>, Error> {
        let request = format!("neighbour {address} on link with index {link}");
        let message = RouteNetlinkMessage::GetNeighbour(describe(link, address));
        match self.ask(&request, message) {
            Ok(found) => Ok(found.iter().find_map(read)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reports traffic to a neighbour: the kernel resolves or confirms it if necessary (`NTF_USE`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn use_neighbour(&mut self, link: u32, address: IpAddr) -> Result<(), Error> {
        let mut message = describe(link, address);
        message.header.flags = NeighbourFlags::Use;
        let request = format!("use of neighbour {address} on link with index {link}");
        self.change(&request, NLM_F_CREATE, RouteNetlinkMessage::NewNeighbour(message))
    }
}

fn describe(link: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = address.into();
    message.header.ifindex = link;
    message.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    }));
    message
}

/// The neighbour of an answer or notice.
pub(super) fn read(answer: &RouteNetlinkMessage) -> Option<Neighbour> {
    let (message, deleted) = if let RouteNetlinkMessage::NewNeighbour(message) = answer {
        (message, false)
    } else if let RouteNetlinkMessage::DelNeighbour(message) = answer {
        (message, true)
    } else {
        return None;
    };
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        if let NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) = attribute {
            address = Some(IpAddr::V4(*v4));
        } else if let NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) = attribute {
            address = Some(IpAddr::V6(*v6));
        } else if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
            mac = bytes.as_slice().try_into().ok().map(MacAddr);
        }
    }
    let standing =
        if deleted { NeighbourState::Removed } else { standing(message.header.state, mac) };
    Some(Neighbour { link: message.header.ifindex, address: address?, state: standing })
}

fn standing(state: KernelState, mac: Option<MacAddr>) -> NeighbourState {
    match (state, mac) {
        (KernelState::Stale, Some(mac)) => NeighbourState::Stale(mac),
        (
            KernelState::Reachable
            | KernelState::Delay
            | KernelState::Probe
            | KernelState::Permanent
            | KernelState::Noarp,
            Some(mac),
        ) => NeighbourState::Known(mac),
        (KernelState::Incomplete | KernelState::None, _) => NeighbourState::Resolving,
        _without_address => NeighbourState::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nud_state_maps_to_neighbour_state() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for (state, with, expected) in [
            (KernelState::Reachable, Some(mac), NeighbourState::Known(mac)),
            (KernelState::Permanent, Some(mac), NeighbourState::Known(mac)),
            (KernelState::Probe, Some(mac), NeighbourState::Known(mac)),
            (KernelState::Stale, Some(mac), NeighbourState::Stale(mac)),
            (KernelState::Incomplete, None, NeighbourState::Resolving),
            (KernelState::None, None, NeighbourState::Resolving),
            (KernelState::Failed, Some(mac), NeighbourState::Failed),
            (KernelState::Reachable, None, NeighbourState::Failed),
        ] {
            assert_eq!(standing(state, with), expected, "{state:?}");
        }
    }

    /// On `ip neigh flush` the kernel first reports each as failed.
    #[test]
    fn deleted_neighbour_is_forgotten() {
        let mut message = describe(1, IpAddr::from([10, 0, 0, 1]));
        message.header.state = KernelState::Failed;
        let standing = |notice| read(&notice).map(|neighbour| neighbour.state);
        let failed = RouteNetlinkMessage::NewNeighbour(message.clone());
        assert_eq!(standing(failed), Some(NeighbourState::Failed));
        assert_eq!(
            standing(RouteNetlinkMessage::DelNeighbour(message)),
            Some(NeighbourState::Removed)
        );
    }
}

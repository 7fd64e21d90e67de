//! Neighbours: who has which Ethernet address, as the kernel knows it.
//!
//! Who sends past the kernel has to tell it, or it forgets a neighbour that it sees nobody use, and never asks whether one that moved is
//! still where it was: [`Rtnetlink::use_neighbour`].

use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use uxfrm_packet::ethernet::MacAddr;

use super::{Error, Rtnetlink};

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the device that it is reached by.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// What is known of it.
    pub standing: Standing,
}

/// How well the kernel knows a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there.
    Known(MacAddr),
    /// It was there some time ago; whoever sends to it should say so.
    Stale(MacAddr),
    /// The kernel is asking for it.
    Sought,
    /// It does not answer.
    Gone,
    /// The kernel keeps nothing of it, as after `ip neigh flush` or while a device was down: nobody seeks it until somebody sends.
    Forgotten,
}

impl Rtnetlink {
    /// What the kernel knows of one neighbour; `None` where it knows nothing.
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

    /// Tells the kernel that something is being sent to a neighbour: it asks for one that it does not know, or not for sure
    /// (`NTF_USE`).
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

/// A neighbour that an answer or notice is about.
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
    let standing = if deleted { Standing::Forgotten } else { standing(message.header.state, mac) };
    Some(Neighbour { link: message.header.ifindex, address: address?, standing })
}

fn standing(state: NeighbourState, mac: Option<MacAddr>) -> Standing {
    match (state, mac) {
        (NeighbourState::Stale, Some(mac)) => Standing::Stale(mac),
        (
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp,
            Some(mac),
        ) => Standing::Known(mac),
        (NeighbourState::Incomplete | NeighbourState::None, _) => Standing::Sought,
        _without_address => Standing::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_how_well_a_neighbour_is_known() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for (state, with, expected) in [
            (NeighbourState::Reachable, Some(mac), Standing::Known(mac)),
            (NeighbourState::Permanent, Some(mac), Standing::Known(mac)),
            (NeighbourState::Probe, Some(mac), Standing::Known(mac)),
            (NeighbourState::Stale, Some(mac), Standing::Stale(mac)),
            (NeighbourState::Incomplete, None, Standing::Sought),
            (NeighbourState::None, None, Standing::Sought),
            (NeighbourState::Failed, Some(mac), Standing::Gone),
            (NeighbourState::Reachable, None, Standing::Gone),
        ] {
            assert_eq!(standing(state, with), expected, "{state:?}");
        }
    }

    /// `ip neigh flush` has the kernel tell of each as failed first.
    #[test]
    fn one_that_was_deleted_is_forgotten_whatever_it_was() {
        let mut message = describe(1, IpAddr::from([10, 0, 0, 1]));
        message.header.state = NeighbourState::Failed;
        let standing = |notice| read(&notice).map(|neighbour| neighbour.standing);
        let failed = RouteNetlinkMessage::NewNeighbour(message.clone());
        assert_eq!(standing(failed), Some(Standing::Gone));
        assert_eq!(standing(RouteNetlinkMessage::DelNeighbour(message)), Some(Standing::Forgotten));
    }
}

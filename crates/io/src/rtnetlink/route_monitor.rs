//! Notices of changes that affect routing: neighbours, routes, rules, links and addresses.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;

use super::neighbour::{self, Neighbour};
use super::{Error, listen};

/// `RTMGRP_LINK`, `RTMGRP_NEIGH`, and of both families addresses, routes and rules.
const GROUPS: u32 = 1 | 4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000;

/// Room for a notice.
const NOTICE: usize = 8192;

/// Listens in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteMonitor {
    socket: Socket,
    notice: Vec<u8>,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingChange {
    /// One neighbour.
    Neighbour(Neighbour),
    /// A route or rule, which may reroute any packet.
    Routes,
    /// A link or address, which may reroute any packet and change which neighbours are reachable.
    Links,
    /// Notices were lost: everything may be different.
    Everything,
}

impl RouteMonitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: listen(GROUPS)?, notice: Vec::with_capacity(NOTICE) })
    }

    /// The next change, if any.
    pub fn next_change(&mut self) -> Option<RoutingChange> {
        loop {
            self.notice.clear();
            match self.socket.recv(&mut self.notice, 0) {
                Ok(_length) => {
                    if let Some(change) = read(&self.notice) {
                        return Some(change);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Some(RoutingChange::Everything);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_nothing) => return None,
            }
        }
    }
}

impl AsFd for RouteMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses a notice. An unreadable one may be about a route.
pub(super) fn read(notice: &[u8]) -> Option<RoutingChange> {
    let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(notice) else {
        return Some(RoutingChange::Routes);
    };
    let NetlinkPayload::InnerMessage(inner) = message.payload else { return None };
    let about_neighbour = matches!(
        inner,
        RouteNetlinkMessage::NewNeighbour(_) | RouteNetlinkMessage::DelNeighbour(_)
    );
    match neighbour::read(&inner) {
        Some(neighbour) => Some(RoutingChange::Neighbour(neighbour)),
        // An entry of a bridge's table.
        None if about_neighbour => None,
        None if is_about_link(&inner) => Some(RoutingChange::Links),
        None => Some(RoutingChange::Routes),
    }
}

const fn is_about_link(message: &RouteNetlinkMessage) -> bool {
    matches!(
        message,
        RouteNetlinkMessage::NewLink(_)
            | RouteNetlinkMessage::DelLink(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_classify_links_addresses_routes_and_rules() {
        for (message, expected) in [
            (RouteNetlinkMessage::NewLink(Default::default()), RoutingChange::Links),
            (RouteNetlinkMessage::DelLink(Default::default()), RoutingChange::Links),
            (RouteNetlinkMessage::NewAddress(Default::default()), RoutingChange::Links),
            (RouteNetlinkMessage::DelAddress(Default::default()), RoutingChange::Links),
            (RouteNetlinkMessage::NewRoute(Default::default()), RoutingChange::Routes),
            (RouteNetlinkMessage::DelRule(Default::default()), RoutingChange::Routes),
        ] {
            let shown = format!("{message:?}");
            let mut notice = NetlinkMessage::from(message);
            notice.finalize();
            let mut bytes = vec![0; notice.buffer_len()];
            notice.serialize(&mut bytes);
            assert_eq!(read(&bytes), Some(expected), "{shown}");
        }
        assert_eq!(read(b"no notice"), Some(RoutingChange::Routes));
    }
}

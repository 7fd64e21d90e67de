//! Links, addresses, neighbours, routes and rules through `NETLINK_ROUTE`, instead of the `ip`
//! program.
//!
//! Requests are answered before the call returns. For set-up and tear-down, not for the data path:
//! it allocates.

mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod bytes;
mod link;
mod monitor;
mod neighbour;
mod route;
mod route_monitor;
mod rule;
mod scoped_routes;

use std::fmt;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub use address::Address;
pub use link::Link;
pub use monitor::{MonitorResult, RtnlMonitor};
pub use neighbour::{Neighbour, NeighbourState};
pub use route::{Route, RouteChange, RouteLookup, Via};
pub use route_monitor::{RouteMonitor, RoutingChange};
pub use rule::{FirewallMark, RoutingRule, RuleAction, RuleOrigin};
pub use scoped_routes::ScopedRoutes;

/// Errors of a request; `request` names it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It exists already (`EEXIST`).
    #[error("{request}: exists already")]
    Exists {
        /// The request.
        request: String,
    },
    /// It, or its device or gateway, does not exist (`ENOENT`, `ESRCH`, `ENODEV`, `EADDRNOTAVAIL`).
    #[error("{request}: no such thing ({kernel})")]
    NotFound {
        /// The request.
        request: String,
        /// The kernel's error, which is in the text; as a source it would be printed twice.
        kernel: io::Error,
    },
    /// Needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace (`EPERM`).
    #[error("{request}: needs CAP_NET_ADMIN")]
    NotPermitted {
        /// The request.
        request: String,
    },
    /// The device has no IPv6 (`EACCES`).
    #[error("{request}: IPv6 is switched off there (net.ipv6.conf.DEVICE.disable_ipv6)")]
    SwitchedOff {
        /// The request.
        request: String,
    },
    /// Any other error of the kernel.
    #[error("{request}: {kernel}")]
    Refused {
        /// The request.
        request: String,
        /// The kernel's error, which is in the text; as a source it would be printed twice.
        kernel: io::Error,
    },
    /// The answer does not fit the request.
    #[error("{request}: unreadable answer: {reason}")]
    Unreadable {
        /// The request.
        request: String,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// The kernel's errno, or a similar one.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Exists { .. } => libc::EEXIST,
            Self::NotPermitted { .. } => libc::EPERM,
            Self::SwitchedOff { .. } => libc::EACCES,
            Self::NotFound { kernel, .. } | Self::Refused { kernel, .. } => {
                kernel.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Unreadable { .. } => libc::EPROTO,
        }
    }

    fn of(request: &str, kernel: io::Error) -> Self {
        let request = request.to_owned();
        match kernel.raw_os_error() {
            Some(libc::EEXIST) => Self::Exists { request },
            Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EADDRNOTAVAIL) => {
                Self::NotFound { request, kernel }
            }
            Some(libc::EPERM) => Self::NotPermitted { request },
            Some(libc::EACCES) => Self::SwitchedOff { request },
            _other => Self::Refused { request, kernel },
        }
    }
}

/// An address and its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoutePrefix {
    address: IpAddr,
    length: u8,
}

impl RoutePrefix {
    /// `None` when `length` exceeds the family's 32 or 128 bits. Host bits are kept.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (length <= most).then_some(Self { address, length })
    }

    /// A prefix of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// The address with its host bits.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The prefix length.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }
}

impl fmt::Display for RoutePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// More than an error answer with its request.
const ANSWER: usize = 4096;

/// A connection to the network namespace that the thread was in when it was opened.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    sequence: u32,
    /// Buffer for requests that are sent together.
    requests: Vec<u8>,
    /// Buffer for one error answer.
    answer: Vec<u8>,
}

impl Rtnetlink {
    /// Connects to the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        let connect = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            Ok(socket)
        };
        connect()
            .map(|socket| Self {
                socket,
                sequence: 0,
                requests: Vec::new(),
                answer: Vec::with_capacity(ANSWER),
            })
            .map_err(|error| Error::of("rtnetlink socket", error))
    }

    /// Sends a request and waits until the kernel has done it.
    fn change(
        &mut self,
        request: &str,
        flags: u16,
        message: RouteNetlinkMessage,
    ) -> Result<(), Error> {
        self.exchange(request, NLM_F_ACK | flags, message).map(drop)
    }

    /// Sends a request for one object; returns the answers.
    fn ask(
        &mut self,
        request: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.exchange(request, NLM_F_ACK, message)
    }

    /// Sends a dump request; returns all objects.
    fn dump(
        &mut self,
        request: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.exchange(request, NLM_F_DUMP, message)
    }

    fn exchange(
        &mut self,
        request: &str,
        flags: u16,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut bytes = Vec::new();
        self.encode(flags, message, &mut bytes);
        self.socket.send(&bytes, 0).map_err(|error| Error::of(request, error))?;
        let mut answers = Vec::new();
        while !self.read(request, &mut answers)? {}
        Ok(answers)
    }

    /// Appends a request with the next number.
    fn encode(&mut self, flags: u16, message: RouteNetlinkMessage, bytes: &mut Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
    }

    /// Sends several requests in one datagram; `encode` appends one with its number. The kernel
    /// does them before the call returns and reports only failures: their indices, with errno.
    fn request_all<T>(
        &mut self,
        requests: &[T],
        encode: impl Fn(&T, u32, &mut Vec<u8>),
    ) -> io::Result<Vec<(usize, i32)>> {
        let first = self.sequence.wrapping_add(1);
        self.requests.clear();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            encode(request, self.sequence, &mut self.requests);
        }
        if self.requests.is_empty() {
            return Ok(Vec::new());
        }
        self.socket.send(&self.requests, 0)?;
        let mut failed = Vec::new();
        loop {
            self.answer.clear();
            match self.socket.recv(&mut self.answer, libc::MSG_DONTWAIT) {
                Ok(_length) => failed.extend(failure(&self.answer, first)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(failed),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one datagram of the answer; whether it was the last.
    fn read(&self, request: &str, answers: &mut Vec<RouteNetlinkMessage>) -> Result<bool, Error> {
        let (datagram, _kernel) =
            self.socket.recv_from_full().map_err(|error| Error::of(request, error))?;
        take(&datagram, self.sequence, request, answers)
    }
}

/// Extracts the answers to a request from a datagram; whether it was complete.
fn take(
    datagram: &[u8],
    sequence: u32,
    request: &str,
    answers: &mut Vec<RouteNetlinkMessage>,
) -> Result<bool, Error> {
    let unreadable = |reason: String| Error::Unreadable { request: request.to_owned(), reason };
    let mut rest = datagram;
    while rest.len() >= 16 {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|error| unreadable(error.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        if length == 0 {
            return Err(unreadable("a message of no length".to_owned()));
        }
        rest = rest.get(length..).unwrap_or_default();
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => {
                return match error.code {
                    None => Ok(true),
                    Some(_errno) => Err(Error::of(request, error.to_io())),
                };
            }
            NetlinkPayload::Overrun(_) | NetlinkPayload::Noop => {}
            other => return Err(unreadable(format!("{other:?}"))),
        }
    }
    Ok(false)
}

/// A non-blocking socket subscribed to these groups.
fn listen(groups: u32) -> Result<Socket, Error> {
    let listen = || {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, groups))?;
        socket.set_non_blocking(true)?;
        Ok(socket)
    };
    listen().map_err(|error| Error::of("rtnetlink groups", error))
}

/// Parses an `NLMSG_ERROR`: index of its request after `first`, and the errno.
fn failure(answer: &[u8], first: u32) -> Option<(usize, i32)> {
    const ERROR: u16 = 2;
    let word = |at: usize| answer.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let errno = word(16)?.cast_signed().saturating_neg();
    let place = usize::try_from(word(8)?.wrapping_sub(first)).ok()?;
    (kind == ERROR && errno != 0).then_some((place, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_keeps_to_its_family() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(RoutePrefix::new(v4, 33), None);
        assert_eq!(RoutePrefix::new(v4, 24).unwrap().to_string(), "192.0.2.1/24");
        assert_eq!(RoutePrefix::host("::1".parse().unwrap()).length(), 128);
    }

    #[test]
    fn errors_name_what_was_asked() {
        let error = Error::of("route 192.0.2.0/24", io::Error::from_raw_os_error(libc::EEXIST));
        assert_eq!(error.to_string(), "route 192.0.2.0/24: exists already");
    }
}

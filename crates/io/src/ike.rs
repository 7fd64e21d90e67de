//! A UDP port shared with IKE daemons: uxfrm owns the socket, consumes ESP and keep-alives, and
//! passes IKE messages on.
//!
//! ```text
//!   wire ─► UDP socket of a worker ─┬─► ESP, 0xff: engine
//!                                   └─► IKE: [take] ─► queue ─► IkeExchange::deliver
//!                                            ─► Unix socket ─► daemon's descriptor
//!   wire ◄─ UDP socket for IKE ◄─ IkeExchange::next ◄─ Unix socket ◄─ daemon's descriptor
//! ```
//!
//! The preload library of `uxfrm exec` replaces a daemon's UDP socket at such a port by a Unix
//! datagram socket, and makes up the addresses (`crates/redirect/src/calls/datagram.rs`). Names are
//! abstract, so each network namespace has its own:
//!
//! | name | owner |
//! | --- | --- |
//! | `uxfrm/udp/4500` | the gateway, or a file in its place (`crates/control/src/fallback_socket.rs`) |
//! | `uxfrm/udp/4500/c0000201` | a daemon at 192.0.2.1; 32 digits for IPv6; zeros: any address |
//!
//! A `SO_REUSEPORT` group with the daemon's socket, and a filter that tells IKE from ESP, would not
//! do:
//!
//! - A filter selects by index, and indices change when a socket of the group closes: after the
//!   daemon's end ESP would be lost until somebody notices. A group has one address, so each
//!   address that a daemon binds would need sockets of every worker. All have to be of one user.
//! - `UDP_GRO` joins datagrams before the filter sees them, and runs it once: IKE behind ESP would
//!   go to the engine, and ESP behind IKE, as after a rekeying, would be lost in the daemon. GRO
//!   itself runs no filter: it looks a socket up by hash, so part of all flows would find the
//!   daemon's and not be joined.
//!
//! Where somebody else has taken a daemon's name, the daemon binds a file in the gateway's
//! directory, and the gateway looks there, too.
//!
//! Nothing is registered here: a message goes to the present owner of the name, so either side may
//! start first, end, be killed and return at any time. The price is one copy per IKE message.
//!
//! Both ends accept messages only from root and from their own user; the gateway also from the user
//! that the configuration names. To a socket of anybody else it sends none, whatever its name. The
//! gateway asks the kernel whose a socket is once, when it connects to it; the connection is to
//! that socket and to no later owner of the name.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};

use uxfrm_packet::{PacketBuf, Segments, UdpPath, esp};

mod daemon_links;
mod delivery;
mod exchange;
mod message;
mod refused_owners;
#[cfg(any(test, fuzzing))]
pub(crate) use message::there_and_back;

pub use delivery::DeliveryError;
pub use exchange::{Buffer, IkeExchange};

/// Bytes of the non-ESP marker and an IKE header (RFC 3948 §2.2, RFC 7296 §3.1), the shortest IKE
/// message.
const SHORTEST: usize = esp::NON_ESP_MARKER.len() + 28;

/// An IKE message behind its non-ESP marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeDatagram {
    /// Its addresses and ports.
    pub path: UdpPath,
    /// The UDP payload, marker included.
    pub payload: Vec<u8>,
}

/// IKE daemons at a port.
#[derive(Clone, Debug)]
pub struct IkeDaemonQueue {
    /// The port's number.
    pub port: u16,
    /// Queue for their messages.
    pub messages: SyncSender<IkeDatagram>,
}

/// Moves the IKE messages of a received buffer to `daemons`, and closes the gaps in a GSO burst.
/// `false` when the buffer is empty afterwards.
///
/// Messages stay in the buffer if the queue is full or closed.
pub fn take(packet: &mut PacketBuf, daemons: &SyncSender<IkeDatagram>) -> bool {
    let Some(path) = packet.udp else { return true };
    let stride = match packet.segments {
        Segments::Burst { stride } => usize::from(stride).max(1),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
    };
    if !packet.bytes().chunks(stride).any(is_ike) {
        return true;
    }
    let (mut kept, mut at) = (0, 0);
    while at < packet.len() {
        let end = packet.len().min(at + stride);
        let segment = &packet.bytes()[at..end];
        if !(is_ike(segment) && offer(segment, path, daemons)) {
            packet.bytes_mut().copy_within(at..end, kept);
            kept += end - at;
        }
        at = end;
    }
    packet.trim(kept);
    if kept <= stride {
        packet.segments = Segments::One;
    }
    kept > 0
}

/// A zero marker and a nonzero initiator's SPI: eight zeros are an older encapsulation of ESP.
fn is_ike(payload: &[u8]) -> bool {
    payload.len() >= SHORTEST && payload[..4] == esp::NON_ESP_MARKER && payload[4..8] != [0; 4]
}

fn offer(payload: &[u8], path: UdpPath, daemons: &SyncSender<IkeDatagram>) -> bool {
    match daemons.try_send(IkeDatagram { path, payload: payload.to_vec() }) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}

/// Where a daemon's socket is: at an abstract name, or where a stranger has that, at a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DaemonAddress {
    Name(String),
    File(PathBuf),
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::File(path) => path.display().fmt(out),
        }
    }
}

/// Addresses of daemon sockets for a datagram to `local`, the more specific ones first; files are
/// in `directory`, named after the names (`crates/control/src/fallback_socket.rs`).
fn addresses(local: SocketAddr, directory: Option<&Path>) -> Vec<DaemonAddress> {
    let of_name = |name: String| {
        let file = name.strip_prefix("uxfrm/").map(|rest| rest.replace('/', "."));
        let file = directory.zip(file).map(|(directory, file)| directory.join(file));
        [Some(DaemonAddress::Name(name)), file.map(DaemonAddress::File)]
    };
    names(local).into_iter().flat_map(of_name).flatten().collect()
}

/// Names of daemon sockets for a datagram to `local`, the more specific one first.
fn names(local: SocketAddr) -> [String; 2] {
    let digits = match local {
        SocketAddr::V4(end) => format!("{:08x}", u32::from(*end.ip())),
        SocketAddr::V6(end) => format!("{:032x}", u128::from(*end.ip())),
    };
    let any = "0".repeat(digits.len());
    [digits, any].map(|digits| format!("{}/{digits}", name(local.port())))
}

/// The gateway's socket name for a port.
#[must_use]
pub fn name(port: u16) -> String {
    format!("uxfrm/udp/{port}")
}

#[cfg(test)]
mod tests;

//! A UDP port shared with IKE daemons: uxfrm owns it alone, takes ESP and keep-alives, and hands IKE messages on.
//!
//! ```text
//!   wire ─► UDP socket of a worker ─┬─► ESP, 0xff: engine
//!                                   └─► IKE: [take] ─► queue ─► Exchange::deliver ─► Unix socket ─► daemon's descriptor
//!   wire ◄───────────────────────── UDP socket for IKE ◄─ Exchange::next ◄─ Unix socket ◄─ daemon's descriptor
//! ```
//!
//! The preload library of `uxfrm exec` puts a Unix datagram socket in the place of a daemon's UDP socket that is bound to
//! such a port, and makes up the addresses (`crates/redirect/src/calls/datagram.rs`). Names are abstract, so each network
//! namespace has its own:
//!
//! | name | is |
//! | --- | --- |
//! | `uxfrm/udp/4500` | the gateway, unless a stranger has it: then the gateway is at a file, where daemons look first (`crates/control/src/stand_in.rs`) |
//! | `uxfrm/udp/4500/c0000201` | a daemon's socket bound to 192.0.2.1; 32 digits are an IPv6 address, only zeros any address |
//!
//! Why not a group of `SO_REUSEPORT` sockets and a filter that tells IKE from ESP by its first bytes, with the daemon's socket in it:
//!
//! - a filter chooses by index, and indices change when any socket of the group is closed: with the daemon's end ESP would
//!   go to nobody or the other way round until somebody notices. A group has one address: each one that a daemon binds
//!   would need sockets of every worker. All have to be of one user;
//! - `UDP_GRO` joins datagrams of one flow before the filter sees them, and asks the filter once: IKE behind ESP would go to the
//!   engine, and ESP behind IKE, which is what follows a rekeying, would be lost in the daemon. GRO itself asks no filter: it
//!   looks a socket up by hash, so that a part of all flows would find the daemon's and not be joined at all.
//!
//! Here nothing is registered anywhere: a message goes to whoever has the name at that moment. So either side may start first,
//! end, be killed and come back at any time, and the other needs not know. The price is one copy per IKE message.
//!
//! Both ends take messages only from root, from their own user, and the gateway from the user that the configuration names.

use std::net::SocketAddr;
use std::sync::mpsc::{SyncSender, TrySendError};

use uxfrm_packet::{PacketBuf, Segments, UdpPath, esp};

mod exchange;
mod message;
#[cfg(any(test, fuzzing))]
pub(crate) use message::there_and_back;

pub use exchange::{Buffer, Exchange};

/// Bytes of the non-ESP marker and of an IKE header (RFC 3948 §2.2, RFC 7296 §3.1): what is shorter is no IKE message.
const SHORTEST: usize = esp::NON_ESP_MARKER.len() + 28;

/// An IKE message on its way, behind its non-ESP marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Between whom.
    pub path: UdpPath,
    /// UDP's payload, the marker included.
    pub payload: Vec<u8>,
}

/// IKE daemons at a port.
#[derive(Clone, Debug)]
pub struct Daemons {
    /// The port's number.
    pub port: u16,
    /// Takes their messages.
    pub messages: SyncSender<Datagram>,
}

/// Moves the IKE messages of a received buffer to `daemons`, and closes the gaps that they leave in a train. False when nothing
/// is left in the buffer.
///
/// What finds the queue full, or nobody behind it, stays where it is.
pub fn take(packet: &mut PacketBuf, daemons: &SyncSender<Datagram>) -> bool {
    let Some(path) = packet.udp else { return true };
    let stride = match packet.segments {
        Segments::Train { stride } => usize::from(stride).max(1),
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

/// A zero marker and an initiator's SPI that is not: eight zeros are an older encapsulation of ESP.
fn is_ike(payload: &[u8]) -> bool {
    payload.len() >= SHORTEST && payload[..4] == esp::NON_ESP_MARKER && payload[4..8] != [0; 4]
}

fn offer(payload: &[u8], path: UdpPath, daemons: &SyncSender<Datagram>) -> bool {
    match daemons.try_send(Datagram { path, payload: payload.to_vec() }) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}

/// The names of the daemon's sockets that a datagram to `local` may be for, the better one first.
fn names(local: SocketAddr) -> [String; 2] {
    let digits = match local {
        SocketAddr::V4(end) => format!("{:08x}", u32::from(*end.ip())),
        SocketAddr::V6(end) => format!("{:032x}", u128::from(*end.ip())),
    };
    let any = "0".repeat(digits.len());
    [digits, any].map(|digits| format!("{}/{digits}", name(local.port())))
}

/// The gateway's name for a port.
#[must_use]
pub fn name(port: u16) -> String {
    format!("uxfrm/udp/{port}")
}

#[cfg(test)]
mod tests;

//! The network side of tunnels: sockets that they share.

use std::sync::Arc;

use uxfrm_io::Port;
use uxfrm_packet::{Protocol, Version};
use uxfrm_tunnel::{
    PortIdentity,
    counters::{Count, TunnelDrops},
};

/// The sockets towards the network.
#[derive(Debug)]
pub struct TunnelSockets {
    /// Sockets that tunnels receive from.
    pub incoming: Vec<ReceivePort>,
    /// For ICMP errors, as whole packets.
    pub errors: Vec<Box<dyn Port>>,
    /// For whole packets that leave, of IPv4 and of IPv6.
    pub outgoing: [Box<dyn Port>; 2],
}

/// A receiving socket.
#[derive(Debug)]
pub struct ReceivePort {
    /// What it receives.
    pub source: ReceiveSource,
    /// The socket.
    pub port: Box<dyn Port>,
    /// Counters, for other threads.
    pub counts: Arc<SocketCounts>,
}

/// What a socket receives; each source has one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveSource {
    /// Whole packets of a tunnel's protocol.
    Protocol(Version, Protocol),
    /// Datagrams of a receive port, or those of them that come to one address.
    Datagrams(PortIdentity),
}

/// Counters of a socket, written by the loop.
#[derive(Debug, Default)]
pub struct SocketCounts {
    /// Datagrams or packets, and their bytes, including dropped ones.
    pub received: Count,
    /// Drops among them.
    pub drops: TunnelDrops,
}

/// A socket and its poll token.
#[derive(Debug)]
pub(super) struct ReceiveSocket {
    pub(super) incoming: ReceivePort,
    pub(super) token: Option<u8>,
}

impl ReceiveSource {
    /// Index of the device that its datagrams come through; 0 for any.
    pub(super) const fn device(&self) -> u32 {
        match self {
            Self::Protocol(..) => 0,
            Self::Datagrams(identity) => identity.device,
        }
    }
}

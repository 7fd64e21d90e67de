//! The network's side of tunnels: the sockets that they share.

use std::sync::Arc;

use uxfrm_io::Port;
use uxfrm_packet::{Protocol, Version};
use uxfrm_tunnel::{
    PortIdentity,
    counters::{Count, Drops},
};

/// The sockets towards the network.
#[derive(Debug)]
pub struct Sockets {
    /// Where tunnels' packets come from.
    pub incoming: Vec<Incoming>,
    /// For ICMP errors, as whole packets.
    pub errors: Vec<Box<dyn Port>>,
    /// For whole packets that leave, of IPv4 and of IPv6.
    pub outgoing: [Box<dyn Port>; 2],
}

/// A socket that receives.
#[derive(Debug)]
pub struct Incoming {
    /// What comes from it.
    pub source: Source,
    /// The socket.
    pub port: Box<dyn Port>,
    /// What came and was dropped, for others to see.
    pub counts: Arc<SocketCounts>,
}

/// What a socket receives; one socket for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Whole packets of a tunnel's protocol.
    Protocol(Version, Protocol),
    /// Datagrams of a receive port, or those of them that come to one address.
    Datagrams(PortIdentity),
}

/// What came from a socket. The loop writes, any may read.
#[derive(Debug, Default)]
pub struct SocketCounts {
    /// Datagrams, or packets, and their bytes, with those that were dropped.
    pub received: Count,
    /// What was dropped of them.
    pub drops: Drops,
}

/// A socket and what it is waited for by.
#[derive(Debug)]
pub(super) struct ReceiveSocket {
    pub(super) incoming: Incoming,
    pub(super) token: Option<u8>,
}

impl Source {
    /// Index of the device that its datagrams come through; 0 for any.
    pub(super) const fn device(&self) -> u32 {
        match self {
            Self::Protocol(..) => 0,
            Self::Datagrams(identity) => identity.device,
        }
    }
}

//! UDP sockets for super-packets, one per source port: a `UDP_SEGMENT` call per GSO burst, or
//! without UDP checksum a message per datagram. A socket is opened when a flow first needs it; of
//! too many the least recently used is closed.

use std::net::SocketAddr;
use std::time::Duration;

use uxfrm_engine::Moment;
use uxfrm_io::{Udp, UdpOptions};
use uxfrm_tunnel::config::UdpChecksum;

/// Most open sockets.
const MAX_OPEN: usize = 64;

/// A socket without traffic for one to two such intervals is closed: a service may want its port.
const IDLE: Duration = Duration::from_secs(10);

/// Receive buffer in bytes; nothing is received there.
const BUFFER: usize = 1 << 20;

/// The open sockets.
#[derive(Debug, Default)]
pub(super) struct GsoSockets {
    open: Vec<GsoSocket>,
    uses: u64,
    /// When idle sockets were last closed, and `uses` at that time.
    last_sweep: (Moment, u64),
}

#[derive(Debug)]
struct GsoSocket {
    local: SocketAddr,
    checksum: UdpChecksum,
    ttl: u8,
    used: u64,
    socket: Udp,
}

impl GsoSockets {
    /// The socket that is bound to `local` and sends with this TTL and checksum setting; `None` if
    /// somebody else has the port.
    pub(super) fn bound_to(
        &mut self,
        local: SocketAddr,
        checksum: UdpChecksum,
        ttl: u8,
    ) -> Option<&mut Udp> {
        self.uses += 1;
        let is_it =
            |gso_socket: &GsoSocket| (gso_socket.local, gso_socket.checksum) == (local, checksum);
        let at = match self.open.iter().position(is_it) {
            Some(at) => at,
            None => self.open(local, checksum)?,
        };
        let gso_socket = &mut self.open[at];
        gso_socket.used = self.uses;
        if gso_socket.ttl != ttl {
            gso_socket.socket.set_ttl(ttl).ok()?;
            gso_socket.ttl = ttl;
        }
        Some(&mut gso_socket.socket)
    }

    /// Closes sockets that were not used since the last sweep, if that is long ago.
    pub(super) fn close_idle(&mut self, now: Moment) {
        let (last_sweep, uses) = self.last_sweep;
        if self.open.is_empty() || now.since(last_sweep) < IDLE {
            return;
        }
        self.open.retain(|gso_socket| gso_socket.used > uses);
        self.last_sweep = (now, self.uses);
    }

    fn open(&mut self, local: SocketAddr, checksum: UdpChecksum) -> Option<usize> {
        if self.open.len() >= MAX_OPEN {
            let oldest = self.open.iter().enumerate().min_by_key(|(_, gso_socket)| gso_socket.used);
            let at = oldest.map(|(at, _)| at)?;
            self.open.swap_remove(at);
        }
        let options = UdpOptions { buffer: BUFFER, ..UdpOptions::new(local) };
        let mut socket = Udp::open(&options).ok()?;
        if checksum == UdpChecksum::Zero {
            socket.send_without_checksum().ok()?;
        }
        // No TTL is 0, so it is set before the first use.
        self.open.push(GsoSocket { local, checksum, ttl: 0, used: self.uses, socket });
        Some(self.open.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gso_sockets_reuse_per_flow_and_evict_oldest() {
        let mut sockets = GsoSockets::default();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (with, without) = (UdpChecksum::Computed, UdpChecksum::Zero);
        let first = sockets.bound_to(local(0), with, 64).map(|socket| socket.local());
        assert_eq!(sockets.bound_to(local(0), with, 65).map(|socket| socket.local()), first);
        assert_ne!(sockets.bound_to(local(0), without, 65).map(|socket| socket.local()), first);
        let taken = first.unwrap();
        assert!(sockets.bound_to(taken, with, 64).is_none(), "bound by another socket");
        for last in 1..=70 {
            sockets.bound_to(SocketAddr::from(([127, 0, 1, last], 0)), with, 64).unwrap();
        }
        assert_eq!(sockets.open.len(), MAX_OPEN);
        assert!(
            sockets.open.iter().all(|gso_socket| gso_socket.local != local(0)),
            "the oldest went"
        );
    }

    #[test]
    fn gso_sockets_idle_socket_frees_its_port() {
        let (mut sockets, with) = (GsoSockets::default(), UdpChecksum::Computed);
        let bind = |sockets: &mut GsoSockets, last| {
            let local = SocketAddr::from(([127, 0, 2, last], 0));
            sockets.bound_to(local, with, 64).map(|socket| socket.local()).unwrap()
        };
        let idle = bind(&mut sockets, 1);
        let mut now = Moment(0).plus(IDLE);
        sockets.close_idle(now);
        for _ in 0..3 {
            now = now.plus(IDLE);
            bind(&mut sockets, 2);
            sockets.close_idle(now);
        }
        assert_eq!(sockets.open.len(), 1, "the one in use stays");
        std::net::UdpSocket::bind(idle).expect("a service can have the other's port");
    }
}

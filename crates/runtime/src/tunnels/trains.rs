//! UDP sockets by which super-packets leave as trains, one `UDP_SEGMENT` call each: a socket for each source port, opened when a flow
//! first needs it, the one that was not used for longest closed when there are too many.

use std::net::SocketAddr;

use uxfrm_io::{Udp, UdpOptions};

/// Sockets that are open at once.
const MOST: usize = 64;

/// Bytes of kernel buffer; nothing is received there.
const BUFFER: usize = 1 << 20;

/// The sockets that are open.
#[derive(Debug, Default)]
pub(super) struct TrainSockets {
    open: Vec<Sender>,
    uses: u64,
}

#[derive(Debug)]
struct Sender {
    local: SocketAddr,
    ttl: u8,
    used: u64,
    socket: Udp,
}

impl TrainSockets {
    /// The socket that is bound to `local` and sends with `ttl`; `None` where the port is somebody else's.
    pub(super) fn bound_to(&mut self, local: SocketAddr, ttl: u8) -> Option<&mut Udp> {
        self.uses += 1;
        let at = match self.open.iter().position(|sender| sender.local == local) {
            Some(at) => at,
            None => self.open(local)?,
        };
        let sender = &mut self.open[at];
        sender.used = self.uses;
        if sender.ttl != ttl {
            sender.socket.set_ttl(ttl).ok()?;
            sender.ttl = ttl;
        }
        Some(&mut sender.socket)
    }

    fn open(&mut self, local: SocketAddr) -> Option<usize> {
        if self.open.len() >= MOST {
            let oldest = self.open.iter().enumerate().min_by_key(|(_, sender)| sender.used);
            let at = oldest.map(|(at, _)| at)?;
            self.open.swap_remove(at);
        }
        let socket = Udp::open(&UdpOptions { buffer: BUFFER, ..UdpOptions::new(local) }).ok()?;
        // No TTL is 0, so it is set before the first use.
        self.open.push(Sender { local, ttl: 0, used: self.uses, socket });
        Some(self.open.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_keeps_its_socket_and_no_more_than_some_are_open() {
        let mut sockets = TrainSockets::default();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let first = sockets.bound_to(local(0), 64).map(|socket| socket.local());
        assert_eq!(sockets.bound_to(local(0), 65).map(|socket| socket.local()), first);
        let taken = first.unwrap();
        assert!(sockets.bound_to(taken, 64).is_none(), "bound by another socket");
        for last in 1..=70 {
            sockets.bound_to(SocketAddr::from(([127, 0, 1, last], 0)), 64).unwrap();
        }
        assert_eq!(sockets.open.len(), MOST);
        assert!(sockets.open.iter().all(|sender| sender.local != local(0)), "the oldest went");
    }
}

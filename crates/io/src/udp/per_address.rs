//! Sockets of single addresses beside one of all addresses.
//!
//! The kernel delivers to the socket that matches best (`net/ipv4/udp.c: compute_score`), so one of
//! the very address beats one of all. Two such sockets share a port only if both have
//! `SO_REUSEADDR` when the second is bound. It is set only for that moment, so that no third
//! program, of whatever user, gets between.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Udp, UdpOptions};
use crate::socket;

/// The port of a socket for all addresses.
#[derive(Debug)]
pub struct PerAddressSockets {
    socket: OwnedFd,
    local: SocketAddr,
    mark: u32,
}

impl PerAddressSockets {
    pub(super) fn of(socket: OwnedFd, local: SocketAddr, mark: u32) -> Self {
        Self { socket, local, mark }
    }

    /// Opens a socket of this port for `address`, which the socket of all addresses no longer
    /// receives until this one is closed.
    ///
    /// # Errors
    /// The kernel's: not an address of this host (`EADDRNOTAVAIL`), a socket of that address exists
    /// (`EADDRINUSE`).
    pub fn at(&self, address: IpAddr) -> io::Result<Udp> {
        let options =
            UdpOptions { mark: self.mark, ..UdpOptions::new((address, self.local.port()).into()) };
        let socket = socket::open(socket::family(address), libc::SOCK_DGRAM, 0)?;
        share(socket.as_fd(), 1)?;
        share(self.socket.as_fd(), 1)?;
        let bound = Udp::bound(socket, &options);
        share(self.socket.as_fd(), 0)?;
        let udp = bound?;
        share(udp.socket.as_fd(), 0)?;
        Ok(udp)
    }
}

fn share(socket: BorrowedFd<'_>, allowed: i32) -> io::Result<()> {
    socket::set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, allowed)
}

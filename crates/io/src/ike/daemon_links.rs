//! Sockets that stay connected to IKE daemons, each to one whose owner was looked at.
//!
//! A connected datagram socket reaches the socket it was connected to and no other: once that is
//! closed sending fails with `ECONNREFUSED` (`net/unix/af_unix.c: unix_dgram_sendmsg`), also where
//! somebody else has the name by then. So what was found out about an owner holds as long as the
//! link does.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::DaemonAddress;
use crate::unix_owner::SocketInode;

/// Daemon sockets that stay connected, of a port. Libreswan has one for each address of the host.
pub(super) const MOST: usize = 64;

/// Time in ms to wait for a daemon whose queue is full.
const REPLY_TIMEOUT: i64 = 100;

/// A socket that sends to a daemon.
#[derive(Debug)]
pub(super) struct DaemonLink {
    socket: OwnedFd,
    inode: SocketInode,
}

impl DaemonLink {
    fn open() -> io::Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::milliseconds(REPLY_TIMEOUT))?;
        let inode = SocketInode::of(&socket)?;
        Ok(Self { socket, inode })
    }

    /// Connects to whoever is at an address.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody is, `ENOENT` when there is no such file.
    pub(super) fn connect(&self, to: &DaemonAddress) -> nix::Result<()> {
        let address = match to {
            DaemonAddress::Name(name) => UnixAddr::new_abstract(name.as_bytes())?,
            DaemonAddress::File(path) => UnixAddr::new(path)?,
        };
        connect(self.socket.as_raw_fd(), &address)
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) const fn inode(&self) -> SocketInode {
        self.inode
    }
}

/// The links of a port. All sockets are opened at the start: a thread that delivers may be
/// confined.
#[derive(Debug)]
pub(super) struct DaemonLinks {
    /// The addresses that are reached, the one used last in front.
    linked: Vec<(DaemonAddress, DaemonLink)>,
    /// Those that are linked to no owner that was found good.
    free: Vec<DaemonLink>,
}

impl DaemonLinks {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        // One more than stay connected, to look at another owner with.
        let free = (0..=MOST).map(|_| DaemonLink::open()).collect::<io::Result<_>>()?;
        Ok(Self { linked: Vec::with_capacity(MOST), free })
    }

    /// The link to the owner of an address, which comes to the front.
    pub(super) fn find(&mut self, address: &DaemonAddress) -> Option<&DaemonLink> {
        let at = self.linked.iter().position(|(linked, _)| linked == address)?;
        self.linked[..=at].rotate_right(1);
        self.linked.first().map(|(_, link)| link)
    }

    /// A link to look at another owner with.
    pub(super) fn spare(&self) -> Option<&DaemonLink> {
        self.free.last()
    }

    /// The spare link is connected to the owner of an address, who is to have messages. Where there
    /// are too many, the one that was not used for longest goes.
    pub(super) fn keep_spare(&mut self, address: DaemonAddress) {
        let Some(link) = self.free.pop() else { return };
        if self.linked.len() == MOST {
            self.free.extend(self.linked.pop().map(|(_, link)| link));
        }
        self.linked.insert(0, (address, link));
    }

    /// The owner of an address is gone.
    pub(super) fn forget(&mut self, address: &DaemonAddress) {
        if let Some(at) = self.linked.iter().position(|(linked, _)| linked == address) {
            self.free.push(self.linked.remove(at).1);
        }
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.linked.len()
    }
}

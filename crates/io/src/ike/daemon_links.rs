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

    /// Connects to whoever has a name.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody has it.
    pub(super) fn connect(&self, name: &str) -> nix::Result<()> {
        connect(self.socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) const fn inode(&self) -> SocketInode {
        self.inode
    }
}

/// The links of a port. All sockets are opened at the start: a thread that delivers may be confined.
#[derive(Debug)]
pub(super) struct DaemonLinks {
    /// The names that are reached, the one used last in front.
    linked: Vec<(String, DaemonLink)>,
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

    /// The link to the owner of a name, which comes to the front.
    pub(super) fn find(&mut self, name: &str) -> Option<&DaemonLink> {
        let at = self.linked.iter().position(|(linked, _)| linked == name)?;
        self.linked[..=at].rotate_right(1);
        self.linked.first().map(|(_, link)| link)
    }

    /// A link to look at another owner with.
    pub(super) fn spare(&self) -> Option<&DaemonLink> {
        self.free.last()
    }

    /// The spare link is connected to the owner of `name`, who is to have messages. Where there are
    /// too many, the one that was not used for longest goes.
    pub(super) fn keep_spare(&mut self, name: String) {
        let Some(link) = self.free.pop() else { return };
        if self.linked.len() == MOST {
            self.free.extend(self.linked.pop().map(|(_, link)| link));
        }
        self.linked.insert(0, (name, link));
    }

    /// The owner of a name is gone.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(at) = self.linked.iter().position(|(linked, _)| linked == name) {
            self.free.push(self.linked.remove(at).1);
        }
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.linked.len()
    }
}

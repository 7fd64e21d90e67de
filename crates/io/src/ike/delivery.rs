//! Messages to IKE daemons, each to a socket of an allowed user only.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::Uid;

use super::{IkeDatagram, message, names};
use crate::unix_owner::UnixDiag;

/// Time in ms to wait for a daemon whose queue is full.
const REPLY_TIMEOUT: i64 = 100;

/// Why a message reached no daemon.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// No daemon is bound to the address, nor to any address.
    #[error("no IKE daemon is bound to its address")]
    Unclaimed,
    /// The socket is of a user who may not have IKE messages.
    #[error("user {user} has the socket name {name}, and may have no IKE messages")]
    Stranger {
        /// The user.
        user: u32,
        /// Its abstract name.
        name: String,
    },
    /// Somebody has the socket name and takes no messages there: a daemon's socket takes ours.
    #[error("who has the socket name {name} takes no IKE messages: {error}")]
    Unreachable {
        /// The abstract name.
        name: String,
        /// The kernel's error: `EPERM` where its socket is connected to another.
        error: io::Error,
    },
    /// The kernel's error: `EAGAIN` when the daemon does not read.
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

/// The socket that sends to daemons. It is connected before it sends, so that the socket whose
/// owner was looked at is the one that gets the message.
#[derive(Debug)]
pub(super) struct Delivery {
    socket: Mutex<OwnedFd>,
    /// `None` on a kernel that can't tell: `CONFIG_UNIX_DIAG` is off, or it is older than 5.3.
    owners: Option<UnixDiag>,
}

impl Delivery {
    /// Opens the sockets: a thread that delivers may be confined.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::milliseconds(REPLY_TIMEOUT))?;
        let owners = owners(&socket)?;
        Ok(Self { socket: Mutex::new(socket), owners })
    }

    /// Whether the kernel tells whose a socket is.
    pub(super) fn knows_owners(&self) -> bool {
        self.owners.is_some()
    }

    /// Passes a message to the daemon bound to its destination address, or else to any address.
    /// Sockets of users whom `permits` refuses are passed over.
    pub(super) fn send(
        &self,
        datagram: &IkeDatagram,
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let header = message::header(&datagram.path);
        let parts = [IoSlice::new(&header), IoSlice::new(&datagram.payload)];
        let mut result = Err(DeliveryError::Unclaimed);
        for name in names(datagram.path.local) {
            match self.reach(&socket, name, &permits).and_then(|()| transmit(&socket, &parts)) {
                Err(DeliveryError::Unclaimed) => {}
                Err(
                    other @ (DeliveryError::Stranger { .. } | DeliveryError::Unreachable { .. }),
                ) => result = Err(other),
                sent @ (Ok(()) | Err(DeliveryError::Kernel(_))) => return sent,
            }
        }
        result
    }

    /// Connects to a name, and looks whose it is.
    fn reach(
        &self,
        socket: &OwnedFd,
        name: String,
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        let address = UnixAddr::new_abstract(name.as_bytes()).map_err(io::Error::from)?;
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::ECONNREFUSED) => return Err(DeliveryError::Unclaimed),
            // Whoever has one name must not keep messages from the other.
            Err(errno) => return Err(DeliveryError::Unreachable { name, error: errno.into() }),
        }
        match self.owners.as_ref().map(|owners| owners.owner_of_peer(Some(&name))) {
            None => Ok(()),
            Some(Ok(user)) if permits(user) => Ok(()),
            Some(Ok(user)) => Err(DeliveryError::Stranger { user: user.as_raw(), name }),
            // It went meanwhile.
            Some(Err(_)) => Err(DeliveryError::Unclaimed),
        }
    }
}

fn transmit(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<(), DeliveryError> {
    match sendmsg::<UnixAddr>(socket.as_raw_fd(), parts, &[], MsgFlags::MSG_NOSIGNAL, None) {
        // It went meanwhile.
        Err(Errno::ECONNREFUSED | Errno::ENOTCONN | Errno::EPIPE) => Err(DeliveryError::Unclaimed),
        sent => Ok(sent.map(drop).map_err(io::Error::from)?),
    }
}

/// Questions about the peers of `socket`, where the kernel answers them.
fn owners(socket: &OwnedFd) -> io::Result<Option<UnixDiag>> {
    let (near, _far) = UnixDatagram::pair()?;
    let answers = UnixDiag::open(&near).and_then(|diag| diag.owner_of_peer(None)).is_ok();
    if answers { UnixDiag::open(socket).map(Some) } else { Ok(None) }
}

//! Messages to IKE daemons, each to a socket of an allowed user only.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixAddr, sendmsg};
use nix::unistd::Uid;

use super::daemon_links::DaemonLinks;
use super::refused_owners::RefusedOwners;
use super::{IkeDatagram, message, names};
use crate::unix_owner::{SocketInode, UnixDiag};

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

/// Sends to daemons by sockets that are connected first, so that the socket whose owner was looked
/// at is the one that gets the message.
#[derive(Debug)]
pub(super) struct Delivery {
    known: Mutex<KnownOwners>,
    /// `None` on a kernel that can't tell: `CONFIG_UNIX_DIAG` is off, or it is older than 5.3.
    owners: Option<UnixDiag>,
}

/// What was found out about owners of names.
#[derive(Debug)]
struct KnownOwners {
    links: DaemonLinks,
    refused: RefusedOwners,
}

impl Delivery {
    /// Opens the sockets: a thread that delivers may be confined.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        let known = KnownOwners { links: DaemonLinks::open()?, refused: RefusedOwners::default() };
        Ok(Self { known: Mutex::new(known), owners: owners()? })
    }

    /// Whether the kernel tells whose a socket is.
    pub(super) fn knows_owners(&self) -> bool {
        self.owners.is_some()
    }

    /// How often the kernel was asked whose a socket is.
    pub(super) fn owner_questions(&self) -> u64 {
        self.owners.as_ref().map_or(0, UnixDiag::questions)
    }

    /// Passes a message to the daemon bound to its destination address, or else to any address.
    /// Sockets of users whom `permits` refuses are passed over.
    pub(super) fn send(
        &self,
        datagram: &IkeDatagram,
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let header = message::header(&datagram.path);
        let parts = [IoSlice::new(&header), IoSlice::new(&datagram.payload)];
        let mut result = Err(DeliveryError::Unclaimed);
        for name in names(datagram.path.local) {
            match self.pass(&mut known, name, &parts, &permits) {
                Err(DeliveryError::Unclaimed) => {}
                Err(
                    other @ (DeliveryError::Stranger { .. } | DeliveryError::Unreachable { .. }),
                ) => result = Err(other),
                sent @ (Ok(()) | Err(DeliveryError::Kernel(_))) => return sent,
            }
        }
        result
    }

    /// Sends to the owner of a name: by the link to it, or else by a new one.
    fn pass(
        &self,
        known: &mut KnownOwners,
        name: String,
        parts: &[IoSlice<'_>],
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        if let Some(link) = known.links.find(&name) {
            match transmit(link.socket(), parts) {
                // Somebody else may have the name by now.
                Err(DeliveryError::Unclaimed) => known.links.forget(&name),
                sent => return sent,
            }
        }
        self.reach(known, &name, permits)?;
        known.links.keep_spare(name.clone());
        let link = known.links.find(&name).ok_or(DeliveryError::Unclaimed)?;
        let sent = transmit(link.socket(), parts);
        if matches!(sent, Err(DeliveryError::Unclaimed)) {
            known.links.forget(&name);
        }
        sent
    }

    /// Connects the spare link to a name, and looks whose it is.
    fn reach(
        &self,
        known: &mut KnownOwners,
        name: &str,
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        let now = Instant::now();
        let stranger =
            |user: Uid| DeliveryError::Stranger { user: user.as_raw(), name: name.to_owned() };
        if let Some(user) = known.refused.find(name, now) {
            return Err(stranger(user));
        }
        // There is one more than can be linked.
        let spare = known.links.spare().ok_or(DeliveryError::Unclaimed)?;
        match spare.connect(name) {
            Ok(()) => {}
            Err(Errno::ECONNREFUSED) => return Err(DeliveryError::Unclaimed),
            // Whoever has one name must not keep messages from the other.
            Err(errno) => {
                let (name, error) = (name.to_owned(), errno.into());
                return Err(DeliveryError::Unreachable { name, error });
            }
        }
        match self.owners.as_ref().map(|owners| owners.owner_of_peer(spare.inode(), Some(name))) {
            None => Ok(()),
            Some(Ok(user)) if permits(user) => Ok(()),
            Some(Ok(user)) => {
                known.refused.note(name, user, now);
                Err(stranger(user))
            }
            // It went meanwhile.
            Some(Err(_)) => Err(DeliveryError::Unclaimed),
        }
    }
}

fn transmit(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<(), DeliveryError> {
    match sendmsg::<UnixAddr>(socket.as_raw_fd(), parts, &[], MsgFlags::MSG_NOSIGNAL, None) {
        // It went meanwhile.
        Err(Errno::ECONNREFUSED | Errno::ENOTCONN | Errno::EPIPE | Errno::EPERM) => {
            Err(DeliveryError::Unclaimed)
        }
        sent => Ok(sent.map(drop).map_err(io::Error::from)?),
    }
}

/// Questions about owners, where the kernel answers them.
fn owners() -> io::Result<Option<UnixDiag>> {
    let (near, _far) = UnixDatagram::pair()?;
    let (diag, near) = (UnixDiag::open()?, SocketInode::of(&near)?);
    let answers = diag.owner_of_peer(near, None).is_ok();
    Ok(answers.then_some(diag))
}

#[cfg(test)]
mod tests;

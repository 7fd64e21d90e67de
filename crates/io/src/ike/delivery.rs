//! Messages to IKE daemons, each to a socket of an allowed user only.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixAddr, sendmsg};
use nix::unistd::Uid;

use super::daemon_links::DaemonLinks;
use super::refused_owners::RefusedOwners;
use super::{DaemonAddress, IkeDatagram, addresses, message};
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
        /// Its abstract name, or its file.
        name: String,
    },
    /// Somebody has the socket name and takes no messages there: a daemon's socket takes ours.
    #[error("who has the socket name {name} takes no IKE messages: {error}")]
    Unreachable {
        /// The abstract name, or the file.
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
    /// Where files of daemons are.
    directory: Option<PathBuf>,
}

/// What was found out about owners of addresses.
#[derive(Debug)]
struct KnownOwners {
    links: DaemonLinks,
    refused: RefusedOwners,
}

impl Delivery {
    /// Opens the sockets: a thread that delivers may be confined. Files of daemons are in
    /// `directory`.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(directory: Option<PathBuf>) -> io::Result<Self> {
        let known = KnownOwners { links: DaemonLinks::open()?, refused: RefusedOwners::default() };
        Ok(Self { known: Mutex::new(known), owners: owners()?, directory })
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
        for address in addresses(datagram.path.local, self.directory.as_deref()) {
            match self.pass(&mut known, &address, &parts, &permits) {
                Err(DeliveryError::Unclaimed) => {}
                Err(
                    other @ (DeliveryError::Stranger { .. } | DeliveryError::Unreachable { .. }),
                ) => result = Err(other),
                sent @ (Ok(()) | Err(DeliveryError::Kernel(_))) => return sent,
            }
        }
        result
    }

    /// Sends to the owner of an address: by the link to it, or else by a new one.
    fn pass(
        &self,
        known: &mut KnownOwners,
        address: &DaemonAddress,
        parts: &[IoSlice<'_>],
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        if let Some(link) = known.links.find(address) {
            match transmit(link.socket(), parts) {
                // Somebody else may be there by now.
                Err(DeliveryError::Unclaimed) => known.links.forget(address),
                sent => return sent,
            }
        }
        self.reach(known, address, permits)?;
        known.links.keep_spare(address.clone());
        let link = known.links.find(address).ok_or(DeliveryError::Unclaimed)?;
        let sent = transmit(link.socket(), parts);
        if matches!(sent, Err(DeliveryError::Unclaimed)) {
            known.links.forget(address);
        }
        sent
    }

    /// Connects the spare link to an address, and looks whose it is.
    fn reach(
        &self,
        known: &mut KnownOwners,
        address: &DaemonAddress,
        permits: impl Fn(Uid) -> bool,
    ) -> Result<(), DeliveryError> {
        let (now, name) = (Instant::now(), || address.to_string());
        let stranger = |user: Uid| DeliveryError::Stranger { user: user.as_raw(), name: name() };
        if let Some(user) = known.refused.find(address, now) {
            return Err(stranger(user));
        }
        // There is one more than can be linked.
        let spare = known.links.spare().ok_or(DeliveryError::Unclaimed)?;
        match spare.connect(address) {
            Ok(()) => {}
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => return Err(DeliveryError::Unclaimed),
            // Whoever has one address must not keep messages from the others.
            Err(errno) => {
                return Err(DeliveryError::Unreachable { name: name(), error: errno.into() });
            }
        }
        let asked = self.owners.as_ref();
        match asked.map(|owners| owners.owner_of_peer(spare.inode(), Some(&told(address)))) {
            None => Ok(()),
            Some(Ok(user)) if permits(user) => Ok(()),
            Some(Ok(user)) => {
                known.refused.note(address, user, now);
                Err(stranger(user))
            }
            // It went meanwhile.
            Some(Err(_)) => Err(DeliveryError::Unclaimed),
        }
    }
}

/// An address as the kernel tells it.
fn told(address: &DaemonAddress) -> Vec<u8> {
    match address {
        DaemonAddress::Name(name) => [b"\0", name.as_bytes()].concat(),
        DaemonAddress::File(path) => [path.as_os_str().as_bytes(), b"\0"].concat(),
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

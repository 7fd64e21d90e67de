//! The status socket. Who has it is the gateway of its network namespace: it is the lock, too.
//!
//! Its name is abstract, so each network namespace has its own, it needs no directory and is gone
//! with the process. Where a stranger has it, a file [stands in](uxfrm_control::fallback_socket).

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use nix::sys::socket::{Backlog, SockType, UnixAddr, listen};
use uxfrm_control::STAT_NAME;
use uxfrm_control_client::check_listener;

use crate::{
    control::socket_owner::SocketOwner,
    fallback_socket::{self, SocketFile},
};

/// What the socket is called in the descriptor store.
pub(crate) const DESCRIPTOR: &str = "stat";

/// How often a name is looked at at which nobody accepts yet: a gateway may be about to. Then a
/// stranger has it.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The gateway's end. The process that owns it is the gateway of its network namespace.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    listener: UnixListener,
    file: Option<SocketFile>,
}

impl StatusSocket {
    /// Opens the socket of this network namespace: at its name, or where a stranger has that, at
    /// the file that stands in for it.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway runs in this namespace.
    pub(crate) fn open() -> io::Result<Self> {
        // One that found the name taken when it started may have outlived who had it.
        if fallback_socket::find(STAT_NAME).is_some_and(|file| UnixStream::connect(file).is_ok()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(STAT_NAME)?) {
            Ok(listener) => {
                fallback_socket::sweep(STAT_NAME, SockType::Stream);
                Self::of(listener, None)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder()? {
                NameHolder::Stranger => Self::open_elsewhere()
                    .map_err(|error| fallback_socket::refused(STAT_NAME, &error)),
                NameHolder::Ours => Err(error),
                NameHolder::Gateway(owner) => {
                    Err(io::Error::new(io::ErrorKind::AddrInUse, owner.to_string()))
                }
            },
            Err(error) => Err(error),
        }
    }

    /// The one that another process of this gateway has had until now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_socket(listener: OwnedFd) -> io::Result<Self> {
        Self::of(listener.into(), None)
    }

    /// Has whoever connects see this process at the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_listener_over(&self) -> io::Result<()> {
        Ok(listen(&self.listener, Backlog::MAXCONN)?)
    }

    fn open_elsewhere() -> io::Result<Self> {
        let _alone = fallback_socket::lock()?;
        let path = fallback_socket::make(STAT_NAME, SockType::Stream)?;
        let listener = UnixListener::bind(&path)?;
        tracing::warn!(
            ?path,
            "somebody else has uxfrm's abstract socket names: files stand in for them"
        );
        Self::of(listener, Some(SocketFile::of(path)))
    }

    fn of(listener: UnixListener, file: Option<SocketFile>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file })
    }

    /// Lets other users connect where a file stands in, as they may to an abstract name: who is
    /// answered is decided then.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn let_others_connect(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), SocketFile::let_others_connect)
    }

    /// Another handle of it, for the thread that answers.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Which process has a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameHolder {
    /// Root or our own user.
    Ours,
    /// A gateway of another user's.
    Gateway(SocketOwner),
    /// Somebody else, or nobody knows.
    Stranger,
}

fn holder() -> io::Result<NameHolder> {
    let address = UnixAddr::new_abstract(STAT_NAME)?;
    for _ in 0..LOOKS {
        match fallback_socket::probe(&address, SockType::Stream) {
            Ok(stream) if check_listener(&stream).is_ok() => return Ok(NameHolder::Ours),
            Ok(stream) => {
                return Ok(
                    SocketOwner::of(&stream).map_or(NameHolder::Stranger, NameHolder::Gateway)
                );
            }
            // Somebody starts, or has let its queue fill.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(NameHolder::Stranger)
}

//! The status socket. Who has it is the gateway of its network namespace: it is the lock, too.
//!
//! Its name is abstract, so each network namespace has its own, it needs no directory and is gone
//! with the process. Where a stranger has it, a file [stands in](uxfrm_control::fallback_socket).

use std::{
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use nix::sys::socket::{Backlog, SockType, UnixAddr, listen};
use uxfrm_control::STAT_NAME;
use uxfrm_control_client::check_listener;
use uxfrm_io::peer;

use crate::{
    control::socket_owner::SocketOwner,
    descriptor_store::DescriptorStore,
    fallback_socket::{self, ReservedFor, ReservedSocket, SocketFile},
};

/// What the socket is called in the descriptor store.
const DESCRIPTOR: &str = "stat";
/// And the one beside its name.
const RESERVED: &str = "stat-reserved";

/// How often a name is looked at at which nobody accepts yet: a gateway may be about to. Then a
/// stranger has it.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The gateway's end. The process that owns it is the gateway of its network namespace.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    listener: UnixListener,
    file: Option<SocketFile>,
    reserved: Option<ReservedSocket>,
}

/// Where clients connect.
#[derive(Debug)]
pub(crate) struct StatusListeners {
    /// Any user.
    pub(crate) all: UnixListener,
    /// Only those who are answered.
    pub(crate) reserved: Option<UnixListener>,
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

    /// The one that another process of this gateway has had until now, and still has until
    /// [`take_listeners_over`](Self::take_listeners_over); `None` where it handed on none.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take(descriptors: &mut DescriptorStore) -> io::Result<Option<Self>> {
        let Some(listener) = descriptors.take(DESCRIPTOR) else { return Ok(None) };
        let mut socket = Self::of(listener.into(), None)?;
        socket.reserved = descriptors.take(RESERVED).map(ReservedSocket::of_socket);
        Ok(Some(socket))
    }

    /// Keeps copies for the next process of this gateway.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn keep_in(&self, descriptors: &mut DescriptorStore) -> io::Result<()> {
        descriptors.keep(DESCRIPTOR, self.listener.as_fd())?;
        let reserved = self.reserved.as_ref();
        reserved.map_or(Ok(()), |reserved| descriptors.keep(RESERVED, reserved.as_fd()))
    }

    /// Has whoever connects see this process at the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_listeners_over(&mut self) -> io::Result<()> {
        listen(&self.listener, Backlog::MAXCONN)?;
        self.reserved.as_mut().map_or(Ok(()), ReservedSocket::take_over)
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
        Ok(Self { listener, file, reserved: None })
    }

    /// Lets those connect who are answered: the members of a group as well, if there is one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn admit(&mut self, group: Option<u32>) -> io::Result<()> {
        let Some(file) = &self.file else {
            let readers = group.map_or(ReservedFor::Own, ReservedFor::Group);
            self.reserved = ReservedSocket::open(STAT_NAME, SockType::Stream, readers);
            return Ok(());
        };
        // As they may to an abstract name: who is answered is decided then.
        if group.is_some() { file.let_others_connect() } else { Ok(()) }
    }

    /// Other handles, for the thread that answers.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn listeners(&self) -> io::Result<StatusListeners> {
        let reserved = self.reserved.as_ref().map(ReservedSocket::listener).transpose()?;
        let reserved = reserved.map(UnixListener::from);
        Ok(StatusListeners { all: self.listener.try_clone()?, reserved })
    }
}

impl StatusListeners {
    /// What is readable while somebody waits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.reserved.iter().chain([&self.all]).map(UnixListener::as_fd)
    }

    /// Takes the next connection; of those who are answered first.
    ///
    /// # Errors
    /// The kernel's: `EAGAIN` when nobody waits.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self.reserved.as_ref().map(|reserved| peer::accept(reserved.as_fd())) {
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Some(taken) => return taken,
            None => {}
        }
        peer::accept(self.all.as_fd())
    }

    /// Other handles of them.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let reserved = self.reserved.as_ref().map(UnixListener::try_clone).transpose()?;
        Ok(Self { all: self.all.try_clone()?, reserved })
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

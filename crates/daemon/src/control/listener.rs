//! The socket that clients connect to.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{fs::lchown, net::UnixListener},
    },
    path::Path,
};

use nix::{
    errno::Errno,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
        stat::{Mode, fchmod},
    },
};

use uxfrm_control::greeting::NAME;

use crate::fallback_socket::{self, ReservedFor, ReservedSocket, SocketFile};

/// A listening socket, and the one beside its name where all may connect to that; files go with
/// them.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    _file: Option<SocketFile>,
    reserved: Option<Reserved>,
}

#[derive(Debug)]
struct Reserved {
    listener: UnixListener,
    socket: ReservedSocket,
}

/// What accepting brought.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A connection.
    Session(OwnedFd),
    /// Nobody is waiting.
    Nobody,
    /// Somebody may be waiting, but the process or the system is out of descriptors or memory.
    NoDescriptors,
}

impl Listener {
    /// Listens at `path` (mode 0600, of `user` if there is one), or at this network namespace's
    /// abstract name, or where a stranger has that, at the file that stands in for it.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway does; `EPERM` when the file can't be another user's.
    pub(super) fn open(path: Option<&Path>, user: Option<u32>) -> io::Result<Self> {
        raise_descriptor_limit();
        let socket = seqpacket()?;
        let file = match path {
            Some(path) => Some(bind_file(&socket, path, user)?),
            None => bind_name(&socket, user)?,
        };
        listen(&socket, Backlog::MAXCONN)?;
        let readers = user.map_or(ReservedFor::Own, ReservedFor::User);
        let beside = || ReservedSocket::open(NAME, SockType::SeqPacket, readers);
        let reserved = file.is_none().then(beside).flatten().map(Reserved::new).transpose()?;
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, _file: file, reserved })
    }

    /// What another process of this gateway has had until now, and still has until
    /// [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn of_sockets(handed: ListeningSockets) -> io::Result<Self> {
        raise_descriptor_limit();
        let socket = UnixListener::from(handed.socket);
        socket.set_nonblocking(true)?;
        let reserved = handed.reserved.map(ReservedSocket::of_socket);
        let reserved = reserved.map(Reserved::new).transpose()?;
        Ok(Self { socket, _file: None, reserved })
    }

    /// Has whoever connects see this process at the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        listen(&self.socket, Backlog::MAXCONN)?;
        self.reserved.as_mut().map_or(Ok(()), |reserved| reserved.socket.take_over())
    }

    /// What is readable while somebody waits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd()).chain(self.reserved())
    }

    /// Where only those may connect who may ask.
    pub(super) fn reserved(&self) -> Option<BorrowedFd<'_>> {
        self.reserved.as_ref().map(|reserved| reserved.listener.as_fd())
    }

    /// Takes the next connection; of those who may ask first.
    ///
    /// # Errors
    /// The kernel's about the socket itself.
    pub(super) fn accept(&self) -> io::Result<Accepted> {
        if let Some(reserved) = &self.reserved {
            match accept_at(&reserved.listener)? {
                Accepted::Nobody => {}
                accepted @ (Accepted::Session(_) | Accepted::NoDescriptors) => return Ok(accepted),
            }
        }
        accept_at(&self.socket)
    }
}

impl Reserved {
    fn new(socket: ReservedSocket) -> io::Result<Self> {
        Ok(Self { listener: socket.listener()?.into(), socket })
    }
}

/// The listening sockets of another process of this gateway.
#[derive(Debug)]
pub(crate) struct ListeningSockets {
    /// At its name, or where it is configured to be.
    pub(crate) socket: OwnedFd,
    /// Beside its name.
    pub(crate) reserved: Option<OwnedFd>,
}

fn accept_at(listener: &UnixListener) -> io::Result<Accepted> {
    loop {
        let error = match listener.accept() {
            Ok((client, _)) => return Ok(Accepted::Session(client.into())),
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAGAIN) => return Ok(Accepted::Nobody),
            Some(Errno::EINTR | Errno::ECONNABORTED) => {}
            Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                return Ok(Accepted::NoDescriptors);
            }
            _ => return Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind_file(socket: &OwnedFd, path: &Path, user: Option<u32>) -> io::Result<SocketFile> {
    fallback_socket::clear(path, SockType::SeqPacket)?;
    // What the file will have: there is no moment at which others could connect.
    fchmod(socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let file = SocketFile::of(path);
    if user.is_some() {
        // Root gets in whosever it is. Not through a link that somebody put there meanwhile.
        lchown(path, user, None)?;
    }
    Ok(file)
}

/// The counters' name is ours by now, so no other gateway has this one.
fn bind_name(socket: &OwnedFd, user: Option<u32>) -> io::Result<Option<SocketFile>> {
    match bind(socket.as_raw_fd(), &UnixAddr::new_abstract(NAME)?) {
        Ok(()) => {
            fallback_socket::sweep(NAME, SockType::SeqPacket);
            Ok(None)
        }
        Err(Errno::EADDRINUSE) => {
            let path = fallback_socket::make(NAME, SockType::SeqPacket)
                .map_err(|error| fallback_socket::refused(NAME, &error))?;
            bind_file(socket, &path, user).map(Some)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Each client takes a descriptor. Nothing here waits by `select`, which is what the low limit is
/// for.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "few clients at a time: can't raise the limit of descriptors");
    }
}

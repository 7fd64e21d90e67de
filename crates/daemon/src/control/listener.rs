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

use crate::fallback_socket::{self, SocketFile};

/// A listening socket; a file goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    _file: Option<SocketFile>,
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
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, _file: file })
    }

    /// The one that another process of this gateway has had until now.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn of_socket(socket: OwnedFd) -> io::Result<Self> {
        raise_descriptor_limit();
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, _file: None })
    }

    /// Takes the next connection.
    ///
    /// # Errors
    /// The kernel's about the socket itself.
    pub(super) fn accept(&self) -> io::Result<Accepted> {
        loop {
            let error = match self.socket.accept() {
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

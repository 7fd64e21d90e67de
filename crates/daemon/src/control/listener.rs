//! The socket that clients connect to.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{fs::lchown, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
        },
        stat::{Mode, fchmod},
    },
};

use uxfrm_control::greeting::NAME;

/// A listening socket; a path goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    path: Option<PathBuf>,
}

/// What accepting brought.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A connection.
    Client(OwnedFd),
    /// Nobody is waiting.
    Nobody,
    /// Somebody may be waiting, but the process or the system is out of descriptors or memory.
    NoDescriptors,
}

impl Listener {
    /// Listens at `path` (mode 0600, of `user` if there is one), or at this network namespace's abstract name.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway does; `EPERM` when the file can't be another user's.
    pub(super) fn open(path: Option<&Path>, user: Option<u32>) -> io::Result<Self> {
        raise_descriptor_limit();
        let address = match path {
            Some(path) => UnixAddr::new(path)?,
            None => UnixAddr::new_abstract(NAME)?,
        };
        let socket = seqpacket()?;
        // What a path's socket file will have: there is no moment at which others could connect.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        match (bind(socket.as_raw_fd(), &address), path) {
            (Err(Errno::EADDRINUSE), Some(path)) if is_left_behind(&address) => {
                fs::remove_file(path)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            (result, _) => result?,
        }
        if let (Some(path), Some(_)) = (path, user) {
            // Root gets in whosever it is. Not through a link that somebody put there meanwhile.
            lchown(path, user, None)?;
        }
        listen(&socket, Backlog::MAXCONN)?;
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.map(Path::to_owned) })
    }

    /// Takes the next connection.
    ///
    /// # Errors
    /// The kernel's about the socket itself.
    pub(super) fn accept(&self) -> io::Result<Accepted> {
        loop {
            let error = match self.socket.accept() {
                Ok((client, _)) => return Ok(Accepted::Client(client.into())),
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

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nothing connects to what is left behind, and the next gateway removes it.
            let _gone = fs::remove_file(path);
        }
    }
}

/// Whether nobody listens at an address that is taken.
fn is_left_behind(address: &UnixAddr) -> bool {
    seqpacket().is_ok_and(|probe| connect(probe.as_raw_fd(), address) == Err(Errno::ECONNREFUSED))
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Each client takes a descriptor. Nothing here waits by `select`, which is what the low limit is for.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "few clients at a time: can't raise the limit of descriptors");
    }
}

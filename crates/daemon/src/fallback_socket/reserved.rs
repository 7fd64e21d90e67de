//! A listening file beside an abstract name, for those alone who may ask.
//!
//! Any user of a host can connect to an abstract name, and fill its queue. Clients try the file
//! first: root and whom it is given to are kept waiting by nobody else there.

use std::{
    fs::Permissions,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::{PermissionsExt as _, chown, lchown},
    },
    path::Path,
};

use nix::sys::{
    socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockname, listen, socket,
    },
    stat::{Mode, fchmod},
};

use super::{SocketFile, lock, make};

/// Who may connect beside root and the gateway's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservedFor {
    /// Nobody.
    Own,
    /// Another user, by id.
    User(u32),
    /// The members of a group, by id.
    Group(u32),
}

/// The listener; its file goes with it.
#[derive(Debug)]
pub(crate) struct ReservedSocket {
    socket: OwnedFd,
    file: Option<SocketFile>,
}

impl ReservedSocket {
    /// Listens beside `name`, which the gateway has by now. `None`, which is logged, where no
    /// directory is to be had: then all ask at the name.
    pub(crate) fn open(name: &[u8], kind: SockType, readers: ReservedFor) -> Option<Self> {
        let opened = lock().and_then(|_alone| listening(&make(name, kind)?, kind, readers));
        let failed = |error: &io::Error| {
            let name = String::from_utf8_lossy(name);
            tracing::debug!(%error, %name, "users who flood it delay others: no file beside it");
        };
        opened.inspect_err(failed).ok()
    }

    /// The one that another process of this gateway has had until now, and still has until
    /// [`take_over`](Self::take_over).
    pub(crate) fn of_socket(socket: OwnedFd) -> Self {
        Self { socket, file: None }
    }

    /// Has whoever connects see this process at the other end, and the file go with it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_over(&mut self) -> io::Result<()> {
        listen(&self.socket, Backlog::MAXCONN)?;
        let address: UnixAddr = getsockname(self.socket.as_raw_fd())?;
        self.file = address.path().map(SocketFile::of);
        Ok(())
    }

    /// Another handle of the listener.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn listener(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl AsFd for ReservedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn listening(path: &Path, kind: SockType, readers: ReservedFor) -> io::Result<ReservedSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, kind, flags, None)?;
    // What the file will have: there is no moment at which others could connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let file = SocketFile::of(path);
    if let Err(error) = give(path, readers) {
        tracing::debug!(%error, ?path, ?readers, "they ask at the abstract name instead");
    }
    listen(&socket, Backlog::MAXCONN)?;
    Ok(ReservedSocket { socket, file: Some(file) })
}

fn give(path: &Path, readers: ReservedFor) -> io::Result<()> {
    match readers {
        ReservedFor::Own => Ok(()),
        ReservedFor::User(user) => lchown(path, Some(user), None),
        ReservedFor::Group(group) => {
            chown(path, None, Some(group))?;
            std::fs::set_permissions(path, Permissions::from_mode(0o660))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{
        fs::MetadataExt as _,
        net::{UnixListener, UnixStream},
    };

    use super::*;

    fn reserved(path: &Path, readers: ReservedFor) -> ReservedSocket {
        listening(path, SockType::Stream, readers).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn only_those_who_may_ask_can_connect() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("stat");
        let group = nix::unistd::Gid::effective().as_raw();
        for (readers, expected) in [(ReservedFor::Own, 0o600), (ReservedFor::Group(group), 0o660)] {
            let socket = reserved(&path, readers);
            assert_eq!(mode(&path), expected, "{readers:?}");
            UnixStream::connect(&path).unwrap();
            drop(socket);
            assert!(!path.exists(), "the file goes with the socket");
        }
    }

    #[test]
    fn file_stays_where_a_successor_gives_up() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("stat");
        let before = reserved(&path, ReservedFor::Own);
        drop(ReservedSocket::of_socket(before.listener().unwrap()));
        assert!(path.exists(), "the process before goes on");
        let mut after = ReservedSocket::of_socket(before.listener().unwrap());
        after.take_over().unwrap();
        std::mem::forget(before); // as a process that is killed
        let listener = UnixListener::from(after.listener().unwrap());
        let _client = UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        drop(after);
        assert!(!path.exists());
    }
}

//! Socket files used when another user owns uxfrm's abstract names
//! ([`uxfrm_control::fallback_socket`]), as a gateway makes them.

mod left_behind;
mod lock_file;
mod reserved;

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    unistd::Uid,
};
pub(crate) use reserved::{ReservedFor, ReservedSocket};
use uxfrm_control::{fallback_socket::DIRECTORY, greeting::NAME};
use uxfrm_control_client::fallback_socket::file;
pub(crate) use uxfrm_control_client::fallback_socket::find;

/// Mode bits by which others than the owner may write.
const SHARED: u32 = 0o022;
/// Who has this file's lock is alone in the directory of directories.
const LOCK: &str = "lock";

/// The file of a socket, which goes with it.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    /// A file that a socket has just been bound to.
    pub(crate) fn of(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Lets any user connect.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn let_others_connect(&self) -> io::Result<()> {
        fs::set_permissions(&self.0, Permissions::from_mode(0o666))
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.0.parent()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing connects to what is left behind, and the next gateway removes it.
        let _gone = fs::remove_file(&self.0);
    }
}

/// Where a gateway may bind a socket of a kind in the place of `name`, which a stranger has.
///
/// # Errors
/// `EPERM` where somebody else than our user could get at it; the kernel's where it can't be made.
pub(crate) fn make(name: &[u8], kind: SockType) -> io::Result<PathBuf> {
    own_directory()?;
    let file = file(name)?;
    clear(&file, kind)?;
    Ok(file)
}

/// The directory of this network namespace's gateway, which it alone writes to; made where we may.
/// `None` where there is none.
pub(crate) fn own() -> Option<PathBuf> {
    let own = file(NAME).ok()?.parent()?.to_owned();
    (own_directory().is_ok() || own.is_dir()).then_some(own)
}

/// Makes the directory. No other gateway of our user looks for a name meanwhile and until what is
/// returned is dropped.
///
/// # Errors
/// As [`make`].
pub(crate) fn lock() -> io::Result<Flock<File>> {
    own_directory()?;
    lock_file::wait(&Path::new(DIRECTORY).join(LOCK))
}

/// Has this gateway's directory, as long as what is returned is kept, and removes those that
/// gateways of other network namespaces have left: a namespace has another number each time.
/// `None` where there is no directory that is ours alone, or where it can't be had, which is
/// logged.
pub(crate) fn hold() -> Option<Flock<File>> {
    let own = own()?;
    let held = lock().and_then(|_alone| {
        left_behind::remove(Path::new(DIRECTORY), &own);
        lock_file::at_once(&lock_file::of(&own), FlockArg::LockSharedNonblock)
    });
    let failed = |error: &io::Error| {
        tracing::warn!(%error, directory = ?own, "without its lock, another gateway may remove it");
    };
    held.inspect_err(failed).ok()
}

/// Removes what a gateway that was killed has left at `path`.
///
/// # Errors
/// The kernel's.
pub(crate) fn clear(path: &Path, kind: SockType) -> io::Result<()> {
    if is_left_behind(path, kind) { fs::remove_file(path) } else { Ok(()) }
}

/// Removes what a killed gateway has left, for one that has `name` itself.
pub(crate) fn sweep(name: &[u8], kind: SockType) {
    if let Some(file) = find(name) {
        // Clients see that nobody is there.
        let _left = clear(&file, kind);
    }
}

/// What to say when no file can stand in.
pub(crate) fn refused(name: &[u8], error: &io::Error) -> io::Error {
    let name = String::from_utf8_lossy(name);
    let text = format!(
        "somebody else has the abstract socket name {name}, and {DIRECTORY} can't be used: {error}"
    );
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

/// Only our own will do, which root has given us if we are not root: others could put something
/// else in a file's place.
fn own_directory() -> io::Result<()> {
    ours_alone(Path::new(DIRECTORY))?;
    file(NAME)?.parent().map_or(Ok(()), ours_alone)
}

fn ours_alone(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        // Whatever the umask: who may connect is each file's to say.
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let (found, own) = (fs::symlink_metadata(directory)?, Uid::effective().as_raw());
    let safe = found.is_dir() && found.uid() == own && found.mode() & SHARED == 0;
    if safe { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// Connects to whoever listens, without waiting for room in its queue, which may never be.
///
/// # Errors
/// The kernel's.
pub(crate) fn probe(address: &UnixAddr, kind: SockType) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, kind, flags, None)?;
    connect(probe.as_raw_fd(), address).map(|()| probe)
}

/// Whether a socket's file is there and nobody has it. Who connects to a file of another kind is
/// refused in the same words.
fn is_left_behind(path: &Path, kind: SockType) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        return false;
    }
    let probed = UnixAddr::new(path).and_then(|address| probe(&address, kind));
    probed.is_err_and(|errno| errno == Errno::ECONNREFUSED)
}

//! Network namespaces, created and entered without the `ip` program.
//!
//! A namespace here is a descriptor: it lives while somebody holds it, and leaves no file behind
//! however the process ends.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

const OF_THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace, kept alive.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Creates a namespace with only a loopback device, which is down.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; see [`become_root`].
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::current()
        })
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// The kernel's, when `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        Ok(Self { file: File::open(OF_THIS_THREAD)? })
    }

    /// A namespace that `ip netns add` or a container runtime keeps at a path.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// Runs `work` in the namespace, on a thread of its own, and waits for its result. Sockets and
    /// devices that it opens stay in the namespace wherever they are used.
    ///
    /// # Errors
    /// The kernel's, when the namespace may not be entered.
    ///
    /// # Panics
    /// When `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.switch_thread()?;
            Ok(work())
        })
    }

    /// Moves the calling thread into the namespace for good. Threads that it starts begin there.
    ///
    /// # Errors
    /// The kernel's, when the namespace may not be entered.
    pub fn switch_thread(&self) -> io::Result<()> {
        Ok(setns(&self.file, CloneFlags::CLONE_NEWNET)?)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Makes an ordinary user root within a user namespace and a network namespace of the process's
/// own, where it may open TUN devices and raw sockets and make more namespaces.
///
/// The process must have *no other thread*: call it first in `main`. Files keep belonging to the
/// real user.
///
/// # Errors
/// `EINVAL` with other threads about; `EPERM`, `ENOSPC` or `EACCES` where user namespaces are not
/// allowed.
pub fn become_root() -> io::Result<()> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Writes a setting below `/proc/sys` (`net/ipv4/ip_forward`), for the calling thread's namespace.
///
/// # Errors
/// The kernel's, with the setting's name.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{name}"), value)
        .map_err(|error| io::Error::new(error.kind(), format!("sysctl {name} = {value}: {error}")))
}

/// Name of this thread's network namespace in `ip netns`; `None` if it has none.
#[must_use]
pub fn name() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let own = fs::metadata(OF_THIS_THREAD).ok()?;
    let named = fs::read_dir("/run/netns").ok()?.flatten().find(|entry| {
        let place = fs::metadata(entry.path());
        place.is_ok_and(|place| (place.dev(), place.ino()) == (own.dev(), own.ino()))
    });
    named?.file_name().into_string().ok()
}

/// Runs `work` on a thread of its own, which may end up in any namespace; passes result or panic
/// on.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, work)?.join() {
        Ok(result) => result,
        Err(panic) => panic::resume_unwind(panic),
    })
}

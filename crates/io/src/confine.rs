//! What a running gateway may still do: few capabilities, few system calls, few files.
//!
//! A gateway is opened with all that it needs and gives up the rest for good before it says that it is ready. Whoever breaks into it by a packet or a
//! message starts no program, traces none, mounts nothing, loads nothing into the kernel and reads no file but the gateway's. Threads that carry
//! packets open no files at all. Each thread confines itself ([`packets`], [`control`]); what it starts begins with what it has left.
//!
//! What is refused fails with `EPERM` or `EACCES`: a call that nobody thought of costs what was asked for, and no tunnel. What the kernel can't take
//! away, as Landlock on an old one, is left, and said ([`Confined::faults`]).
//!
//! Nothing is confined unless the process said so ([`begin`]): libraries and benches use the same threads.

mod capabilities;
mod landlock;
mod syscalls;

use std::{
    fmt, io,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadRole {
    /// It carries packets or messages by descriptors that are open, and opens sockets.
    Packets,
    /// It looks after all others: rules, routes, devices, the store, clients.
    Control,
}

/// What some gateways need beyond what all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Tables of programs in the kernel change while it runs, for `AF_XDP`.
    KernelTables,
    /// Files that it reads or writes again belong to another user, and root needs a capability for that.
    OthersFiles,
}

/// Files and directories that the thread that looks after all others may use, with all that is beneath.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// To read.
    pub read: Vec<PathBuf>,
    /// To read, write, make and remove.
    pub write: Vec<PathBuf>,
}

/// What the kernel does not take away.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `PR_SET_NO_NEW_PRIVS` or a capability.
    #[error("capabilities are not dropped: {0}")]
    Privileges(io::Error),
    /// A filter of system calls.
    #[error("system calls are not filtered: {0}")]
    Calls(String),
    /// Landlock.
    #[error("files are not fenced off: {0}")]
    Files(String),
}

/// A thread has confined itself, as far as the kernel let it.
#[derive(Debug, Default)]
#[must_use = "what is held has to live as long as the thread uses its files"]
pub struct Confined {
    faults: Vec<Error>,
    _held: landlock::PathHandles,
}

impl Confined {
    /// What was left, and why.
    #[must_use]
    pub fn faults(&self) -> Option<Faults<'_>> {
        (!self.faults.is_empty()).then_some(Faults(&self.faults))
    }
}

/// Why something was left, in one line.
#[derive(Debug)]
pub struct Faults<'a>(&'a [Error]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            write!(out, "{}{fault}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

static BEGUN: AtomicBool = AtomicBool::new(false);

/// From now on threads of this process confine themselves.
pub fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Whether threads confine themselves.
#[must_use]
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Leaves the calling thread what a thread that carries packets needs; nothing happens unless that [began](begin).
pub fn packets() -> Confined {
    if has_begun() { confine(ThreadRole::Packets, &[], None) } else { Confined::default() }
}

/// Leaves the calling thread, and those that it starts from now on, what looking after a gateway needs.
pub fn control(extras: &[Extra], places: &Places) -> Confined {
    if has_begun() {
        confine(ThreadRole::Control, extras, Some(places))
    } else {
        Confined::default()
    }
}

/// What the kernel would not take away from a thread; found out on one of its own.
///
/// # Errors
/// When it can't be started.
pub fn try_out() -> io::Result<Confined> {
    let work = || confine(ThreadRole::Packets, &[], None);
    let thread = std::thread::Builder::new().name("confined".into()).spawn(work)?;
    thread.join().map_err(|_panic| io::Error::other("the thread that tried it is gone"))
}

/// Files first, as later the calls are missing that fence them off.
fn confine(role: ThreadRole, extras: &[Extra], places: Option<&Places>) -> Confined {
    let mut faults = Vec::new();
    let mut keep = |result: Result<(), Error>| faults.extend(result.err());
    keep(capabilities::keep(extras));
    let (held, fenced) = landlock::restrict_paths(places);
    keep(fenced);
    keep(syscalls::filter(role, extras));
    Confined { faults, _held: held }
}

#[cfg(test)]
mod tests;

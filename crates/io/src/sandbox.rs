//! Confines a running gateway: few capabilities, few system calls, few files.
//!
//! A gateway opens all that it needs, then gives up the rest for good before it reports ready. An
//! attacker who breaks in by a packet or a message can start or trace no program, mount nothing,
//! load nothing into the kernel, and read only the gateway's files. Packet threads open no files at
//! all. Each thread confines itself ([`packets`], [`control`], [`status`]); threads that it
//! starts inherit that.
//!
//! A refused call fails with `EPERM` or `EACCES`: a call that the lists miss costs its caller's
//! request, and no tunnel. Confinement that the kernel lacks, such as Landlock on an old one, is
//! skipped and reported ([`Confinement::faults`]).
//!
//! Threads confine themselves only after [`begin`]: libraries and benchmarks run the same threads.

mod capabilities;
mod landlock;
mod syscalls;

use std::{
    fmt, io,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// Roles of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadRole {
    /// Carries packets or messages by open descriptors, and opens sockets.
    Packets,
    /// Manages the gateway: rules, routes, devices, the store, clients.
    Control,
    /// Answers clients of the status socket: memory, and connections to a socket that is open.
    Status,
}

/// Additional rights that some gateways need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraRight {
    /// Updates BPF maps while it runs, for `AF_XDP`.
    BpfMaps,
    /// Rereads or rewrites files of another user, for which root needs a capability.
    OthersFiles,
}

/// Files and directories, with all beneath, that the control thread may use.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths {
    /// To read.
    pub read: Vec<PathBuf>,
    /// To read, write, create and remove.
    pub write: Vec<PathBuf>,
}

/// Confinement that the kernel refused.
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

/// The outcome of confining a thread.
#[derive(Debug, Default)]
#[must_use = "what is held has to live as long as the thread uses its files"]
pub struct Confinement {
    faults: Vec<Error>,
    _held: landlock::PathHandles,
}

impl Confinement {
    /// What was skipped, and why.
    #[must_use]
    pub fn faults(&self) -> Option<Faults<'_>> {
        (!self.faults.is_empty()).then_some(Faults(&self.faults))
    }
}

/// All reasons in one line.
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

/// Makes threads of this process confine themselves from now on.
pub fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Whether threads confine themselves.
#[must_use]
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Confines the calling thread to packet work; does nothing before [`begin`].
pub fn packets() -> Confinement {
    if has_begun() { confine(ThreadRole::Packets, &[], None) } else { Confinement::default() }
}

/// Confines the calling thread, and those that it starts, to managing a gateway.
pub fn control(extras: &[ExtraRight], places: &AllowedPaths) -> Confinement {
    if has_begun() {
        confine(ThreadRole::Control, extras, Some(places))
    } else {
        Confinement::default()
    }
}

/// Confines the calling thread to answering clients of an open socket; does nothing before
/// [`begin`].
pub fn status() -> Confinement {
    if has_begun() { confine(ThreadRole::Status, &[], None) } else { Confinement::default() }
}

/// Tries confinement on a thread of its own, to find out what the kernel refuses.
///
/// # Errors
/// When it can't be started.
pub fn try_out() -> io::Result<Confinement> {
    let work = || confine(ThreadRole::Packets, &[], None);
    let thread = std::thread::Builder::new().name("confined".into()).spawn(work)?;
    thread.join().map_err(|_panic| io::Error::other("the thread that tried it is gone"))
}

/// Files come first: the system call filter blocks Landlock's calls.
fn confine(role: ThreadRole, extras: &[ExtraRight], places: Option<&AllowedPaths>) -> Confinement {
    let mut faults = Vec::new();
    let mut keep = |result: Result<(), Error>| faults.extend(result.err());
    keep(capabilities::keep(role, extras));
    let (held, fenced) = landlock::restrict_paths(places);
    keep(fenced);
    keep(syscalls::filter(role, extras));
    Confinement { faults, _held: held }
}

#[cfg(test)]
mod tests;

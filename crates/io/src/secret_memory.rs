//! Keeps keys out of core dumps, other processes' view and swap.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Forbids core dumps of this process, and `ptrace` by others of the same user (`PR_SET_DUMPABLE`
/// 0).
///
/// # Errors
/// The kernel's.
pub fn forbid() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Why a process may lock all of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemlockBasis {
    /// It has no limit (`RLIMIT_MEMLOCK`).
    Limit,
    /// `CAP_IPC_LOCK` alone, which must stay: without it allocations beyond the limit fail.
    Capability,
}

/// Whether memory is locked.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Keeps all memory of the process, present and future, out of swap. Pages are still allocated on
/// first touch.
///
/// # Errors
/// `EPERM`, with nothing locked, if neither `RLIMIT_MEMLOCK` can be lifted nor a capability
/// replaces it: allocations beyond the limit would fail.
pub fn lock_memory() -> io::Result<MemlockBasis> {
    let hold = if lift_limit() { MemlockBasis::Limit } else { MemlockBasis::Capability };
    if hold == MemlockBasis::Capability && !may_lock() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    lock_all()?;
    IS_LOCKED.store(true, Ordering::Relaxed);
    Ok(hold)
}

/// Runs `work`, such as freeing pages, while memory is unlocked, and locks it again afterwards.
///
/// # Errors
/// The kernel's: memory is no longer locked.
pub fn unlocked(work: impl FnOnce()) -> io::Result<()> {
    if !IS_LOCKED.load(Ordering::Relaxed) {
        work();
        return Ok(());
    }
    // SAFETY: no pointers.
    unsafe { libc::munlockall() };
    work();
    lock_all()
}

fn lock_all() -> io::Result<()> {
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: no pointers.
    let result = unsafe { libc::mlockall(flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether there is no limit now.
fn lift_limit() -> bool {
    let limit = Resource::RLIMIT_MEMLOCK;
    let is_there = matches!(getrlimit(limit), Ok((RLIM_INFINITY, _)));
    is_there || setrlimit(limit, RLIM_INFINITY, RLIM_INFINITY).is_ok()
}

/// Whether the capability replaces the limit. It counts in the initial user namespace only.
fn may_lock() -> bool {
    let is_first = std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]));
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    is_first && effective.is_some_and(|mask| mask & (1 << CAP_IPC_LOCK) != 0)
}

/// `linux/capability.h`
const CAP_IPC_LOCK: u32 = 14;

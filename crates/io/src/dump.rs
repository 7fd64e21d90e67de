//! Keeping keys out of core dumps, other processes' view and swap.

use std::io;

/// No core dump of this process, and no `ptrace` of it by others of the same user (`PR_SET_DUMPABLE` 0).
///
/// # Errors
/// The kernel's.
pub fn forbid() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Keeps all memory of the process, present and to come, out of swap. Limited by `RLIMIT_MEMLOCK`.
///
/// # Errors
/// `ENOMEM` or `EPERM` where the limit is too low.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

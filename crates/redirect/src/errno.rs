//! `errno`, as the C library's callers see it.

use libc::{c_int, ssize_t};

/// The calling thread's `errno`.
pub(crate) fn last() -> c_int {
    // SAFETY: the C library returns a valid pointer to the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Where the calling thread has it: no two threads that live at the same time have one place.
pub(crate) fn place() -> usize {
    // SAFETY: as in `last`; nothing is read.
    unsafe { libc::__errno_location() }.addr()
}

/// Sets `errno` and returns what a failed call returns.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: as in `last`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// As [`fail`], for calls that return a length.
pub(crate) fn fail_length(errno: c_int) -> ssize_t {
    fail(errno) as ssize_t
}

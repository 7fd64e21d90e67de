//! Files that are settings of the kernel's XFRM: what IKE daemons write there was meant for uxfrm, which has its own.
//!
//! charon writes how long an acquire waits (165 s) when it starts. That goes to `/dev/null`, so that the machine keeps its setting;
//! uxfrm's is in its configuration. Reading tells the kernel's.

use std::ffi::CStr;

use libc::{c_char, c_int, mode_t};

use crate::{next, table};

/// All of `/proc/sys/net/core/xfrm_*`.
const SETTINGS: &[u8] = b"/proc/sys/net/core/xfrm_";

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    opened(unsafe { next::open()(elsewhere(path, flags), flags, mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    opened(unsafe { next::open64()(elsewhere(path, flags), flags, mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    opened(unsafe { next::openat()(at, elsewhere(path, flags), flags, mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    opened(unsafe { next::openat64()(at, elsewhere(path, flags), flags, mode) })
}

/// A number that was closed behind our back stands for something else now.
fn opened(descriptor: c_int) -> c_int {
    table::remove(descriptor);
    descriptor
}

/// The path, or where else what is written there goes.
///
/// # Safety
/// `path` is null or ends with a zero byte.
unsafe fn elsewhere(path: *const c_char, flags: c_int) -> *const c_char {
    if path.is_null() || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return path;
    }
    // SAFETY: by this function's contract.
    let is_setting = unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(SETTINGS);
    if is_setting { c"/dev/null".as_ptr() } else { path }
}

//! Files of the kernel's XFRM settings: IKE daemons write there what is meant for uxfrm.
//!
//! At start charon writes how long acquires and reserved SPIs live (165 s, its retransmission
//! time). That goes to the gateway, over a connection in place of the file. Other writes go to
//! `/dev/null`: the machine keeps its settings. Reading shows the kernel's.
//!
//! The C library has more entries than `open`: the `_2` functions of `_FORTIFY_SOURCE` (`sysctl`),
//! and streams, which it opens without a call that can be interposed (`tee`, `awk`).

use std::ffi::CStr;

use libc::{FILE, c_char, c_int, mode_t};
use uxfrm_control::greeting::{Dialect, Greeting, GreetingKind};

use crate::{gateway, next, table};

/// All of `/proc/sys/net/core/xfrm_*`.
const SETTINGS: &[u8] = b"/proc/sys/net/core/xfrm_";
/// The one that the gateway takes, behind that.
const ACQUIRE_EXPIRES: &[u8] = b"acq_expires";

/// Where opening leads.
enum OpenedFile {
    /// To the file, or another in its place.
    File(*const c_char),
    /// To the gateway, which is there already.
    Gateway(c_int),
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::open()(path, flags, mode)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::open64()(path, flags, mode)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::openat()(at, path, flags, mode)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::openat64()(at, path, flags, mode)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::__open_2()(path, flags)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::__open64_2()(path, flags)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::__openat_2()(at, path, flags)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { opened(path, flags, |path| next::__openat64_2()(at, path, flags)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promises are passed on.
    unsafe { streamed(path, mode, |path| next::fopen()(path, mode)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promises are passed on.
    unsafe { streamed(path, mode, |path| next::fopen64()(path, mode)) }
}

/// What opening a stream by `open` leads to.
///
/// # Safety
/// `path` is null or ends with a zero byte, and `mode` ends with one.
unsafe fn streamed(
    path: *const c_char,
    mode: *const c_char,
    open: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: by this function's contract.
    let flags = access(unsafe { CStr::from_ptr(mode) }.to_bytes());
    // SAFETY: by this function's contract.
    match unsafe { way(path, flags) } {
        OpenedFile::File(path) => open(path),
        OpenedFile::Gateway(connection) => {
            // SAFETY: the connection is nobody else's, and `mode` is the caller's.
            let stream = unsafe { libc::fdopen(connection, mode) };
            if stream.is_null() {
                gateway::close(connection);
            }
            stream
        }
    }
}

/// Flags of `open` for a stream's mode: reading and writing, and close-on-exec.
fn access(mode: &[u8]) -> c_int {
    // Behind a comma stands a character set.
    let mode = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let both = mode.contains(&b'+');
    let access = match mode.first() {
        _ if both => libc::O_RDWR,
        Some(b'w' | b'a') => libc::O_WRONLY,
        Some(_) | None => libc::O_RDONLY,
    };
    if mode.contains(&b'e') { access | libc::O_CLOEXEC } else { access }
}

/// Opens through `open`. A number closed behind our back means another file now.
///
/// # Safety
/// `path` is null or ends with a zero byte.
unsafe fn opened(
    path: *const c_char,
    flags: c_int,
    open: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: by this function's contract.
    let descriptor = match unsafe { way(path, flags) } {
        OpenedFile::File(path) => open(path),
        OpenedFile::Gateway(connection) => connection,
    };
    table::remove(descriptor);
    descriptor
}

/// # Safety
/// `path` is null or ends with a zero byte.
unsafe fn way(path: *const c_char, flags: c_int) -> OpenedFile {
    let access = flags & libc::O_ACCMODE;
    if path.is_null() || access == libc::O_RDONLY {
        return OpenedFile::File(path);
    }
    // SAFETY: by this function's contract.
    let Some(setting) = unsafe { CStr::from_ptr(path) }.to_bytes().strip_prefix(SETTINGS) else {
        return OpenedFile::File(path);
    };
    if setting == ACQUIRE_EXPIRES
        && access == libc::O_WRONLY
        && let Ok(connection) = connect(flags)
    {
        return OpenedFile::Gateway(connection);
    }
    OpenedFile::File(c"/dev/null".as_ptr())
}

/// A connection on which the gateway awaits a number of seconds.
fn connect(flags: c_int) -> Result<c_int, c_int> {
    let connection = gateway::connect()?;
    // SAFETY: the call takes nothing.
    let port = unsafe { libc::getpid() }.unsigned_abs();
    let value = Dialect::AcquireExpires as u32;
    let hello = Greeting { kind: GreetingKind::Hello, port, groups: 0, options: 0, value };
    if let Err(errno) = gateway::send(connection, hello) {
        gateway::close(connection);
        return Err(errno);
    }
    // SAFETY: the calls take no pointers.
    unsafe {
        next::fcntl()(connection, libc::F_SETFL, flags & libc::O_NONBLOCK);
        if flags & libc::O_CLOEXEC == 0 {
            next::fcntl()(connection, libc::F_SETFD, 0);
        }
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_mode_maps_to_open_flags() {
        let table: [(&[u8], _); 9] = [
            (b"", libc::O_RDONLY),
            (b"r", libc::O_RDONLY),
            (b"rb,ccs=e+", libc::O_RDONLY),
            (b"w", libc::O_WRONLY),
            (b"ab", libc::O_WRONLY),
            (b"we", libc::O_WRONLY | libc::O_CLOEXEC),
            (b"r+", libc::O_RDWR),
            (b"w+b", libc::O_RDWR),
            (b"ab+e", libc::O_RDWR | libc::O_CLOEXEC),
        ];
        for (mode, flags) in table {
            assert_eq!(access(mode), flags, "{}", String::from_utf8_lossy(mode));
        }
    }
}

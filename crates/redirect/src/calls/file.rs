//! `read` and `write` on any descriptor; on our sockets they are `recv` and `send`.

use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};

use super::message::{assert_room, recv, recvmsg, send, sendmsg};
use crate::{errno, next, table};

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn read(descriptor: c_int, bytes: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        if table::is_ours(descriptor) {
            recv(descriptor, bytes, length, 0)
        } else {
            next::read()(descriptor, bytes, length)
        }
    }
}

/// What programs built with `_FORTIFY_SOURCE` call for `read`.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __read_chk(
    descriptor: c_int,
    bytes: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    assert_room(length, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { read(descriptor, bytes, length) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        if table::is_ours(descriptor) {
            send(descriptor, bytes, length, 0)
        } else {
            next::write()(descriptor, bytes, length)
        }
    }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn readv(descriptor: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if !table::is_ours(descriptor) {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::readv()(descriptor, vectors, count) };
    }
    match message(vectors, count) {
        // SAFETY: the caller promises `count` valid vectors.
        Some(mut message) => unsafe { recvmsg(descriptor, &raw mut message, 0) },
        None => errno::fail_length(libc::EINVAL),
    }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn writev(descriptor: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if !table::is_ours(descriptor) {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::writev()(descriptor, vectors, count) };
    }
    match message(vectors, count) {
        // SAFETY: the caller promises `count` valid vectors.
        Some(message) => unsafe { sendmsg(descriptor, &raw const message, 0) },
        None => errno::fail_length(libc::EINVAL),
    }
}

fn message(vectors: *const iovec, count: c_int) -> Option<msghdr> {
    // SAFETY: all bytes zero is a valid `msghdr`.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.cast_mut();
    message.msg_iovlen = usize::try_from(count).ok()?;
    Some(message)
}

//! The buffers of a message.

use libc::{c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use uxfrm_control::greeting::LENGTH;

pub(super) fn vector(bytes: *mut c_void, length: size_t) -> iovec {
    iovec { iov_base: bytes, iov_len: length }
}

/// A message of one buffer.
pub(super) fn whole(vector: &mut iovec) -> msghdr {
    // SAFETY: all bytes zero is a valid `msghdr`.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector, 1);
    message
}

/// The message with an address.
pub(super) fn named(message: msghdr, (address, length): (*const sockaddr, socklen_t)) -> msghdr {
    msghdr { msg_name: address.cast_mut().cast(), msg_namelen: length, ..message }
}

/// The first bytes of what was received, zeros where there are fewer.
///
/// # Safety
/// The vectors are valid for their lengths.
pub(super) unsafe fn first_bytes(vectors: &[iovec], received: ssize_t) -> [u8; LENGTH] {
    if usize::try_from(received) != Ok(LENGTH) {
        return [0; LENGTH];
    }
    // SAFETY: by this function's contract.
    unsafe { prefix(vectors) }
}

/// The first bytes of a message's buffers, zeros where there are fewer.
///
/// # Safety
/// The vectors are valid for their lengths.
pub(super) unsafe fn prefix<const N: usize>(vectors: &[iovec]) -> [u8; N] {
    let mut first = [0; N];
    let mut filled = 0;
    for vector in vectors {
        let part = vector.iov_len.min(N - filled);
        if part > 0 {
            let to = first[filled..].as_mut_ptr();
            // SAFETY: both are valid for `part` bytes, and the kernel did not write into our array.
            unsafe { std::ptr::copy_nonoverlapping(vector.iov_base.cast::<u8>(), to, part) };
        }
        filled += part;
    }
    first
}

/// # Safety
/// The message's vectors are as it says.
pub(super) unsafe fn vectors(message: &msghdr) -> &[iovec] {
    if message.msg_iov.is_null() || message.msg_iovlen == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

/// Bytes of all vectors.
pub(super) fn room(vectors: &[iovec]) -> size_t {
    vectors.iter().fold(0, |length: size_t, vector| length.saturating_add(vector.iov_len))
}

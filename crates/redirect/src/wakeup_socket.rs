//! Sockets without a gateway: polling one waits until a starting gateway wakes it.

use std::ptr::null_mut;

use libc::{c_int, sa_family_t, sockaddr_un, socklen_t};
use uxfrm_control::greeting::QUIET;

use crate::{errno, next, process};

/// `AF_UNIX`
const FAMILY: sa_family_t = 1;

/// Bytes of a name.
const NAME: usize = QUIET.len() + 16;

/// A socket that only a gateway sends to, and nothing but that it is there.
pub(crate) fn open(descriptor: c_int) -> Result<c_int, c_int> {
    // Not seqpacket: that hangs up (`POLLHUP`) while it is not connected.
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let silent = unsafe { next::socket()(libc::AF_UNIX, kind, 0) };
    if silent < 0 {
        return Err(errno::last());
    }
    let (address, length) = address(process::number(), descriptor.unsigned_abs());
    // SAFETY: the address is valid for its length. Where another process has the name, as one of
    // another container's may, nobody wakes this one, and it finds the gateway when it asks
    // something.
    let _bound = unsafe { next::bind()(silent, (&raw const address).cast(), length) };
    Ok(silent)
}

/// Drains the gateway's wake-ups, so that polling waits again.
pub(crate) fn hush(descriptor: c_int) {
    // SAFETY: no byte is written.
    while unsafe { next::recv()(descriptor, null_mut(), 0, libc::MSG_DONTWAIT) } >= 0 {}
}

fn address(process: u32, descriptor: u32) -> (sockaddr_un, socklen_t) {
    let mut address = sockaddr_un { sun_family: FAMILY, sun_path: [0; 108] };
    let name = name(process, descriptor);
    // The first byte stays 0: the name is abstract.
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name) {
        *place = byte.cast_signed();
    }
    let length = size_of::<sa_family_t>() + 1 + NAME;
    #[expect(clippy::cast_possible_truncation, reason = "31 bytes")]
    (address, length as socklen_t)
}

fn name(process: u32, descriptor: u32) -> [u8; NAME] {
    let mut name = [0; NAME];
    name[..QUIET.len()].copy_from_slice(QUIET);
    let number = u64::from(process) << 32 | u64::from(descriptor);
    for (digit, place) in name[QUIET.len()..].iter_mut().rev().enumerate() {
        *place = b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize];
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeup_name_is_unique_per_process_and_descriptor() {
        assert_eq!(name(0x4d2, 7), *b"uxfrm/quiet/000004d200000007");
        assert_eq!(name(u32::MAX, 0), *b"uxfrm/quiet/ffffffff00000000");
    }
}

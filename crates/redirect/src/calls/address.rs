//! Netlink addresses: `bind`, `connect`, `getsockname`, `getpeername`.

use std::mem::{size_of, zeroed};

use libc::{c_int, sockaddr, sockaddr_nl, socklen_t};

use super::datagram;
use crate::table::{self, Socket};
use crate::{errno, gateway, next};

/// `AF_NETLINK`, as addresses have it.
pub(super) const FAMILY: libc::sa_family_t = 16;
const _: () = assert!(FAMILY as c_int == libc::AF_NETLINK);

/// Bytes of a netlink address.
pub(super) const LENGTH: socklen_t = 12;
const _: () = assert!(size_of::<sockaddr_nl>() == LENGTH as usize);

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn bind(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(socket) = table::find(descriptor) else {
        if table::datagram(descriptor).is_some() {
            return errno::fail(libc::EINVAL);
        }
        // SAFETY: the caller's promises are passed on.
        return unsafe { datagram::bind(descriptor, address, length) }
            .unwrap_or_else(|| unsafe { next::bind()(descriptor, address, length) });
    };
    // SAFETY: the caller promises `length` readable bytes.
    let Some(address) = (unsafe { read(address, length) }) else {
        return errno::fail(libc::EINVAL);
    };
    answer(bind_netlink(descriptor, socket, &address))
}

/// `net/netlink/af_netlink.c: netlink_bind`: a port is given once, groups may be given again.
fn bind_netlink(descriptor: c_int, socket: &Socket, address: &sockaddr_nl) -> Result<(), c_int> {
    let (port, wanted) = (socket.port(), address.nl_pid);
    if port != 0 && wanted != port && (socket.is_greeted() || wanted != 0) {
        return Err(libc::EINVAL);
    }
    if port == 0 && wanted != 0 && table::has_port(wanted) {
        return Err(libc::EADDRINUSE);
    }
    if wanted != 0 {
        socket.set_port(wanted);
    }
    socket.set_groups(address.nl_groups);
    if socket.is_greeted() {
        gateway::tell(descriptor, socket)
    } else {
        gateway::introduce(descriptor, socket)
    }
}

/// The kernel is the only peer that there is; connecting to it gives a port.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn connect(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    let Some(socket) = table::find(descriptor) else {
        if table::datagram(descriptor).is_some() {
            return errno::fail(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::connect()(descriptor, address, length) };
    };
    // SAFETY: the caller promises `length` readable bytes.
    match unsafe { read(address, length) } {
        Some(address) if address.nl_pid == 0 => answer(gateway::introduce(descriptor, socket)),
        Some(_) => errno::fail(libc::ECONNREFUSED),
        None => errno::fail(libc::EINVAL),
    }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn getsockname(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if let Some(socket) = table::datagram(descriptor) {
        // SAFETY: the caller promises `*length` writable bytes.
        return unsafe { datagram::local(socket, address, length) };
    }
    let Some(socket) = table::find(descriptor) else {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::getsockname()(descriptor, address, length) };
    };
    // SAFETY: the caller promises `*length` writable bytes.
    unsafe { write(address, length, socket.port(), socket.groups()) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn getpeername(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if table::find(descriptor).is_none() {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::getpeername()(descriptor, address, length) };
    }
    // SAFETY: the caller promises `*length` writable bytes.
    unsafe { write(address, length, 0, 0) }
}

/// Writes a netlink address as far as there is room, and its whole length.
///
/// # Safety
/// `length` is null or valid, and `address` is null or valid for `*length` bytes.
pub(super) unsafe fn write(
    address: *mut sockaddr,
    length: *mut socklen_t,
    port: u32,
    groups: u32,
) -> c_int {
    if address.is_null() || length.is_null() {
        return errno::fail(libc::EFAULT);
    }
    let netlink = netlink_address(port, groups);
    // SAFETY: by this function's contract; the copy ends where either of both ends.
    unsafe {
        let room = (*length).min(LENGTH) as usize;
        std::ptr::copy_nonoverlapping((&raw const netlink).cast::<u8>(), address.cast(), room);
        *length = LENGTH;
    }
    0
}

/// Reads a netlink address.
///
/// # Safety
/// `address` is null or valid for `length` bytes.
unsafe fn read(address: *const sockaddr, length: socklen_t) -> Option<sockaddr_nl> {
    if address.is_null() || length < LENGTH {
        return None;
    }
    // SAFETY: by this function's contract there are enough bytes; any bytes are a valid
    // `sockaddr_nl`.
    let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
    (c_int::from(address.nl_family) == libc::AF_NETLINK).then_some(address)
}

fn netlink_address(port: u32, groups: u32) -> sockaddr_nl {
    // SAFETY: all bytes zero is a valid `sockaddr_nl`.
    let mut address: sockaddr_nl = unsafe { zeroed() };
    address.nl_family = FAMILY;
    address.nl_pid = port;
    address.nl_groups = groups;
    address
}

fn answer(result: Result<(), c_int>) -> c_int {
    result.map_or_else(errno::fail, |()| 0)
}

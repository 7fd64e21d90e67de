//! Addresses of IPv4 and IPv6 as programs pass them.

use std::mem::{size_of, zeroed};

use libc::{c_int, sockaddr, socklen_t};

use crate::ends::{AddressFamily, End};

/// The families, as addresses have them.
const AF_INET: libc::sa_family_t = 2;
const AF_INET6: libc::sa_family_t = 10;
const _: () = assert!(AF_INET as c_int == libc::AF_INET && AF_INET6 as c_int == libc::AF_INET6);

/// Bytes of addresses.
const SOCKADDR_IN: socklen_t = 16;
const SOCKADDR_IN6: socklen_t = 28;
const _: () = assert!(size_of::<libc::sockaddr_in>() == SOCKADDR_IN as usize);
const _: () = assert!(size_of::<libc::sockaddr_in6>() == SOCKADDR_IN6 as usize);

/// Reads an IP address, a port and a scope.
///
/// # Safety
/// `address` is null or valid for `length` bytes.
pub(super) unsafe fn read(
    address: *const sockaddr,
    length: socklen_t,
) -> Option<(AddressFamily, End, u32)> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: by this function's contract there are enough bytes for what is read in each case; any
    // bytes will do.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let ip = address.cast::<libc::sockaddr_in>().read_unaligned();
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&ip.sin_addr.s_addr.to_ne_bytes());
                Some((
                    AddressFamily::V4,
                    End { address: bytes, port: u16::from_be(ip.sin_port) },
                    0,
                ))
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let ip = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let end = End { address: ip.sin6_addr.s6_addr, port: u16::from_be(ip.sin6_port) };
                Some((AddressFamily::V6, end, ip.sin6_scope_id))
            }
            _ => None,
        }
    }
}

/// Writes an IP address as far as there is room, and its whole length.
///
/// # Safety
/// `length` is valid, and `address` for `*length` bytes.
pub(super) unsafe fn write(
    address: *mut sockaddr,
    length: *mut socklen_t,
    family: AddressFamily,
    end: End,
    scope: u32,
) {
    // SAFETY: all bytes zero are a valid `sockaddr_in6`, which a `sockaddr_in` is no larger than;
    // by this function's contract the copy ends where the room does.
    unsafe {
        let mut ip: libc::sockaddr_in6 = zeroed();
        let size = match family {
            AddressFamily::V4 => {
                let [a, b, c, d, ..] = end.address;
                let mut v4: libc::sockaddr_in = zeroed();
                v4.sin_family = AF_INET;
                v4.sin_port = end.port.to_be();
                v4.sin_addr.s_addr = u32::from_ne_bytes([a, b, c, d]);
                (&raw mut ip).cast::<libc::sockaddr_in>().write(v4);
                SOCKADDR_IN
            }
            AddressFamily::V6 => {
                ip.sin6_family = AF_INET6;
                ip.sin6_port = end.port.to_be();
                ip.sin6_addr.s6_addr = end.address;
                ip.sin6_scope_id = scope;
                SOCKADDR_IN6
            }
        };
        let room = (*length).min(size) as usize;
        std::ptr::copy_nonoverlapping((&raw const ip).cast::<u8>(), address.cast(), room);
        *length = size;
    }
}

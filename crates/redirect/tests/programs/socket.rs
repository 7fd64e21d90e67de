//! A program's calls on its sockets.

use std::{ffi::c_int, io};

use crate::server::{END, GETSADINFO};

pub(crate) fn xfrm_socket() -> c_int {
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM) };
    assert!(descriptor >= 0, "{}", io::Error::last_os_error());
    descriptor
}

/// A socket as `ip` opens one.
pub(crate) fn brief_socket() -> c_int {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_XFRM) };
    assert!(descriptor >= 0, "{}", io::Error::last_os_error());
    descriptor
}

pub(crate) fn close(descriptor: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::close(descriptor) } == 0 { 0 } else { errno() }
}

fn address(port: u32, groups: u32) -> libc::sockaddr_nl {
    // SAFETY: all bytes zero is a valid `sockaddr_nl`.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = u16::try_from(libc::AF_NETLINK).unwrap();
    address.nl_pid = port;
    address.nl_groups = groups;
    address
}

pub(crate) fn bind(descriptor: c_int, port: u32, groups: u32) -> c_int {
    let address = address(port, groups);
    // SAFETY: the address is valid for its length.
    let result = unsafe { libc::bind(descriptor, (&raw const address).cast(), 12) };
    if result == 0 { 0 } else { errno() }
}

pub(crate) fn name(descriptor: c_int) -> (u16, u32, u32, u32) {
    let (mut address, mut length) = (address(9, 9), 100);
    // SAFETY: the address has room for what netlink sockets have; the length says no less.
    let result =
        unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut length) };
    assert_eq!(result, 0);
    (address.nl_family, address.nl_pid, address.nl_groups, length)
}

pub(crate) fn option(descriptor: c_int, level: c_int, name: c_int) -> c_int {
    let (mut value, mut length) = (-1, 4);
    // SAFETY: the value is valid for its length.
    let result = unsafe {
        libc::getsockopt(descriptor, level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { value } else { -errno() }
}

pub(crate) fn set(descriptor: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
    // SAFETY: the value is valid for its length.
    let result = unsafe { libc::setsockopt(descriptor, level, name, (&raw const value).cast(), 4) };
    if result == 0 { 0 } else { errno() }
}

pub(crate) fn set_bytes(descriptor: c_int, level: c_int, name: c_int, value: &[u8]) -> c_int {
    let length = u32::try_from(value.len()).unwrap();
    // SAFETY: the value is valid for its length.
    let result =
        unsafe { libc::setsockopt(descriptor, level, name, value.as_ptr().cast(), length) };
    if result == 0 { 0 } else { errno() }
}

pub(crate) fn set_none(descriptor: c_int, level: c_int, name: c_int) -> c_int {
    // SAFETY: there is no value.
    let result = unsafe { libc::setsockopt(descriptor, level, name, std::ptr::null(), 0) };
    if result == 0 { 0 } else { errno() }
}

pub(crate) fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap()
}

pub(crate) fn request(kind: u16) -> Vec<u8> {
    let mut bytes = 20_u32.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Sends a request and receives its answer, both with addresses: length, sequence, port and sender.
pub(crate) fn ask(descriptor: c_int) -> (isize, u32, u32, u32) {
    let (request, kernel) = (request(GETSADINFO), address(0, 0));
    let mut buffer = [0_u32; 64];
    let (mut from, mut length) = (address(9, 9), 12);
    // SAFETY: buffers and addresses are valid for their lengths.
    let received = unsafe {
        let to = (&raw const kernel).cast();
        let sent = libc::sendto(descriptor, request.as_ptr().cast(), 20, 0, to, 12);
        assert_eq!(sent, 20, "{}", io::Error::last_os_error());
        let into = buffer.as_mut_ptr().cast();
        libc::recvfrom(descriptor, into, 256, 0, (&raw mut from).cast(), &raw mut length)
    };
    assert_eq!(c_int::from(from.nl_family), libc::AF_NETLINK);
    (received, buffer[2], buffer[3], from.nl_pid)
}

/// Has the server end the connection, and waits until it has.
pub(crate) fn end(descriptor: c_int) {
    let mut bytes = request(END);
    bytes[6] = 0;
    end_by(descriptor, &bytes);
}

/// Asks, and has the server end the connection in place of an answer.
pub(crate) fn end_instead(descriptor: c_int) {
    end_by(descriptor, &request(END));
}

fn end_by(descriptor: c_int, bytes: &[u8]) {
    // SAFETY: buffer and entry are valid.
    unsafe {
        assert_eq!(libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()), 20);
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut entry, 1, 5000), 1);
    }
}

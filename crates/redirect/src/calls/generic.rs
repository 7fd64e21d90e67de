//! Generic netlink sockets: the kernel's own, except for the family `fou`, which is the gateway's.
//!
//! One socket may speak to several families, so each message is routed by itself: questions to the
//! controller about `fou` and messages to the gateway's family number go to the gateway, others to
//! the kernel. The gateway's number is above all kernel numbers. Its answers are put into the
//! socket's own queue, where `poll` and `recv` find them; this needs `CAP_NET_ADMIN`, as adding a
//! receive port does. Their source port is corrected to the kernel's 0 on receipt.

use std::mem::{size_of, zeroed};

use libc::{c_int, iovec, msghdr, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use uxfrm_control::greeting::{Dialect, Greeting, GreetingKind};
use uxfrm_netlink_wire::genl::{CTRL_CMD_GETFAMILY, GENL_ID_CTRL, GenlHeader};
use uxfrm_netlink_wire::{NetlinkFlags, NetlinkHeader, RawAttributes, fou};

use super::address::{FAMILY, LENGTH as NAME};
use super::vectors;
use crate::{errno, gateway, next, table};

/// Bytes of the longest request that can be for the gateway.
const REQUEST: usize = 4096;
/// Bytes of the longest datagram that it answers with.
const ANSWER: usize = 32 * 1024;

/// Sends a message to the gateway if it is meant for it; the call's result. `None`: the kernel's.
///
/// # Safety
/// The vectors are valid for their lengths.
pub(super) unsafe fn relay(descriptor: c_int, vectors: &[iovec]) -> Option<ssize_t> {
    if !table::is_generic(descriptor) || vectors::room(vectors) > REQUEST {
        return None;
    }
    // SAFETY: by this function's contract.
    unsafe { relay_request(descriptor, vectors) }
}

/// Apart, so that sockets of other kinds don't pay for its buffer.
///
/// # Safety
/// The vectors are valid for their lengths, at most [`REQUEST`] bytes.
#[inline(never)]
unsafe fn relay_request(descriptor: c_int, vectors: &[iovec]) -> Option<ssize_t> {
    let length = vectors::room(vectors);
    // SAFETY: by this function's contract.
    let bytes: [u8; REQUEST] = unsafe { vectors::prefix(vectors) };
    let request = bytes.get(..length).filter(|request| is_for_gateway(request))?;
    Some(match exchange(descriptor, request) {
        Ok(()) => ssize_t::try_from(length).unwrap_or(ssize_t::MAX),
        Err(errno) => errno::fail_length(errno),
    })
}

/// Whether the first message of a datagram is the gateway's; the others in it go the same way.
pub(super) fn is_for_gateway(datagram: &[u8]) -> bool {
    let Some((header, body)) = NetlinkHeader::split(datagram) else { return false };
    let Some((family, attributes)) = GenlHeader::split(body) else { return false };
    match header.kind {
        fou::FAMILY_ID => true,
        // A dump asks for all families, which are the kernel's.
        GENL_ID_CTRL => {
            family.command == CTRL_CMD_GETFAMILY
                && !NetlinkFlags::from_bits_retain(header.flags).intersects(NetlinkFlags::DUMP)
                && RawAttributes::of(attributes).any(|one| fou::is_named_by(&one) == Some(true))
        }
        _ => false,
    }
}

/// Asks the gateway, and puts its answers into the socket's queue.
fn exchange(descriptor: c_int, request: &[u8]) -> Result<(), c_int> {
    let port = port_of(descriptor)?;
    let options = options_of(descriptor);
    let connection = gateway::connect()?;
    let who = |kind| Greeting { kind, port, groups: 0, options, value: Dialect::Generic as u32 };
    // What is asked last is answered last: so it tells that all answers have come.
    let result = gateway::send(connection, who(GreetingKind::Hello))
        .and_then(|()| send(connection, request))
        .and_then(|()| gateway::send(connection, who(GreetingKind::Ask)))
        .and_then(|()| deliver(connection, port));
    gateway::close(connection);
    if result.is_ok() {
        table::set_relayed(descriptor);
    }
    result
}

fn send(connection: c_int, bytes: &[u8]) -> Result<(), c_int> {
    let (start, length) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: `bytes` is valid for its length.
    let sent = unsafe { next::send()(connection, start, length, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(errno::last()) } else { Ok(()) }
}

/// Puts all answers into the queue of the netlink socket that has the port.
fn deliver(connection: c_int, port: u32) -> Result<(), c_int> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let socket = unsafe { next::socket()(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
    if socket < 0 {
        return Err(errno::last());
    }
    let mut bytes = [0_u8; ANSWER];
    let result = loop {
        match receive(connection, &mut bytes) {
            Err(errno) => break Err(errno),
            Ok(answer) => match greeting_result(answer) {
                Some(result) => break result,
                None => {
                    if let Err(errno) = put(socket, answer, port) {
                        break Err(errno);
                    }
                }
            },
        }
    };
    gateway::close(socket);
    result
}

fn receive(connection: c_int, bytes: &mut [u8; ANSWER]) -> Result<&[u8], c_int> {
    gateway::wait(connection, libc::POLLIN)?;
    let start = bytes.as_mut_ptr().cast();
    // SAFETY: `bytes` is valid for its length.
    let length = unsafe { next::recv()(connection, start, ANSWER, libc::MSG_DONTWAIT) };
    match usize::try_from(length) {
        Ok(0) => Err(libc::ECONNRESET),
        Ok(length) => Ok(&bytes[..length.min(ANSWER)]),
        Err(_) => Err(errno::last()),
    }
}

/// What a greeting says: that all answers have come, or that some were lost. `None` for an answer.
pub(super) fn greeting_result(answer: &[u8]) -> Option<Result<(), c_int>> {
    let greeting = Greeting::parse(answer)?;
    Some(match greeting.kind {
        // Requests without permission have been refused one by one.
        GreetingKind::Welcome | GreetingKind::Refused => Ok(()),
        GreetingKind::Overrun => Err(libc::ENOBUFS),
        GreetingKind::Hello | GreetingKind::Ask | GreetingKind::Share => Err(libc::EPROTO),
    })
}

fn put(socket: c_int, answer: &[u8], port: u32) -> Result<(), c_int> {
    // SAFETY: all bytes zero is a valid `sockaddr_nl`.
    let mut to: sockaddr_nl = unsafe { zeroed() };
    to.nl_family = FAMILY;
    to.nl_pid = port;
    let (start, length) = (answer.as_ptr().cast(), answer.len());
    let name: *const sockaddr = (&raw const to).cast();
    // SAFETY: `answer` and `to` are valid for their lengths.
    let sent = unsafe { next::sendto()(socket, start, length, libc::MSG_DONTWAIT, name, NAME) };
    match errno::last() {
        _ if sent >= 0 => Ok(()),
        libc::EAGAIN => Err(libc::ENOBUFS),
        errno => Err(errno),
    }
}

/// The socket's port; the kernel gives it one if it has none, as it would for the first message.
fn port_of(descriptor: c_int) -> Result<u32, c_int> {
    // SAFETY: all bytes zero is a valid `sockaddr_nl`.
    let mut own: sockaddr_nl = unsafe { zeroed() };
    own.nl_family = FAMILY;
    for is_bound in [false, true] {
        let mut length: socklen_t = NAME;
        let name = (&raw mut own).cast();
        // SAFETY: `own` is valid for `length` bytes.
        if unsafe { next::getsockname()(descriptor, name, &raw mut length) } != 0 {
            return Err(errno::last());
        }
        if own.nl_pid != 0 || is_bound {
            break;
        }
        // SAFETY: as above.
        if unsafe { next::bind()(descriptor, (&raw const own).cast(), NAME) } != 0 {
            return Err(errno::last());
        }
    }
    Ok(own.nl_pid)
}

/// The options of the socket that change answers, a bit each.
fn options_of(descriptor: c_int) -> u32 {
    let is_on = |option: c_int| {
        let (mut value, mut length) = (0_u32, 4);
        let result = (&raw mut value).cast();
        // SAFETY: `value` is valid for its length.
        let got = unsafe {
            next::getsockopt()(descriptor, libc::SOL_NETLINK, option, result, &raw mut length)
        };
        got == 0 && value != 0
    };
    let options = [libc::NETLINK_CAP_ACK, libc::NETLINK_EXT_ACK];
    options.into_iter().filter(|option| is_on(*option)).fold(0, |bits, option| bits | 1 << option)
}

/// Lets what a socket received come from the kernel, if it is the gateway's.
///
/// # Safety
/// `from` is null or valid for `length` bytes.
pub(super) unsafe fn set_right(descriptor: c_int, from: *mut sockaddr, length: socklen_t) {
    if from.is_null() || length < NAME || !table::is_relayed(descriptor) {
        return;
    }
    let from = from.cast::<sockaddr_nl>();
    // SAFETY: by this function's contract there is room for a netlink address; any bytes are a
    // valid one.
    unsafe {
        let mut address = from.read_unaligned();
        if c_int::from(address.nl_family) == libc::AF_NETLINK && address.nl_pid != 0 {
            address.nl_pid = 0;
            from.write_unaligned(address);
        }
    }
}

/// As [`set_right`], of a message that was received.
///
/// # Safety
/// `message` is null or valid.
pub(super) unsafe fn set_message_right(descriptor: c_int, message: *const msghdr) {
    // SAFETY: by this function's contract.
    if let Some(message) = unsafe { message.as_ref() } {
        // SAFETY: the kernel has just written `msg_namelen` bytes there.
        unsafe { set_right(descriptor, message.msg_name.cast(), message.msg_namelen) };
    }
}

const _: () = assert!(size_of::<sockaddr_nl>() == NAME as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use uxfrm_netlink_wire::append_message;

    fn request(kind: u16, flags: u16, command: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let (flags, family) =
            (NetlinkFlags::from_bits_retain(flags), GenlHeader { command, version: 1 });
        let mut bytes = Vec::new();
        append_message(&mut bytes, kind, flags, 0, family.to_bytes(), |out| {
            attributes.iter().for_each(|(kind, value)| out.bytes(*kind, value));
        });
        bytes
    }

    #[test]
    fn generic_message_is_the_gateways_only_for_fou() {
        let ours = fou::FAMILY_ID.to_ne_bytes();
        for (bytes, expected) in [
            (request(GENL_ID_CTRL, 1, 3, &[(2, b"fou\0")]), true),
            (request(GENL_ID_CTRL, 1, 3, &[(9, b"x"), (2, b"fou\0")]), true),
            (request(GENL_ID_CTRL, 1, 3, &[(1, &ours)]), true),
            (request(fou::FAMILY_ID, 5, 1, &[]), true),
            (request(fou::FAMILY_ID, 0x301, 3, &[]), true),
            (request(GENL_ID_CTRL, 1, 3, &[(2, b"nl80211\0")]), false),
            (request(GENL_ID_CTRL, 1, 3, &[(2, b"fou2\0")]), false),
            (request(GENL_ID_CTRL, 0x301, 3, &[(2, b"fou\0")]), false),
            (request(GENL_ID_CTRL, 1, 10, &[(2, b"fou\0")]), false),
            (request(GENL_ID_CTRL, 1, 3, &[(1, &[0x1b, 0])]), false),
            (request(0x1b, 1, 1, &[]), false),
        ] {
            assert_eq!(is_for_gateway(&bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn routing_of_any_bytes_does_not_panic() {
        let whole = request(GENL_ID_CTRL, 1, 3, &[(2, b"fob\0"), (1, b"\0\0")]);
        for length in 0..whole.len() {
            assert!(!is_for_gateway(&whole[..length]));
            for value in [0, 1, 3, 5, 0xff] {
                let mut bytes = whole.clone();
                bytes[length] = value;
                let _ = is_for_gateway(&bytes);
            }
        }
    }
}

//! UDP sockets bound to a port of the gateway's: Unix datagram sockets with UDP addresses made up.
//!
//! The gateway owns the port and passes IKE on; [`Ends`] precedes each datagram
//! (`crates/io/src/ike.rs` has the reasons and the names). There is no connection: after a restart
//! the gateway finds the socket by its name, and this socket finds the gateway.
//!
//! Source, destination and TOS are the true ones. Errors are those known at once: `ECONNREFUSED`
//! without a gateway; ICMP errors are not reported.

use std::mem::{size_of, zeroed};

use libc::{
    c_int, c_void, iovec, msghdr, size_t, sockaddr, sockaddr_un, socklen_t, ssize_t, timeval,
};

use super::{control, ip, vectors};
use crate::ends::{self, AddressFamily, End, Ends, LENGTH};
use crate::table::{self, Datagram, RecvOption};
use crate::{errno, fallback_socket, gateway, next, unix_owner};

/// The port that the gateway always has (RFC 3948 §2).
const NAT_TRAVERSAL: u16 = 4500;

/// [`LENGTH`] as calls return it.
const HEADER: ssize_t = 48;
const _: () = assert!(HEADER as usize == LENGTH);

/// `AF_UNIX`, as addresses have it.
const FAMILY: libc::sa_family_t = 1;
const _: () = assert!(FAMILY as c_int == libc::AF_UNIX);

/// Buffers of one message beside our own; the kernel's limit is 1024 (`UIO_MAXIOV`).
const VECTORS: usize = 64;

/// How long a gateway that does not read is waited for, in microseconds.
const PATIENCE: libc::suseconds_t = 100_000;

/// Size of `timeval`.
const TIME: socklen_t = 16;
const _: () = assert!(size_of::<timeval>() == TIME as usize);

/// Signals during a wait, after each of which it begins anew.
const INTERRUPTIONS: usize = 10;

/// Binds a UDP socket to a port of the gateway's. `None` for other sockets and other ports.
///
/// # Safety
/// `address` is null or valid for `length` bytes.
pub(super) unsafe fn bind(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> Option<c_int> {
    // SAFETY: by this function's contract.
    let (family, end, _) = unsafe { ip::read(address, length) }?;
    let shared = end.port != 0
        && option(descriptor, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
        && (end.port == NAT_TRAVERSAL || is_the_gateways(end.port));
    shared.then(|| replace(descriptor, family, end).map_or_else(errno::fail, |()| 0))
}

/// Puts a Unix socket of the address's name in the place of a UDP socket.
fn replace(descriptor: c_int, family: AddressFamily, local: End) -> Result<(), c_int> {
    if !table::takes(descriptor) {
        return Err(libc::EMFILE);
    }
    let socket = unix()?;
    let result = prepare(socket, descriptor, family, local);
    gateway::close(socket);
    result
}

fn prepare(
    socket: c_int,
    descriptor: c_int,
    family: AddressFamily,
    local: End,
) -> Result<(), c_int> {
    let on: c_int = 1;
    let (name, length) = name(local.port, Some((family, &local.address)));
    let (level, info, tos) = levels(family);
    let wished = option(descriptor, level, info).unwrap_or(0);
    let byte = option(descriptor, level, tos).unwrap_or(0);
    // SAFETY: the option and the name are valid for their lengths; the other calls take no
    // pointers.
    unsafe {
        let value = (&raw const on).cast();
        check(next::setsockopt()(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, value, 4))?;
        match check(next::bind()(socket, (&raw const name).cast(), length)) {
            Ok(_) => {}
            Err(libc::EADDRINUSE) if is_a_strangers(&name, length) => {
                bind_file(socket, family, &local)?;
            }
            Err(errno) => return Err(errno),
        }
        let flags = check(next::fcntl()(descriptor, libc::F_GETFL))?;
        check(next::fcntl()(socket, libc::F_SETFL, flags & libc::O_NONBLOCK))?;
        // What another program made of it after `exec` would be no UDP.
        check(next::dup3()(socket, descriptor, libc::O_CLOEXEC))?;
    }
    let socket = table::insert_datagram(descriptor, family, local).ok_or(libc::EMFILE)?;
    socket.set_wanted(RecvOption::Address, wished);
    socket.set_tos(byte.to_le_bytes()[0]);
    Ok(())
}

/// Whether somebody has a daemon's name who gets no messages there: neither root nor our user.
fn is_a_strangers(name: &sockaddr_un, length: socklen_t) -> bool {
    // SAFETY: the call takes nothing.
    let own = unsafe { libc::geteuid() };
    unix_owner::owner(name, length).is_some_and(|user| user != 0 && user != own)
}

/// Binds the file that stands in for a daemon's name, in the gateway's directory: only root and the
/// gateway's user can make one there. One that nobody has any more is replaced.
fn bind_file(socket: c_int, family: AddressFamily, local: &End) -> Result<(), c_int> {
    let mut text = [0; ends::NAME];
    let count = ends::name(local.port, Some((family, &local.address)), &mut text);
    let (file, length) = fallback_socket::address(&text[..count]).ok_or(libc::EADDRINUSE)?;
    let address = (&raw const file).cast::<sockaddr>();
    let probe = unix()?;
    // SAFETY: the address is valid for its length, and its path ends with a zero byte.
    unsafe {
        let reached = check(next::connect()(probe, address, length));
        gateway::close(probe);
        match reached {
            Err(libc::ECONNREFUSED) => drop(check(libc::unlink(file.sun_path.as_ptr()))),
            Err(libc::ENOENT) => {}
            // Another daemon has it, or it is not ours to look at.
            Ok(_) | Err(_) => return Err(libc::EADDRINUSE),
        }
        check(next::bind()(socket, address, length)).map_err(|_| libc::EADDRINUSE)?;
    }
    fallback_socket::give_to_gateway(&file);
    Ok(())
}

/// Whether a gateway has the port.
fn is_the_gateways(port: u16) -> bool {
    let Ok(probe) = unix() else { return false };
    let result = at_gateway(port, |address, length| {
        // SAFETY: the address is valid for its length.
        unsafe { next::connect()(probe, address.cast(), length) as ssize_t }
    });
    gateway::close(probe);
    result == 0
}

/// Tries the gateway's address for a port: the fallback file, then the abstract name.
fn at_gateway(
    port: u16,
    mut attempt: impl FnMut(*mut sockaddr_un, socklen_t) -> ssize_t,
) -> ssize_t {
    let mut text = [0; ends::NAME];
    let count = ends::name(port, None, &mut text);
    if let Some((mut address, length)) = fallback_socket::address(&text[..count]) {
        let result = attempt(&raw mut address, length);
        if result >= 0 || !matches!(errno::last(), libc::ENOENT | libc::ECONNREFUSED | libc::EACCES)
        {
            return result;
        }
    }
    let (mut address, length) = name(port, None);
    attempt(&raw mut address, length)
}

/// Receives a datagram.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn receive(
    descriptor: c_int,
    socket: Datagram,
    message: &mut msghdr,
    flags: c_int,
) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return errno::fail_length(libc::EAGAIN);
    }
    loop {
        let mut header = [0_u8; LENGTH];
        let mut credentials = control::Buffer::default();
        // SAFETY: all bytes zero is a valid `msghdr`.
        let mut ours: msghdr = unsafe { zeroed() };
        let first = vector(header.as_mut_ptr(), LENGTH);
        // SAFETY: by this function's contract.
        let Some(mut vectors) = Vectors::behind(first, unsafe { vectors::vectors(message) }) else {
            return errno::fail_length(libc::EMSGSIZE);
        };
        (ours.msg_iov, ours.msg_iovlen) = vectors.parts();
        credentials.lend(&mut ours);
        // SAFETY: our buffers live, and the others are the caller's.
        let received = unsafe { next::recvmsg()(descriptor, &raw mut ours, flags) };
        let Ok(length) = usize::try_from(received) else { return received };
        let ends = Ends::parse(&header).filter(|_| length >= LENGTH);
        match ends.filter(|_| control::is_permitted(&ours)) {
            Some(ends) => {
                // SAFETY: by this function's contract.
                unsafe { tell(message, socket, &ends) };
                message.msg_flags |= ours.msg_flags & (libc::MSG_TRUNC | libc::MSG_EOR);
                // Not longer than what was received.
                return received - HEADER;
            }
            // A stranger's message stays in the queue when it was only looked at.
            None if flags & libc::MSG_PEEK != 0 => discard(descriptor),
            None => {}
        }
    }
}

/// Sends a datagram.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn send(
    descriptor: c_int,
    socket: Datagram,
    message: &msghdr,
    flags: c_int,
) -> ssize_t {
    if message.msg_name.is_null() {
        return errno::fail_length(libc::EDESTADDRREQ);
    }
    // SAFETY: by this function's contract.
    let to = unsafe { ip::read(message.msg_name.cast(), message.msg_namelen) };
    let Some((family, remote, scope)) = to else { return errno::fail_length(libc::EINVAL) };
    if family != socket.family() {
        return errno::fail_length(libc::EAFNOSUPPORT);
    }
    let mut ends = Ends { family, tos: socket.tos(), scope, local: socket.local(), remote };
    // SAFETY: by this function's contract.
    unsafe { control::read(message, &mut ends) };
    let header = ends.to_bytes();
    let first = vector(header.as_ptr().cast_mut(), LENGTH);
    // SAFETY: by this function's contract.
    let Some(mut vectors) = Vectors::behind(first, unsafe { vectors::vectors(message) }) else {
        return errno::fail_length(libc::EMSGSIZE);
    };
    // SAFETY: all bytes zero is a valid `msghdr`.
    let mut ours: msghdr = unsafe { zeroed() };
    (ours.msg_iov, ours.msg_iovlen) = vectors.parts();
    let sent = at_gateway(socket.local().port, |address, length| {
        (ours.msg_name, ours.msg_namelen) = (address.cast(), length);
        // SAFETY: the address is valid for its length, our buffers live, and the others are the
        // caller's.
        unsafe { patiently(descriptor, &ours, flags) }
    });
    // What is sent is sent as a whole.
    if sent < 0 { sent } else { sent - HEADER }
}

/// Waits a little for room in a full queue, whether the program's socket blocks or not: a UDP
/// socket hardly ever has none, and programs take `EAGAIN` for a message lost. Without room by then
/// it is `ENOBUFS`, as UDP says.
///
/// # Safety
/// The message is as it says.
unsafe fn patiently(descriptor: c_int, message: &msghdr, flags: c_int) -> ssize_t {
    let flags = flags & libc::MSG_MORE | libc::MSG_NOSIGNAL;
    // SAFETY: by this function's contract.
    let sent = unsafe { next::sendmsg()(descriptor, message, flags | libc::MSG_DONTWAIT) };
    if sent >= 0 || errno::last() != libc::EAGAIN {
        return sent;
    }
    let Ok(waiting) = waiting_socket() else { return errno::fail_length(libc::ENOBUFS) };
    // SAFETY: by this function's contract.
    let result = unsafe { in_line(waiting, message, flags) };
    gateway::close(waiting);
    result.unwrap_or_else(errno::fail_length)
}

/// A socket that blocks for 100 ms: the kernel lets its owner wait in line for room, where
/// somebody floods the gateway's name. Who only looks now and then finds the queue full each time.
fn waiting_socket() -> Result<c_int, c_int> {
    let (socket, patience) = (unix()?, timeval { tv_sec: 0, tv_usec: PATIENCE });
    // SAFETY: the value is valid for its length.
    let result = unsafe {
        let value = (&raw const patience).cast();
        next::setsockopt()(socket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, value, TIME)
    };
    check(result).map(|_| socket).inspect_err(|_| gateway::close(socket))
}

/// Sends by a socket that waits.
///
/// # Safety
/// The message is as it says.
unsafe fn in_line(waiting: c_int, message: &msghdr, flags: c_int) -> Result<ssize_t, c_int> {
    for _ in 0..INTERRUPTIONS {
        // SAFETY: by this function's contract.
        let sent = unsafe { next::sendmsg()(waiting, message, flags) };
        match errno::last() {
            _ if sent >= 0 => return Ok(sent),
            // A socket that does not block is never interrupted.
            libc::EINTR => {}
            libc::EAGAIN => return Err(libc::ENOBUFS),
            errno => return Err(errno),
        }
    }
    Err(libc::ENOBUFS)
}

/// Fills in a received message's source and control messages.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn tell(message: &mut msghdr, socket: Datagram, ends: &Ends) {
    message.msg_flags = 0;
    if !message.msg_name.is_null() {
        // SAFETY: the name has `msg_namelen` bytes.
        unsafe {
            ip::write(
                message.msg_name.cast(),
                &raw mut message.msg_namelen,
                ends.family,
                ends.remote,
                ends.scope,
            );
        }
    }
    // SAFETY: by this function's contract.
    unsafe { control::write(message, socket, ends) };
}

fn discard(descriptor: c_int) {
    // SAFETY: no byte is written.
    unsafe { next::recv()(descriptor, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
}

/// Bytes of the next datagram, as `FIONREAD` has it.
pub(super) fn waiting(bytes: c_int) -> c_int {
    c_int::try_from(bytes as ssize_t - HEADER).unwrap_or(0).max(0)
}

/// Writes the address that the program bound.
///
/// # Safety
/// As for [`ip::write`].
pub(super) unsafe fn local(
    socket: Datagram,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if address.is_null() || length.is_null() {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: by this function's contract.
    unsafe { ip::write(address, length, socket.family(), socket.local(), 0) };
    0
}

/// What an option of a program's means for it.
pub(super) enum Meaning {
    /// It is kept: what comes is told of, or what goes carries it.
    RecvOption(RecvOption),
    /// The TOS or traffic-class byte.
    Tos,
    /// The Unix socket has it as well.
    Socket,
    /// It changes nothing here: the gateway's sockets are as they are.
    Nothing,
}

/// Sorts an option.
pub(super) fn meaning(level: c_int, name: c_int) -> Meaning {
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO)
        | (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO | libc::IPV6_2292PKTINFO) => {
            Meaning::RecvOption(RecvOption::Address)
        }
        (libc::IPPROTO_IP, libc::IP_RECVTOS) | (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => {
            Meaning::RecvOption(RecvOption::Tos)
        }
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => Meaning::Tos,
        // Credentials are ours to ask for.
        (libc::SOL_SOCKET, libc::SO_PASSCRED | libc::SO_PASSSEC) => Meaning::Nothing,
        (libc::SOL_SOCKET, _) => Meaning::Socket,
        _ => Meaning::Nothing,
    }
}

/// The level, the option for a datagram's destination and the one for its TOS.
fn levels(family: AddressFamily) -> (c_int, c_int, c_int) {
    match family {
        AddressFamily::V4 => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_TOS),
        AddressFamily::V6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_TCLASS),
    }
}

/// Our header and a caller's buffers behind it.
struct Vectors {
    vectors: [iovec; VECTORS + 1],
    count: usize,
}

impl Vectors {
    /// `None` when there are too many.
    fn behind(first: iovec, others: &[iovec]) -> Option<Self> {
        let mut vectors = [vector(std::ptr::null_mut(), 0); VECTORS + 1];
        vectors[0] = first;
        vectors.get_mut(1..=others.len())?.copy_from_slice(others);
        Some(Self { vectors, count: 1 + others.len() })
    }

    fn parts(&mut self) -> (*mut iovec, size_t) {
        (self.vectors.as_mut_ptr(), self.count)
    }
}

fn vector(bytes: *mut u8, length: usize) -> iovec {
    iovec { iov_base: bytes.cast::<c_void>(), iov_len: length }
}

fn unix() -> Result<c_int, c_int> {
    // SAFETY: the call takes no pointers.
    check(unsafe { next::socket()(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

fn check(result: c_int) -> Result<c_int, c_int> {
    if result < 0 { Err(errno::last()) } else { Ok(result) }
}

fn option(descriptor: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut length): (c_int, socklen_t) = (0, 4);
    // SAFETY: the value is valid for its length.
    let result = unsafe {
        let value = (&raw mut value).cast();
        next::getsockopt()(descriptor, level, name, value, &raw mut length)
    };
    (result == 0).then_some(value)
}

/// Abstract address of the gateway, or of the socket bound to an address, and its length.
fn name(port: u16, bound: Option<(AddressFamily, &[u8; 16])>) -> (sockaddr_un, socklen_t) {
    let mut text = [0; ends::NAME];
    let count = ends::name(port, bound, &mut text);
    // SAFETY: all bytes zero is a valid `sockaddr_un`.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = FAMILY;
    for (to, from) in address.sun_path[1..].iter_mut().zip(&text[..count]) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + count;
    (address, socklen_t::try_from(length).unwrap_or(socklen_t::MAX))
}

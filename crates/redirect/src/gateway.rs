//! Connections to the gateway: made, greeted, asked for its mark.

use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_char, c_int, sockaddr_un, socklen_t};

use crate::errno;
use crate::fallback_socket;
use crate::next;
use crate::table::{self, Socket};
use crate::wakeup_socket;
use uxfrm_control::{
    greeting::{Greeting, GreetingKind, LENGTH, NAME, is_gateway_user},
    socket_trust::{DirectoryOwner, is_owner_of_run_directory, is_sender_trusted, is_trusted},
};

/// Another name of the gateway's socket than [`NAME`]: a path, or an abstract name behind `@`.
const NAME_VARIABLE: &std::ffi::CStr = c"UXFRM_CONTROL";

/// `AF_UNIX`, as addresses have it.
const FAMILY: libc::sa_family_t = 1;
const _: () = assert!(FAMILY as c_int == libc::AF_UNIX);

/// Size of `ucred`.
const CREDENTIALS: socklen_t = 12;
const _: () = assert!(size_of::<libc::ucred>() == CREDENTIALS as usize);

/// How long a gateway may take to accept or to answer, in milliseconds.
const PATIENCE: c_int = 5000;

/// Connects to the gateway: a descriptor that does not block and is not inherited, or the errno.
pub(crate) fn connect() -> Result<c_int, c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { next::socket()(libc::AF_UNIX, kind, 0) };
    if descriptor < 0 {
        return Err(errno::last());
    }
    match reach(descriptor) {
        Ok(()) => Ok(descriptor),
        Err(errno) => {
            close(descriptor);
            Err(errno)
        }
    }
}

/// Closes a connection that the program does not know.
pub(crate) fn close(descriptor: c_int) {
    // SAFETY: the call takes no pointers, and the descriptor is ours.
    unsafe { next::close()(descriptor) };
}

/// Sends the client's identity if the gateway does not have it; chooses a port if the program did
/// not.
pub(crate) fn introduce(descriptor: c_int, socket: &Socket) -> Result<(), c_int> {
    if socket.is_greeted() {
        return Ok(());
    }
    if socket.port() == 0 {
        socket.set_port(port_of(socket));
    }
    if socket.gateway_identity() == Some(socket.identity()) {
        socket.set_greeted();
        return Ok(()); // as the last one that had the connection
    }
    // A listener must be registered when `bind` returns, or the next events are missed.
    if socket.groups() != 0 {
        ask(descriptor, greeting(GreetingKind::Ask, socket))?;
    } else {
        send(descriptor, greeting(GreetingKind::Hello, socket))?;
    }
    socket.set_gateway_identity(socket.identity());
    socket.set_greeted();
    Ok(())
}

/// Sends changes of a client's identity; a client that the gateway does not know is sent later.
pub(crate) fn tell(descriptor: c_int, socket: &Socket) -> Result<(), c_int> {
    if socket.is_greeted() {
        send(descriptor, greeting(GreetingKind::Hello, socket))?;
        socket.set_gateway_identity(socket.identity());
        return Ok(());
    }
    if socket.groups() != 0 { introduce(descriptor, socket) } else { Ok(()) }
}

/// Replaces a connection whose gateway is gone by one to the new gateway. The descriptor keeps
/// flags, port, groups, options, and the `epoll` that waits for it.
pub(crate) fn reconnect(descriptor: c_int, socket: &Socket) -> Result<(), c_int> {
    replace(connect()?, descriptor, socket)?;
    socket.set_ungreeted();
    introduce(descriptor, socket)
}

/// Connects all sockets that [`silence`] has silenced, when a gateway is there again.
pub(crate) fn rouse() {
    for (descriptor, socket) in table::quiet() {
        // One that fails stays quiet, or finds out by itself that it has no gateway.
        let _tried_again_later = reconnect(descriptor, socket);
    }
}

/// Replaces a connection whose gateway is gone by a silent socket until a gateway starts: a
/// connection at its end stays readable, and polling it would spin. Sending to it fails with
/// `ENOTCONN`.
pub(crate) fn silence(descriptor: c_int, socket: &Socket) -> Result<(), c_int> {
    let silent = wakeup_socket::open(descriptor)?;
    socket.set_quiet();
    replace(silent, descriptor, socket)
}

/// Puts a socket in another one's place.
fn replace(fresh: c_int, descriptor: c_int, socket: &Socket) -> Result<(), c_int> {
    let result = take_over(fresh, descriptor);
    close(fresh);
    result?;
    if let Some((epoll, mut event)) = socket.watch() {
        // SAFETY: the event is valid. An `epoll` that was closed meanwhile waits for nothing.
        unsafe { next::epoll_ctl()(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
    }
    Ok(())
}

fn take_over(fresh: c_int, descriptor: c_int) -> Result<(), c_int> {
    // SAFETY: the calls take no pointers.
    let result = unsafe {
        let flags = next::fcntl()(descriptor, libc::F_GETFL);
        let kept = next::fcntl()(descriptor, libc::F_GETFD) & libc::FD_CLOEXEC == 0;
        next::fcntl()(fresh, libc::F_SETFL, flags & libc::O_NONBLOCK);
        next::dup3()(fresh, descriptor, if kept { 0 } else { libc::O_CLOEXEC })
    };
    if result < 0 { Err(errno::last()) } else { Ok(()) }
}

/// Asks the gateway for the mark of sockets whose traffic passes it by.
pub(crate) fn mark() -> Result<u32, c_int> {
    let descriptor = connect()?;
    let question =
        Greeting { kind: GreetingKind::Ask, port: free_port(), groups: 0, options: 0, value: 0 };
    let answer = ask(descriptor, question);
    close(descriptor);
    Ok(answer?.value)
}

fn greeting(kind: GreetingKind, socket: &Socket) -> Greeting {
    let (port, groups, options) = (socket.port(), socket.groups(), socket.options());
    Greeting { kind, port, groups, options, value: 0 }
}

/// Sends a greeting.
pub(crate) fn send(descriptor: c_int, greeting: Greeting) -> Result<(), c_int> {
    let bytes = greeting.to_bytes();
    // SAFETY: `bytes` is valid for its length.
    let sent =
        unsafe { next::send()(descriptor, bytes.as_ptr().cast(), LENGTH, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(errno::last()) } else { Ok(()) }
}

/// Sends a question as the first thing on a connection, so that what comes back is its answer.
fn ask(descriptor: c_int, question: Greeting) -> Result<Greeting, c_int> {
    send(descriptor, question)?;
    wait(descriptor, libc::POLLIN)?;
    let mut bytes = [0_u8; LENGTH];
    // SAFETY: `bytes` is valid for its length.
    let length =
        unsafe { next::recv()(descriptor, bytes.as_mut_ptr().cast(), LENGTH, libc::MSG_DONTWAIT) };
    if length < 0 {
        return Err(errno::last());
    }
    match Greeting::parse(&bytes) {
        Some(answer) if answer.kind == GreetingKind::Welcome => Ok(answer),
        Some(answer) if answer.kind == GreetingKind::Refused => {
            Err(c_int::try_from(answer.value).unwrap_or(libc::EPERM))
        }
        _ => Err(libc::ECONNREFUSED),
    }
}

/// Connects to the gateway and checks that it is not an impostor with its name.
fn reach(descriptor: c_int) -> Result<(), c_int> {
    let (place, name) = configured();
    if place == Place::Default
        && let Some((address, length)) = fallback_socket::address(NAME)
        && approach(descriptor, &address, length).is_ok()
    {
        return trust(descriptor);
    }
    let (address, length) = address_of(name, place)?;
    approach(descriptor, &address, length)?;
    match place {
        Place::Default | Place::Abstract => trust(descriptor),
        Place::File if is_trusted(listener(descriptor)?, own(), name, look) => Ok(()),
        Place::File => Err(libc::EPERM),
    }
}

fn own() -> libc::uid_t {
    // SAFETY: the call takes nothing.
    unsafe { libc::geteuid() }
}

fn look(directory: &[u8]) -> Option<DirectoryOwner> {
    let found = fallback_socket::about(directory)?;
    Some(DirectoryOwner { owner: found.st_uid, mode: found.st_mode })
}

fn trust(descriptor: c_int) -> Result<(), c_int> {
    if is_trusted_at_name(listener(descriptor)?) { Ok(()) } else { Err(libc::EPERM) }
}

fn is_trusted_at_name(user: libc::uid_t) -> bool {
    is_gateway_user(user, own()) || is_owner_of_run_directory(user, look)
}

/// Whether the gateway that is configured may be this user's: what the user sends is the gateway's.
pub(crate) fn is_trusted_user(user: libc::uid_t) -> bool {
    match configured() {
        (Place::Default | Place::Abstract, _) => is_trusted_at_name(user),
        (Place::File, name) => is_sender_trusted(user, own(), name, look),
    }
}

/// The user id of the listener.
fn listener(descriptor: c_int) -> Result<libc::uid_t, c_int> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = CREDENTIALS;
    // SAFETY: `who` is valid for its length.
    unsafe {
        let (level, name, value) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast());
        if next::getsockopt()(descriptor, level, name, value, &raw mut length) != 0 {
            return Err(errno::last());
        }
    }
    Ok(who.uid)
}

/// Connects, for a while also where the gateway's queue is full.
fn approach(descriptor: c_int, address: &sockaddr_un, length: socklen_t) -> Result<(), c_int> {
    let mut tries = PATIENCE;
    loop {
        // SAFETY: `address` is a `sockaddr_un` of which `length` bytes count.
        let result =
            unsafe { next::connect()(descriptor, std::ptr::from_ref(address).cast(), length) };
        match errno::last() {
            _ if result == 0 => return Ok(()),
            libc::EAGAIN if tries > 0 => tries -= 1,
            libc::EAGAIN => return Err(libc::ETIMEDOUT),
            libc::ENOENT => return Err(libc::ECONNREFUSED),
            errno => return Err(errno),
        }
        // SAFETY: no descriptors are passed.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
    }
}

/// Where a gateway listens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the abstract name that all have, or where a file stands in for that.
    Default,
    /// At another abstract name.
    Abstract,
    /// At a path.
    File,
}

/// Where the gateway is, by the environment.
fn configured() -> (Place, &'static [u8]) {
    // SAFETY: the name ends with a zero byte; the environment is not changed by us.
    let configured = unsafe { libc::getenv(NAME_VARIABLE.as_ptr()) };
    if configured.is_null() {
        return (Place::Default, NAME);
    }
    // SAFETY: `getenv` returns a string that ends with a zero byte.
    match unsafe { std::ffi::CStr::from_ptr(configured) }.to_bytes() {
        [b'@', name @ ..] => (Place::Abstract, name),
        name => (Place::File, name),
    }
}

/// An address, and how many of its bytes count.
pub(crate) fn address_of(name: &[u8], place: Place) -> Result<(sockaddr_un, socklen_t), c_int> {
    // SAFETY: all bytes zero is a valid `sockaddr_un`.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = FAMILY;
    let (start, end) = match place {
        Place::Default | Place::Abstract => (1, 0),
        Place::File => (0, 1),
    };
    if name.is_empty() || start + name.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in address.sun_path[start..].iter_mut().zip(name) {
        *to = *from as c_char;
    }
    let length = size_of::<libc::sa_family_t>() + start + name.len() + end;
    Ok((address, socklen_t::try_from(length).unwrap_or(socklen_t::MAX)))
}

/// Waits until a descriptor is ready.
pub(crate) fn wait(descriptor: c_int, events: i16) -> Result<(), c_int> {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    loop {
        // SAFETY: `entry` is one valid entry.
        match unsafe { libc::poll(&raw mut entry, 1, PATIENCE) } {
            0 => return Err(libc::ETIMEDOUT),
            1 => return Ok(()),
            _ if errno::last() == libc::EINTR => {}
            _ => return Err(errno::last()),
        }
    }
}

/// The port of the last socket that had the connection, or another one that is free.
fn port_of(socket: &Socket) -> u32 {
    let before =
        socket.gateway_identity().map(|told| told.port).filter(|port| !table::has_port(*port));
    before.unwrap_or_else(free_port)
}

/// The process id, or if that is taken a number with the highest bit set, as in the kernel.
fn free_port() -> u32 {
    static MORE: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the call takes nothing.
    let process = unsafe { libc::getpid() }.unsigned_abs();
    if !table::has_port(process) {
        return process;
    }
    // Process ids have at most 22 bits.
    let port = || 1 << 31 | process << 9 | MORE.fetch_add(1, Ordering::Relaxed) & 0x1ff;
    std::iter::repeat_with(port).take(512).find(|port| !table::has_port(*port)).unwrap_or(process)
}

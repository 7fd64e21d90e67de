//! Descriptors as they come and go: `socket`, `close`, `dup`, `fcntl`; and `ioctl`.

use libc::{c_int, c_uint, c_ulong, epoll_event};

use super::{datagram, ethtool};
use crate::table::Socket;
use crate::{connection_reuse, errno, gateway, mailbox, next, table};

const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    match (domain, protocol) {
        (libc::AF_NETLINK, libc::NETLINK_XFRM) => redirect(kind),
        (libc::AF_KEY, _) => errno::fail(libc::EAFNOSUPPORT),
        _ => {
            // SAFETY: the call takes no pointers.
            let descriptor = unsafe { next::socket()(domain, kind, protocol) };
            table::remove(descriptor);
            if (domain, protocol) == (libc::AF_NETLINK, libc::NETLINK_GENERIC) && descriptor >= 0 {
                table::insert_generic(descriptor);
            }
            descriptor
        }
    }
}

/// A connection to the gateway that the program takes for a netlink socket.
fn redirect(kind: c_int) -> c_int {
    let flags = kind & FLAGS;
    if !matches!(kind & !FLAGS, libc::SOCK_RAW | libc::SOCK_DGRAM) {
        return errno::fail(libc::ESOCKTNOSUPPORT);
    }
    if flags == libc::SOCK_CLOEXEC
        && let Some(parked) = connection_reuse::take()
        && table::insert(parked.descriptor, kind & !FLAGS)
    {
        if let Some(socket) = table::find(parked.descriptor) {
            socket.set_gateway_identity(parked.identity);
            mailbox::follow(&parked, socket);
        }
        return parked.descriptor;
    }
    let descriptor = match gateway::connect() {
        Ok(descriptor) => descriptor,
        Err(errno) => return errno::fail(errno),
    };
    // SAFETY: the calls take no pointers.
    unsafe {
        if flags & libc::SOCK_NONBLOCK == 0 {
            next::fcntl()(descriptor, libc::F_SETFL, libc::O_RDWR);
        }
        if flags & libc::SOCK_CLOEXEC == 0 {
            next::fcntl()(descriptor, libc::F_SETFD, 0);
        }
    }
    if table::insert(descriptor, kind & !FLAGS) {
        if flags != libc::SOCK_CLOEXEC {
            spoil(descriptor);
        }
        gateway::rouse();
        return descriptor;
    }
    gateway::close(descriptor);
    errno::fail(libc::EMFILE)
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if table::find(descriptor).is_some_and(|socket| connection_reuse::keep(descriptor, socket)) {
        return 0;
    }
    if connection_reuse::forget(descriptor) {
        gateway::close(descriptor);
        return errno::fail(libc::EBADF); // the program closed it already
    }
    // Before the number may be handed out again.
    table::remove(descriptor);
    // SAFETY: the call takes no pointers.
    unsafe { next::close()(descriptor) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags.unsigned_abs() & libc::CLOSE_RANGE_CLOEXEC == 0 {
        let number = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
        table::remove_range(number(first), number(last));
        connection_reuse::forget_range(number(first), number(last));
    }
    // SAFETY: the call takes no pointers.
    unsafe { next::close_range()(first, last, flags) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn closefrom(first: c_int) {
    table::remove_range(first, c_int::MAX);
    connection_reuse::forget_range(first, c_int::MAX);
    // SAFETY: the call takes no pointers.
    unsafe { next::closefrom()(first) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn dup(descriptor: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    duplicated(descriptor, unsafe { next::dup()(descriptor) })
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn dup2(descriptor: c_int, copy: c_int) -> c_int {
    if connection_reuse::forget(copy) {
        gateway::close(copy);
    }
    // SAFETY: the call takes no pointers.
    let copy = unsafe { next::dup2()(descriptor, copy) };
    if copy == descriptor { copy } else { duplicated(descriptor, copy) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn dup3(descriptor: c_int, copy: c_int, flags: c_int) -> c_int {
    if connection_reuse::forget(copy) {
        gateway::close(copy);
    }
    // SAFETY: the call takes no pointers.
    duplicated(descriptor, unsafe { next::dup3()(descriptor, copy, flags) })
}

/// `argument` stands for what the command takes, a number or a pointer: both come in one register.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promises about `argument` are passed on.
    controlled(descriptor, command, unsafe { next::fcntl()(descriptor, command, argument) })
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promises about `argument` are passed on.
    controlled(descriptor, command, unsafe { next::fcntl64()(descriptor, command, argument) })
}

/// `SIOCETHTOOL` and `SIOCGIFCONF` work on any socket, also on a Unix one. Of waiting datagrams the
/// header is hidden; on the gateway's devices ethtool shows the gateway's IPsec offload.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: usize) -> c_int {
    spoil(descriptor);
    // SAFETY: the caller's promises about `argument` are passed on.
    let result = unsafe { next::ioctl()(descriptor, request, argument) };
    if request == libc::FIONREAD && result == 0 && table::datagram(descriptor).is_some() {
        let bytes = argument as *mut c_int;
        // SAFETY: the kernel has just written an `int` there.
        unsafe { bytes.write_unaligned(datagram::waiting(bytes.read_unaligned())) };
    }
    if request == libc::SIOCETHTOOL && result == 0 {
        // SAFETY: the kernel has just read an `ifreq` there.
        unsafe { ethtool::answered(argument as *const libc::ifreq) };
    }
    result
}

/// Remembers an `epoll` that waits for this socket: a connection in its place must be added as
/// well.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let result = unsafe { next::epoll_ctl()(epoll, operation, descriptor, event) };
    if let Some(socket) = table::find(descriptor).filter(|_| result == 0) {
        socket.spoil();
        let stays = operation != libc::EPOLL_CTL_DEL && !event.is_null();
        // SAFETY: the caller promises a valid event where one is needed.
        socket.set_watch(stays.then(|| (epoll, unsafe { event.read_unaligned() })));
    }
    result
}

fn controlled(descriptor: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(descriptor, result),
        libc::F_GETFD | libc::F_GETFL => result,
        _ => {
            spoil(descriptor);
            result
        }
    }
}

/// The program has changed something about a socket, which the next one must not have.
fn spoil(descriptor: c_int) {
    table::find(descriptor).into_iter().for_each(Socket::spoil);
}

/// What a call that made `copy` returns.
fn duplicated(descriptor: c_int, copy: c_int) -> c_int {
    if copy < 0 || table::duplicate(descriptor, copy) {
        return copy;
    }
    gateway::close(copy);
    errno::fail(libc::EMFILE)
}

//! What a program is told when the gateway is gone, and how it finds another one.

use libc::{c_int, iovec, ssize_t};

use crate::table::Socket;
use crate::{errno, exchange, gateway, mailbox, next, table, wakeup_socket};

/// How often a listener that blocks looks for a gateway, in milliseconds.
const PAUSE: c_int = 500;

/// Sends, and once more where there is another gateway now.
pub(super) fn sent(descriptor: c_int, send: impl Fn() -> ssize_t) -> ssize_t {
    let result = send();
    if result >= 0 || !is_gone(errno::last()) {
        return result;
    }
    match reconnected(descriptor) {
        Ok(()) => send(),
        Err(_) => errno::fail_length(libc::ECONNRESET),
    }
}

/// Whether an error says that there is no gateway at the other end.
pub(super) fn is_gone(errno: c_int) -> bool {
    matches!(errno, libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
}

fn reconnected(descriptor: c_int) -> Result<(), c_int> {
    gateway::reconnect(descriptor, table::find(descriptor).ok_or(libc::EBADF)?)?;
    gateway::rouse();
    Ok(())
}

/// The answer to a program whose gateway went first: an error `ECONNRESET` with the request's
/// sequence number, as netlink answers each request and charon would wait for ever. Its length, as
/// the call returns it, and the message's flags.
///
/// # Safety
/// The vectors are valid for their lengths.
pub(super) unsafe fn answer(
    socket: &Socket,
    vectors: &[iovec],
    flags: c_int,
) -> Option<(ssize_t, c_int)> {
    let error = exchange::error(socket.awaited().failed()?, libc::ECONNRESET, socket.port());
    // SAFETY: by this function's contract.
    let copied = unsafe { mailbox::scatter(&error, vectors) };
    if flags & libc::MSG_PEEK == 0 {
        socket.settle();
    }
    let told = if flags & libc::MSG_TRUNC != 0 { error.len() } else { copied };
    Some((told.cast_signed(), if copied < error.len() { libc::MSG_TRUNC } else { 0 }))
}

/// Errno of receiving when the gateway is gone.
pub(super) fn lost(descriptor: c_int) -> c_int {
    if reconnected(descriptor).is_ok() {
        return libc::ENOBUFS;
    }
    let Some(socket) = table::find(descriptor) else { return libc::EBADF };
    match gateway::silence(descriptor, socket) {
        Ok(()) if socket.groups() != 0 => libc::ENOBUFS,
        _ => libc::ECONNRESET,
    }
}

/// Errno of receiving without a gateway. A blocking listener waits here until there is one.
pub(super) fn received_in_silence(descriptor: c_int, socket: &Socket, flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let status = unsafe { next::fcntl()(descriptor, libc::F_GETFL) };
    let at_once = flags & libc::MSG_DONTWAIT != 0 || status & libc::O_NONBLOCK != 0;
    loop {
        if reconnected(descriptor).is_ok() {
            return libc::ENOBUFS;
        }
        wakeup_socket::hush(descriptor);
        if socket.groups() == 0 {
            return libc::ECONNRESET;
        }
        if at_once {
            return libc::EAGAIN;
        }
        // SAFETY: no descriptors are passed.
        if unsafe { libc::poll(std::ptr::null_mut(), 0, PAUSE) } < 0 {
            return errno::last();
        }
    }
}

//! System calls on connections that a signal may interrupt, and that then go on: a handler, a
//! debugger, or Ctrl-Z and `fg`, which end any call on a socket with a time limit (`signal(7)`).
//! Clients of a gateway make these calls by no other way.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::{
    errno::Errno,
    sys::socket::{self, MsgFlags, SockaddrLike},
};

/// Sends a datagram, without a signal (`SIGPIPE`) where nobody is left to read it.
///
/// # Errors
/// The kernel's: `EAGAIN` when the connection's time limit has passed.
pub fn send_datagram(connection: impl AsFd, datagram: &[u8]) -> nix::Result<()> {
    let connection = connection.as_fd().as_raw_fd();
    let sent = uninterrupted(|| socket::send(connection, datagram, MsgFlags::MSG_NOSIGNAL));
    sent.map(drop)
}

/// Receives a datagram: how long it is, zero at the connection's end.
///
/// # Errors
/// As [`send_datagram`].
pub fn receive_datagram(connection: impl AsFd, buffer: &mut [u8]) -> nix::Result<usize> {
    let connection = connection.as_fd().as_raw_fd();
    uninterrupted(|| socket::recv(connection, buffer, MsgFlags::empty()))
}

/// Connects a Unix socket. One that waits for room in the listener's queue waits anew.
pub(crate) fn connect(socket: impl AsFd, address: &dyn SockaddrLike) -> nix::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    uninterrupted(|| socket::connect(socket, address))
}

/// Makes a call until no signal interrupts it.
fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_call_is_made_again() {
        let mut answers = [Err(Errno::EINTR), Err(Errno::EINTR), Ok(7), Ok(8)].into_iter();
        assert_eq!(uninterrupted(|| answers.next().unwrap()), Ok(7));
        assert_eq!(uninterrupted::<()>(|| Err(Errno::EAGAIN)), Err(Errno::EAGAIN));
        assert_eq!(answers.len(), 1);
    }
}

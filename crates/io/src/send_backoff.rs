//! Waits for room in the kernel, once per batch: under overload it is better to drop than to queue.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

/// Whether the batch may still wait.
#[derive(Debug)]
pub(crate) struct SendBackoff {
    is_left: bool,
}

/// Longest wait in nanoseconds.
const MAX_WAIT: libc::c_long = 200_000;

impl SendBackoff {
    /// The state at the start of a batch.
    pub(crate) const fn new() -> Self {
        Self { is_left: true }
    }

    /// Waits briefly for room in the socket, unless the batch waited before; whether it did.
    pub(crate) fn wait(&mut self, fd: BorrowedFd<'_>) -> bool {
        let waits = std::mem::take(&mut self.is_left);
        if waits {
            wait_for_room(fd);
        }
        waits
    }
}

/// Whether the kernel may soon have room.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

fn wait_for_room(fd: BorrowedFd<'_>) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let moment = libc::timespec { tv_sec: 0, tv_nsec: MAX_WAIT };
    // SAFETY: one live pollfd, a live timespec, no signal mask. Its result does not matter: the
    // next send tells.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const moment, ptr::null()) };
}

//! Signals of a daemon, as a descriptor to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Requests by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// `SIGTERM` or `SIGINT`: finish what is under way and end.
    Stop,
    /// `SIGHUP`: read the configuration again.
    Reload,
}

/// `SIGTERM`, `SIGINT` and `SIGHUP`, blocked and read.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks the signals for the calling thread and those it starts: call it before any other
    /// thread starts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn block() -> io::Result<Self> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        set.thread_block()?;
        Ok(Self {
            descriptor: SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
        })
    }

    /// The next request; `None` when there is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn next(&self) -> io::Result<Option<SignalRequest>> {
        let Some(signal) = self.descriptor.read_signal()? else { return Ok(None) };
        let is_reload = i32::try_from(signal.ssi_signo) == Ok(libc::SIGHUP);
        Ok(Some(if is_reload { SignalRequest::Reload } else { SignalRequest::Stop }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read() {
        std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            assert_eq!(signals.next().unwrap(), None);
            for (signal, request) in
                [(libc::SIGHUP, SignalRequest::Reload), (libc::SIGTERM, SignalRequest::Stop)]
            {
                // SAFETY: sends a signal to this thread, which blocks it.
                assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), signal) }, 0);
                assert_eq!(signals.next().unwrap(), Some(request));
            }
        })
        .join()
        .unwrap();
    }
}

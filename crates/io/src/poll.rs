//! Waits for several descriptors, for a time, or for another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Descriptors reported by one [`Poller::wait`].
const EVENTS: usize = 16;

/// Token of a [`Waker`].
const WAKER: u64 = u64::MAX;

/// Waits for descriptors to become readable.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    waker: Arc<EventFd>,
    events: [EpollEvent; EVENTS],
}

/// Ends a [`Poller::wait`] from another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<EventFd>,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A bit per readable token.
    tokens: [u64; 4],
    /// Whether a [`Waker`] was used since the last wait.
    pub woken: bool,
}

impl Ready {
    /// Whether the descriptor added under `token` is readable or broken: reading it tells which.
    #[must_use]
    pub fn has(&self, token: u8) -> bool {
        self.tokens[usize::from(token >> 6)] >> (token & 63) & 1 == 1
    }

    /// Whether the wait ended because its time was over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens == [0; 4] && !self.woken
    }
}

impl Poller {
    /// A poller with only its waker.
    ///
    /// # Errors
    /// The kernel's: too many descriptors open.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        epoll.add(&*waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        Ok(Self { epoll, waker, events: [EpollEvent::empty(); EVENTS] })
    }

    /// A handle to end waits with.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { event: Arc::clone(&self.waker) }
    }

    /// Polls `descriptor`, which is reported as `token` while it is readable (level-triggered).
    ///
    /// # Errors
    /// The kernel's, when the descriptor cannot be polled or was added before.
    pub fn add(&self, descriptor: BorrowedFd<'_>, token: u8) -> io::Result<()> {
        Ok(self.epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, u64::from(token)))?)
    }

    /// Reports `descriptor`, which was added, as `token` while it has room to write, and no more
    /// while it is readable.
    ///
    /// # Errors
    /// The kernel's, when it was not added.
    pub fn await_room(&self, descriptor: BorrowedFd<'_>, token: u8) -> io::Result<()> {
        let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, u64::from(token));
        Ok(self.epoll.modify(descriptor, &mut event)?)
    }

    /// Undoes [`Poller::await_room`].
    ///
    /// # Errors
    /// The kernel's, when it was not added.
    pub fn await_input(&self, descriptor: BorrowedFd<'_>, token: u8) -> io::Result<()> {
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(token));
        Ok(self.epoll.modify(descriptor, &mut event)?)
    }

    /// Stops polling `descriptor`.
    ///
    /// # Errors
    /// The kernel's, when it was not added.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.delete(descriptor)?)
    }

    /// Whether [`Poller::wait`] would end at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_ready(&self) -> io::Result<bool> {
        match self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) {
            Err(nix::Error::EINTR) => Ok(true),
            count => Ok(count? > 0),
        }
    }

    /// Waits until something is ready or `most` is over, which is rounded up to milliseconds from
    /// one on; `None` waits for ever. A signal ends it early.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&mut self, most: Option<Duration>) -> io::Result<Ready> {
        let most = match most {
            Some(most) if !most.is_zero() && most < Duration::from_millis(1) => {
                self.wait_briefly(most)?;
                Some(Duration::ZERO)
            }
            most => most,
        };
        let timeout = match most
            .map(|most| i32::try_from(most.as_micros().div_ceil(1000)).unwrap_or(i32::MAX))
        {
            Some(milliseconds) => EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX),
            None => EpollTimeout::NONE,
        };
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Err(nix::Error::EINTR) => 0,
            result => result?,
        };
        let mut ready = Ready::default();
        for event in &self.events[..count] {
            if event.data() == WAKER {
                ready.woken = true;
                // Nothing to read means that another wait took it.
                let _count = self.waker.read();
            } else {
                let token = event.data();
                ready.tokens[(token >> 6 & 3) as usize] |= 1 << (token & 63);
            }
        }
        Ok(ready)
    }

    /// Waits for less than `epoll`'s milliseconds.
    fn wait_briefly(&self, most: Duration) -> io::Result<()> {
        let mut any = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut any, Some(most.into()), None) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Waker {
    /// Ends the current wait, or the next one.
    pub fn wake(&self) {
        // The only failure is a full counter, and then the wait ends anyway.
        let _full = self.event.write(1);
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptor_is_reported_for_room_or_for_input() {
        let mut poller = Poller::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        poller.add(far.as_fd(), 3).unwrap();
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty(), "nothing to read");
        poller.await_room(far.as_fd(), 3).unwrap();
        assert!(poller.wait(None).unwrap().has(3), "there is room");
        poller.await_input(far.as_fd(), 3).unwrap();
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
        near.write_all(b"x").unwrap();
        assert!(poller.wait(None).unwrap().has(3));
    }

    #[test]
    fn readable_descriptors_and_wakers_end_a_wait() {
        let mut poller = Poller::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        poller.add(far.as_fd(), 5).unwrap();
        let (mut high, last) = UnixStream::pair().unwrap();
        poller.add(last.as_fd(), 255).unwrap();
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
        near.write_all(b"x").unwrap();
        let ready = poller.wait(None).unwrap();
        assert!(ready.has(5) && !ready.has(4) && !ready.has(255) && !ready.woken);
        high.write_all(b"x").unwrap();
        let ready = poller.wait(None).unwrap();
        assert!(ready.has(5) && ready.has(255) && !ready.has(63) && !ready.has(191));
        poller.remove(far.as_fd()).unwrap();
        poller.remove(last.as_fd()).unwrap();
        let waker = poller.waker();
        std::thread::spawn(move || waker.wake());
        assert!(poller.wait(None).unwrap().woken);
        assert!(poller.wait(Some(Duration::from_micros(20))).unwrap().is_empty());
        poller.waker().wake();
        assert!(poller.wait(Some(Duration::from_micros(20))).unwrap().woken);
        assert!(poller.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}

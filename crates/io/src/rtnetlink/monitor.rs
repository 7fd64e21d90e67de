//! Word of changes: links and addresses that come, change and go.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;

use super::{Error, listen};

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`
const GROUPS: u32 = 1 | 0x10 | 0x100;

/// Listens in the network namespace that the thread was in when it was opened; its descriptor is readable when something has changed.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: listen(GROUPS)? })
    }

    /// What has changed since the last time; more is to be asked of [`Rtnetlink`](super::Rtnetlink). `link` is the index of the device whose
    /// going down is told apart: it may be up again already, but its routes are gone.
    #[must_use]
    pub fn take_news(&self, link: u32) -> News {
        let mut news = News::Nothing;
        let mut head = [0; 32];
        loop {
            match self.socket.recv(&mut &mut head[..], 0) {
                Ok(_length) => news = news.max(read(&head, link)),
                // So many changes that some were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => news = News::WentDown,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_nothing) => return news,
            }
        }
    }
}

/// What a monitor has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// Nothing.
    Nothing,
    /// A link or an address has changed.
    Changed,
    /// So has the link that was asked about, which was down meanwhile.
    WentDown,
}

/// The head of a message: `struct nlmsghdr`, and of a link's `struct ifinfomsg`.
fn read(head: &[u8; 32], link: u32) -> News {
    const NEW_LINK: u16 = 16;
    const UP: u32 = 1;
    let kind = u16::from_ne_bytes([head[4], head[5]]);
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let went_down = kind == NEW_LINK && word(20) == link && word(24) & UP == 0;
    if went_down { News::WentDown } else { News::Changed }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

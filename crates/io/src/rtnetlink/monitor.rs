//! Notices of changes: links, addresses, device settings, removed rules, and routes that others
//! remove.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr};

use super::{Error, Rtnetlink, listen};
use crate::socket;

/// `RTMGRP_LINK`, and of both families addresses, routes, rules and device settings
/// (`RTNLGRP_IPV4_NETCONF`).
const GROUPS: u32 = 1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000 | 0x80_0000 | 0x100_0000;

const NEW_LINK: u16 = 16;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const NEW_RULE: u16 = 32;

/// Listens in the network namespace of the thread that opened it; readable after a change.
#[derive(Debug)]
pub struct RtnlMonitor {
    socket: Socket,
}

impl RtnlMonitor {
    /// Listens from now on. Only routes in one of the tables count, and only those that somebody
    /// other than `own` removes.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel gives no socket.
    pub fn open(own: &Rtnetlink, tables: [u32; 2]) -> Result<Self, Error> {
        let open = || {
            let socket = listen(GROUPS)?;
            let mut address = SocketAddr::new(0, 0);
            own.socket.get_address(&mut address).map_err(refused)?;
            let mut filter = filter(address.port_number(), tables);
            socket::attach_filter(socket.as_fd(), &mut filter).map_err(refused)?;
            Ok(Self { socket })
        };
        open()
    }

    /// Changes since the last call; ask [`Rtnetlink`] for details. `link` is the index of a device
    /// whose going down is reported separately: it may be up again, but its routes are gone.
    #[must_use]
    pub fn take_news(&self, link: u32) -> MonitorResult {
        let mut news = MonitorResult::Nothing;
        let mut head = [0; 32];
        loop {
            match self.socket.recv(&mut &mut head[..], 0) {
                Ok(_length) => news = news.max(read(&head, link)),
                // So many changes that some were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    news = MonitorResult::RoutesGone;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_nothing) => return news,
            }
        }
    }
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MonitorResult {
    /// Nothing.
    Nothing,
    /// A link, an address or a device setting changed, or a rule was removed.
    Changed,
    /// Routes of the table may be gone: `link` was down meanwhile, or somebody removed them.
    RoutesGone,
}

/// Reads the head of a message: `struct nlmsghdr`, and a link's `struct ifinfomsg`.
pub(super) fn read(head: &[u8; 32], link: u32) -> MonitorResult {
    const UP: u32 = 1;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let went_down = word(20) == link && word(24) & UP == 0;
    match u16::from_ne_bytes([head[4], head[5]]) {
        NEW_LINK if went_down => MonitorResult::RoutesGone,
        DELETE_ROUTE => MonitorResult::RoutesGone,
        _other => MonitorResult::Changed,
    }
}

/// Excludes other tables, which on a router may change thousands of times a second. The filter sees
/// messages from their heads on, and reads words as big-endian.
fn filter(own: u32, [table, other]: [u32; 2]) -> [libc::sock_filter; 13] {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const TABLE: u16 = 15; // RTA_TABLE, a route's first attribute
    let branch = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let if_half = |value: u16, jt, jf| branch(IF_EQUAL, value.to_be().into(), jt, jf);
    let if_word = |value: u32, jt, jf| branch(IF_EQUAL, value.to_be(), jt, jf);
    [
        branch(LOAD_HALF, 4, 0, 0),
        if_half(NEW_ROUTE, 10, 0),
        if_half(NEW_RULE, 9, 0),
        if_half(DELETE_ROUTE, 0, 7),
        branch(LOAD_WORD, 12, 0, 0),
        if_word(own, 6, 0),
        branch(LOAD_HALF, 30, 0, 0),
        if_half(TABLE, 0, 3),
        branch(LOAD_WORD, 32, 0, 0),
        if_word(table, 1, 0),
        if_word(other, 0, 1),
        branch(RETURN, u32::MAX, 0, 0),
        branch(RETURN, 0, 0, 0),
    ]
}

fn refused(error: io::Error) -> Error {
    Error::of("rtnetlink groups", error)
}

impl AsFd for RtnlMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! Shares ESP among the raw sockets of several workers by SPI.
//!
//! The kernel gives each raw socket a copy of every packet, and a filter in each accepts only its
//! share: all packets of an SA reach one worker in order, whose caches hold that SA. It needs only
//! `CAP_NET_RAW`, as the sockets themselves.

use std::io;
use std::os::fd::BorrowedFd;

use uxfrm_packet::Version;

use crate::socket;

/// One socket's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutShare {
    nth: u32,
    of: u32,
}

impl FanoutShare {
    /// All packets.
    pub const ALL: Self = Self { nth: 0, of: 1 };

    /// Share `nth` of `of`, from 0; `None` if out of range.
    #[must_use]
    pub fn new(nth: u32, of: u32) -> Option<Self> {
        (nth < of).then_some(Self { nth, of })
    }

    /// Index of the share, from 0.
    #[must_use]
    pub const fn nth(self) -> u32 {
        self.nth
    }
}

/// Limits a raw socket to its share of ESP. Packets too short for an SPI go to the first share.
pub(crate) fn restrict(
    socket: BorrowedFd<'_>,
    version: Version,
    share: FanoutShare,
) -> io::Result<()> {
    if share == FanoutShare::ALL {
        return Ok(());
    }
    socket::attach_filter(socket, &mut program(version, share))
}

impl FanoutShare {
    /// Whether it is the first share, which also receives what needs only one socket.
    pub(crate) const fn is_first(self) -> bool {
        self.nth == 0
    }
}

const LOAD_LENGTH: u16 = 0x80;
const INDEX_HEADER_LENGTH: u16 = 0xb1;
const INDEX_IMMEDIATE: u16 = 0x01;
const LOAD_WORD_AT_INDEX: u16 = 0x40;
const SUBTRACT_INDEX: u16 = 0x1c;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const REMAINDER: u16 = 0x94;
const IF_AT_LEAST: u16 = 0x35;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Sequential SPIs are mixed first, by the 32-bit golden ratio.
const MIXER: u32 = 0x9e37_79b1;

/// A filter that accepts nothing.
pub(crate) const fn nothing() -> libc::sock_filter {
    libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }
}

/// The filter sees IPv4 from its header on, and IPv6 from ESP's on.
fn program(version: Version, FanoutShare { nth, of }: FanoutShare) -> [libc::sock_filter; 12] {
    let branch = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let step = |code, k| branch(code, k, 0, 0);
    let short = if nth == 0 { u32::MAX } else { 0 };
    [
        match version {
            Version::V4 => step(INDEX_HEADER_LENGTH, 0),
            Version::V6 => step(INDEX_IMMEDIATE, 0),
        },
        step(LOAD_LENGTH, 0),
        step(SUBTRACT_INDEX, 0),
        branch(IF_AT_LEAST, 4, 0, 5), // else to `short`
        step(LOAD_WORD_AT_INDEX, 0),
        step(MULTIPLY, MIXER),
        step(SHIFT_RIGHT, 16),
        step(REMAINDER, of),
        branch(IF_EQUAL, nth, 1, 2), // behind `short`
        step(RETURN, short),
        step(RETURN, u32::MAX),
        step(RETURN, 0),
    ]
}

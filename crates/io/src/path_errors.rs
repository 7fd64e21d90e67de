//! What routers say of paths, as the host hears it: "fragmentation needed" and "packet too big" about whatever it has sent.
//!
//! Whether to believe them is the kernel's to say: it looks at what they quote, and changes its routes. So these only tell whom to ask it about.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{MsgFlags, recv};
use uxfrm_packet::Version;

use crate::socket;

/// Sockets that hear them.
#[derive(Debug)]
pub struct PathErrors {
    ip4: OwnedFd,
    /// There may be no IPv6.
    ip6: Option<OwnedFd>,
}

/// Enough for all that is read of a message.
const ROOM: usize = 256;
/// Messages that are read in one go: of more, the next ones tell the same.
const MOST: usize = 256;

impl PathErrors {
    /// Opens the sockets. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Ok(Self { ip4: listener(Version::V4)?, ip6: listener(Version::V6).ok() })
    }

    /// What to poll.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.ip4), self.ip6.as_ref()].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Where packets went that were too big for their path, since the last time.
    pub fn take(&self, mut met: impl FnMut(IpAddr)) {
        for (socket, version) in [(Some(&self.ip4), Version::V4), (self.ip6.as_ref(), Version::V6)]
        {
            let Some(socket) = socket else { continue };
            let mut message = [0; ROOM];
            for _ in 0..MOST {
                match recv(socket.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                    Ok(len) => destination(version, &message[..len]).into_iter().for_each(&mut met),
                    Err(_nothing) => break,
                }
            }
        }
    }
}

fn listener(version: Version) -> io::Result<OwnedFd> {
    let (family, protocol) = match version {
        Version::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
        Version::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    let listener = socket::open(family, libc::SOCK_RAW, protocol)?;
    socket::attach_filter(listener.as_fd(), &mut program(version))?;
    Ok(listener)
}

/// Lets in these errors alone. The filter sees IPv4 from its header on, and IPv6 from ICMPv6's on.
fn program(version: Version) -> [libc::sock_filter; 5] {
    const INDEX_HEADER_LENGTH: u16 = 0xb1;
    const INDEX_IMMEDIATE: u16 = 0x01;
    const LOAD_HALF_AT_INDEX: u16 = 0x48;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let branch = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // Type and code.
    let (begin, wanted) = match version {
        Version::V4 => (INDEX_HEADER_LENGTH, 0x0304),
        Version::V6 => (INDEX_IMMEDIATE, 0x0200),
    };
    [
        branch(begin, 0, 0, 0),
        branch(LOAD_HALF_AT_INDEX, 0, 0, 0),
        branch(IF_EQUAL, wanted, 0, 1),
        branch(RETURN, u32::MAX, 0, 0),
        branch(RETURN, 0, 0, 0),
    ]
}

/// Of the packet that a message quotes behind its eight bytes.
fn destination(version: Version, message: &[u8]) -> Option<IpAddr> {
    match version {
        Version::V4 => {
            let header_len = usize::from(message.first()? & 0x0f) * 4;
            Some(IpAddr::from(*message.get(header_len + 8 + 16..)?.first_chunk::<4>()?))
        }
        Version::V6 => Some(IpAddr::from(*message.get(8 + 24..)?.first_chunk::<16>()?)),
    }
}

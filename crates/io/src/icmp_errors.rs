//! ICMP errors that the host receives about packets that it sent as ESP or UDP: that they were too
//! big, or can't be delivered.
//!
//! Of sizes the kernel validates them by the quoted packet and updates its routes. So these only
//! tell which destinations to ask it about. Of the others the kernel tells senders nothing: most
//! sockets of the data path have no peer.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{MsgFlags, SockaddrIn6, recv, recvfrom};
use uxfrm_packet::{Protocol, Version, udp};

use crate::socket;

/// Sockets that receive the errors.
#[derive(Debug)]
pub struct IcmpErrors {
    ip4: OwnedFd,
    /// `None` without IPv6.
    ip6: Option<OwnedFd>,
}

/// An ICMP or ICMPv6 error about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Its type, in the numbers of its family.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// Who sent it.
    pub told_by: IpAddr,
    /// The packet's source.
    pub from: IpAddr,
    /// The packet's destination.
    pub to: IpAddr,
    /// Its SPI, if it was ESP, also in UDP, and the quote is long enough.
    pub spi: Option<u32>,
}

/// Enough for the parts that are read.
const ROOM: usize = 256;
/// Messages read per call; more would repeat them.
const MOST: usize = 256;

impl IcmpErrors {
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

    /// Errors since the last call.
    pub fn take(&self, mut met: impl FnMut(IcmpError)) {
        let mut message = [0; ROOM];
        for _ in 0..MOST {
            match recv(self.ip4.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => parse_v4(&message[..len]).into_iter().for_each(&mut met),
                Err(_nothing) => break,
            }
        }
        let Some(ip6) = &self.ip6 else { return };
        for _ in 0..MOST {
            match recvfrom::<SockaddrIn6>(ip6.as_raw_fd(), &mut message) {
                Ok((len, Some(told_by))) => {
                    let error = parse_v6(told_by.ip().into(), &message[..len]);
                    error.into_iter().for_each(&mut met);
                }
                Ok((_, None)) => {}
                Err(_nothing) => break,
            }
        }
    }
}

impl IcmpError {
    /// Whether the packet exceeded its path MTU.
    #[must_use]
    pub const fn is_too_big(&self) -> bool {
        match self.told_by {
            IpAddr::V4(_) => self.kind == 3 && self.code == 4,
            IpAddr::V6(_) => self.kind == 2,
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

/// Accepts errors about sizes, and the others about ESP and UDP. The filter sees IPv4 from its
/// header on, and IPv6 from ICMPv6's on.
fn program(version: Version) -> [libc::sock_filter; 12] {
    const INDEX_HEADER_LENGTH: u16 = 0xb1;
    const INDEX_IMMEDIATE: u16 = 0x01;
    const LOAD_HALF_AT_INDEX: u16 = 0x48;
    const LOAD_BYTE_AT_INDEX: u16 = 0x50;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let branch = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // Type and code of those about sizes; types of the others; where the quoted protocol is.
    let (begin, size, [unreachable, exceeded, problem], protocol) = match version {
        Version::V4 => (INDEX_HEADER_LENGTH, 0x0304, [3, 11, 12], 8 + 9),
        Version::V6 => (INDEX_IMMEDIATE, 0x0200, [1, 3, 4], 8 + 6),
    };
    [
        branch(begin, 0, 0, 0),
        branch(LOAD_HALF_AT_INDEX, 0, 0, 0),
        branch(IF_EQUAL, size, 7, 0),
        branch(LOAD_BYTE_AT_INDEX, 0, 0, 0),
        branch(IF_EQUAL, unreachable, 2, 0),
        branch(IF_EQUAL, exceeded, 1, 0),
        branch(IF_EQUAL, problem, 0, 4),
        branch(LOAD_BYTE_AT_INDEX, protocol, 0, 0),
        branch(IF_EQUAL, Protocol::ESP.0.into(), 1, 0),
        branch(IF_EQUAL, Protocol::UDP.0.into(), 0, 1),
        branch(RETURN, u32::MAX, 0, 0),
        branch(RETURN, 0, 0, 0),
    ]
}

/// Parses an IPv4 packet with an error, and the packet that it quotes behind its first eight bytes.
fn parse_v4(message: &[u8]) -> Option<IcmpError> {
    let icmp = message.get(header_len(message)?..)?;
    let packet = icmp.get(8..)?;
    let address =
        |header: &[u8], at: usize| Some(IpAddr::from(*header.get(at..)?.first_chunk::<4>()?));
    Some(IcmpError {
        kind: icmp[0],
        code: icmp[1],
        told_by: address(message, 12)?,
        from: address(packet, 12)?,
        to: address(packet, 16)?,
        spi: spi(packet[9], packet.get(header_len(packet)?..)),
    })
}

/// The same of ICMPv6, which comes without its IPv6 header.
fn parse_v6(told_by: IpAddr, icmp: &[u8]) -> Option<IcmpError> {
    let packet = icmp.get(8..)?;
    let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
    Some(IcmpError {
        kind: icmp[0],
        code: icmp[1],
        told_by,
        from: address(8)?,
        to: address(24)?,
        spi: spi(packet[6], packet.get(40..)),
    })
}

fn header_len(ip4: &[u8]) -> Option<usize> {
    Some(usize::from(ip4.first()? & 0x0f) * 4)
}

fn spi(protocol: u8, upper: Option<&[u8]>) -> Option<u32> {
    let before = match Protocol(protocol) {
        Protocol::ESP => 0,
        Protocol::UDP => udp::HEADER_LEN,
        Protocol(_) => return None,
    };
    Some(u32::from_be_bytes(*upper?.get(before..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;

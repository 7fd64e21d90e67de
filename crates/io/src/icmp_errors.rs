//! ICMP errors about path MTUs that the host receives: "fragmentation needed" and "packet too big".
//!
//! The kernel validates them by the quoted packet and updates its routes. So these only tell which
//! destinations to ask it about.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{MsgFlags, recv};
use uxfrm_packet::{Protocol, Version, udp};

use crate::socket;

/// Sockets that receive the errors.
#[derive(Debug)]
pub struct PathMtuErrors {
    ip4: OwnedFd,
    /// `None` without IPv6.
    ip6: Option<OwnedFd>,
}

/// A packet that exceeded its path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBig {
    /// Its destination.
    pub to: IpAddr,
    /// Its SPI, if it was ESP, also in UDP, and the quote is long enough.
    pub spi: Option<u32>,
}

/// Enough for the parts that are read.
const ROOM: usize = 256;
/// Messages read per call; more would repeat them.
const MOST: usize = 256;

impl PathMtuErrors {
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

    /// Packets that exceeded their path MTU since the last call.
    pub fn take(&self, mut met: impl FnMut(PacketTooBig)) {
        for (socket, version) in [(Some(&self.ip4), Version::V4), (self.ip6.as_ref(), Version::V6)]
        {
            let Some(socket) = socket else { continue };
            let mut message = [0; ROOM];
            for _ in 0..MOST {
                match recv(socket.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                    Ok(len) => quoted(version, &message[..len]).into_iter().for_each(&mut met),
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

/// Accepts only these errors. The filter sees IPv4 from its header on, and IPv6 from ICMPv6's on.
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

/// Parses the packet quoted behind the first eight bytes.
fn quoted(version: Version, message: &[u8]) -> Option<PacketTooBig> {
    match version {
        Version::V4 => {
            let packet = message.get(header_len(message)? + 8..)?;
            let to = IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?);
            Some(PacketTooBig { to, spi: spi(packet[9], packet.get(header_len(packet)?..)) })
        }
        Version::V6 => {
            let packet = message.get(8..)?;
            let to = IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?);
            Some(PacketTooBig { to, spi: spi(packet[6], packet.get(40..)) })
        }
    }
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
mod tests {
    use super::*;

    /// IPv4 options do not shift the SPI; a router may quote only eight bytes behind the header.
    #[test]
    fn quoted_spi_is_parsed_if_present() {
        let ip4 = |words: u8, protocol: u8| {
            let mut header = vec![0; usize::from(words) * 4];
            header[0] = 0x40 | words;
            (header[9], header[16]) = (protocol, 192);
            header
        };
        let mut ip6 = [0; 40];
        (ip6[0], ip6[24]) = (0x60, 0xfd);
        let ip6 = |protocol: u8| [&ip6[..6], &[protocol], &ip6[7..]].concat();
        let (icmp, v4, v6) = ([3, 4, 0, 0, 0, 0, 5, 0x14], Version::V4, Version::V6);
        let (esp, in_udp) = ([1, 2, 3, 4, 0, 0, 0, 9], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        for (version, own, header, upper, spi) in [
            (v4, ip4(5, 1), ip4(5, 50), &esp[..], Some(0x0102_0304)),
            (v4, ip4(6, 1), ip4(7, 50), &esp[..], Some(0x0102_0304)),
            (v4, ip4(5, 1), ip4(5, 17), &in_udp[..], Some(0x0102_0304)),
            (v4, ip4(5, 1), ip4(5, 17), &in_udp[..8], None),
            (v4, ip4(5, 1), ip4(5, 6), &in_udp[..], None),
            (v6, vec![], ip6(50), &esp[..], Some(0x0102_0304)),
            (v6, vec![], ip6(17), &in_udp[..], Some(0x0102_0304)),
            (v6, vec![], ip6(50), &esp[..3], None),
        ] {
            let message = [&own[..], &icmp[..], &header[..], upper].concat();
            let to = if version == v4 { [192, 0, 0, 0].into() } else { "fd00::".parse().unwrap() };
            assert_eq!(quoted(version, &message), Some(PacketTooBig { to, spi }), "{message:?}");
        }
    }
}

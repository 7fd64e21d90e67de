//! ICMP errors from an address of the host: the kernel chooses it by the route to the receiver, as
//! for its own errors (`net/ipv4/icmp.c: __icmp_send`).
//!
//! The sockets have no mark, so a message takes the way that any other of the host's takes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};

use uxfrm_packet::{IpPacket, PacketBuf, Version};

use crate::ipv6_support::is_missing;
use crate::{esp_fanout, socket};

/// Precedence "internetwork control", as in routers' own messages (RFC 1812 §4.3.2.5).
const TOS: i32 = 0xc0;

/// Raw sockets that receive nothing. Threads may share it.
#[derive(Debug)]
pub struct IcmpSender {
    v4: UdpSocket,
    v6: Option<UdpSocket>,
}

impl IcmpSender {
    /// Sockets for the versions of IP that the kernel has. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        let v4 = deaf(libc::AF_INET, libc::IPPROTO_ICMP)?;
        socket::set(v4.as_fd(), libc::IPPROTO_IP, libc::IP_TOS, TOS)?;
        let v6 = (!is_missing(Version::V6)).then(|| deaf(libc::AF_INET6, libc::IPPROTO_ICMPV6));
        Ok(Self { v4: UdpSocket::from(v4), v6: v6.transpose()?.map(UdpSocket::from) })
    }

    /// Sends an ICMP error, a whole IP packet, to its destination, from an address that the kernel
    /// chooses instead of its source.
    ///
    /// # Errors
    /// The kernel's, and [`io::ErrorKind::InvalidInput`] for what is no IP packet. Nothing was sent
    /// then.
    pub fn send(&self, answer: &PacketBuf) -> io::Result<()> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let ip = IpPacket::parse(answer.bytes()).map_err(invalid)?;
        let socket = match ip.destination {
            IpAddr::V4(_) => Some(&self.v4),
            IpAddr::V6(_) => self.v6.as_ref(),
        };
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
        // The kernel computes ICMPv6's checksum anew, which covers the source; ICMP's does not.
        let message = ip.upper(answer.bytes());
        socket.send_to(message, SocketAddr::new(ip.destination, 0)).map(drop)
    }
}

/// A raw socket that no message comes to: unread, they would fill it.
fn deaf(family: i32, protocol: i32) -> io::Result<OwnedFd> {
    let opened = socket::open(family, libc::SOCK_RAW, protocol)?;
    socket::attach_filter(opened.as_fd(), &mut [esp_fanout::nothing()])?;
    socket::set(opened.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
    Ok(opened)
}

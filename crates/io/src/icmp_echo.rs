//! ICMP echo requests that are never fragmented: how large packets a path takes.
//!
//! Packets have DF set. In IPv4 they leave larger than the path MTU that the kernel knows
//! (`IP_PMTUDISC_PROBE`), so that each size is really tried. Needs `CAP_NET_RAW`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uxfrm_packet::checksum::Sum;

use crate::socket;

/// Bytes of the smallest request: IPv6 header, ICMP header.
pub const LEAST: usize = 48;

/// ICMP header: type, code, checksum, id, sequence number.
const HEADER: usize = 8;

/// What came for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoOutcome {
    /// The answer.
    Answered,
    /// The host itself, or a router, says that it is too large; the MTU, if it is told.
    TooBig(Option<u32>),
    /// Nobody can be reached there.
    Unreachable,
    /// Nothing.
    Silent,
}

/// A raw ICMP socket to one destination.
#[derive(Debug)]
pub struct EchoSocket {
    socket: UdpSocket,
    destination: IpAddr,
    id: u16,
}

impl EchoSocket {
    /// A socket from an own address, if given.
    ///
    /// # Errors
    /// The kernel's: `EPERM` without `CAP_NET_RAW`, no route, no such address.
    pub fn open(source: Option<IpAddr>, destination: IpAddr, id: u16) -> io::Result<Self> {
        let protocol = match destination {
            IpAddr::V4(_) => libc::IPPROTO_ICMP,
            IpAddr::V6(_) => libc::IPPROTO_ICMPV6,
        };
        let fd = socket::open(socket::family(destination), libc::SOCK_RAW, protocol)?;
        match destination {
            IpAddr::V4(_) => {
                let probe = libc::IP_PMTUDISC_PROBE;
                socket::set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
            }
            IpAddr::V6(_) => {
                // With `PROBE` the kernel tells a raw socket nothing of "packet too big".
                let discover = libc::IPV6_PMTUDISC_DO;
                socket::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)?;
                socket::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
            }
        }
        if let Some(source) = source {
            socket::bind(fd.as_fd(), SocketAddr::new(source, 0))?;
        }
        socket::connect(fd.as_fd(), SocketAddr::new(destination, 0))?;
        let socket = UdpSocket::from(fd);
        socket.set_nonblocking(false)?;
        Ok(Self { socket, destination, id })
    }

    /// Sends one request in an IP packet of `size` bytes, at least [`LEAST`], and waits for what
    /// comes, so long.
    ///
    /// # Errors
    /// The kernel's, but for what [`EchoOutcome`] tells.
    pub fn ask(&self, sequence: u16, size: usize, patience: Duration) -> io::Result<EchoOutcome> {
        match self.socket.send(&self.request(sequence, size)) {
            Ok(_) => self.wait(sequence, patience),
            Err(error) => self.refusal(error),
        }
    }

    /// The MTU that the kernel knows for the path.
    ///
    /// # Errors
    /// The kernel's.
    pub fn path_mtu(&self) -> io::Result<u32> {
        let (level, option) = match self.destination {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mtu = socket::option(self.socket.as_fd(), level, option)?;
        u32::try_from(mtu).map_err(|_negative| io::ErrorKind::InvalidData.into())
    }

    fn ip_header(&self) -> usize {
        if self.destination.is_ipv4() { 20 } else { 40 }
    }

    fn request(&self, sequence: u16, size: usize) -> Vec<u8> {
        let mut message = vec![0; size.max(LEAST) - self.ip_header()];
        message[0] = if self.destination.is_ipv4() { 8 } else { 128 };
        message[4..6].copy_from_slice(&self.id.to_be_bytes());
        message[6..8].copy_from_slice(&sequence.to_be_bytes());
        if self.destination.is_ipv4() {
            // The kernel writes that of ICMPv6 alone.
            let checksum = Sum::of(&message).checksum();
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        message
    }

    fn wait(&self, sequence: u16, patience: Duration) -> io::Result<EchoOutcome> {
        let until = Instant::now() + patience;
        let mut buffer = vec![0; 65_536];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(EchoOutcome::Silent);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut buffer) {
                Ok(length) if self.is_answer(&buffer[..length], sequence) => {
                    return Ok(EchoOutcome::Answered);
                }
                Ok(_) => {}
                Err(error) => return self.refusal(error),
            }
        }
    }

    /// Whether a message is the answer to our request. In IPv4 it comes with its IP header.
    fn is_answer(&self, packet: &[u8], sequence: u16) -> bool {
        let (message, kind) = match self.destination {
            IpAddr::V4(_) => {
                let header = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
                (packet.get(header..).unwrap_or_default(), 0)
            }
            IpAddr::V6(_) => (packet, 129),
        };
        let wanted = [self.id.to_be_bytes(), sequence.to_be_bytes()].concat();
        message.len() >= HEADER && message[0] == kind && message[4..HEADER] == wanted
    }

    fn refusal(&self, error: io::Error) -> io::Result<EchoOutcome> {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Ok(EchoOutcome::TooBig(self.path_mtu().ok())),
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ECONNREFUSED) => {
                Ok(EchoOutcome::Unreachable)
            }
            Some(libc::EAGAIN | libc::EINTR) => Ok(EchoOutcome::Silent),
            Some(_) | None => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback answers whatever it takes; without the right to ask there is nothing to see.
    #[test]
    fn loopback_answers_each_size_that_it_takes() {
        for destination in ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let socket = match EchoSocket::open(None, destination, 7) {
                Ok(socket) => socket,
                Err(error) => {
                    println!("not run: {destination}: {error}");
                    continue;
                }
            };
            let patience = Duration::from_secs(30);
            for (sequence, size) in (0..).zip([LEAST, 100, 1500, 9000]) {
                let outcome = socket.ask(sequence, size, patience).unwrap();
                assert_eq!(outcome, EchoOutcome::Answered, "{destination}, {size}");
            }
        }
    }
}

//! Ping: ICMP echo from a raw socket, without an external program.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use serde::Serialize;
use uxfrm_packet::IpPacket;
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::icmp::{ECHO, ECHO_REPLY, Icmp};

use super::interrupt::Interrupt;
use super::marker;

/// Data bytes of an echo request, as ping(8) sends.
const DATA: usize = 56;

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// Round-trip times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Requests sent.
    pub sent: u32,
    /// Answers received in time.
    pub received: u32,
    /// The shortest, in microseconds.
    pub min_us: f64,
    /// The mean, in microseconds.
    pub avg_us: f64,
}

/// A pinger in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Pinger {
    socket: OwnedFd,
    to: SockaddrIn,
    id: u16,
    sequence: u16,
}

impl Pinger {
    /// A pinger from one address to another.
    ///
    /// # Errors
    /// The kernel's: needs `CAP_NET_RAW`.
    pub fn new(from: Ipv4Addr, to: Ipv4Addr) -> anyhow::Result<Self> {
        let socket =
            socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)
                .context("cannot open a raw socket for ping")?;
        let from = SockaddrIn::from(SocketAddrV4::new(from, 0));
        bind(socket.as_raw_fd(), &from).with_context(|| format!("cannot ping from {from}"))?;
        let id = u16::try_from(std::process::id() & 0xffff).unwrap_or_default();
        Ok(Self { socket, to: SocketAddrV4::new(to, 0).into(), id, sequence: 0 })
    }

    /// Pings until the first answer comes, for at most `timeout`.
    ///
    /// # Errors
    /// When none comes, or an interrupt.
    pub fn wait_for_path(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + timeout;
        while self.round_trip()?.is_none() {
            interrupt.check()?;
            if Instant::now() > end {
                bail!("no answer from {} to pings within {} s", self.to, timeout.as_secs());
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// Pings `count` times with a short pause between.
    ///
    /// # Errors
    /// When no answer comes at all, or an interrupt.
    pub fn measure(&mut self, count: u32, interrupt: &Interrupt) -> anyhow::Result<RoundTrips> {
        let mut times = Vec::new();
        for _ in 0..count {
            times.extend(self.round_trip()?);
            interrupt.sleep(Duration::from_millis(10))?;
        }
        summarize(count, &times).with_context(|| format!("{} answers no pings any more", self.to))
    }

    /// Sends a request; returns the time until its answer, `None` if none came.
    fn round_trip(&mut self) -> anyhow::Result<Option<Duration>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.id, self.sequence);
        let start = Instant::now();
        match sendto(self.socket.as_raw_fd(), &request, &self.to, MsgFlags::empty()) {
            Ok(_) => self.answer(start),
            // There is no route yet, or no buffer for this packet.
            Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENOBUFS) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("cannot ping {}", self.to)),
        }
    }

    /// Waits for the answer to the last request, which left at `start`.
    fn answer(&self, start: Instant) -> anyhow::Result<Option<Duration>> {
        let mut packet = [0; 2048];
        while let Some(left) =
            ANSWER_TIMEOUT.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
        {
            let micros = i64::try_from(left.as_micros().max(1)).unwrap_or(i64::MAX);
            setsockopt(&self.socket, sockopt::ReceiveTimeout, &TimeVal::new(0, micros))?;
            match recv(self.socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                Ok(len) if is_answer(&packet[..len], self.id, self.sequence) => {
                    return Ok(Some(start.elapsed()));
                }
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EHOSTUNREACH) => {}
                Err(errno) => return Err(io::Error::from(errno)).context("cannot receive pings"),
            }
        }
        Ok(None)
    }
}

/// An echo request with marker as its data.
fn request(id: u16, sequence: u16) -> Vec<u8> {
    let mut message = vec![ECHO, 0, 0, 0];
    message.extend(id.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    message.extend(marker::fill(DATA));
    let checksum = Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// Whether an IPv4 packet is the answer to that request.
fn is_answer(packet: &[u8], id: u16, sequence: u16) -> bool {
    let Ok(ip) = IpPacket::parse(packet) else { return false };
    let Ok(Icmp { header, .. }) = Icmp::parse(ip.upper(packet)) else { return false };
    let wanted = (u32::from(id) << 16 | u32::from(sequence)).to_be_bytes();
    header.kind == ECHO_REPLY && header.rest == wanted
}

/// The figures of some round trips; `None` if there are none.
fn summarize(sent: u32, times: &[Duration]) -> Option<RoundTrips> {
    let min = times.iter().min()?;
    let received = u32::try_from(times.len()).ok()?;
    let avg = times.iter().sum::<Duration>() / received;
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    Some(RoundTrips { sent, received, min_us: micros(*min), avg_us: micros(avg) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_valid_checksum_and_marker() {
        let request = request(0x1234, 7);
        assert_eq!(request.len(), 8 + DATA);
        assert_eq!(Sum::of(&request).fold(), 0xffff);
        assert!(marker::is_visible(&request));
    }

    #[test]
    fn answer_matches_by_id_and_sequence() {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        packet.extend([ECHO_REPLY, 0, 0, 0, 0x12, 0x34, 0, 7]);
        assert!(is_answer(&packet, 0x1234, 7));
        assert!(!is_answer(&packet, 0x1234, 8));
        assert!(!is_answer(&packet, 0x1235, 7));
        packet[20] = ECHO;
        assert!(!is_answer(&packet, 0x1234, 7));
        assert!(!is_answer(&packet[..24], 0x1234, 7));
    }

    #[test]
    fn round_trips_are_summarized() {
        assert_eq!(summarize(3, &[]), None);
        let times = [Duration::from_micros(30), Duration::from_micros(10)];
        let expected = RoundTrips { sent: 3, received: 2, min_us: 10.0, avg_us: 20.0 };
        assert_eq!(summarize(3, &times), Some(expected));
    }
}

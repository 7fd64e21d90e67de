//! Ports: sources and sinks of packet batches.
//!
//! A port never blocks for long and never allocates once it is warm. It counts every packet that it
//! cannot send, by reason, in the [`Transmitted`] that [`Port::transmit`] returns: the runtime maps
//! those counts to its drop reasons, so no packet vanishes unnamed.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments};

/// A port for packets, owned by one worker.
///
/// Buffers with a `udp` path hold UDP payload, all others whole IP packets from the IP header on.
pub trait Port: Debug + Send {
    /// Appends waiting packets to `into`, as far as it has room, in buffers from `pool`; returns
    /// the number of buffers.
    ///
    /// Does not block: 0 when nothing waits.
    ///
    /// # Errors
    /// The kernel's, when the port itself is broken (device gone, descriptor invalid). Transient
    /// ones are an empty answer.
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize>;

    /// Sends all buffers of `batch` in order and gives them back to `pool`.
    ///
    /// The batch is empty afterwards in every case. Packets that the kernel has no room for within
    /// a fraction of a millisecond are dropped and counted as [`RefusedPacket::busy`].
    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted;

    /// Kinds of super-packets that the port takes *now*.
    ///
    /// A port stops accepting a kind that the kernel turns out not to send, so ask once per batch
    /// and segment other kinds before [`transmit`](Self::transmit); it counts them as
    /// [`RefusedPacket::unsupported`].
    fn accepts(&self) -> Accepts;

    /// Least time that the first buffer of the last successful [`receive`](Self::receive) waited in
    /// the kernel's queue; zero if unknown.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Packets that the kernel dropped since the last call because the port's queue was full; it
    /// reports them nowhere else. 0 without such a queue.
    fn overflowed(&mut self) -> u64 {
        0
    }

    /// Descriptor to poll for readability; `None` for a port that is read in turn.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        (**self).receive(pool, into)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        (**self).transmit(batch, pool)
    }

    fn accepts(&self) -> Accepts {
        (**self).accepts()
    }

    fn waited(&self) -> Duration {
        (**self).waited()
    }

    fn overflowed(&mut self) -> u64 {
        (**self).overflowed()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }
}

/// Kinds of buffers, beyond single finished packets, that a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// [`Segments::Tcp`] over IPv4.
    pub tcp4: bool,
    /// [`Segments::Tcp`] over IPv6.
    pub tcp6: bool,
    /// [`Segments::Udp`] over IPv4.
    pub udp4: bool,
    /// [`Segments::Udp`] over IPv6.
    pub udp6: bool,
    /// [`Segments::Burst`].
    pub bursts: bool,
    /// [`Checksum::Partial`].
    pub partial_checksums: bool,
}

impl Accepts {
    /// Only single packets with complete checksums.
    pub const PLAIN: Self = Self {
        tcp4: false,
        tcp6: false,
        udp4: false,
        udp6: false,
        bursts: false,
        partial_checksums: false,
    };

    /// Everything.
    pub const ALL: Self = Self {
        tcp4: true,
        tcp6: true,
        udp4: true,
        udp6: true,
        bursts: true,
        partial_checksums: true,
    };

    /// Whether a buffer may be handed to the port as it is.
    #[must_use]
    #[inline]
    pub fn takes(&self, packet: &PacketBuf) -> bool {
        let is_v6 = packet.bytes().first().is_some_and(|byte| byte >> 4 == 6);
        let segments = match packet.segments {
            Segments::One => true,
            Segments::Tcp { .. } => (is_v6 && self.tcp6) || (!is_v6 && self.tcp4),
            Segments::Udp { .. } => (is_v6 && self.udp6) || (!is_v6 && self.udp4),
            Segments::Burst { .. } => self.bursts,
        };
        segments && (self.partial_checksums || !matches!(packet.checksum, Checksum::Partial { .. }))
    }
}

/// Outcome of a batch: every packet is in `packets` or in one of `refused`.
#[must_use]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Wire packets taken by the kernel; super-packets and bursts count by [`wire_packets`].
    pub packets: u64,
    /// Their bytes in the buffers.
    pub bytes: u64,
    /// Wire packets dropped.
    pub refused: RefusedPacket,
}

/// Wire packets that a port dropped, by reason.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedPacket {
    /// No room in the kernel's queue (`EAGAIN`, `ENOBUFS`, `ENOMEM`), even after a short wait.
    pub busy: u64,
    /// Larger than the link's or path's MTU (`EMSGSIZE`).
    pub too_big: u64,
    /// Path MTU for the last of `too_big`, if the kernel reports it.
    pub path: Option<PathMtu>,
    /// Not of a kind that [`Port::accepts`] named, or the kernel just refused this kind for good.
    pub unsupported: u64,
    /// No route, link down, firewall and other errors.
    pub failed: u64,
    /// The last `errno` counted under `failed`.
    pub errno: Option<i32>,
    /// Whose those under `failed` were, as far as the port knows.
    pub failed_esp: FailedEsp,
}

/// Which ESP packets a port failed to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedEsp {
    /// None, or those of nobody known.
    #[default]
    Unknown,
    /// All of one state: the outer destination and the SPI.
    Of(IpAddr, u32),
    /// Of several.
    Mixed,
}

impl FailedEsp {
    /// With others that failed as well.
    #[must_use]
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, Self::Unknown) | (Self::Unknown, one) => one,
            (one, other) if one == other => one,
            (Self::Of(..) | Self::Mixed, Self::Of(..) | Self::Mixed) => Self::Mixed,
        }
    }
}

/// The MTU of a path that was too small for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Destination of the path.
    pub to: IpAddr,
    /// The MTU, in bytes of IP packet.
    pub mtu: u32,
}

impl RefusedPacket {
    /// All refused packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.busy + self.too_big + self.unsupported + self.failed
    }
}

impl Transmitted {
    /// Counts a buffer as sent.
    #[inline]
    pub fn sent(&mut self, packet: &PacketBuf) {
        self.packets += wire_packets(packet);
        self.bytes += packet.len() as u64;
    }

    /// Counts `packets` under the reason of `error`.
    pub fn refuse(&mut self, packets: u64, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => self.refused.busy += packets,
            Some(libc::EMSGSIZE) => self.refused.too_big += packets,
            errno => {
                self.refused.failed += packets;
                self.refused.errno = errno;
            }
        }
    }

    /// The same, of the ESP that begins with these bytes and goes there.
    pub fn refuse_esp(
        &mut self,
        packets: u64,
        error: &io::Error,
        (destination, esp): (IpAddr, &[u8]),
    ) {
        let failed = self.refused.failed;
        self.refuse(packets, error);
        if let Some(spi) = esp.first_chunk().filter(|_| self.refused.failed > failed) {
            let of = FailedEsp::Of(destination, u32::from_be_bytes(*spi));
            self.refused.failed_esp = self.refused.failed_esp.and(of);
        }
    }

    /// Counts a buffer of a kind that the port does not send.
    pub fn unsupported(&mut self, packet: &PacketBuf) {
        self.refused.unsupported += wire_packets(packet);
    }
}

impl AddAssign for Transmitted {
    /// Adds the counts; keeps the later path and `errno`.
    fn add_assign(&mut self, later: Self) {
        self.packets += later.packets;
        self.bytes += later.bytes;
        self.refused.busy += later.refused.busy;
        self.refused.too_big += later.refused.too_big;
        self.refused.unsupported += later.refused.unsupported;
        self.refused.failed += later.refused.failed;
        self.refused.path = later.refused.path.or(self.refused.path);
        self.refused.errno = later.refused.errno.or(self.refused.errno);
        self.refused.failed_esp = self.refused.failed_esp.and(later.refused.failed_esp);
    }
}

/// Number of wire packets of a buffer.
///
/// A TCP or UDP super-packet's headers end behind the transport header at which its partial
/// checksum starts; without one it counts as one packet.
#[must_use]
#[inline]
pub fn wire_packets(packet: &PacketBuf) -> u64 {
    let pieces =
        |payload: usize, size: u16| (payload.div_ceil(usize::from(size.max(1)))).max(1) as u64;
    match (packet.segments, packet.checksum) {
        (Segments::One, _) => 1,
        (Segments::Burst { stride }, _) => pieces(packet.len(), stride),
        (Segments::Tcp { mss }, Checksum::Partial { start, .. }) => pieces(
            packet.len().saturating_sub(tcp_payload(packet.bytes(), usize::from(start))),
            mss,
        ),
        (Segments::Udp { size }, Checksum::Partial { start, .. }) => {
            pieces(packet.len().saturating_sub(usize::from(start) + 8), size)
        }
        (Segments::Tcp { .. } | Segments::Udp { .. }, Checksum::AsIs | Checksum::Verified) => 1,
    }
}

/// Offset of the payload behind a TCP header at `start`; the packet's end when the header is cut
/// off.
pub(crate) fn tcp_payload(bytes: &[u8], start: usize) -> usize {
    bytes.get(start + 12).map_or(bytes.len(), |byte| start + usize::from(byte >> 4) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn super_packets_count_as_what_they_become() {
        let mut packet = PacketBuf::from_slice(&[0x45; 3000]);
        assert_eq!(wire_packets(&packet), 1);
        packet.segments = Segments::Burst { stride: 1000 };
        assert_eq!(wire_packets(&packet), 3);
        packet.segments = Segments::Burst { stride: 999 };
        assert_eq!(wire_packets(&packet), 4);
        packet.segments = Segments::Udp { size: 1486 };
        packet.checksum = Checksum::Partial { start: 20, offset: 6 };
        assert_eq!(wire_packets(&packet), 2);
        packet.segments = Segments::Tcp { mss: 1480 };
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        packet.bytes_mut()[32] = 5 << 4;
        assert_eq!(wire_packets(&packet), 2);
    }

    #[test]
    fn failed_esp_is_told_while_it_is_of_one_state() {
        let (mut done, mut later) = (Transmitted::default(), Transmitted::default());
        let unreachable = io::Error::from_raw_os_error(libc::ENETUNREACH);
        let busy = io::Error::from_raw_os_error(libc::EAGAIN);
        let [one, other]: [IpAddr; 2] = [[10, 9, 0, 2].into(), [10, 9, 0, 3].into()];
        done.refuse_esp(1, &busy, (other, &[0, 0, 16, 1, 0]));
        assert_eq!(done.refused.failed_esp, FailedEsp::Unknown);
        done.refuse_esp(2, &unreachable, (one, &[0, 0, 16, 1, 0]));
        done.refuse(1, &unreachable);
        done += later;
        assert_eq!(done.refused.failed_esp, FailedEsp::Of(one, 0x1001));
        later.refuse_esp(1, &unreachable, (other, &[0, 0, 16, 1]));
        done += later;
        assert_eq!((done.refused.failed_esp, done.refused.failed), (FailedEsp::Mixed, 4));
    }

    #[test]
    fn refused_packets_count_by_errno() {
        let mut done = Transmitted::default();
        for errno in [libc::EAGAIN, libc::ENOBUFS, libc::EMSGSIZE, libc::ENETUNREACH] {
            done.refuse(1, &io::Error::from_raw_os_error(errno));
        }
        assert_eq!((done.refused.busy, done.refused.too_big, done.refused.failed), (2, 1, 1));
        assert_eq!(done.refused.errno, Some(libc::ENETUNREACH));
        assert_eq!(done.refused.packets(), 4);
        done += done;
        assert_eq!((done.refused.packets(), done.refused.errno), (8, Some(libc::ENETUNREACH)));
    }

    #[test]
    fn plain_port_accepts_only_finished_packets() {
        let mut packet = PacketBuf::from_slice(&[0x60; 40]);
        assert!(Accepts::PLAIN.takes(&packet));
        packet.checksum = Checksum::Partial { start: 40, offset: 6 };
        assert!(!Accepts::PLAIN.takes(&packet));
        packet.segments = Segments::Tcp { mss: 1 };
        assert!(!Accepts { tcp6: false, ..Accepts::ALL }.takes(&packet));
        assert!(Accepts { tcp4: false, ..Accepts::ALL }.takes(&packet));
    }
}

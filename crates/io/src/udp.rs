//! ESP in UDP (RFC 3948): an IPv4 or IPv6 socket, where the kernel writes the outer IP and UDP
//! headers.
//!
//! Buffers hold UDP payload and a [`UdpPath`]. A GSO burst leaves with one `UDP_SEGMENT` message,
//! and so do consecutive datagrams of one size on one path; several messages leave with one system
//! call. Datagrams that `UDP_GRO` joined arrive as a burst. The whole TOS or traffic-class byte and
//! the local address go both ways with every message.
//!
//! IPv4's DF bit has no control message in Linux: it is the socket's `IP_MTU_DISCOVER`, switched
//! where a batch changes between datagrams with and without DF. With it set (`IP_PMTUDISC_DO`) the
//! kernel refuses datagrams above the path MTU it knows, and
//! [`RefusedPacket::path`](crate::RefusedPacket::path) has the MTU.
//!
//! Where IKE daemons share the port, [`ike`] takes their messages.
//!
//! The mark is the socket's, never the packet's: it keeps uxfrm's own datagrams out of uxfrm's own
//! routes.
//!
//! A socket bound to an address omits control messages for local addresses, as they cost time.
//! [`PerAddressSockets`] opens such sockets beside one for all addresses.

mod path;
mod per_address;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments, UdpPath};

use crate::ike;
use crate::mmsg::{MAX_IOVECS, MESSAGES, MmsgReceiver, MmsgSender, OutMessage, RecvCount, SMALL};
use crate::port::{Accepts, Port, Transmitted};
use crate::socket::{self, RxOverflow, SocketName};

use self::path::{ask_for_path, read_path, write_source, write_tos};

pub(crate) use self::path::write_path;
pub use self::per_address::PerAddressSockets;

/// Most datagrams in a `UDP_SEGMENT` message that every kernel takes (`UDP_MAX_SEGMENTS`).
const MAX_SEGMENTS: usize = 64;

/// Most bytes in a `UDP_SEGMENT` message: the largest UDP payload over IPv4.
const MAX_BURST_BYTES: usize = 65_507;

/// Fits every path (RFC 8200 §5, less headers): a refusal of such bursts means that the kernel
/// cannot.
const MIN_PATH_PAYLOAD: u16 = 1200;

/// Large messages per receive call while bursts arrive: half a MiB, so that a batch stays in the
/// cache.
const BURSTS_AT_ONCE: usize = 8;

/// Options of a UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Local address and port; the address may be unspecified, the port 0 for any.
    pub local: SocketAddr,
    /// Mark of everything sent (`SO_MARK`); 0 for none.
    pub mark: u32,
    /// Several sockets may share the port (`SO_REUSEPORT`), one per worker.
    pub shared: bool,
    /// Bytes of kernel buffer to ask for in each direction.
    pub buffer: usize,
    /// The kernel timestamps each datagram, for [`Port::waited`].
    pub timed: bool,
    /// Index of the only device to use (`SO_BINDTOIFINDEX`); 0 for any.
    pub device: u32,
}

impl UdpOptions {
    /// A private socket on `local`, of any device, without a mark, with 8 MiB of kernel buffer each
    /// way.
    #[must_use]
    pub fn new(local: SocketAddr) -> Self {
        Self { local, mark: 0, shared: false, buffer: 8 << 20, timed: false, device: 0 }
    }
}

/// A UDP socket as a port.
#[derive(Debug)]
pub struct Udp {
    socket: OwnedFd,
    local: SocketAddr,
    mark: u32,
    bursts: bool,
    dont_fragment: Option<bool>,
    receiver: MmsgReceiver,
    sender: MmsgSender,
    refused_trains: Vec<OutMessage>,
    trains_arrive: bool,
    overflow: RxOverflow,
    waited: Duration,
    daemons: Option<SyncSender<ike::IkeDatagram>>,
}

impl Udp {
    /// Opens and binds a socket.
    ///
    /// # Errors
    /// The kernel's: address in use, not permitted to set the mark, no such address, no such
    /// device.
    pub fn open(options: &UdpOptions) -> io::Result<Self> {
        let socket = socket::open(socket::family(options.local.ip()), libc::SOCK_DGRAM, 0)?;
        Self::bound(socket, options)
    }

    /// Continues with a predecessor's bound socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_socket(socket: OwnedFd, options: &UdpOptions) -> io::Result<Self> {
        let bursts = Self::set_up(&socket, options)?;
        Self::of(socket, options, bursts)
    }

    /// Sets up and binds a fresh socket of the right family.
    fn bound(socket: OwnedFd, options: &UdpOptions) -> io::Result<Self> {
        let fd = socket.as_fd();
        if options.shared {
            socket::set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        ask_for_path(fd, options.local.ip())?;
        if let Some(index) = NonZeroU32::new(options.device) {
            socket::bind_to_device(fd, index)?;
        }
        let bursts = Self::set_up(&socket, options)?;
        socket::bind(socket.as_fd(), options.local)?;
        Self::of(socket, options, bursts)
    }

    /// Sets options that a bound socket may also have; whether it supports GSO.
    fn set_up(socket: &OwnedFd, options: &UdpOptions) -> io::Result<bool> {
        let fd = socket.as_fd();
        socket::set_mark(fd, options.mark)?;
        socket::enlarge(fd, options.buffer)?;
        if options.timed {
            socket::note_arrival(fd)?;
        }
        // Kernels without either offload answer ENOPROTOOPT; then datagrams are sent one by one.
        let bursts = socket::set(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let _without_gro = socket::set(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(bursts)
    }

    fn of(socket: OwnedFd, options: &UdpOptions, bursts: bool) -> io::Result<Self> {
        let local = socket::local_address(socket.as_fd())?;
        let mut overflow = RxOverflow::default();
        // Earlier losses are the predecessor's to report.
        let _before = overflow.since(socket.as_fd());
        Ok(Self {
            socket,
            local,
            mark: options.mark,
            bursts,
            dont_fragment: None,
            receiver: MmsgReceiver::new(),
            sender: MmsgSender::new(),
            refused_trains: Vec::with_capacity(MESSAGES),
            trains_arrive: false,
            overflow,
            waited: Duration::ZERO,
            daemons: None,
        })
    }

    /// Passes IKE messages to `daemons` instead of batches.
    #[must_use]
    pub fn sharing_with(self, daemons: SyncSender<ike::IkeDatagram>) -> Self {
        Self { daemons: Some(daemons), ..self }
    }

    /// Its port, to open sockets of single addresses.
    ///
    /// # Errors
    /// The kernel's: too many descriptors open.
    pub fn site(&self) -> io::Result<PerAddressSockets> {
        Ok(PerAddressSockets::of(self.socket.try_clone()?, self.local, self.mark))
    }

    /// Accepts IPv6 datagrams without checksum, which the kernel drops otherwise (RFC 6936 §4).
    /// IPv4 accepts them anyway.
    ///
    /// # Errors
    /// The kernel's.
    pub fn accept_without_checksum(&self) -> io::Result<()> {
        match self.local {
            SocketAddr::V4(_) => Ok(()),
            SocketAddr::V6(_) => {
                socket::set(self.socket.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
            }
        }
    }

    /// Sends without UDP checksum from now on. Each datagram of a burst is then a message of its
    /// own, of the same system call: `UDP_SEGMENT` needs the checksum (`net/ipv4/udp.c:
    /// udp_send_skb`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_without_checksum(&mut self) -> io::Result<()> {
        let (level, option) = match self.local {
            SocketAddr::V4(_) => (libc::SOL_SOCKET, libc::SO_NO_CHECK),
            SocketAddr::V6(_) => (libc::SOL_UDP, libc::UDP_NO_CHECK6_TX),
        };
        socket::set(self.socket.as_fd(), level, option, 1)?;
        self.bursts = false;
        Ok(())
    }

    /// Sends with this TTL or hop limit from now on, instead of the host's.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for 0.
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        let (level, option) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        };
        socket::set(self.socket.as_fd(), level, option, libc::c_int::from(ttl))
    }

    /// The bound address and port.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Queues a buffer as messages of up to a burst each; sends queued ones first where necessary.
    fn queue(&mut self, index: usize, packets: &[PacketBuf], done: &mut Transmitted) {
        let packet = &packets[index];
        let (Some(path), Some(stride)) = (packet.udp, stride(packet)) else {
            return done.unsupported(packet);
        };
        if path.remote.is_ipv4() != self.local.is_ipv4() {
            return done.refuse(
                crate::wire_packets(packet),
                &io::Error::from_raw_os_error(libc::EAFNOSUPPORT),
            );
        }
        if self.dont_fragment != Some(path.dont_fragment) {
            self.flush(packets, done);
            if let Err(error) = self.set_dont_fragment(&path) {
                return done.refuse(crate::wire_packets(packet), &error);
            }
        }
        if self.joins(index, packets) {
            return self.join(packet.len());
        }
        let step = if self.bursts { burst_bytes(stride) } else { usize::from(stride) };
        let whole =
            OutMessage { packet: index, buffers: 1, start: 0, len: packet.len(), packets: 0 };
        self.queue_bursts(whole, step, stride, &path, packets, done);
    }

    /// Whether a datagram may join the last message: on the same path, and of the same size or
    /// shorter, which ends the burst.
    fn joins(&self, index: usize, packets: &[PacketBuf]) -> bool {
        let packet = &packets[index];
        let Some(last) = self.sender.last().filter(|_| self.bursts && !self.sender.is_full())
        else {
            return false;
        };
        let first = &packets[last.packet];
        let is_open = last.len == last.buffers * first.len();
        first.segments == Segments::One
            && packet.segments == Segments::One
            && first.udp == packet.udp
            && last.packet + last.buffers == index
            && last.buffers < MAX_IOVECS
            && is_open
            && (1..=first.len()).contains(&packet.len())
            && last.len + packet.len() <= MAX_BURST_BYTES
    }

    /// Adds a datagram to the last message, which becomes a burst with its second one.
    fn join(&mut self, len: usize) {
        let stride = self.sender.last().map_or(0, |last| last.len / last.buffers);
        if let Some((2, control)) = self.sender.extend(len) {
            // No longer than a datagram.
            let stride = u16::try_from(stride).unwrap_or(u16::MAX);
            control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &stride.to_ne_bytes());
        }
    }

    /// Queues `whole` in pieces of `step` bytes, each a burst of datagrams of `stride` bytes.
    fn queue_bursts(
        &mut self,
        whole: OutMessage,
        step: usize,
        stride: u16,
        path: &UdpPath,
        packets: &[PacketBuf],
        done: &mut Transmitted,
    ) {
        let mut start = whole.start;
        let end = whole.start + whole.len;
        loop {
            if self.sender.is_full() {
                self.flush(packets, done);
            }
            let len = step.min(end - start);
            let count = len.div_ceil(usize::from(stride)).max(1);
            let part = OutMessage { start, len, packets: count as u64, ..whole };
            let control = self.sender.push(part, SocketName::of(path.remote));
            if path.local.ip() != self.local.ip() {
                write_source(control, path.local.ip());
            }
            write_tos(control, path);
            if count > 1 {
                control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &stride.to_ne_bytes());
            }
            start += len;
            if start >= end {
                return;
            }
        }
    }

    /// Sends all queued messages; bursts that the kernel refuses as such are sent again as single
    /// datagrams.
    fn flush(&mut self, packets: &[PacketBuf], done: &mut Transmitted) {
        let mut too_big = None;
        self.sender.send(self.socket.as_fd(), packets, |part, fate| match fate {
            Ok(()) => {
                done.packets += part.packets;
                done.bytes += part.len as u64;
            }
            Err(error) if part.packets > 1 && may_be_gso_refusal(error) => {
                self.bursts &= !is_gso_unsupported(error, &packets[part.packet]);
                self.refused_trains.push(part);
            }
            Err(error) => {
                let packet = &packets[part.packet];
                match packet.udp {
                    Some(path) => {
                        let esp = (path.remote.ip(), packet.bytes());
                        done.refuse_esp(part.packets, error, esp);
                    }
                    None => done.refuse(part.packets, error),
                }
                if error.raw_os_error() == Some(libc::EMSGSIZE) {
                    too_big = packets[part.packet].udp;
                }
            }
        });
        if let Some(path) = too_big {
            done.refused.path = socket::narrow_path(path.remote.ip(), self.mark);
        }
        self.send_singly(packets, done);
    }

    /// Sends refused bursts again, one datagram per message.
    fn send_singly(&mut self, packets: &[PacketBuf], done: &mut Transmitted) {
        if self.refused_trains.is_empty() {
            return;
        }
        let mut refused = std::mem::take(&mut self.refused_trains);
        for part in refused.drain(..) {
            for packet in part.packet..part.packet + part.buffers {
                let of = &packets[packet];
                let len = if part.buffers == 1 { part.len } else { of.len() };
                if let (Some(path), Some(stride)) = (of.udp, stride(of)) {
                    let whole = OutMessage { packet, buffers: 1, len, ..part };
                    self.queue_bursts(whole, usize::from(stride), stride, &path, packets, done);
                }
            }
        }
        self.flush(packets, done);
        self.refused_trains = refused;
    }

    /// Sets or clears DF of later datagrams; over IPv6 it forbids or allows the kernel to fragment.
    fn set_dont_fragment(&mut self, path: &UdpPath) -> io::Result<()> {
        let (level, option, [clear, set]) = match self.local.ip() {
            IpAddr::V4(_) => (
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                [libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_DO],
            ),
            IpAddr::V6(_) => (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                [libc::IPV6_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DO],
            ),
        };
        let value = if path.dont_fragment { set } else { clear };
        socket::set(self.socket.as_fd(), level, option, value)?;
        self.dont_fragment = Some(path.dont_fragment);
        Ok(())
    }
}

impl Port for Udp {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        while into.room() > 0 {
            let most = if self.trains_arrive { BURSTS_AT_ONCE } else { MESSAGES }.min(into.room());
            let RecvCount { count, is_full } =
                self.receiver.receive(self.socket.as_fd(), pool, most)?;
            if count > 0 && into.len() == before {
                self.waited = self.receiver.waited();
            }
            self.trains_arrive = (0..count).any(|index| self.receiver.length(index) > SMALL);
            for index in 0..count {
                let (mut packet, name, control) = self.receiver.datagram(index, pool);
                let Some(remote) = name.address() else {
                    pool.give(packet);
                    continue;
                };
                read_path(&mut packet, control, self.local, remote);
                match &self.daemons {
                    Some(daemons) if !ike::take(&mut packet, daemons) => pool.give(packet),
                    Some(_) | None => into.push(packet),
                }
            }
            if !is_full || self.trains_arrive {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        self.sender.begin();
        for index in 0..batch.len() {
            self.queue(index, batch.as_slice(), &mut done);
        }
        self.flush(batch.as_slice(), &mut done);
        pool.give_all(batch);
        done
    }

    /// Bursts always: the port splits them where the kernel does not.
    fn accepts(&self) -> Accepts {
        Accepts { bursts: true, ..Accepts::PLAIN }
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    fn overflowed(&mut self) -> u64 {
        self.overflow.since(self.socket.as_fd())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// Size of the datagrams in a buffer; `None` for buffers that a UDP socket cannot send.
fn stride(packet: &PacketBuf) -> Option<u16> {
    match (packet.segments, packet.checksum) {
        (_, Checksum::Partial { .. }) | (Segments::Tcp { .. } | Segments::Udp { .. }, _) => None,
        (Segments::One, _) => Some(u16::try_from(packet.len()).unwrap_or(u16::MAX).max(1)),
        (Segments::Burst { stride }, _) => Some(stride.max(1)),
    }
}

/// Bytes of a burst of `stride`-byte datagrams per message.
fn burst_bytes(stride: u16) -> usize {
    let stride = usize::from(stride);
    stride * (MAX_BURST_BYTES / stride).clamp(1, MAX_SEGMENTS)
}

/// Whether an error may mean that the kernel cannot send this burst as one message.
fn may_be_gso_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE))
}

/// Whether an error to a burst means that no burst can ever be sent: `EIO` means that the device
/// cannot checksum; `EINVAL` otherwise means that a datagram exceeds the MTU.
fn is_gso_unsupported(error: &io::Error, packet: &PacketBuf) -> bool {
    error.raw_os_error() == Some(libc::EIO)
        || (error.raw_os_error() == Some(libc::EINVAL)
            && stride(packet).is_some_and(|size| size <= MIN_PATH_PAYLOAD))
}

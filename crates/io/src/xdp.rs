//! A network device through `AF_XDP`: the gateway's frames past the kernel's network stack, by
//! rings in shared memory, and all others by a packet socket.
//!
//! ```text
//!   device ─▶ driver ─▶ program ─┬─ surely ours ─▶ ring ─────────────────▶ engine   no sk_buff
//!                                └─ others ─▶ kernel ─▶ packet socket ─▶ engine
//! ```
//!
//! Traffic between gateways is nearly all ESP: single sealed frames without pending checksums. That
//! suits a ring in both directions, as it carries no metadata about checksums and super-packets.
//! Plain packets may need it, so they leave by the packet socket, and for those received by a ring
//! the checksum itself shows whether it was [left open](checksum::verify_if_cheap). The packet
//! socket receives all that the [program](Program) does not take, so nothing depends on its
//! completeness.
//!
//! A socket belongs to one queue of the device. Queues without one are served by the packet
//! sockets. Sources: `Documentation/networking/af_xdp.rst`, `net/xdp/xsk.c`.

mod arrival_times;
mod assembler;
mod bpf;
mod fill_ring;
mod mapping;
mod program;
mod queue;
mod ring;
mod saved_state;
mod umem;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use uxfrm_packet::ethernet::MacAddr;
use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments, checksum};

use self::program::ADDRESS;
pub use self::queue::{Queue, QueueParts};
use self::umem::Umem;
use crate::frames::{FramePort, Frames};
use crate::packet_socket::PacketSocket;
use crate::poll::Poller;
use crate::port::{Accepts, Transmitted};

/// Why `AF_XDP` cannot be used at a device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// No map of sockets: most likely not permitted, or a kernel without `CONFIG_XDP_SOCKETS`.
    #[error("the kernel gives no map of XDP sockets (needs CAP_BPF and CONFIG_XDP_SOCKETS)")]
    Map(#[source] io::Error),
    /// The program was refused, with the verifier's last words.
    #[error("the kernel refuses the XDP program: {1}")]
    Program(#[source] io::Error, String),
    /// The driver takes no program, or there is one already.
    #[error("the driver takes no XDP program in native mode, or the device has one already")]
    Attach(#[source] io::Error),
    /// Frames are too large for one chunk of memory.
    #[error("frames of {0} bytes don't fit: an MTU of up to 3826 does")]
    TooLarge(u32),
    /// The device has no such queue, or another program uses it.
    #[error("can't use queue {0}: there is none, or another program uses it")]
    Queue(u32, #[source] io::Error),
    /// The kernel may not lock the frames' memory.
    #[error(
        "the kernel may not lock {0} bytes of memory for frames (needs CAP_IPC_LOCK, or a higher limit of locked memory: `ulimit -l`, LimitMEMLOCK=)"
    )]
    Memory(usize, #[source] io::Error),
    /// The descriptors of a predecessor cannot be used.
    #[error("can't go on with the rings of another process (needs Linux 6.4): restart")]
    Passed(#[source] io::Error),
    /// The frame size no longer fits the MTU.
    #[error("the device's MTU has become {0} since its rings were made: restart")]
    MtuChanged(u32),
    /// Rings or memory.
    #[error("can't set up an XDP socket")]
    Socket(#[from] io::Error),
}

/// A device, and the frames that its sockets receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOptions {
    /// The device's index.
    pub link: u32,
    /// Its own address.
    pub mac: MacAddr,
    /// The largest IP packet that it takes, in bytes.
    pub mtu: u32,
    /// Selection of frames.
    pub selection: FrameSelection,
    /// Number of queues, from the first one on, that may have sockets.
    pub queues: u32,
}

impl ProgramOptions {
    /// Bytes of the device's longest frame.
    fn longest(&self) -> u32 {
        self.mtu.saturating_add(ETHERNET)
    }

    /// Bytes of the longest frame that fits its sockets.
    fn most(&self) -> u32 {
        Umem::most(self.longest()).unwrap_or(0)
    }
}

/// Selections of frames for the sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameSelection {
    /// ESP, and ESP in UDP. It is also sent by the rings.
    Esp {
        /// UDP ports of ESP in UDP.
        ports: Vec<u16>,
    },
    /// Only ESP to the host itself. Such sockets send nothing but ESP.
    OwnEsp,
    /// Packets to forward. They are sent, also as super-packets, by the packet socket.
    Forwarded,
}

/// The program at a device, which redirects frames to the sockets of its queues. It is detached
/// with the last of its sockets and owners.
#[derive(Debug)]
pub struct Program {
    options: ProgramOptions,
    sockets: OwnedFd,
    /// The host's own addresses.
    own: OwnedFd,
    program: OwnedFd,
    /// Frames received by the queues.
    received: AtomicU64,
    at_device: OwnedFd,
}

/// Descriptors of a program, for a successor process.
#[derive(Debug)]
pub struct ProgramParts<Fd> {
    /// The program's attachment.
    pub at_device: Fd,
    /// The sockets of its queues.
    pub sockets: Fd,
    /// Map of the host's addresses.
    pub own: Fd,
}

/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;
/// More addresses than any host has.
const ADDRESSES: u32 = 1 << 16;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpVerdict {
    /// To the socket of its queue.
    Socket,
    /// To the kernel.
    Kernel,
}

impl Program {
    /// Puts the program at a device. Needs `CAP_BPF` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(options: ProgramOptions) -> Result<Arc<Self>, XdpError> {
        let sockets = bpf::sockets(options.queues.max(1)).map_err(XdpError::Map)?;
        let own = bpf::addresses(ADDRESSES).map_err(XdpError::Map)?;
        let program = load(&options, &sockets, &own)?;
        let at_device = bpf::attach(program.as_fd(), options.link).map_err(XdpError::Attach)?;
        let received = AtomicU64::new(0);
        Ok(Arc::new(Self { options, sockets, own, program, received, at_device }))
    }

    /// A program in place of a predecessor's, which stays until this one is [put in its
    /// place](Self::put_in_place).
    ///
    /// # Errors
    /// [`XdpError::Program`]
    pub fn of_parts(
        options: ProgramOptions,
        parts: ProgramParts<OwnedFd>,
    ) -> Result<Arc<Self>, XdpError> {
        let ProgramParts { at_device, sockets, own } = parts;
        let program = load(&options, &sockets, &own)?;
        let received = AtomicU64::new(0);
        Ok(Arc::new(Self { options, sockets, own, program, received, at_device }))
    }

    /// Its descriptors, for a successor process.
    #[must_use]
    pub fn parts(&self) -> ProgramParts<BorrowedFd<'_>> {
        let [at_device, sockets, own] =
            [&self.at_device, &self.sockets, &self.own].map(|part| part.as_fd());
        ProgramParts { at_device, sockets, own }
    }

    /// Replaces the predecessor's program, between two frames.
    ///
    /// # Errors
    /// The kernel's; the other stays.
    pub fn put_in_place(&self) -> io::Result<()> {
        bpf::replace(self.at_device.as_fd(), self.program.as_fd())
    }

    /// Sets the host's addresses: forwarded packets go to none of them, and the host's own ESP to
    /// one.
    ///
    /// # Errors
    /// The kernel's; earlier changes stay.
    pub fn set_host_addresses(&self, now: &[IpAddr]) -> io::Result<()> {
        let own = self.own.as_fd();
        now.iter().try_for_each(|address| bpf::insert_address(own, &key(*address)))?;
        let mut gone = bpf::list_addresses(own)?;
        gone.retain(|known| now.iter().all(|address| key(*address) != *known));
        gone.iter().try_for_each(|address| bpf::remove_address(own, address))
    }

    /// Number of frames received by its queues.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The program's verdict on a frame at the first queue.
    ///
    /// # Errors
    /// The kernel's: a frame without a whole Ethernet header, or larger than a page.
    pub fn verdict(&self, frame: &[u8]) -> io::Result<XdpVerdict> {
        const XDP_REDIRECT: u32 = 4;
        let answer = bpf::test_run(self.program.as_fd(), frame)?;
        Ok(if answer == XDP_REDIRECT { XdpVerdict::Socket } else { XdpVerdict::Kernel })
    }
}

/// Loads the program of these options for these maps.
fn load(options: &ProgramOptions, sockets: &OwnedFd, own: &OwnedFd) -> Result<OwnedFd, XdpError> {
    let (own, sockets) = (own.as_raw_fd(), sockets.as_raw_fd());
    let frames = program::FrameFilter { mac: options.mac, most: options.most() };
    let code = match &options.selection {
        FrameSelection::Esp { ports } => program::esp(frames, ports, sockets),
        FrameSelection::OwnEsp => program::own_esp(frames, own, sockets),
        FrameSelection::Forwarded => program::passing(frames, own, sockets),
    };
    bpf::load(&code).map_err(|(error, words)| XdpError::Program(error, words))
}

/// An address as a key of the map.
fn key(address: IpAddr) -> [u8; ADDRESS] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut key = [0; ADDRESS];
            key[ADDRESS - 4..].copy_from_slice(&v4.octets());
            key
        }
    }
}

/// A device's queue as a port, with a packet socket for all that the program or a ring cannot
/// carry.
#[derive(Debug)]
pub struct Xdp {
    queue: Queue,
    others: PacketSocket,
    both: Poller,
    /// The source to read first: they alternate, so that neither starves.
    first: PcapReader,
    /// Frames of a batch for the packet socket.
    rest: Frames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PcapReader {
    Queue,
    Others,
}

impl Xdp {
    /// A queue, and a packet socket on the same device.
    ///
    /// # Errors
    /// The kernel's: out of descriptors.
    pub fn new(queue: Queue, others: PacketSocket) -> io::Result<Self> {
        let both = Poller::new()?;
        both.add(queue.as_fd(), 0)?;
        if let Some(descriptor) = others.descriptor() {
            both.add(descriptor, 1)?;
        }
        Ok(Self { queue, others, both, first: PcapReader::Queue, rest: Frames::new() })
    }

    fn receive_from_queue(&mut self, pool: &mut Pool, into: &mut Batch) {
        let before = into.len();
        self.queue.receive(pool, into);
        match self.queue.program.options.selection {
            FrameSelection::Esp { .. } | FrameSelection::OwnEsp => {}
            FrameSelection::Forwarded => into.as_mut_slice()[before..].iter_mut().for_each(surmise),
        }
    }
}

/// Virtual links leave checksums open, which a ring does not report.
fn surmise(packet: &mut PacketBuf) {
    if let Ok(ip) = IpPacket::parse(packet.bytes()) {
        packet.checksum = checksum::verify_if_cheap(&ip, packet.bytes());
    }
}

impl FramePort for Xdp {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        match self.first {
            PcapReader::Queue => {
                self.receive_from_queue(pool, into);
                self.others.receive(pool, into)?;
                self.first = PcapReader::Others;
            }
            PcapReader::Others => {
                self.others.receive(pool, into)?;
                self.receive_from_queue(pool, into);
                self.first = PcapReader::Queue;
            }
        }
        Ok(into.len() - before)
    }

    /// ESP leaves by the ring, all else by the packet socket: flows keep their order.
    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted {
        let Self { queue, others, rest, .. } = self;
        let program = Arc::clone(&queue.program);
        let FrameSelection::Esp { ports } = &program.options.selection else {
            return others.transmit(frames, pool);
        };
        let mut done = Transmitted::default();
        queue.begin();
        for (header, packet) in frames.drain() {
            if is_for_ring(&packet, ports) && longest(&packet) <= queue.mtu() {
                queue.push(&header, &packet, &mut done);
                pool.give(packet);
            } else {
                rest.push(header, packet);
            }
        }
        queue.send();
        if !rest.is_empty() {
            done += others.transmit(rest, pool);
        }
        done
    }

    fn has_backlog(&mut self) -> bool {
        self.queue.has_backlog()
    }

    fn save_state(&mut self) {
        self.queue.save_state();
    }

    fn restore_state(&mut self) -> io::Result<()> {
        self.queue.restore_state()
    }

    fn lost(&mut self) -> u64 {
        self.queue.lost() + self.others.lost()
    }

    fn accepts(&self) -> Accepts {
        self.others.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.as_fd())
    }
}

/// A queue alone: single ESP packets and bursts that need no offload.
impl FramePort for Queue {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        Self::receive(self, pool, into);
        Ok(into.len() - before)
    }

    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        self.begin();
        for (header, packet) in frames.drain() {
            self.push(&header, &packet, &mut done);
            pool.give(packet);
        }
        self.send();
        done
    }

    fn has_backlog(&mut self) -> bool {
        Self::has_backlog(self)
    }

    fn save_state(&mut self) {
        Self::save_state(self);
    }

    fn restore_state(&mut self) -> io::Result<()> {
        Self::restore_state(self)
    }

    fn waited(&self) -> Duration {
        self.arrival_times.waited()
    }

    fn mtu(&self) -> usize {
        Self::mtu(self)
    }

    fn lost(&mut self) -> u64 {
        Self::lost(self)
    }

    fn accepts(&self) -> Accepts {
        Accepts { bursts: true, ..Accepts::PLAIN }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// Bytes of the longest IP packet of a buffer.
fn longest(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::Burst { stride } => usize::from(stride).min(packet.len()),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len(),
    }
}

/// ESP, whole or a fragment, or ESP in UDP, that needs no offload.
#[inline]
fn is_for_ring(packet: &PacketBuf, ports: &[u16]) -> bool {
    let is_whole = match packet.segments {
        Segments::One | Segments::Burst { .. } => packet.checksum == Checksum::AsIs,
        Segments::Tcp { .. } | Segments::Udp { .. } => false,
    };
    if !is_whole || packet.udp.is_some() {
        return false;
    }
    let Ok(ip) = IpPacket::parse(packet.bytes()) else { return false };
    match ip.protocol {
        Protocol::ESP => true,
        Protocol::UDP => ip.upper(packet.bytes()).first_chunk().is_some_and(|[a, b, c, d]| {
            let ends = [[*a, *b], [*c, *d]].map(u16::from_be_bytes);
            ends.iter().any(|port| ports.contains(port))
        }),
        Protocol(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::UdpPath;
    use uxfrm_testkit::packets;

    use super::*;

    #[test]
    fn ring_takes_only_complete_esp() {
        let esp = || {
            let mut packet = packets::udp("192.0.2.1:1", "192.0.2.2:2", b"sealed");
            packet.bytes_mut()[9] = Protocol::ESP.0;
            packet
        };
        let changed = |change: fn(&mut PacketBuf)| {
            let mut packet = esp();
            change(&mut packet);
            packet
        };
        let udp = |from, to| packets::udp(from, to, b"sealed");
        for (packet, expected) in [
            (esp(), true),
            (udp("192.0.2.1:4500", "192.0.2.2:1025"), true),
            (udp("[2001:db8::1]:1025", "[2001:db8::2]:4500"), true),
            (udp("192.0.2.1:53", "192.0.2.2:1025"), false),
            (packets::tcp_super("192.0.2.1:4500", "192.0.2.2:4500", &[7; 100], 50), false),
            (changed(|packet| packet.segments = Segments::Burst { stride: 20 }), true),
            (changed(|packet| packet.segments = Segments::Udp { size: 20 }), false),
            (changed(|packet| packet.checksum = Checksum::Partial { start: 20, offset: 6 }), false),
            (PacketBuf::from_slice(b"no packet"), false),
        ] {
            assert_eq!(is_for_ring(&packet, &[4500]), expected, "{packet:?}");
        }
        let mut payload = esp();
        payload.udp = Some(UdpPath {
            local: "192.0.2.1:4500".parse().unwrap(),
            remote: "192.0.2.2:4500".parse().unwrap(),
            tos: 0,
            dont_fragment: false,
        });
        assert!(!is_for_ring(&payload, &[4500]));
    }
}

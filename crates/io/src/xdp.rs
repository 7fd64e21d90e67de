//! A network device through `AF_XDP`: ESP past the kernel's network stack, by rings in shared memory, and all else by a packet socket.
//!
//! ```text
//!   device ─▶ driver ─▶ program ─┬─ ESP ──────▶ ring ──────────▶ engine      no sk_buff; with a driver that can, no copy by the kernel
//!                                └─ all else ─▶ kernel ─▶ packet socket ─▶ engine
//! ```
//!
//! What is on a wire between gateways is nearly all ESP: single frames without checksums left open, sealed and whole. That is what a ring is
//! good for, which tells of neither checksums nor super-packets. Plain packets keep their way with both. What the
//! [program](Program) does not take, for being unsure, the packet socket has as ever, so that nothing depends on its being complete.
//!
//! A socket belongs to one queue of the device. Queues without one are served by the packet sockets.
//! Sources: `Documentation/networking/af_xdp.rst`, `net/xdp/xsk.c`.

mod bpf;
mod mapping;
mod program;
mod ring;
mod umem;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};

use thiserror::Error;
use uxfrm_packet::ethernet::{EthernetHeader, MacAddr};
use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments, SizeClass};
use zerocopy::IntoBytes;

use self::mapping::Mapping;
use self::ring::{Consumer, Producer};
use self::umem::Umem;
use crate::frames::{FramePort, Frames};
use crate::mmsg::{is_busy, wait_for_room};
use crate::packet_socket::PacketSocket;
use crate::poll::Poller;
use crate::port::{Accepts, Transmitted};
use crate::socket;

/// Entries of each ring, and frames for each direction.
const ENTRIES: u32 = 2048;
/// Bytes of an Ethernet header.
const ETHERNET: usize = size_of::<EthernetHeader>();

/// Why a device can't be used this way.
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
    #[error("frames of {0} bytes don't fit: an MTU of up to {most} does", most = 3840 - ETHERNET)]
    TooLarge(u32),
    /// The device has no such queue, or another program uses it.
    #[error("can't use queue {0}: there is none, or another program uses it")]
    Queue(u32, #[source] io::Error),
    /// Rings or memory.
    #[error("can't set up an XDP socket")]
    Socket(#[from] io::Error),
}

/// A device, and which of its frames the sockets get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOptions {
    /// The device's index.
    pub link: u32,
    /// Its own address.
    pub mac: MacAddr,
    /// The largest IP packet that it takes, in bytes.
    pub mtu: u32,
    /// UDP ports at which ESP may arrive.
    pub ports: Vec<u16>,
    /// How many of its queues may have sockets, from the first one on.
    pub queues: u32,
}

/// The program at a device, which hands frames to the sockets of its queues. It leaves the device when this is dropped.
#[derive(Debug)]
pub struct Program {
    options: ProgramOptions,
    sockets: OwnedFd,
    program: OwnedFd,
    _at_device: OwnedFd,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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
    pub fn attach(options: ProgramOptions) -> Result<Self, XdpError> {
        let sockets = bpf::sockets(options.queues.max(1)).map_err(XdpError::Map)?;
        let code = program::esp(options.mac, &options.ports, sockets.as_raw_fd());
        let program = bpf::load(&code).map_err(|(error, words)| XdpError::Program(error, words))?;
        let at_device = bpf::attach(program.as_fd(), options.link).map_err(XdpError::Attach)?;
        Ok(Self { options, sockets, program, _at_device: at_device })
    }

    /// What it does with a frame that comes by the first queue.
    ///
    /// # Errors
    /// The kernel's: a frame without a whole Ethernet header, or larger than a page.
    pub fn verdict(&self, frame: &[u8]) -> io::Result<Verdict> {
        const XDP_REDIRECT: u32 = 4;
        let answer = bpf::try_out(self.program.as_fd(), frame)?;
        Ok(if answer == XDP_REDIRECT { Verdict::Socket } else { Verdict::Kernel })
    }
}

/// A device's queue as a port, with a packet socket for what the program does not take, and for what a ring can't send.
#[derive(Debug)]
pub struct Xdp {
    socket: Socket,
    others: PacketSocket,
    both: Poller,
    /// Which is asked first: they take turns, so that neither starves.
    first: Source,
    /// What the packet socket sends of a batch.
    rest: Frames,
    ports: Box<[u16]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Ring,
    Others,
}

impl Xdp {
    /// Opens a queue of the program's device.
    ///
    /// # Errors
    /// [`XdpError::Queue`] where the device has no such queue, [`XdpError::TooLarge`], or the kernel's.
    pub fn open(program: &Program, queue: u32, others: PacketSocket) -> Result<Self, XdpError> {
        let socket = Socket::open(&program.options, queue)?;
        bpf::insert(program.sockets.as_fd(), queue, socket.fd.as_fd())?;
        let both = Poller::new()?;
        both.add(socket.fd.as_fd(), 0)?;
        if let Some(descriptor) = others.descriptor() {
            both.add(descriptor, 1)?;
        }
        let (rest, ports) = (Frames::new(), program.options.ports.as_slice().into());
        Ok(Self { socket, others, both, first: Source::Ring, rest, ports })
    }

    /// Whether the driver and the engine share the frames' memory, so that the kernel copies nothing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        let options = socket::option(self.socket.fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)?;
        Ok(options.cast_unsigned() & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }
}

impl FramePort for Xdp {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        match self.first {
            Source::Ring => {
                self.socket.receive(pool, into);
                if into.room() > 0 {
                    self.others.receive(pool, into)?;
                }
                self.first = Source::Others;
            }
            Source::Others => {
                self.others.receive(pool, into)?;
                self.socket.receive(pool, into);
                self.first = Source::Ring;
            }
        }
        Ok(into.len() - before)
    }

    /// ESP by the ring, all else by the packet socket: what is of one flow keeps its order.
    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        self.socket.begin();
        for (header, packet) in frames.drain() {
            if is_for_ring(&packet, &self.ports) {
                self.socket.queue(&header, &packet, &mut done);
                pool.give(packet);
            } else {
                self.rest.push(header, packet);
            }
        }
        self.socket.send();
        if !self.rest.is_empty() {
            done += self.others.transmit(&mut self.rest, pool);
        }
        done
    }

    fn accepts(&self) -> Accepts {
        self.others.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.as_fd())
    }
}

/// ESP, whole or a fragment, and ESP in UDP: with nothing left for a device to do.
#[inline]
fn is_for_ring(packet: &PacketBuf, ports: &[u16]) -> bool {
    let is_whole = match packet.segments {
        Segments::One | Segments::Train { .. } => packet.checksum == Checksum::AsIs,
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

/// The socket itself: frames go round from the filling ring to that of what was received, and from the free ones to that of what is to be sent,
/// and to that of what has been.
#[derive(Debug)]
struct Socket {
    filling: Producer<u64>,
    received: Consumer<libc::xdp_desc>,
    sending: Producer<libc::xdp_desc>,
    sent: Consumer<u64>,
    free: Vec<u64>,
    /// It may still wait for room in this batch.
    patient: bool,
    // Closed before the memory goes that the kernel writes to.
    fd: OwnedFd,
    umem: Umem,
}

impl Socket {
    fn open(options: &ProgramOptions, queue: u32) -> Result<Self, XdpError> {
        let fd = socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let longest = options.mtu.saturating_add(u32::try_from(ETHERNET).unwrap_or(0));
        let umem = Umem::new(2 * ENTRIES, longest).ok_or(XdpError::TooLarge(longest))??;
        umem.register(fd.as_fd())?;
        let mut frames = umem.frames();
        let (filling, received, sending, sent) = rings(fd.as_fd())?;
        let mut socket = Self {
            filling,
            received,
            sending,
            sent,
            free: Vec::with_capacity(ENTRIES as usize),
            patient: true,
            fd,
            umem,
        };
        for frame in frames.by_ref().take(ENTRIES as usize) {
            socket.fill(frame);
        }
        socket.filling.publish();
        socket.free.extend(frames);
        bind(socket.fd.as_fd(), options.link, queue)
            .map_err(|error| XdpError::Queue(queue, error))?;
        Ok(socket)
    }

    /// Gives a frame to the kernel to receive into. The ring has as many places as there are such frames.
    #[inline]
    fn fill(&mut self, frame: u64) {
        let given = self.filling.push(frame);
        debug_assert!(given.is_ok());
    }

    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) {
        while into.room() > 0 {
            let Some(place) = self.received.next() else { break };
            let packet = self.umem.bytes(place.addr, place.len).and_then(|frame| {
                let bytes = frame.get(ETHERNET..)?;
                let mut packet = pool.take(SizeClass::holding(bytes.len()));
                packet.append(bytes.len())?.copy_from_slice(bytes);
                Some(packet)
            });
            // A frame without a packet is none that the program takes.
            if let Some(packet) = packet {
                into.push(packet);
            }
            self.fill(self.umem.frame_of(place.addr));
        }
        self.received.release();
        self.filling.publish();
        if self.filling.needs_call() {
            self.call_for_receiving();
        }
    }

    /// A batch begins: it may wait for the kernel once.
    fn begin(&mut self) {
        self.patient = true;
        self.reclaim();
    }

    /// Takes back the frames that have been sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.sent.next() {
            self.free.push(self.umem.frame_of(address));
        }
        self.sent.release();
    }

    /// Queues a packet, or each of a train.
    fn queue(&mut self, header: &EthernetHeader, packet: &PacketBuf, done: &mut Transmitted) {
        let stride = match packet.segments {
            Segments::Train { stride } => usize::from(stride.max(1)),
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
        };
        for piece in packet.bytes().chunks(stride) {
            let Some(frame) = self.free_frame() else {
                done.refused.busy += 1;
                continue;
            };
            let Some(room) = self.umem.bytes_mut(frame, ETHERNET + piece.len()) else {
                self.free.push(frame);
                done.refused.too_big += 1;
                continue;
            };
            let (front, behind) = room.split_at_mut(ETHERNET);
            front.copy_from_slice(header.as_bytes());
            behind.copy_from_slice(piece);
            let len = u32::try_from(ETHERNET + piece.len()).unwrap_or(0);
            // As many places as there are frames to be sent.
            let queued = self.sending.push(libc::xdp_desc { addr: frame, len, options: 0 });
            debug_assert!(queued.is_ok());
            done.packets += 1;
            done.bytes += piece.len() as u64;
        }
    }

    /// A frame to send from: where none is free, after the kernel was called, and waited for once.
    fn free_frame(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            self.send();
            self.reclaim();
            if self.free.is_empty() && std::mem::take(&mut self.patient) {
                wait_for_room(self.fd.as_fd());
                self.send();
                self.reclaim();
            }
        }
        self.free.pop()
    }

    /// Lets the kernel send what is queued. It takes so many at a call: as long as there are fewer each time it is called again. What a link
    /// does not take now stays in the ring and leaves with what comes next.
    fn send(&mut self) {
        self.sending.publish();
        let mut before = u32::MAX;
        loop {
            let left = self.sending.unread();
            if left == 0 || !self.sending.needs_call() {
                return;
            }
            if left >= before && !std::mem::take(&mut self.patient) {
                return;
            }
            if left >= before {
                wait_for_room(self.fd.as_fd());
            }
            before = left;
            if let Err(error) = self.call_for_sending()
                && !is_busy(&error)
                && error.raw_os_error() != Some(libc::EBUSY)
            {
                return;
            }
        }
    }

    fn call_for_sending(&self) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: no bytes and no name.
        let result = unsafe { libc::sendto(fd, null(), 0, libc::MSG_DONTWAIT, null(), 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn call_for_receiving(&self) {
        let fd = self.fd.as_raw_fd();
        // SAFETY: no bytes and no name. What it says does not matter: it only wakes the driver.
        unsafe { libc::recvfrom(fd, null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
    }
}

type Rings = (Producer<u64>, Consumer<libc::xdp_desc>, Producer<libc::xdp_desc>, Consumer<u64>);

/// Makes and maps the four rings of a socket.
fn rings(fd: BorrowedFd<'_>) -> io::Result<Rings> {
    let size = ENTRIES.cast_signed();
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        socket::set(fd, libc::SOL_XDP, ring, size)?;
    }
    let offsets = offsets(fd)?;
    let map = |offsets: &libc::xdp_ring_offset, entry: usize, at: u64| {
        let len = usize::try_from(offsets.desc).unwrap_or(0) + entry * ENTRIES as usize;
        Mapping::shared(fd, at.cast_signed(), len)
    };
    let (frame, place) = (size_of::<u64>(), size_of::<libc::xdp_desc>());
    let filling = map(&offsets.fr, frame, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    let received = map(&offsets.rx, place, libc::XDP_PGOFF_RX_RING.cast_unsigned())?;
    let sending = map(&offsets.tx, place, libc::XDP_PGOFF_TX_RING.cast_unsigned())?;
    let sent = map(&offsets.cr, frame, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
    Ok((
        Producer::new(filling, &offsets.fr, ENTRIES)?,
        Consumer::new(received, &offsets.rx, ENTRIES)?,
        Producer::new(sending, &offsets.tx, ENTRIES)?,
        Consumer::new(sent, &offsets.cr, ENTRIES)?,
    ))
}

/// Where in the mappings of the rings everything is.
fn offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: integers, for which zero bytes are valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = u32::try_from(size_of::<libc::xdp_mmap_offsets>()).unwrap_or(0);
    // SAFETY: the pointers are to live offsets and their length.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(offsets) }
}

/// Without a word for or against copying: the kernel copies where the driver can't do without.
fn bind(fd: BorrowedFd<'_>, link: u32, queue: u32) -> io::Result<()> {
    let name = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: link,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = u32::try_from(size_of::<libc::sockaddr_xdp>()).unwrap_or(0);
    // SAFETY: the pointer is to a live name of the length given.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::UdpPath;
    use uxfrm_testkit::packets;

    use super::*;

    #[test]
    fn only_what_is_sealed_and_whole_goes_by_the_ring() {
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
            (changed(|packet| packet.segments = Segments::Train { stride: 20 }), true),
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

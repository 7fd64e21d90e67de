//! A device queue: its sockets, rings and frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use uxfrm_packet::ethernet::EthernetHeader;
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, SizeClass};
use zerocopy::IntoBytes as _;

use super::arrival_times::ArrivalTimes;
use super::fill_ring::FillRing;
use super::mapping::Mapping;
use super::ring::{Consumer, Producer};
use super::saved_state::{RingState, UmemLayout};
use super::umem::Umem;
use super::{Program, XdpError, bpf};
use crate::clock;
use crate::port::Transmitted;
use crate::send_backoff::{SendBackoff, is_busy};
use crate::socket;

/// Receive frames and ring size: at full speed some milliseconds without the worker.
const RECEIVED: u32 = 4096;
/// Transmit frames and ring size.
const SENT: u32 = 2048;
/// Most frames in flight where the kernel copies. A veth's queue has 256 places, and drops others.
const MAX_IN_FLIGHT: u32 = 240;
/// Send buffer for them; the kernel doubles the value.
const MEMORY: i32 = 240 * 2304 / 2;
/// `XDP_MAX_TX_SKB_BUDGET`: frames that the kernel copies per call (Linux 6.17; before 32), and the
/// value to set.
const TX_BUDGET: (i32, i32) = (9, 256);
/// How long a queue may stay busy: the kernel frees it a little after the end of its last process.
const FREED_WITHIN: Duration = Duration::from_secs(3);
/// Pause between two attempts to bind a busy queue.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of an Ethernet header.
const ETHERNET: usize = size_of::<EthernetHeader>();

/// One queue of a program's device. Frames circulate: from the fill ring to the receive ring and
/// back; from the free list to the transmit ring, the completion ring and back.
#[derive(Debug)]
pub struct Queue {
    fill_ring: FillRing,
    received: Consumer<libc::xdp_desc>,
    pub(super) arrival_times: ArrivalTimes,
    sending: Producer<libc::xdp_desc>,
    sent: Consumer<u64>,
    free: Vec<u64>,
    /// Transmit frames, free or not.
    tx_frames: u32,
    /// Most frames in flight.
    max_in_flight: u32,
    /// Whether this batch may still wait for room.
    backoff: SendBackoff,
    /// Lost frames at the last query.
    lost: u64,
    /// The last send failed for good: the device is down or gone.
    is_down: bool,
    // Closed before the memory that the kernel writes to.
    /// Receives, and is polled.
    socket: OwnedFd,
    /// Sends: completions wake those who poll its socket, which nobody does.
    sender: OwnedFd,
    umem: Umem,
    // Lives as long as any of its sockets.
    pub(super) program: Arc<Program>,
}

/// Descriptors of a queue, for a successor process.
#[derive(Debug)]
pub struct QueueParts<Fd> {
    /// The socket that receives.
    pub socket: Fd,
    /// The sending socket.
    pub sender: Fd,
    /// The frames.
    pub memory: Fd,
}

impl Queue {
    /// Opens a queue of the program's device.
    ///
    /// # Errors
    /// [`XdpError::Queue`] where the device has none of this number, [`XdpError::TooLarge`], or the
    /// kernel's.
    pub fn open(program: &Arc<Program>, number: u32) -> Result<Self, XdpError> {
        let options = &program.options;
        let socket = socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let longest = options.longest();
        let umem = Umem::new(RECEIVED, SENT, longest).ok_or(XdpError::TooLarge(longest))??;
        umem.register(socket.as_fd()).map_err(|error| XdpError::Memory(umem.len(), error))?;
        let mut frames = umem.frames();
        let sender = socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        make_rings(socket.as_fd(), sender.as_fd())?;
        let mut queue = Self::of(program, socket, sender, umem)?;
        frames.by_ref().take(RECEIVED as usize).for_each(|frame| queue.fill_ring.give(frame));
        queue.fill_ring.publish();
        queue.free.extend(frames);
        queue.enlarge_send_buffer();
        queue.bind_queue(number)?;
        queue.limit_if_copied()?;
        Ok(queue)
    }

    /// A predecessor's queue, which the predecessor uses until this one restores its state. Needs
    /// Linux 6.4.
    ///
    /// # Errors
    /// [`XdpError::Passed`] if it cannot be used, or the device's MTU has changed.
    pub fn of_parts(program: &Arc<Program>, parts: QueueParts<OwnedFd>) -> Result<Self, XdpError> {
        let QueueParts { socket, sender, memory } = parts;
        let umem = Umem::of(memory).map_err(XdpError::Passed)?;
        if !umem.suits(program.options.longest()) {
            return Err(XdpError::MtuChanged(program.options.mtu));
        }
        let mut queue = Self::of(program, socket, sender, umem).map_err(XdpError::Passed)?;
        queue.limit_if_copied()?;
        Ok(queue)
    }

    /// A queue with existing rings, not yet in use.
    fn of(
        program: &Arc<Program>,
        socket: OwnedFd,
        sender: OwnedFd,
        umem: Umem,
    ) -> io::Result<Self> {
        let layout = umem.saved_state().layout();
        let (fill_ring, received, sent) = receiving_rings(socket.as_fd(), layout)?;
        let sending = sending_ring(sender.as_fd(), layout)?;
        Ok(Self {
            fill_ring: FillRing::new(fill_ring),
            received,
            arrival_times: ArrivalTimes::default(),
            sending,
            sent,
            free: Vec::with_capacity(layout.sent as usize),
            tx_frames: layout.sent,
            max_in_flight: u32::MAX,
            backoff: SendBackoff::new(),
            lost: 0,
            is_down: false,
            socket,
            sender,
            umem,
            program: Arc::clone(program),
        })
    }

    /// Limits frames in flight if the kernel copies.
    fn limit_if_copied(&mut self) -> io::Result<()> {
        if !self.is_zero_copy()? {
            self.max_in_flight = MAX_IN_FLIGHT;
        }
        Ok(())
    }

    /// Its descriptors, for a successor process.
    #[must_use]
    pub fn parts(&self) -> QueueParts<BorrowedFd<'_>> {
        let (socket, sender) = (self.socket.as_fd(), self.sender.as_fd());
        QueueParts { socket, sender, memory: self.umem.memory() }
    }

    /// Saves the state that only this process knows. It may continue itself if the successor does
    /// not.
    pub(super) fn save_state(&mut self) {
        self.reclaim();
        self.fill_ring.publish();
        let numbers = |frames: &[u64]| frames.iter().map(|at| self.umem.number(*at)).collect();
        let (free, waiting) = (numbers(&self.free), numbers(self.fill_ring.waiting()));
        let rest = RingState { unseen: self.sending.unseen(), lost: self.lost, free, waiting };
        self.umem.saved_state().save(&rest);
    }

    /// Restores a predecessor's state.
    ///
    /// # Errors
    /// When none was saved.
    pub(super) fn restore_state(&mut self) -> io::Result<()> {
        let RingState { unseen, lost, free, waiting } = self.umem.saved_state().restore()?;
        let places = |numbers: Vec<u32>| numbers.into_iter().map(|at| self.umem.place(at));
        let (free, waiting) = (places(free).collect(), places(waiting).collect());
        self.fill_ring.resume(waiting);
        self.received.resume();
        self.sending.resume(unseen);
        self.sent.resume();
        (self.free, self.lost) = (free, lost);
        Ok(())
    }

    /// Allows more frames in flight and per call, where the kernel permits it; otherwise it is
    /// slower.
    fn enlarge_send_buffer(&self) {
        let socket = self.sender.as_fd();
        let _limited = socket::set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, MEMORY);
        let (option, frames) = TX_BUDGET;
        let _older = socket::set(socket, libc::SOL_XDP, option, frames);
    }

    /// Binds the sockets to the device's queue, and adds it to the program's map.
    fn bind_queue(&self, number: u32) -> Result<(), XdpError> {
        let place = QueueAddress { link: self.program.options.link, queue: number };
        let bind = || {
            bind_once_free(self.socket.as_fd(), place)?;
            bind(self.sender.as_fd(), place, Some(self.socket.as_fd()))
        };
        bind().map_err(|error| XdpError::Queue(number, error))?;
        Ok(bpf::insert(self.program.sockets.as_fd(), number, self.socket.as_fd())?)
    }

    /// Whether driver and engine share the frames' memory (zero copy).
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        let options = socket::option(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)?;
        Ok(options.cast_unsigned() & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Largest IP packet that it sends: the device's MTU when the program was attached.
    pub(super) fn mtu(&self) -> usize {
        self.program.options.mtu as usize
    }

    /// Frames lost in a full ring or without a free frame, since the last call.
    pub(super) fn lost(&mut self) -> u64 {
        // Without statistics no loss is known.
        let lost = statistics(self.socket.as_fd()).map_or(self.lost, |counts| counts.total());
        lost.saturating_sub(std::mem::replace(&mut self.lost, lost))
    }

    pub(super) fn receive(&mut self, pool: &mut Pool, into: &mut Batch) {
        let (read, written) = self.received.positions();
        self.arrival_times.record(read, written, clock::boot_nanoseconds());
        let mut count = 0;
        while into.room() > 0 {
            let Some(place) = self.received.next() else { break };
            let packet = self.umem.bytes(place.addr, place.len).and_then(|frame| {
                let bytes = frame.get(ETHERNET..)?;
                let mut packet = pool.take(SizeClass::holding(bytes.len()));
                packet.append(bytes.len())?.copy_from_slice(bytes);
                Some(packet)
            });
            // The program takes no frame without a packet.
            if let Some(packet) = packet {
                into.push(packet);
            }
            self.fill_ring.give(self.umem.frame_of(place.addr));
            count += 1;
        }
        self.program.received.fetch_add(count, Ordering::Relaxed);
        self.received.release();
        self.fill_ring.publish();
        if self.fill_ring.needs_call() {
            self.wake_rx();
        }
    }

    /// Starts a batch, which may wait for the kernel once.
    pub(super) fn begin(&mut self) {
        self.backoff = SendBackoff::new();
        self.reclaim();
    }

    /// Reclaims completed frames.
    fn reclaim(&mut self) {
        while let Some(address) = self.sent.next() {
            self.free.push(self.umem.frame_of(address));
        }
        self.sent.release();
    }

    /// Queues a packet, or each of a burst.
    pub(super) fn push(
        &mut self,
        header: &EthernetHeader,
        packet: &PacketBuf,
        done: &mut Transmitted,
    ) {
        let stride = match packet.segments {
            Segments::Burst { stride } => usize::from(stride.max(1)),
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
            let len = frame_len(ETHERNET + piece.len());
            // The ring has a place per transmit frame; the kernel may not have published one yet.
            if self.sending.push(libc::xdp_desc { addr: frame, len, options: 0 }).is_err() {
                self.free.push(frame);
                done.refused.busy += 1;
                continue;
            }
            done.packets += 1;
            done.bytes += piece.len() as u64;
        }
    }

    /// A free transmit frame; without one it wakes the kernel and waits once.
    fn free_frame(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            self.send();
            self.reclaim();
            if self.free.is_empty() && self.backoff.wait(self.sender.as_fd()) {
                self.send();
                self.reclaim();
            }
        }
        self.free.pop()
    }

    /// Makes the kernel send. It takes a few frames per call, so it is called while the number
    /// shrinks. The rest stays in the ring as [backlog](Self::has_backlog).
    pub(super) fn send(&mut self) {
        let mut before = u32::MAX;
        loop {
            self.reclaim();
            let left = self.sending.waiting();
            let in_flight = self.tx_frames - frame_len(self.free.len()) - left;
            self.sending.publish_some(self.max_in_flight.saturating_sub(in_flight));
            if left >= before || self.sending.unread() == 0 || !self.sending.needs_call() {
                return;
            }
            before = left;
            self.is_down = self.wake_tx().is_err_and(|error| is_lasting(&error));
            if self.is_down {
                return;
            }
        }
    }

    /// Whether frames in the ring need another [`send`](Self::send), which may soon succeed.
    pub(super) fn has_backlog(&mut self) -> bool {
        !self.is_down && self.sending.waiting() > 0 && self.sending.needs_call()
    }

    fn wake_tx(&self) -> io::Result<()> {
        let fd = self.sender.as_raw_fd();
        // SAFETY: no bytes and no name.
        let result = unsafe { libc::sendto(fd, null(), 0, libc::MSG_DONTWAIT, null(), 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wake_rx(&self) {
        let fd = self.socket.as_raw_fd();
        // SAFETY: no bytes and no name. What it says does not matter: it only wakes the driver.
        unsafe { libc::recvfrom(fd, null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether another call would fail alike: not at the kernel's budget, or for a lack of room.
fn is_lasting(error: &io::Error) -> bool {
    !is_busy(error) && error.raw_os_error() != Some(libc::EBUSY)
}

/// A frame's length.
fn frame_len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Fill, receive and completion ring.
type Rings = (Producer<u64>, Consumer<libc::xdp_desc>, Consumer<u64>);

/// Creates the rings of the receiving socket, which has those of the memory, and of the sending
/// one.
fn make_rings(receiver: BorrowedFd<'_>, sender: BorrowedFd<'_>) -> io::Result<()> {
    for (fd, ring, size) in [
        (receiver, libc::XDP_UMEM_FILL_RING, RECEIVED),
        (receiver, libc::XDP_RX_RING, RECEIVED),
        (receiver, libc::XDP_UMEM_COMPLETION_RING, SENT),
        (sender, libc::XDP_TX_RING, SENT),
    ] {
        socket::set(fd, libc::SOL_XDP, ring, size.cast_signed())?;
    }
    Ok(())
}

/// Maps the rings of the receiving socket.
fn receiving_rings(fd: BorrowedFd<'_>, layout: UmemLayout) -> io::Result<Rings> {
    let UmemLayout { received: places, sent: places_of_sent, .. } = layout;
    let offsets = offsets(fd)?;
    let fill_ring = map::<u64>(fd, &offsets.fr, places, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    let at = libc::XDP_PGOFF_RX_RING.cast_unsigned();
    let received = map::<libc::xdp_desc>(fd, &offsets.rx, places, at)?;
    let at = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
    let sent = map::<u64>(fd, &offsets.cr, places_of_sent, at)?;
    Ok((
        Producer::new(fill_ring, &offsets.fr, places)?,
        Consumer::new(received, &offsets.rx, places)?,
        Consumer::new(sent, &offsets.cr, places_of_sent)?,
    ))
}

/// Maps the ring of the sending socket.
fn sending_ring(fd: BorrowedFd<'_>, layout: UmemLayout) -> io::Result<Producer<libc::xdp_desc>> {
    let (offsets, places) = (offsets(fd)?, layout.sent);
    let at = libc::XDP_PGOFF_TX_RING.cast_unsigned();
    Producer::new(map::<libc::xdp_desc>(fd, &offsets.tx, places, at)?, &offsets.tx, places)
}

/// Maps a ring with this many places for `T`.
fn map<T>(
    fd: BorrowedFd<'_>,
    offsets: &libc::xdp_ring_offset,
    places: u32,
    at: u64,
) -> io::Result<Mapping> {
    let len = usize::try_from(offsets.desc).unwrap_or(0) + size_of::<T>() * places as usize;
    Mapping::shared(fd, at.cast_signed(), len)
}

/// Offsets within the ring mappings.
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

/// `struct xdp_statistics`, the part that all kernels have, and the next one.
#[derive(Default)]
#[repr(C)]
struct Statistics {
    rx_dropped: u64,
    rx_invalid_descs: u64,
    tx_invalid_descs: u64,
    rx_ring_full: u64,
}

impl Statistics {
    /// Frames lost without a free frame, too long for one, or without a place in the ring.
    fn total(&self) -> u64 {
        self.rx_dropped.saturating_add(self.rx_ring_full)
    }
}

fn statistics(fd: BorrowedFd<'_>) -> io::Result<Statistics> {
    let mut counts = [Statistics::default(), Statistics::default()];
    let mut length = u32::try_from(size_of_val(&counts)).unwrap_or(0);
    // SAFETY: the pointers are to live integers, of which any are valid, and their length.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut length,
        )
    };
    let [counts, _newer] = counts;
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(counts) }
}

/// A queue of a device.
#[derive(Clone, Copy)]
struct QueueAddress {
    link: u32,
    queue: u32,
}

/// Binds a queue's first socket, and retries for a while if the queue is busy.
fn bind_once_free(fd: BorrowedFd<'_>, place: QueueAddress) -> io::Result<()> {
    let deadline = Instant::now() + FREED_WITHIN;
    loop {
        match bind(fd, place, None) {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                thread::sleep(RETRY_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Binds a queue's first socket, or one that shares the memory of `other`. Without copy flags the
/// kernel copies only if the driver must.
fn bind(fd: BorrowedFd<'_>, place: QueueAddress, other: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let flags = match other {
        None => libc::XDP_USE_NEED_WAKEUP,
        Some(_) => libc::XDP_SHARED_UMEM,
    };
    let other = other.map_or(0, |other| other.as_raw_fd().cast_unsigned());
    let name = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
        sxdp_flags: flags,
        sxdp_ifindex: place.link,
        sxdp_queue_id: place.queue,
        sxdp_shared_umem_fd: other,
    };
    let length = u32::try_from(size_of::<libc::sockaddr_xdp>()).unwrap_or(0);
    // SAFETY: the pointer is to a live name of the length given.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

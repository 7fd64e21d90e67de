//! A queue of a device: the socket, its rings and its frames.

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

/// Frames to receive into, and places of their rings: at full speed some milliseconds for which the worker may not run.
const RECEIVED: u32 = 4096;
/// Frames to send from, and places of their rings.
const SENT: u32 = 2048;
/// Frames that may be on their way out where the kernel copies them. The queue of a veth has 256 places, and drops what finds none.
const MAX_IN_FLIGHT: u32 = 240;
/// Bytes of memory that the kernel has to allow for them, of which it allows twice as many as it is told.
const MEMORY: i32 = 240 * 2304 / 2;
/// `XDP_MAX_TX_SKB_BUDGET`: how many frames the kernel copies at a call (Linux 6.17; before 32), and how many are worth a call.
const TX_BUDGET: (i32, i32) = (9, 256);
/// How long a queue may stay busy: the kernel frees it a little after the end of its last process.
const FREED_WITHIN: Duration = Duration::from_secs(3);
/// Pause between two attempts to bind a busy queue.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of an Ethernet header.
const ETHERNET: usize = size_of::<EthernetHeader>();

/// One queue of a program's device, with a socket. Frames go round: from the filling ring to that of what was received; and from the free ones
/// to the ring of what is to be sent, and to that of what has been.
#[derive(Debug)]
pub struct Queue {
    fill_ring: FillRing,
    received: Consumer<libc::xdp_desc>,
    pub(super) arrival_times: ArrivalTimes,
    sending: Producer<libc::xdp_desc>,
    sent: Consumer<u64>,
    free: Vec<u64>,
    /// Frames to send from, free or not.
    tx_frames: u32,
    /// Frames that may be on their way at a time.
    max_in_flight: u32,
    /// It may still wait for room in this batch.
    backoff: SendBackoff,
    /// Frames that were lost by the last time that the kernel was asked.
    lost: u64,
    /// The last that the kernel said of sending was that there is no use in it: the device is down or gone.
    is_down: bool,
    // Closed before the memory goes that the kernel writes to.
    /// That which receives, and is polled.
    socket: OwnedFd,
    /// That which sends: whoever frees a frame wakes those who poll its socket, and here is nobody.
    sender: OwnedFd,
    umem: Umem,
    // There for as long as any of its sockets is.
    pub(super) program: Arc<Program>,
}

/// What a queue is made of, for the process that goes on with it.
#[derive(Debug)]
pub struct QueueParts<Fd> {
    /// The socket that receives.
    pub socket: Fd,
    /// That which sends.
    pub sender: Fd,
    /// The frames.
    pub memory: Fd,
}

impl Queue {
    /// Opens a queue of the program's device.
    ///
    /// # Errors
    /// [`XdpError::Queue`] where the device has none of this number, [`XdpError::TooLarge`], or the kernel's.
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

    /// The queue of another process, which goes on with it until this one takes it up. Needs Linux 6.4.
    ///
    /// # Errors
    /// [`XdpError::Passed`] where it can't be had, or the device's MTU has become another.
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

    /// One whose rings are there, and are not in use yet.
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

    /// Where the kernel copies, fewer may be on their way.
    fn limit_if_copied(&mut self) -> io::Result<()> {
        if !self.is_zero_copy()? {
            self.max_in_flight = MAX_IN_FLIGHT;
        }
        Ok(())
    }

    /// What another process can go on with.
    #[must_use]
    pub fn parts(&self) -> QueueParts<BorrowedFd<'_>> {
        let (socket, sender) = (self.socket.as_fd(), self.sender.as_fd());
        QueueParts { socket, sender, memory: self.umem.memory() }
    }

    /// Leaves to another process what only this one knows. It may go on itself after that, if the other does not.
    pub(super) fn save_state(&mut self) {
        self.reclaim();
        self.fill_ring.publish();
        let numbers = |frames: &[u64]| frames.iter().map(|at| self.umem.number(*at)).collect();
        let (free, waiting) = (numbers(&self.free), numbers(self.fill_ring.waiting()));
        let rest = RingState { unseen: self.sending.unseen(), lost: self.lost, free, waiting };
        self.umem.saved_state().save(&rest);
    }

    /// Goes on where another process has laid it down.
    ///
    /// # Errors
    /// Where that did not.
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

    /// Lets the kernel have more on its way, and take more at a call, where it can and may: without, it is slower.
    fn enlarge_send_buffer(&self) {
        let socket = self.sender.as_fd();
        let _limited = socket::set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, MEMORY);
        let (option, frames) = TX_BUDGET;
        let _older = socket::set(socket, libc::SOL_XDP, option, frames);
    }

    /// Binds the sockets to the device's queue, and lets the program know.
    fn bind_queue(&self, number: u32) -> Result<(), XdpError> {
        let place = QueueAddress { link: self.program.options.link, queue: number };
        let bind = || {
            bind_once_free(self.socket.as_fd(), place)?;
            bind(self.sender.as_fd(), place, Some(self.socket.as_fd()))
        };
        bind().map_err(|error| XdpError::Queue(number, error))?;
        Ok(bpf::insert(self.program.sockets.as_fd(), number, self.socket.as_fd())?)
    }

    /// Whether the driver and the engine share the frames' memory, so that the kernel copies nothing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        let options = socket::option(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)?;
        Ok(options.cast_unsigned() & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Bytes of the largest IP packet that it sends: the device's MTU when the program came to it.
    pub(super) fn mtu(&self) -> usize {
        self.program.options.mtu as usize
    }

    /// Frames that found no room here, or no free frame, since the last time.
    pub(super) fn lost(&mut self) -> u64 {
        // Where the kernel can't say, nothing is known to be lost.
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
            // A frame without a packet is none that the program takes.
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

    /// A batch begins: it may wait for the kernel once.
    pub(super) fn begin(&mut self) {
        self.backoff = SendBackoff::new();
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
    pub(super) fn push(
        &mut self,
        header: &EthernetHeader,
        packet: &PacketBuf,
        done: &mut Transmitted,
    ) {
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
            let len = frame_len(ETHERNET + piece.len());
            // There are as many places as frames to be sent; one may not be seen to be free yet.
            if self.sending.push(libc::xdp_desc { addr: frame, len, options: 0 }).is_err() {
                self.free.push(frame);
                done.refused.busy += 1;
                continue;
            }
            done.packets += 1;
            done.bytes += piece.len() as u64;
        }
    }

    /// A frame to send from: where none is free, after the kernel was called, and waited for once.
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

    /// Lets the kernel send what is queued. It takes a few at a call, so it is called for as long as there are fewer each time. What a link does
    /// not take now stays in the ring, where it is [kept](Self::has_backlog).
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

    /// Whether the ring has what leaves only after another [`send`](Self::send), which may well do soon.
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

/// Whether another call would say the same: not where the kernel took as many as it does at once, or has no room for a moment.
fn is_lasting(error: &io::Error) -> bool {
    !is_busy(error) && error.raw_os_error() != Some(libc::EBUSY)
}

/// Bytes of a frame.
fn frame_len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Frames for the kernel, received ones, and ones that were sent.
type Rings = (Producer<u64>, Consumer<libc::xdp_desc>, Consumer<u64>);

/// Makes the rings of the socket that receives, of which those of the memory are its own too, and of the one that sends.
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

/// Maps the rings of the socket that receives.
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

/// Maps the ring of the socket that sends.
fn sending_ring(fd: BorrowedFd<'_>, layout: UmemLayout) -> io::Result<Producer<libc::xdp_desc>> {
    let (offsets, places) = (offsets(fd)?, layout.sent);
    let at = libc::XDP_PGOFF_TX_RING.cast_unsigned();
    Producer::new(map::<libc::xdp_desc>(fd, &offsets.tx, places, at)?, &offsets.tx, places)
}

/// A ring with so many places for `T`.
fn map<T>(
    fd: BorrowedFd<'_>,
    offsets: &libc::xdp_ring_offset,
    places: u32,
    at: u64,
) -> io::Result<Mapping> {
    let len = usize::try_from(offsets.desc).unwrap_or(0) + size_of::<T>() * places as usize;
    Mapping::shared(fd, at.cast_signed(), len)
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

/// `struct xdp_statistics`, the part that every kernel with `AF_XDP` has, and the next one.
#[derive(Default)]
#[repr(C)]
struct Statistics {
    rx_dropped: u64,
    rx_invalid_descs: u64,
    tx_invalid_descs: u64,
    rx_ring_full: u64,
}

impl Statistics {
    /// What was lost: without a free frame, or too long for one; or without a place in the ring.
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

/// Binds a socket as the first of a queue, and waits for a while where the queue is busy.
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

/// Binds a socket, as the first of a queue or with the memory of another that is. Without a word for or against copying: the kernel copies where
/// the driver can't do without.
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

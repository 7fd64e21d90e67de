//! Many datagrams per system call: `recvmmsg` and `sendmmsg` over packet buffers.
//!
//! `quinn-udp` does not do: its control messages carry only the two ECN bits, and ESP's outer
//! header needs the whole TOS or traffic-class byte (RFC 4301 §5.1.2); and it sends one GSO burst
//! per call, while a batch here holds several.
//!
//! Large and small datagrams come by the same call, unpredictably: every message is received into
//! *two* buffers, the first 2,048 bytes into one of the packet class and the rest into a
//! super-buffer. A small datagram leaves in the packet buffer, and its untouched super-buffer stays
//! for the next call; a large one leaves in the super-buffer at the price of copying its first
//! 2,048 bytes there.
//!
//! The kernel's structures are built on the stack per call and point into buffers that outlive it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use uxfrm_packet::{PacketBuf, Pool, SizeClass};

use crate::clock;
use crate::cmsg::ControlMessages;
use crate::recv_batch_size::RecvBatchSize;
use crate::send_backoff::{SendBackoff, is_busy};
use crate::socket::SocketName;

/// Messages in one system call, in either direction.
pub(crate) const MESSAGES: usize = 32;

/// Most buffers per message, as many as packets in a GSO burst.
pub(crate) const MAX_IOVECS: usize = 64;

/// Buffers in all messages of one system call.
const VECTORS: usize = 256;

/// Bytes of a datagram that go into a packet-class buffer, before the rest goes into a
/// super-buffer.
pub(crate) const SMALL: usize = 2048;

/// Bytes that a super-buffer takes from its first byte on.
pub(crate) const LARGE: usize = 65_536;

/// Buffers for the next datagram of any size.
#[derive(Debug, Default)]
pub(crate) struct SplitBuffer {
    small: Option<PacketBuf>,
    large: Option<PacketBuf>,
}

impl SplitBuffer {
    /// Where a packet's first [`SMALL`] bytes and its rest go, as two vectors of a scattered read.
    pub(crate) fn vectors(&mut self, pool: &mut Pool) -> [libc::iovec; 2] {
        let small = self.small.get_or_insert_with(|| pool.take(SizeClass::Packet));
        let large = self.large.get_or_insert_with(|| pool.take(SizeClass::Super));
        [vector(&mut small.spare()[..SMALL]), vector(&mut large.spare()[SMALL..LARGE])]
    }

    /// The `len` bytes read into the [`vectors`](Self::vectors), in the buffer of the fitting
    /// class.
    pub(crate) fn take(&mut self, len: usize, pool: &mut Pool) -> PacketBuf {
        if len <= SMALL {
            let mut packet = self.small.take().unwrap_or_else(|| pool.take(SizeClass::Packet));
            packet.received(len);
            return packet;
        }
        let mut packet = self.large.take().unwrap_or_else(|| pool.take(SizeClass::Super));
        if let Some(front) = &mut self.small {
            packet.spare()[..SMALL].copy_from_slice(&front.spare()[..SMALL]);
        }
        packet.received(len);
        packet
    }
}

/// The receiving half of a datagram socket.
#[derive(Debug)]
pub(crate) struct MmsgReceiver {
    slots: Box<[SplitBuffer]>,
    names: Box<[SocketName]>,
    controls: Box<[ControlMessages]>,
    lengths: [usize; MESSAGES],
    batch_size: RecvBatchSize,
}

/// Outcome of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvCount {
    /// Number of datagrams.
    pub(crate) count: usize,
    /// All requested slots were filled: there may be more.
    pub(crate) is_full: bool,
}

impl MmsgReceiver {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..MESSAGES).map(|_| SplitBuffer::default()).collect(),
            names: vec![SocketName::EMPTY; MESSAGES].into_boxed_slice(),
            controls: vec![ControlMessages::EMPTY; MESSAGES].into_boxed_slice(),
            lengths: [0; MESSAGES],
            batch_size: RecvBatchSize::new(),
        }
    }

    /// Receives up to `most` datagrams; fetch each with [`datagram`](Self::datagram).
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &mut Pool,
        most: usize,
    ) -> io::Result<RecvCount> {
        let asked = self.batch_size.of(most.min(MESSAGES));
        let count = self.receive_some(fd, pool, asked)?;
        self.batch_size.note(asked, count, MESSAGES);
        Ok(RecvCount { count, is_full: count == asked })
    }

    /// One `recvmmsg` of up to `asked` datagrams; how many came.
    fn receive_some(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &mut Pool,
        asked: usize,
    ) -> io::Result<usize> {
        let mut vectors = [const { MaybeUninit::<[libc::iovec; 2]>::uninit() }; MESSAGES];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES];
        for index in 0..asked {
            let vectors = vectors[index].write(self.slots[index].vectors(pool));
            let header = headers[index].write(EMPTY);
            header.msg_hdr.msg_iov = vectors.as_mut_ptr();
            header.msg_hdr.msg_iovlen = vectors.len();
            header.msg_hdr.msg_name = self.names[index].as_ptr();
            header.msg_hdr.msg_namelen = SocketName::ROOM;
            header.msg_hdr.msg_control = self.controls[index].as_ptr();
            header.msg_hdr.msg_controllen = crate::cmsg::ROOM;
        }
        // SAFETY: the first `asked` headers are filled in and point into `vectors`, `names`,
        // `controls` and the slots' buffers with their lengths; none of them moves during the call,
        // and all are borrowed by us alone.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                u32::try_from(asked).unwrap_or(0),
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return nothing_waits(io::Error::last_os_error());
        };
        for (index, header) in headers.iter().take(count).enumerate() {
            // SAFETY: filled in above.
            let header = unsafe { header.assume_init_ref() };
            self.lengths[index] = header.msg_len as usize;
            self.controls[index].written(header.msg_hdr.msg_controllen);
        }
        Ok(count)
    }

    /// The datagram in a slot that the last [`receive`](Self::receive) filled, its sender, and its
    /// control messages.
    pub(crate) fn datagram(
        &mut self,
        index: usize,
        pool: &mut Pool,
    ) -> (PacketBuf, &SocketName, &ControlMessages) {
        (
            self.slots[index].take(self.lengths[index], pool),
            &self.names[index],
            &self.controls[index],
        )
    }

    /// Waiting time of the first datagram of the last successful [`receive`](Self::receive); zero
    /// unless the kernel was [asked](crate::socket::note_arrival) for timestamps.
    pub(crate) fn waited(&self) -> Duration {
        let arrival = self.controls[0].messages().find_map(|(level, kind, data)| {
            (level == libc::SOL_SOCKET && kind == libc::SO_TIMESTAMPNS)
                .then(|| nanoseconds(data))?
        });
        arrival.map_or(Duration::ZERO, |arrival| {
            Duration::from_nanos(clock::wall_nanoseconds().saturating_sub(arrival))
        })
    }

    /// Length of the datagram in a slot.
    pub(crate) fn length(&self, index: usize) -> usize {
        self.lengths[index]
    }
}

/// One message to send: a piece of a buffer, or several whole consecutive buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutMessage {
    /// Index of the first buffer.
    pub(crate) packet: usize,
    /// Number of buffers; only a single one may be a piece.
    pub(crate) buffers: usize,
    /// Offset of the piece.
    pub(crate) start: usize,
    /// Bytes in total.
    pub(crate) len: usize,
    /// Number of packets on the wire.
    pub(crate) packets: u64,
}

/// The sending half of a datagram socket: messages collected for one system call.
#[derive(Debug)]
pub(crate) struct MmsgSender {
    parts: Vec<OutMessage>,
    /// Buffers of all messages.
    buffers: usize,
    names: Box<[SocketName]>,
    controls: Box<[ControlMessages]>,
    backoff: SendBackoff,
}

impl MmsgSender {
    pub(crate) fn new() -> Self {
        Self {
            backoff: SendBackoff::new(),
            parts: Vec::with_capacity(MESSAGES),
            buffers: 0,
            names: vec![SocketName::EMPTY; MESSAGES].into_boxed_slice(),
            controls: vec![ControlMessages::EMPTY; MESSAGES].into_boxed_slice(),
        }
    }

    /// Starts a batch, which may wait for the kernel once.
    pub(crate) fn begin(&mut self) {
        self.backoff = SendBackoff::new();
    }

    /// Whether it must be [sent](Self::send) before more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.parts.len() == MESSAGES || self.buffers == VECTORS
    }

    /// Adds a message and returns its empty control messages to fill in.
    pub(crate) fn push(&mut self, part: OutMessage, name: SocketName) -> &mut ControlMessages {
        let index = self.parts.len();
        self.parts.push(part);
        self.buffers += part.buffers;
        self.names[index] = name;
        self.controls[index].clear();
        &mut self.controls[index]
    }

    /// The message added last, unless all are sent.
    pub(crate) fn last(&self) -> Option<&OutMessage> {
        self.parts.last()
    }

    /// Adds the next buffer, of `len` bytes, to the last message, which must have fewer than
    /// [`MAX_IOVECS`]; the sender must not be full. Returns the message's number of buffers, and
    /// its control messages.
    pub(crate) fn extend(&mut self, len: usize) -> Option<(usize, &mut ControlMessages)> {
        let at = self.parts.len().checked_sub(1)?;
        let last = &mut self.parts[at];
        last.buffers += 1;
        last.len += len;
        last.packets += 1;
        self.buffers += 1;
        Some((last.buffers, &mut self.controls[at]))
    }

    /// Sends all messages in order and reports the fate of each.
    ///
    /// When the kernel has no room it [waits](SendBackoff) once per batch; what does not fit then
    /// is refused: under overload it is better to drop than to queue.
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        packets: &[PacketBuf],
        mut fate: impl FnMut(OutMessage, Result<(), &io::Error>),
    ) {
        let mut at = 0;
        while at < self.parts.len() {
            match self.send_from(at, fd, packets) {
                Ok(sent) => {
                    self.parts[at..at + sent].iter().for_each(|part| fate(*part, Ok(())));
                    at += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_busy(&error) => {
                    if !self.backoff.wait(fd) {
                        self.parts[at..].iter().for_each(|part| fate(*part, Err(&error)));
                        break;
                    }
                }
                Err(error) => {
                    fate(self.parts[at], Err(&error));
                    at += 1;
                }
            }
        }
        self.parts.clear();
        self.buffers = 0;
    }

    /// One `sendmmsg` of the messages from `at` on; how many went out.
    fn send_from(
        &mut self,
        at: usize,
        fd: BorrowedFd<'_>,
        packets: &[PacketBuf],
    ) -> io::Result<usize> {
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; VECTORS];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES];
        let count = self.parts.len() - at;
        let mut used = 0;
        for (index, part) in self.parts[at..].iter().enumerate() {
            let header = headers[index].write(EMPTY);
            let room = &mut vectors[used..used + part.buffers];
            for (room, packet) in room.iter_mut().zip(&packets[part.packet..]) {
                let bytes = if part.buffers == 1 {
                    &packet.bytes()[part.start..part.start + part.len]
                } else {
                    packet.bytes()
                };
                let (iov_base, iov_len) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
                room.write(libc::iovec { iov_base, iov_len });
            }
            header.msg_hdr.msg_iov = room.as_mut_ptr().cast();
            header.msg_hdr.msg_iovlen = part.buffers;
            used += part.buffers;
            header.msg_hdr.msg_name = self.names[at + index].as_ptr();
            header.msg_hdr.msg_namelen = self.names[at + index].len();
            header.msg_hdr.msg_controllen = self.controls[at + index].len();
            if header.msg_hdr.msg_controllen > 0 {
                header.msg_hdr.msg_control = self.controls[at + index].as_ptr();
            }
        }
        // SAFETY: the first `count` headers are filled in and point into `vectors`, of which the
        // first `used` are filled in, `names`, `controls` and `packets` with their lengths; the
        // kernel only reads them, and none moves during the call.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                u32::try_from(count).unwrap_or(0),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        match usize::try_from(sent) {
            Ok(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            Ok(sent) => Ok(sent),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A `timespec` of 64 bits each, since 1970.
fn nanoseconds(data: &[u8]) -> Option<u64> {
    let (seconds, rest) = data.split_first_chunk()?;
    let (nanoseconds, _) = rest.split_first_chunk()?;
    u64::from_ne_bytes(*seconds)
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from_ne_bytes(*nanoseconds))
}

/// A header of nothing.
// SAFETY: an mmsghdr is integers and pointers, for which zero bytes are valid.
pub(crate) const EMPTY: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };

/// A vector of a scattered read or gathered write.
pub(crate) fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Turns a transient receive error into an empty answer.
///
/// An ICMP error to an earlier datagram (`ECONNREFUSED` and its like) is reported by the next call
/// on the socket: it does not concern waiting datagrams.
pub(crate) fn nothing_waits(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(
            libc::EAGAIN
            | libc::EINTR
            | libc::ENOBUFS
            | libc::ENOMEM
            | libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EMSGSIZE
            | libc::ENETDOWN,
        ) => Ok(0),
        _broken => Err(error),
    }
}

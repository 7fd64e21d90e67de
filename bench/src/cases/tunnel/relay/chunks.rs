//! A packet with its metadata, split into chunks for a wire.
//!
//! ```text
//!   tag │ header │ bytes … ┃ tag │ bytes … ┃ tag │ last bytes │ bytes displaced by the other tags
//! ```
//!
//! Every chunk but the last has the full length, and each begins with a tag. To make room for a tag
//! nothing is shifted: the four bytes at its place are moved behind the last byte, and back at the
//! other end.

use uxfrm_packet::{Checksum, PacketBuf, Segments};
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identifies a chunk: the packet's number in 20 bits, the chunk's and the last chunk's index in 6
/// bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkTag {
    pub(super) number: u32,
    pub(super) chunk: u32,
    pub(super) last: u32,
}

/// The highest index of a chunk.
const LAST: u32 = 63;

impl ChunkTag {
    const LEN: usize = 4;

    /// The tag at the start of a chunk.
    pub(super) fn of(chunk: &[u8]) -> Option<Self> {
        let word = u32::from_be_bytes(*chunk.first_chunk()?);
        Some(Self { number: word >> 12, chunk: word >> 6 & LAST, last: word & LAST })
    }

    /// The tag of the next chunk; `None` after the last.
    pub(super) fn next(self) -> Option<Self> {
        (self.chunk < self.last).then(|| Self { chunk: self.chunk + 1, ..self })
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        (self.number << 12 | self.chunk << 6 | self.last).to_be_bytes()
    }
}

/// The packet's metadata, behind the first tag.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChunkHeader {
    /// Bytes of the packet without tags and header.
    len: U16,
    /// [`ONE`], [`TCP`] or [`UDP`].
    segments: u8,
    /// [`AS_IS`], [`PARTIAL`] or [`VERIFIED`].
    checksum: u8,
    /// Payload bytes of a segment.
    size: U16,
    /// Start of a partial checksum.
    start: U16,
    /// Offset of the checksum from the start.
    offset: U16,
}

const ONE: u8 = 0;
const TCP: u8 = 1;
const UDP: u8 = 2;
const AS_IS: u8 = 0;
const PARTIAL: u8 = 1;
const VERIFIED: u8 = 2;

/// Bytes before the packet's first byte.
const FRONT: usize = ChunkTag::LEN + size_of::<ChunkHeader>();

/// Splits a packet in place into chunks of `stride` bytes, as a segment burst. `None` if it lacks
/// room or is longer than an IPv4 packet can be; its bytes are then undefined.
pub(super) fn split(packet: &mut PacketBuf, number: u32, stride: u16) -> Option<()> {
    let header = ChunkHeader::of(packet)?;
    packet.push(FRONT)?[ChunkTag::LEN..].copy_from_slice(header.as_bytes());
    let (end, step) = (packet.len(), usize::from(stride));
    let len = whole(end, step);
    packet.append(len - end)?;
    let bytes = packet.bytes_mut();
    for (tag, moved) in moves(end, step) {
        bytes.copy_within(tag..tag + ChunkTag::LEN, moved);
    }
    let last = u32::try_from(len.div_ceil(step) - 1).ok().filter(|last| *last <= LAST)?;
    for (chunk, bytes) in (0..).zip(bytes.chunks_mut(step)) {
        bytes[..ChunkTag::LEN].copy_from_slice(&ChunkTag { number, chunk, last }.to_bytes());
    }
    packet.checksum = Checksum::AsIs;
    packet.segments = if last == 0 { Segments::One } else { Segments::Burst { stride } };
    Some(())
}

/// Restores the packet from all its chunks in one buffer. `None` if they are malformed.
pub(super) fn join(chunks: &mut PacketBuf, stride: u16) -> Option<()> {
    let bytes = chunks.bytes_mut();
    let (header, _) = ChunkHeader::read_from_prefix(bytes.get(ChunkTag::LEN..)?).ok()?;
    let (len, step) = (usize::from(header.len.get()), usize::from(stride));
    if bytes.len() != whole(FRONT + len, step) {
        return None;
    }
    for (tag, moved) in moves(FRONT + len, step) {
        bytes.copy_within(moved..moved + ChunkTag::LEN, tag);
    }
    chunks.keep(FRONT, len);
    header.write_on(chunks)
}

/// The offsets of each tag but the first, and of the bytes that it displaced, in a packet that ends
/// at `end` without these.
///
/// Displaced bytes lie behind the last tag among the packet's own bytes, and never across two
/// chunks.
fn moves(end: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    let chunks = end.div_ceil(step);
    let behind_last_tag = (chunks - 1) * step + ChunkTag::LEN;
    (1..chunks).scan(end.max(behind_last_tag), move |free, chunk| {
        if *free % step == 0 || *free % step + ChunkTag::LEN > step {
            *free = free.next_multiple_of(step) + ChunkTag::LEN;
        }
        let moved = *free;
        *free += ChunkTag::LEN;
        Some((chunk * step, moved))
    })
}

/// The length of all chunks of a packet that ends at `end` without displaced bytes.
fn whole(end: usize, step: usize) -> usize {
    moves(end, step).last().map_or(end, |(_, moved)| moved + ChunkTag::LEN)
}

impl ChunkHeader {
    /// The header of a packet; `None` if it is too long. A TUN gives no segment bursts.
    fn of(packet: &PacketBuf) -> Option<Self> {
        let (segments, size) = match packet.segments {
            Segments::One | Segments::Burst { .. } => (ONE, 0),
            Segments::Tcp { mss } => (TCP, mss),
            Segments::Udp { size } => (UDP, size),
        };
        let (checksum, start, offset) = match packet.checksum {
            Checksum::AsIs => (AS_IS, 0, 0),
            Checksum::Partial { start, offset } => (PARTIAL, start, offset),
            Checksum::Verified => (VERIFIED, 0, 0),
        };
        let len = u16::try_from(packet.len()).ok()?.into();
        let [size, start, offset] = [size, start, offset].map(U16::new);
        Some(Self { len, segments, checksum, size, start, offset })
    }

    /// Sets the metadata on a packet; `None` if it is invalid.
    fn write_on(self, packet: &mut PacketBuf) -> Option<()> {
        packet.udp = None;
        packet.segments = match self.segments {
            ONE => Segments::One,
            TCP => Segments::Tcp { mss: self.size.get() },
            UDP => Segments::Udp { size: self.size.get() },
            _unknown => return None,
        };
        packet.checksum = match self.checksum {
            AS_IS => Checksum::AsIs,
            PARTIAL => Checksum::Partial { start: self.start.get(), offset: self.offset.get() },
            VERIFIED => Checksum::Verified,
            _unknown => return None,
        };
        Some(())
    }
}

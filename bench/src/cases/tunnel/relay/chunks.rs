//! A parcel: what a TUN gave at once, with the notes that came beside it, cut into pieces for a wire.
//!
//! ```text
//!   tag │ notes │ bytes … ┃ tag │ bytes … ┃ tag │ last bytes │ what the second and third tag displaced
//! ```
//!
//! Every piece but the last has the full length, and each begins with a tag. Bytes are not copied to make room for the tags: the four
//! that lie where a tag goes are moved behind the last byte, and back at the other end.

use uxfrm_packet::{Checksum, PacketBuf, Segments};
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a piece is: the parcel's number, of 20 bits, which piece, and which is the last one, of 6 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkTag {
    pub(super) number: u32,
    pub(super) piece: u32,
    pub(super) last: u32,
}

/// The most that the last piece's place may be.
const LAST: u32 = 63;

impl ChunkTag {
    const LEN: usize = 4;

    /// The one that a piece begins with.
    pub(super) fn of(piece: &[u8]) -> Option<Self> {
        let word = u32::from_be_bytes(*piece.first_chunk()?);
        Some(Self { number: word >> 12, piece: word >> 6 & LAST, last: word & LAST })
    }

    /// That of the piece behind this one; `None` behind the last.
    pub(super) fn next(self) -> Option<Self> {
        (self.piece < self.last).then(|| Self { piece: self.piece + 1, ..self })
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        (self.number << 12 | self.piece << 6 | self.last).to_be_bytes()
    }
}

/// What stands behind the first tag.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChunkHeader {
    /// Bytes of the parcel without tags and notes.
    len: U16,
    /// [`ONE`], [`TCP`] or [`UDP`].
    segments: u8,
    /// [`AS_IS`], [`PARTIAL`] or [`VERIFIED`].
    checksum: u8,
    /// Payload bytes of a segment.
    size: U16,
    /// Where a partial checksum starts.
    start: U16,
    /// Where it is stored, from there.
    offset: U16,
}

const ONE: u8 = 0;
const TCP: u8 = 1;
const UDP: u8 = 2;
const AS_IS: u8 = 0;
const PARTIAL: u8 = 1;
const VERIFIED: u8 = 2;

/// Bytes before the parcel's own first one.
const FRONT: usize = ChunkTag::LEN + size_of::<ChunkHeader>();

/// Makes pieces of `stride` bytes of a packet, which is a train then. `None` when it has no room for that, or is more than an IPv4
/// packet can be; its bytes are of no more use then.
pub(super) fn split(packet: &mut PacketBuf, number: u32, stride: u16) -> Option<()> {
    let notes = ChunkHeader::of(packet)?;
    packet.push(FRONT)?[ChunkTag::LEN..].copy_from_slice(notes.as_bytes());
    let (end, step) = (packet.len(), usize::from(stride));
    let len = whole(end, step);
    packet.append(len - end)?;
    let bytes = packet.bytes_mut();
    for (tag, moved) in moves(end, step) {
        bytes.copy_within(tag..tag + ChunkTag::LEN, moved);
    }
    let last = u32::try_from(len.div_ceil(step) - 1).ok().filter(|last| *last <= LAST)?;
    for (piece, bytes) in (0..).zip(bytes.chunks_mut(step)) {
        bytes[..ChunkTag::LEN].copy_from_slice(&ChunkTag { number, piece, last }.to_bytes());
    }
    packet.checksum = Checksum::AsIs;
    packet.segments = if last == 0 { Segments::One } else { Segments::Train { stride } };
    Some(())
}

/// Makes the packet again of all its pieces in one buffer. `None` when they are not those of a parcel.
pub(super) fn join(pieces: &mut PacketBuf, stride: u16) -> Option<()> {
    let bytes = pieces.bytes_mut();
    let (notes, _) = ChunkHeader::read_from_prefix(bytes.get(ChunkTag::LEN..)?).ok()?;
    let (len, step) = (usize::from(notes.len.get()), usize::from(stride));
    if bytes.len() != whole(FRONT + len, step) {
        return None;
    }
    for (tag, moved) in moves(FRONT + len, step) {
        bytes.copy_within(moved..moved + ChunkTag::LEN, tag);
    }
    pieces.keep(FRONT, len);
    notes.write_on(pieces)
}

/// Where each tag but the first lies, and where what it displaced is, in a parcel that ends at `end` without that.
///
/// What is displaced lies behind the last tag among the parcel's own bytes, and never across two pieces.
fn moves(end: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    let pieces = end.div_ceil(step);
    let behind_last_tag = (pieces - 1) * step + ChunkTag::LEN;
    (1..pieces).scan(end.max(behind_last_tag), move |free, piece| {
        if *free % step == 0 || *free % step + ChunkTag::LEN > step {
            *free = free.next_multiple_of(step) + ChunkTag::LEN;
        }
        let moved = *free;
        *free += ChunkTag::LEN;
        Some((piece * step, moved))
    })
}

/// The length of all pieces of a parcel that ends at `end` without what is displaced.
fn whole(end: usize, step: usize) -> usize {
    moves(end, step).last().map_or(end, |(_, moved)| moved + ChunkTag::LEN)
}

impl ChunkHeader {
    /// What is known of a packet; `None` when it is too long. A TUN gives no trains.
    fn of(packet: &PacketBuf) -> Option<Self> {
        let (segments, size) = match packet.segments {
            Segments::One | Segments::Train { .. } => (ONE, 0),
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

    /// Says it on another packet; `None` when it is nothing that [`of`](Self::of) says.
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

//! A packet, super-packet or segment burst in a contiguous buffer with head- and tailroom.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use crate::prefetch;

/// Default headroom of a received packet: an outer IPv6 header (40), UDP (8), ESP with IV (24), a
/// virtio header (12), and the same once more for a nested SA, rounded up to whole cache lines.
pub const HEADROOM: usize = 192;

/// Default tailroom of a received packet: padding (255 at the most), trailer (2) and ICV (32).
pub const TAILROOM: usize = 320;

/// What a buffer holds: one packet, or several that belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// One packet.
    #[default]
    One,
    /// A TCP super-packet over IPv4 or IPv6: one header, payload to be segmented by `mss` bytes.
    Tcp {
        /// Payload bytes per segment, the last one may be shorter.
        mss: u16,
    },
    /// A UDP super-packet (`UDP_SEGMENT`, `VIRTIO_NET_HDR_GSO_UDP_L4`): one header, datagrams of
    /// `size` payload bytes.
    Udp {
        /// Payload bytes per datagram, the last one may be shorter.
        size: u16,
    },
    /// A segment burst: whole wire packets of `stride` bytes end to end; the last one may be
    /// shorter.
    Burst {
        /// Distance of consecutive packets in bytes.
        stride: u16,
    },
}

/// State of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// As it stands in the packet; it may be wrong, as the packet came off the wire.
    #[default]
    AsIs,
    /// To be completed: sum from `start` to the end, store at `start + offset`
    /// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`). The field already has the pseudo-header's sum.
    Partial {
        /// Where the sum starts, from the packet's first byte.
        start: u16,
        /// Where the checksum field lies, from `start`.
        offset: u16,
    },
    /// Known to be right (`VIRTIO_NET_HDR_F_DATA_VALID`).
    Verified,
}

/// The two ECN bits of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// 00: not ECN-capable.
    #[default]
    NotEct,
    /// 01
    Ect1,
    /// 10
    Ect0,
    /// 11: congestion experienced.
    Ce,
}

impl Ecn {
    /// The ECN bits of a TOS or traffic-class byte: its two lowest.
    #[must_use]
    #[inline]
    pub const fn of_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits: 0 to 3.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0,
            Self::Ect1 => 1,
            Self::Ect0 => 2,
            Self::Ce => 3,
        }
    }

    /// `tos` with these ECN bits in place of its own.
    #[must_use]
    #[inline]
    pub const fn in_tos(self, tos: u8) -> u8 {
        tos & !3 | self.bits()
    }
}

/// UDP endpoints and header fields of a datagram that goes through a UDP socket, where the kernel
/// writes the IP and UDP headers.
///
/// A buffer with a `UdpPath` holds UDP payload only; one without holds whole IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPath {
    /// Our end. The address may be unspecified when sending.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The outer header's whole TOS or traffic-class byte: DSCP and ECN.
    pub tos: u8,
    /// The outer header must not be fragmented (IPv4's DF).
    pub dont_fragment: bool,
}

/// A packet, super-packet or segment burst with headroom and tailroom.
///
/// The bytes are `storage[head..tail]`. [`push`](Self::push) and [`append`](Self::append) use up
/// room, [`pull`](Self::pull) and [`trim`](Self::trim) give it back; bytes never move.
///
/// It is one pointer, as packets are moved many times on their way.
#[derive(Debug)]
pub struct PacketBuf(Box<BufParts>);

/// Metadata of a packet besides its bytes; [`PacketBuf`] dereferences to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketMeta {
    /// One packet, or several in one buffer.
    pub segments: Segments,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// The packet mark (`SO_MARK`, `skb->mark`): part of the policy key.
    pub mark: u32,
    /// XFRM interface id of the port it came through; 0 without one.
    pub if_id: u32,
    /// Set when the bytes are UDP payload that a socket sends or received.
    pub udp: Option<UdpPath>,
}

/// Everything except `udp` is in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct BufParts {
    storage: Box<[u8]>,
    head: u32,
    tail: u32,
    label: PacketMeta,
}

impl Deref for PacketBuf {
    type Target = PacketMeta;

    #[inline(always)]
    fn deref(&self) -> &PacketMeta {
        &self.0.label
    }
}

impl DerefMut for PacketBuf {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut PacketMeta {
        &mut self.0.label
    }
}

impl PacketBuf {
    /// An empty buffer of `capacity` bytes with its first byte at `headroom`.
    ///
    /// # Panics
    /// When `headroom` is larger than `capacity`, or `capacity` than 4 GiB.
    #[must_use]
    pub fn with_capacity(capacity: usize, headroom: usize) -> Self {
        assert!(headroom <= capacity, "headroom {headroom} in a buffer of {capacity}");
        let start = u32::try_from(headroom).expect("capacity is below 4 GiB");
        let storage = vec![0; capacity].into_boxed_slice();
        Self(Box::new(BufParts { storage, head: start, tail: start, label: PacketMeta::default() }))
    }

    /// A buffer that holds `bytes`, with the usual room around them. For tests and slow paths: it
    /// allocates.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(HEADROOM + bytes.len() + TAILROOM, HEADROOM);
        buf.append(bytes.len()).expect("made large enough").copy_from_slice(bytes);
        buf
    }

    /// Empties the buffer, resets its metadata and sets the headroom to [`HEADROOM`] (or to the
    /// capacity, if less).
    pub fn reset(&mut self) {
        let start = HEADROOM.min(self.0.storage.len());
        self.0.head = index(start);
        self.0.tail = index(start);
        self.0.label = PacketMeta::default();
    }

    /// Bytes held.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        (self.0.tail - self.0.head) as usize
    }

    /// Whether no bytes are held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.head == self.0.tail
    }

    /// Size of the storage.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.storage.len()
    }

    /// Free bytes before the first one.
    #[must_use]
    #[inline]
    pub fn headroom(&self) -> usize {
        self.0.head as usize
    }

    /// Free bytes behind the last one.
    #[must_use]
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.0.storage.len() - self.0.tail as usize
    }

    /// The packet's bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0.storage[self.0.head as usize..self.0.tail as usize]
    }

    /// `len` bytes from offset `start`; `None` if they are out of bounds.
    #[must_use]
    #[inline(always)]
    pub fn part(&self, start: u32, len: u32) -> Option<&[u8]> {
        let from = self.0.head as usize + start as usize;
        let until = from + len as usize;
        if until > self.0.tail as usize {
            return None;
        }
        self.0.storage.get(from..until)
    }

    /// The packet's bytes, mutable.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0.storage[self.0.head as usize..self.0.tail as usize]
    }

    /// Prefetches the metadata.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch(&*self.0);
    }

    /// Prefetches the first bytes; the metadata should be cached.
    #[inline(always)]
    pub fn prefetch_bytes(&self) {
        if let Some(first) = self.0.storage.get(self.0.head as usize) {
            prefetch(first);
        }
    }

    /// Adds `count` bytes at the front and returns them, with stale content.
    ///
    /// `None`, and nothing changed, without that much headroom.
    #[inline]
    pub fn push(&mut self, count: usize) -> Option<&mut [u8]> {
        let head = (self.0.head as usize).checked_sub(count)?;
        self.0.head = index(head);
        Some(&mut self.0.storage[head..head + count])
    }

    /// Removes the first `count` bytes, or all there are.
    #[inline]
    pub fn pull(&mut self, count: usize) {
        self.0.head += index(count.min(self.len()));
    }

    /// Adds `count` bytes at the end and returns them, with stale content.
    ///
    /// `None`, and nothing changed, without that much tailroom.
    #[inline]
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let tail = self.0.tail as usize;
        self.0.tail += index(count);
        Some(&mut self.0.storage[tail..tail + count])
    }

    /// Keeps the first `len` bytes, or all there are.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        self.0.tail = self.0.head + index(len.min(self.len()));
    }

    /// Keeps `len` bytes from offset `start`, or what there is of them.
    #[inline]
    pub fn keep(&mut self, start: usize, len: usize) {
        let held = self.len();
        let start = start.min(held);
        self.0.head += index(start);
        self.0.tail = self.0.head + index(len.min(held - start));
    }

    /// Like [`keep`](Self::keep), if all the bytes exist; otherwise nothing changes.
    #[inline]
    pub fn frame(&mut self, start: usize, len: usize) {
        let head = self.0.head as usize + start;
        let tail = head + len;
        if tail <= self.0.tail as usize {
            (self.0.head, self.0.tail) = (index(head), index(tail));
        }
    }

    /// Whether there is room for [`reframe`](Self::reframe).
    #[must_use]
    #[inline]
    pub fn has_room(&self, before: usize, len: usize) -> bool {
        let head = self.0.head as usize;
        before <= head && len <= self.0.storage.len() - (head - before)
    }

    /// Moves the start forward by `before` bytes and sets the length to `len`; new bytes have stale
    /// content. Nothing changes if there is [no room](Self::has_room).
    #[inline]
    pub fn reframe(&mut self, before: usize, len: usize) {
        if self.has_room(before, len) {
            self.0.head -= index(before);
            self.0.tail = self.0.head + index(len);
        }
    }

    /// Like [`reframe`](Self::reframe); returns the bytes then held, and `more` bytes of storage
    /// behind them that may be written but are not held. `None`, and nothing changed, without room
    /// for all.
    #[inline(always)]
    pub fn reframed(&mut self, before: usize, len: usize, more: usize) -> Option<&mut [u8]> {
        let held = &mut *self.0;
        let head = (held.head as usize).checked_sub(before)?;
        let frame = held.storage.get_mut(head..head + len + more)?;
        (held.head, held.tail) = (index(head), index(head + len));
        Some(frame)
    }

    /// The whole storage behind the first byte, for a port to receive into; follow with
    /// [`received`](Self::received).
    #[must_use]
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.0.storage[self.0.head as usize..]
    }

    /// Sets the length to the `len` bytes written to [`spare`](Self::spare), at most the capacity.
    #[inline]
    pub fn received(&mut self, len: usize) {
        let room = self.0.storage.len() - self.0.head as usize;
        self.0.tail = self.0.head + index(len.min(room));
    }

    /// Copies the metadata (segments, checksum, mark, interface id, UDP path) of `other`, not its
    /// bytes.
    pub fn inherit(&mut self, other: &Self) {
        self.0.label = other.0.label;
    }
}

/// An offset within a storage, which `with_capacity` keeps below 4 GiB.
#[inline]
fn index(offset: usize) -> u32 {
    debug_assert!(u32::try_from(offset).is_ok());
    #[expect(clippy::cast_possible_truncation, reason = "a storage is below 4 GiB: with_capacity")]
    let narrow = offset as u32;
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_and_pull_never_move_bytes() {
        let mut buf = PacketBuf::from_slice(b"payload");
        buf.push(2).unwrap().copy_from_slice(b"h:");
        buf.append(2).unwrap().copy_from_slice(b":t");
        assert_eq!(buf.bytes(), b"h:payload:t");
        let mut other = PacketBuf::from_slice(buf.bytes());
        other.keep(2, 7);
        assert_eq!(other.bytes(), b"payload");
        other.keep(3, 9);
        assert_eq!(other.bytes(), b"load");
        assert_eq!([other.part(1, 2), other.part(4, 0)], [Some(&b"oa"[..]), Some(&b""[..])]);
        assert_eq!(
            [other.part(3, 2), other.part(5, 0)],
            [None; 2],
            "there is tailroom, but no more bytes"
        );
        other.frame(1, 2);
        assert_eq!(other.bytes(), b"oa");
        other.frame(1, 2);
        assert_eq!(other.bytes(), b"oa", "it holds no more");
        other.keep(5, 1);
        assert!(other.is_empty());
        buf.pull(2);
        buf.trim(7);
        assert_eq!(buf.bytes(), b"payload");
        assert_eq!(buf.headroom(), HEADROOM);
    }

    #[test]
    fn reframe_fails_without_room() {
        let mut buf = PacketBuf::from_slice(b"payload, padding");
        buf.reframe(2, 11);
        buf.bytes_mut()[..2].copy_from_slice(b"h:");
        buf.bytes_mut()[9..].copy_from_slice(b":t");
        assert_eq!((buf.bytes(), buf.headroom()), (&b"h:payload:t"[..], HEADROOM - 2));
        let most = buf.len() + buf.tailroom();
        for (before, len, fits) in
            [(0, most, true), (0, most + 1, false), (1, most + 1, true), (HEADROOM, 1, false)]
        {
            let (held, mut other) = (buf.len(), PacketBuf::from_slice(b"payload, padding"));
            other.reframe(2, held);
            assert_eq!(other.has_room(before, len), fits, "{before} and {len}");
            other.reframe(before, len);
            assert_eq!(other.len(), if fits { len } else { held });
        }
    }

    #[test]
    fn exceeding_room_changes_nothing() {
        let mut buf = PacketBuf::from_slice(b"x");
        assert!(buf.push(HEADROOM + 1).is_none());
        assert!(buf.append(TAILROOM + 1).is_none());
        assert_eq!(buf.bytes(), b"x");
        buf.pull(99);
        assert!(buf.is_empty());
    }
}

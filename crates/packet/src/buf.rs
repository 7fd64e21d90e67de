//! One packet, super-packet or train in a contiguous buffer with head- and tailroom.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use crate::prefetch;

/// Bytes kept free before a received packet: an outer IPv6 header (40), UDP (8), ESP with IV (24), a virtio
/// header (12), and the same once more for a nested SA, rounded up to whole cache lines.
pub const HEADROOM: usize = 192;

/// Bytes kept free behind a received packet: padding (255 at the most), trailer (2) and ICV (32).
pub const TAILROOM: usize = 320;

/// What a buffer holds: one packet, or several that belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// One packet.
    #[default]
    One,
    /// A TCP super-packet over IPv4 or IPv6: one header, payload to be cut into pieces of `mss` bytes.
    Tcp {
        /// Payload bytes per segment, the last one may be shorter.
        mss: u16,
    },
    /// A UDP super-packet (`UDP_SEGMENT`, `VIRTIO_NET_HDR_GSO_UDP_L4`): one header, datagrams of `size` payload bytes.
    Udp {
        /// Payload bytes per datagram, the last one may be shorter.
        size: u16,
    },
    /// A train: whole wire packets of `stride` bytes end to end, the last one may be shorter.
    Train {
        /// Bytes from one packet's first byte to the next one's.
        stride: u16,
    },
}

/// What is known of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The bytes in the packet are to be believed as they stand (they may be wrong: it came off the wire).
    #[default]
    AsIs,
    /// Left to be filled in: sum from `start` to the end, store at `start + offset` (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    /// The pseudo-header's sum is already there.
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
    /// 00: the transport does not know ECN.
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

/// How a datagram went, or is to go, through a UDP socket, where the kernel writes the IP and UDP headers.
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
    /// The outer header must not be fragmented on the way (IPv4's DF).
    pub dont_fragment: bool,
}

/// One packet, super-packet or train, with room before and behind it.
///
/// The bytes are `storage[head..tail]`. Room is used up by [`push`](Self::push) and
/// [`append`](Self::append) and given back by [`pull`](Self::pull) and [`trim`](Self::trim); bytes never move.
///
/// It is as small as a pointer, since packets change hands many times on their way.
#[derive(Debug)]
pub struct PacketBuf(Box<BufParts>);

/// What is known of a buffer's packet besides its bytes; found through the [`PacketBuf`] itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Label {
    /// One packet, or several in one buffer.
    pub segments: Segments,
    /// What is known of the transport checksum.
    pub checksum: Checksum,
    /// The packet mark (`SO_MARK`, `skb->mark`): part of the policy key.
    pub mark: u32,
    /// XFRM interface id of the port it came through; 0 without one.
    pub if_id: u32,
    /// Set when the bytes are UDP payload that a socket sends or received.
    pub udp: Option<UdpPath>,
}

/// All but the last note in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct BufParts {
    storage: Box<[u8]>,
    head: u32,
    tail: u32,
    label: Label,
}

impl Deref for PacketBuf {
    type Target = Label;

    #[inline(always)]
    fn deref(&self) -> &Label {
        &self.0.label
    }
}

impl DerefMut for PacketBuf {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Label {
        &mut self.0.label
    }
}

impl PacketBuf {
    /// An empty buffer of `capacity` bytes in all, its first byte at `headroom`.
    ///
    /// # Panics
    /// When `headroom` is larger than `capacity`, or `capacity` than 4 GiB.
    #[must_use]
    pub fn with_capacity(capacity: usize, headroom: usize) -> Self {
        assert!(headroom <= capacity, "headroom {headroom} in a buffer of {capacity}");
        let start = u32::try_from(headroom).expect("capacity is below 4 GiB");
        let storage = vec![0; capacity].into_boxed_slice();
        Self(Box::new(BufParts { storage, head: start, tail: start, label: Label::default() }))
    }

    /// A buffer that holds `bytes`, with the usual room around them. For tests and slow paths: it allocates.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(HEADROOM + bytes.len() + TAILROOM, HEADROOM);
        buf.append(bytes.len()).expect("made large enough").copy_from_slice(bytes);
        buf
    }

    /// Empties the buffer, forgets all notes and puts its first byte at [`HEADROOM`] (or as far back as it is long).
    pub fn reset(&mut self) {
        let start = HEADROOM.min(self.0.storage.len());
        self.0.head = index(start);
        self.0.tail = index(start);
        self.0.label = Label::default();
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

    /// All bytes that the buffer could ever hold.
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

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0.storage[self.0.head as usize..self.0.tail as usize]
    }

    /// `len` bytes from the one at `start` on; `None` when they are not all there.
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

    /// The bytes, to write to.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0.storage[self.0.head as usize..self.0.tail as usize]
    }

    /// Asks for what is known of the packet: soon to be used.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch(&*self.0);
    }

    /// Asks for the first bytes; what is known of the packet should be at hand already.
    #[inline(always)]
    pub fn prefetch_bytes(&self) {
        if let Some(first) = self.0.storage.get(self.0.head as usize) {
            prefetch(first);
        }
    }

    /// Makes room for `count` bytes before the first one and returns them, their content left over from before.
    ///
    /// `None`, and nothing changed, when there is not that much headroom.
    #[inline]
    pub fn push(&mut self, count: usize) -> Option<&mut [u8]> {
        let head = (self.0.head as usize).checked_sub(count)?;
        self.0.head = index(head);
        Some(&mut self.0.storage[head..head + count])
    }

    /// Gives up the first `count` bytes, or all there are.
    #[inline]
    pub fn pull(&mut self, count: usize) {
        self.0.head += index(count.min(self.len()));
    }

    /// Adds `count` bytes behind the last one and returns them, their content left over from before.
    ///
    /// `None`, and nothing changed, when there is not that much tailroom.
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

    /// Keeps `len` bytes from the one at `start` on, or what there is of them.
    #[inline]
    pub fn keep(&mut self, start: usize, len: usize) {
        let held = self.len();
        let start = start.min(held);
        self.0.head += index(start);
        self.0.tail = self.0.head + index(len.min(held - start));
    }

    /// As [`keep`](Self::keep), of bytes that are all there; nothing changes when they are not.
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

    /// Has the buffer hold `len` bytes from `before` bytes before the first one on, those that are new with content left over from before.
    /// Nothing changes when there is [no room](Self::has_room).
    #[inline]
    pub fn reframe(&mut self, before: usize, len: usize) {
        if self.has_room(before, len) {
            self.0.head -= index(before);
            self.0.tail = self.0.head + index(len);
        }
    }

    /// As [`reframe`](Self::reframe); gives the bytes then held, and `more` bytes of the storage behind them, that may be written to but are not held. `None`,
    /// and nothing changed, when there is no room for all.
    #[inline(always)]
    pub fn reframed(&mut self, before: usize, len: usize, more: usize) -> Option<&mut [u8]> {
        let held = &mut *self.0;
        let head = (held.head as usize).checked_sub(before)?;
        let frame = held.storage.get_mut(head..head + len + more)?;
        (held.head, held.tail) = (index(head), index(head + len));
        Some(frame)
    }

    /// The whole storage behind the first byte, for a port to receive into; follow with [`received`](Self::received).
    #[must_use]
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.0.storage[self.0.head as usize..]
    }

    /// Says that `len` bytes were written to [`spare`](Self::spare); clipped to what it holds.
    #[inline]
    pub fn received(&mut self, len: usize) {
        let room = self.0.storage.len() - self.0.head as usize;
        self.0.tail = self.0.head + index(len.min(room));
    }

    /// Takes over the notes (segments, checksum, mark, interface id, UDP path) of `other`, not its bytes.
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
    fn room_is_used_and_given_back_without_moving_bytes() {
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
    fn a_frame_is_made_around_the_bytes_or_not_at_all() {
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
    fn too_much_is_refused_and_changes_nothing() {
        let mut buf = PacketBuf::from_slice(b"x");
        assert!(buf.push(HEADROOM + 1).is_none());
        assert!(buf.append(TAILROOM + 1).is_none());
        assert_eq!(buf.bytes(), b"x");
        buf.pull(99);
        assert!(buf.is_empty());
    }
}

//! Datagrams to clients, wiped on drop and not shown by `Debug`: states carry their keys.

use std::fmt;

use uxfrm_netlink_wire::{NetlinkHeader, aligned, set_message_len};
use zerocopy::{Immutable, IntoBytes};

use crate::{attribute::AttributeType, wiped::WipedBuffer};

/// Most bytes of a datagram of a dump, as the kernel sends to clients of which it has seen no
/// larger read (`NLMSG_GOODSIZE`). charon reads into 4096 bytes.
pub(crate) const DUMP_LEN: usize = 3776;

/// Capacity for most messages; wiping costs a cycle a byte.
const USUAL_LEN: usize = 512;

/// One datagram: whole messages, each aligned.
#[derive(PartialEq, Eq)]
pub struct NetlinkDatagram {
    bytes: WipedBuffer,
    message: usize,
}

impl NetlinkDatagram {
    /// Begins a datagram of one message.
    pub(crate) fn new(kind: u16, flags: u16, seq: u32, pid: u32) -> Self {
        let mut datagram = Self::with_capacity(USUAL_LEN);
        datagram.begin(kind, flags, seq, pid);
        datagram
    }

    /// With capacity for a part of a dump and the message that no longer fits.
    pub(crate) fn for_dump() -> Self {
        Self::with_capacity(DUMP_LEN + USUAL_LEN)
    }

    fn with_capacity(len: usize) -> Self {
        Self { bytes: WipedBuffer::with_capacity(len), message: 0 }
    }

    /// The bytes for the socket.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no message in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Begins a message of type `kind`; later calls update its length.
    pub(crate) fn begin(&mut self, kind: u16, flags: u16, seq: u32, pid: u32) -> &mut Self {
        self.message = self.bytes.len();
        self.put_bytes(&NetlinkHeader { len: 0, kind, flags, seq, pid }.to_bytes())
    }

    /// Puts a fixed structure, padded.
    pub(crate) fn put(&mut self, part: &(impl IntoBytes + Immutable)) -> &mut Self {
        self.put_bytes(part.as_bytes())
    }

    /// Puts bytes, padded.
    pub(crate) fn put_bytes(&mut self, part: &[u8]) -> &mut Self {
        let bytes = self.bytes.reserve(aligned(part.len()));
        bytes.extend_from_slice(part);
        bytes.resize(aligned(bytes.len()), 0);
        self.measure()
    }

    /// Puts an attribute.
    pub(crate) fn attribute(
        &mut self,
        kind: AttributeType,
        value: &(impl IntoBytes + Immutable + ?Sized),
    ) -> &mut Self {
        self.raw_attribute(kind as u16, &[value.as_bytes()])
    }

    /// Puts an attribute by number, whose value is several parts one behind the other.
    pub(crate) fn raw_attribute(&mut self, kind: u16, parts: &[&[u8]]) -> &mut Self {
        self.bytes.put_attribute(kind, parts);
        self.measure()
    }

    /// Removes the last message.
    pub(crate) fn cancel(&mut self) {
        self.bytes.reserve(0).truncate(self.message);
    }

    fn measure(&mut self) -> &mut Self {
        set_message_len(&mut self.bytes.reserve(0)[self.message..]);
        self
    }
}

impl fmt::Debug for NetlinkDatagram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Datagram({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_byte() {
        let mut datagram = NetlinkDatagram::new(0x10, 0, 1, 2);
        datagram.put_bytes(b"secret");
        assert_eq!(format!("{datagram:?}"), "Datagram(24 bytes)");
    }

    #[test]
    fn datagram_lengths_include_padding() {
        let mut datagram = NetlinkDatagram::new(0x28, 0, 1, 2);
        datagram.put_bytes(&[1, 2, 2]);
        assert_eq!(datagram.bytes()[0], 20);
        datagram.begin(0x10, 0, 1, 2).raw_attribute(16, &[&[0; 6]]);
        assert_eq!((datagram.bytes()[20], datagram.bytes()[36], datagram.len()), (28, 10, 48));
    }
}

//! Requests: one message each, wiped when dropped, never shown, for states carry their keys.

use std::fmt;

use uxfrm_netlink_wire::{NetlinkFlags, NetlinkHeader, set_message_len};
use zerocopy::{Immutable, IntoBytes};

use crate::{attribute::AttributeType, message::MessageType, wiped::WipedBuffer};

/// Most requests are smaller; those that are not are moved, and what they leave behind is wiped.
const CAPACITY: usize = 1024;

/// A message to the server.
#[derive(Clone, PartialEq, Eq)]
pub struct NetlinkRequest {
    bytes: WipedBuffer,
}

impl NetlinkRequest {
    /// A request without a body, from port 0 and with number 0.
    #[must_use]
    pub fn new(kind: MessageType, flags: NetlinkFlags) -> Self {
        Self::numbered(kind as u16, flags)
    }

    /// The same, of another protocol than `NETLINK_XFRM`.
    #[must_use]
    pub fn numbered(kind: u16, flags: NetlinkFlags) -> Self {
        let flags = (flags | NetlinkFlags::REQUEST).bits();
        let header = NetlinkHeader { len: 0, kind, flags, seq: 0, pid: 0 };
        Self { bytes: WipedBuffer::with_capacity(CAPACITY) }.body(&header.to_bytes())
    }

    /// Puts a structure behind the header. Its length counts without padding.
    #[must_use]
    pub fn body(mut self, part: &(impl IntoBytes + Immutable + ?Sized)) -> Self {
        let part = part.as_bytes();
        let bytes = self.bytes.reserve(part.len());
        bytes.extend_from_slice(part);
        set_message_len(bytes);
        self
    }

    /// Puts an attribute.
    pub fn attribute(
        &mut self,
        kind: AttributeType,
        value: &(impl IntoBytes + Immutable + ?Sized),
    ) {
        self.parts(kind as u16, &[value.as_bytes()]);
    }

    /// Puts an attribute by number from parts of its value. The message's length includes its
    /// padding.
    pub fn parts(&mut self, kind: u16, parts: &[&[u8]]) {
        set_message_len(self.bytes.put_attribute(kind, parts));
    }

    /// Gives it the number that its answers will have.
    pub fn number(&mut self, seq: u32) {
        self.bytes.reserve(0)[8..12].copy_from_slice(&seq.to_ne_bytes());
    }

    /// Asks for more.
    pub fn ask(&mut self, flags: NetlinkFlags) {
        let old = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes.reserve(0)[6..8].copy_from_slice(&(old | flags.bits()).to_ne_bytes());
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for NetlinkRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Request({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_length_pads_attributes_but_not_body() {
        let request =
            NetlinkRequest::new(MessageType::SetDefault, NetlinkFlags::empty()).body(&[1_u8, 2, 0]);
        assert_eq!((request.bytes().len(), request.bytes()[0]), (19, 19));
        let mut request = NetlinkRequest::new(MessageType::FlushPolicy, NetlinkFlags::ACK);
        request.parts(16, &[&[0; 6]]);
        request.number(7);
        assert_eq!((request.bytes().len(), request.bytes()[0], request.bytes()[16]), (28, 28, 10));
        assert_eq!(u32::from_ne_bytes(request.bytes()[8..12].try_into().unwrap()), 7);
        assert_eq!(request.bytes()[6], 5);
    }

    #[test]
    fn debug_shows_no_byte() {
        let request =
            NetlinkRequest::new(MessageType::NewSa, NetlinkFlags::empty()).body(b"secret");
        assert_eq!(format!("{request:?}"), "Request(22 bytes)");
    }
}

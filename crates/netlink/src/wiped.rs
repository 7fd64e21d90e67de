//! A growing buffer whose bytes are wiped: messages about states carry keys.

use std::ops::Deref;

use uxfrm_netlink_wire::{AttributeWriter, aligned};
use zeroize::Zeroizing;

/// Bytes that are wiped on drop, and wherever growing leaves a copy of them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WipedBuffer(Zeroizing<Vec<u8>>);

impl WipedBuffer {
    pub(crate) fn with_capacity(len: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(len)))
    }

    /// The bytes, with room for `more`: within that they do not move.
    pub(crate) fn reserve(&mut self, more: usize) -> &mut Vec<u8> {
        let needed = self.0.len() + more;
        if needed > self.0.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.next_power_of_two()));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        &mut self.0
    }

    /// Pads the bytes and appends an attribute, whose value is several parts.
    pub(crate) fn put_attribute(&mut self, kind: u16, parts: &[&[u8]]) -> &mut Vec<u8> {
        let end = aligned(self.0.len());
        let len = parts.iter().map(|part| part.len()).sum();
        let bytes = self.reserve(3 + AttributeWriter::room(len));
        bytes.resize(end, 0);
        AttributeWriter::new(bytes).parts(kind, parts);
        bytes
    }
}

impl Deref for WipedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

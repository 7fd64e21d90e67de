//! Writing messages and attributes.

use std::net::IpAddr;

use crate::attribute::HEADER_LEN;
use crate::genl::FAMILY_HEADER_LEN;
use crate::{NetlinkFlags, NetlinkHeader, aligned};

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// Appends attributes to a message, or to a nest.
///
/// Each is padded. A value too long for `nlattr`'s 16-bit length gets the greatest length there is:
/// readers then refuse it as cut short.
#[derive(Debug)]
pub struct AttributeWriter<'a>(&'a mut Vec<u8>);

impl<'a> AttributeWriter<'a> {
    /// Writes behind what `out` holds.
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    /// Puts an attribute.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.parts(kind, &[value]);
    }

    /// Puts an attribute whose value is several parts, one behind the other.
    pub fn parts(&mut self, kind: u16, parts: &[&[u8]]) {
        self.nest_unflagged(kind, |out| {
            parts.iter().for_each(|part| out.0.extend_from_slice(part))
        });
    }

    /// Puts a number in host byte order.
    pub fn ne32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Puts a number in network byte order.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Puts a number in network byte order.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Puts an address without its family.
    pub fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.bytes(kind, &address.octets()),
            IpAddr::V6(address) => self.bytes(kind, &address.octets()),
        }
    }

    /// Puts a zero-terminated string.
    pub fn text(&mut self, kind: u16, text: &str) {
        self.parts(kind, &[text.as_bytes(), &[0]]);
    }

    /// Puts a nest that is marked as one (`nla_nest_start`).
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut AttributeWriter<'_>)) {
        self.nest_unflagged(kind | NESTED, fill);
    }

    /// Puts a nest without `NLA_F_NESTED` (`nla_nest_start_noflag`).
    pub fn nest_unflagged(&mut self, kind: u16, fill: impl FnOnce(&mut AttributeWriter<'_>)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        fill(&mut AttributeWriter(self.0));
        let len = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(start + aligned(self.0.len() - start), 0);
    }

    /// Bytes that an attribute with a value of `len` bytes takes at most.
    #[must_use]
    pub const fn room(len: usize) -> usize {
        HEADER_LEN + aligned(len)
    }
}

/// Appends a message from port 0 with a family's header (`genlmsghdr`, `nfgenmsg`) and attributes.
pub fn append_message(
    out: &mut Vec<u8>,
    kind: u16,
    flags: NetlinkFlags,
    seq: u32,
    family_header: [u8; FAMILY_HEADER_LEN],
    attributes: impl FnOnce(&mut AttributeWriter<'_>),
) {
    let start = out.len();
    let header = NetlinkHeader { len: 0, kind, flags: flags.bits(), seq, pid: 0 };
    out.extend(header.to_bytes());
    out.extend(family_header);
    attributes(&mut AttributeWriter(out));
    set_message_len(&mut out[start..]);
}

/// Sets the length of a message that ends where `message` ends.
pub fn set_message_len(message: &mut [u8]) {
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if let Some(field) = message.first_chunk_mut() {
        *field = len.to_ne_bytes();
    }
}

//! ICMP headers (RFC 792).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Type: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// Type: echo request.
pub const ECHO: u8 = 8;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;
/// Code of [`UNREACHABLE`]: fragmentation needed and DF set; `rest` ends with the next hop's MTU
/// (RFC 1191 §4).
pub const FRAGMENTATION_NEEDED: u8 = 4;

/// The 8 bytes that all messages begin with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct IcmpHeader {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Internet checksum of the whole message.
    pub checksum: U16,
    /// By type: echo id and sequence number, an MTU, a pointer, or unused.
    pub rest: [u8; 4],
}

impl IcmpHeader {
    /// "Fragmentation needed", its checksum still 0.
    #[must_use]
    pub fn fragmentation_needed(mtu: u16) -> Self {
        let [high, low] = mtu.to_be_bytes();
        Self {
            kind: UNREACHABLE,
            code: FRAGMENTATION_NEEDED,
            checksum: U16::ZERO,
            rest: [0, 0, high, low],
        }
    }

    /// The next hop's MTU in "fragmentation needed" (RFC 1191 §4); 0 from old routers.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        let [_, _, high, low] = self.rest;
        let tells = self.kind == UNREACHABLE && self.code == FRAGMENTATION_NEEDED;
        tells.then(|| u16::from_be_bytes([high, low]))
    }

    /// Whether the message reports an error, so that no error may be sent about it (RFC 1122
    /// §3.2.2).
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.kind, UNREACHABLE | 4 | 5 | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// A message taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    /// The header.
    pub header: &'a IcmpHeader,
    /// Echo data, or the packet an error is about.
    pub payload: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Takes a message apart; the checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::IcmpTruncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, payload) =
            IcmpHeader::ref_from_prefix(bytes).map_err(|_| ParseError::IcmpTruncated)?;
        Ok(Self { header, payload })
    }
}

//! ICMPv6 headers (RFC 4443).

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 1;
/// Type: packet too big; `rest` is the MTU (RFC 4443 §3.2).
pub const PACKET_TOO_BIG: u8 = 2;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Type: echo request.
pub const ECHO: u8 = 128;
/// Type: echo reply.
pub const ECHO_REPLY: u8 = 129;

/// The 8 bytes that most messages begin with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Icmpv6Header {
    /// Type; errors are below 128.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Internet checksum over pseudo-header and the whole message.
    pub checksum: U16,
    /// By type: echo id and sequence number, an MTU, a pointer, or unused.
    pub rest: U32,
}

impl Icmpv6Header {
    /// "Packet too big", its checksum still 0.
    #[must_use]
    pub fn packet_too_big(mtu: u32) -> Self {
        Self { kind: PACKET_TOO_BIG, code: 0, checksum: U16::ZERO, rest: mtu.into() }
    }

    /// The MTU in "packet too big".
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        (self.kind == PACKET_TOO_BIG).then(|| self.rest.get())
    }

    /// Whether the message reports an error, so that no error may be sent about it (RFC 4443 §2.4
    /// e.1).
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.kind < 128
    }
}

/// A message taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<'a> {
    /// The header.
    pub header: &'a Icmpv6Header,
    /// Echo data, or the packet an error is about.
    pub payload: &'a [u8],
}

impl<'a> Icmpv6<'a> {
    /// Takes a message apart; the checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::Icmpv6Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, payload) =
            Icmpv6Header::ref_from_prefix(bytes).map_err(|_| ParseError::Icmpv6Truncated)?;
        Ok(Self { header, payload })
    }
}

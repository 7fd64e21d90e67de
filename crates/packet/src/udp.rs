//! UDP headers (RFC 768).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// The 8 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Bytes of header and payload.
    pub length: U16,
    /// Internet checksum over pseudo-header, header and payload; 0 says "none" (IPv4 only, but see
    /// RFC 6935).
    pub checksum: U16,
}

/// A datagram taken apart.
#[derive(Clone, Copy, Debug)]
pub struct UdpDatagram<'a> {
    /// The header.
    pub header: &'a UdpHeader,
    /// The bytes within the length, behind the header.
    pub payload: &'a [u8],
    /// Bytes behind the length.
    pub trailing: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Takes a datagram apart; the checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::UdpTruncated`], [`ParseError::UdpLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            UdpHeader::ref_from_prefix(bytes).map_err(|_| ParseError::UdpTruncated)?;
        let (payload, trailing) = usize::from(header.length.get())
            .checked_sub(HEADER_LEN)
            .and_then(|len| rest.split_at_checked(len))
            .ok_or(ParseError::UdpLength)?;
        Ok(Self { header, payload, trailing })
    }
}

//! The clear part of ESP packets (RFC 4303 §2): SPI and sequence number before, padding and trailer
//! behind.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of SPI and sequence number.
pub const HEADER_LEN: usize = 8;

/// Bytes of pad length and next header, which end the encrypted part.
pub const TRAILER_LEN: usize = 2;

/// Four zero bytes that mark IKE in a UDP payload on port 4500 (RFC 3948 §2.2).
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];

/// The 8 bytes that ESP begins with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EspHeader {
    /// Security parameters index.
    pub spi: U32,
    /// The sequence number's low 32 bits.
    pub sequence: U32,
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Esp<'a> {
    /// SPI and sequence number.
    pub header: &'a EspHeader,
    /// IV, encrypted bytes and ICV.
    pub body: &'a [u8],
}

impl<'a> Esp<'a> {
    /// Takes a packet apart.
    ///
    /// # Errors
    /// [`ParseError::EspTruncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, body) =
            EspHeader::ref_from_prefix(bytes).map_err(|_| ParseError::EspTruncated)?;
        Ok(Self { header, body })
    }
}

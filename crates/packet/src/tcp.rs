//! TCP headers with options (RFC 9293).

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The flag bits of byte 13, one name each.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// Opens a connection.
    pub const SYN: Self = Self(0x02);
    /// Breaks a connection.
    pub const RST: Self = Self(0x04);
    /// Deliver to the reader at once.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// Congestion was experienced (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether any of `flags` is set.
    #[must_use]
    #[inline]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// The union of both.
    #[must_use]
    #[inline]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These flags without those.
    #[must_use]
    #[inline]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

/// The fixed 20 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TcpHeader {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Sequence number of the first payload byte.
    pub sequence: U32,
    /// Next sequence number expected from the peer.
    pub acknowledgment: U32,
    /// Header length in words of 4 bytes (4 bits), reserved (4).
    pub data_offset: u8,
    /// Flags.
    pub flags: TcpFlags,
    /// Receive window, unscaled.
    pub window: U16,
    /// Internet checksum over pseudo-header, header and payload.
    pub checksum: U16,
    /// Where urgent data ends.
    pub urgent: U16,
}

impl TcpHeader {
    /// Header bytes including options, as the header says: 0 to 60.
    #[must_use]
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset >> 4) * 4
    }
}

/// A segment taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    /// The fixed header.
    pub header: &'a TcpHeader,
    /// Options as they stand, up to 40 bytes; [`options`](Self::options) reads them.
    pub option_bytes: &'a [u8],
    /// Data.
    pub payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Takes a segment apart; the checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::TcpTruncated`], [`ParseError::TcpDataOffset`],
    /// [`ParseError::TcpOptionsTruncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            TcpHeader::ref_from_prefix(bytes).map_err(|_| ParseError::TcpTruncated)?;
        let options =
            header.header_len().checked_sub(HEADER_LEN).ok_or(ParseError::TcpDataOffset)?;
        let (option_bytes, payload) =
            rest.split_at_checked(options).ok_or(ParseError::TcpOptionsTruncated)?;
        Ok(Self { header, option_bytes, payload })
    }

    /// The options in order, without padding.
    #[must_use]
    pub fn options(&self) -> TcpOptions<'a> {
        TcpOptions { rest: self.option_bytes }
    }
}

/// One TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// IANA's number: 2 is the maximum segment size, 3 the window scale, 5 SACK, 8 timestamps.
    pub kind: u8,
    /// The bytes behind kind and length.
    pub data: &'a [u8],
}

/// The options of a segment; ends at the end-of-list option and at the first one that is malformed.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        while let [1, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let &[kind, length, ..] = self.rest else { return None };
        if kind == 0 {
            return None;
        }
        let (option, rest) = self.rest.split_at_checked(length.into())?;
        self.rest = rest;
        Some(TcpOption { kind, data: option.get(2..)? })
    }
}

//! GRE headers (RFC 2784) with key and sequence number (RFC 2890).

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::ethernet::EtherType;

/// Bytes of a header without optional fields.
pub const HEADER_LEN: usize = 4;

/// Flag in [`GreHeader::flags_version`]: a checksum and 2 reserved bytes follow.
pub const CHECKSUM: u16 = 0x8000;
/// Flag in [`GreHeader::flags_version`]: source routes follow (RFC 1701; refused).
pub const ROUTING: u16 = 0x4000;
/// Flag in [`GreHeader::flags_version`]: a key follows.
pub const KEY: u16 = 0x2000;
/// Flag in [`GreHeader::flags_version`]: a sequence number follows.
pub const SEQUENCE: u16 = 0x1000;

/// The version in [`GreHeader::flags_version`]: 0, or 1 in PPTP (RFC 2637).
pub const VERSION: u16 = 0x0007;

/// The fixed 4 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct GreHeader {
    /// Flags, and the version in the low 3 bits.
    pub flags_version: U16,
    /// What the payload is.
    pub protocol: EtherType,
}

/// The optional fields, read or to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreFields {
    /// Internet checksum over GRE header and payload. As read or written, not verified or computed.
    pub checksum: Option<u16>,
    /// Distinguishes tunnels between the same addresses.
    pub key: Option<u32>,
    /// Sequence number.
    pub sequence: Option<u32>,
}

impl GreFields {
    /// Bytes of a header with these fields: 4 to 16.
    #[must_use]
    pub fn header_len(&self) -> usize {
        HEADER_LEN
            + 4 * (usize::from(self.checksum.is_some())
                + usize::from(self.key.is_some())
                + usize::from(self.sequence.is_some()))
    }

    /// Writes a header to the front of `out` and returns its length; `None`, and nothing written,
    /// when it does not fit.
    pub fn write(&self, protocol: EtherType, out: &mut [u8]) -> Option<usize> {
        let len = self.header_len();
        let header = out.get_mut(..len)?;
        let words = [self.checksum.map(|sum| u32::from(sum) << 16), self.key, self.sequence];
        let flags =
            [CHECKSUM, KEY, SEQUENCE].into_iter().zip(words).filter(|(_, word)| word.is_some());
        let flags = flags.fold(0, |set, (flag, _)| set | flag);
        let (fixed, optional) = header.split_at_mut(HEADER_LEN);
        fixed.copy_from_slice(GreHeader { flags_version: flags.into(), protocol }.as_bytes());
        for (place, word) in optional.chunks_exact_mut(4).zip(words.into_iter().flatten()) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        Some(len)
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Gre<'a> {
    /// The fixed header.
    pub header: &'a GreHeader,
    /// The fields that its flags announce.
    pub fields: GreFields,
    /// What is carried.
    pub payload: &'a [u8],
}

impl<'a> Gre<'a> {
    /// Takes a packet apart; the checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::GreTruncated`], [`ParseError::GreVersion`], [`ParseError::GreRouting`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, mut rest) =
            GreHeader::ref_from_prefix(bytes).map_err(|_| ParseError::GreTruncated)?;
        let flags = header.flags_version.get();
        if flags & VERSION != 0 {
            return Err(ParseError::GreVersion);
        }
        if flags & ROUTING != 0 {
            return Err(ParseError::GreRouting);
        }
        let mut field = |flag: u16| -> Result<Option<u32>, ParseError> {
            if flags & flag == 0 {
                return Ok(None);
            }
            let (word, behind) =
                U32::ref_from_prefix(rest).map_err(|_| ParseError::GreTruncated)?;
            rest = behind;
            Ok(Some(word.get()))
        };
        let checksum = field(CHECKSUM)?.map(high_half);
        let fields = GreFields { checksum, key: field(KEY)?, sequence: field(SEQUENCE)? };
        Ok(Self { header, fields, payload: rest })
    }
}

/// The upper 16 bits: a checksum without the reserved bytes behind it.
#[inline]
fn high_half(word: u32) -> u16 {
    let [a, b, _, _] = word.to_be_bytes();
    u16::from_be_bytes([a, b])
}

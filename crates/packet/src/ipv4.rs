//! IPv4 headers with options (RFC 791).

use std::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;
use crate::{Ecn, ParseError, Protocol};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Version and length of a header without options, as [`Ipv4Header::version_ihl`] has them.
pub const WITHOUT_OPTIONS: u8 = 0x45;

/// The "don't fragment" bit in [`Ipv4Header::flags_fragment`].
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The "more fragments" bit in [`Ipv4Header::flags_fragment`].
pub const MORE_FRAGMENTS: u16 = 0x2000;

/// The fragment's offset in [`Ipv4Header::flags_fragment`].
pub const OFFSET: u16 = 0x1fff;

/// The fixed 20 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (4 bits) and header length in words of 4 bytes.
    pub version_ihl: u8,
    /// DSCP (6 bits) and ECN (2): the former TOS byte.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: U16,
    /// Identification: which datagram a fragment belongs to.
    pub id: U16,
    /// Reserved, [`DONT_FRAGMENT`], [`MORE_FRAGMENTS`], and the fragment's offset in units of 8
    /// bytes.
    pub flags_fragment: U16,
    /// Hops left.
    pub ttl: u8,
    /// What the payload is.
    pub protocol: Protocol,
    /// Internet checksum of the header alone.
    pub checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

impl Ipv4Header {
    /// A header without options, its checksum still 0; see [`fill_checksum`](Self::fill_checksum).
    #[must_use]
    pub fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: Protocol,
        total_len: u16,
    ) -> Self {
        Self {
            version_ihl: WITHOUT_OPTIONS,
            tos: 0,
            total_len: total_len.into(),
            id: U16::ZERO,
            flags_fragment: U16::ZERO,
            ttl: 64,
            protocol,
            checksum: U16::ZERO,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Header bytes including options, as the header says: 0 to 60.
    #[must_use]
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    /// Whether the checksum is that of a header without options.
    #[must_use]
    #[inline(always)]
    pub fn checksum_is_right(&self) -> bool {
        Sum::of_header(self).fold() == 0xffff
    }

    /// The ECN bits.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_tos(self.tos)
    }

    /// Whether routers may not fragment the packet.
    #[must_use]
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.flags_fragment.get() & DONT_FRAGMENT != 0
    }

    /// Whether a later fragment follows.
    #[must_use]
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.flags_fragment.get() & MORE_FRAGMENTS != 0
    }

    /// Where the payload belongs in the whole datagram's, in bytes.
    #[must_use]
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        (self.flags_fragment.get() & OFFSET) << 3
    }

    /// Source address.
    #[must_use]
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Writes the checksum of this header, which must be one without options.
    pub fn fill_checksum(&mut self) {
        self.checksum = U16::ZERO;
        self.checksum = Sum::of_header(self).checksum().into();
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    /// The fixed header.
    pub header: &'a Ipv4Header,
    /// Options as they stand, padded to whole words; up to 40 bytes.
    pub options: &'a [u8],
    /// What the total length covers behind the options.
    pub payload: &'a [u8],
    /// Bytes behind the total length: padding of a lower layer.
    pub trailing: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Takes a packet apart. The header checksum is not verified: see
    /// [`checksum_is_right`](Self::checksum_is_right).
    ///
    /// # Errors
    /// [`ParseError::NotIp`] for another version, and the variants named `Ipv4…`.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            Ipv4Header::ref_from_prefix(bytes).map_err(|_| ParseError::Ipv4Truncated)?;
        if header.version_ihl != WITHOUT_OPTIONS {
            return Self::parse_with_options(header, bytes);
        }
        let len = usize::from(header.total_len.get());
        let len = len.checked_sub(HEADER_LEN).ok_or(ParseError::Ipv4TotalLengthShort)?;
        let (payload, trailing) =
            rest.split_at_checked(len).ok_or(ParseError::Ipv4TotalLengthLong)?;
        Ok(Self { header, options: &[], payload, trailing })
    }

    #[cold]
    fn parse_with_options(header: &'a Ipv4Header, bytes: &'a [u8]) -> Result<Self, ParseError> {
        if header.version_ihl >> 4 != 4 {
            return Err(ParseError::NotIp);
        }
        let (header_len, total_len) = (header.header_len(), usize::from(header.total_len.get()));
        if header_len < HEADER_LEN {
            return Err(ParseError::Ipv4HeaderLength);
        }
        let options = bytes.get(HEADER_LEN..header_len).ok_or(ParseError::Ipv4OptionsTruncated)?;
        if total_len < header_len {
            return Err(ParseError::Ipv4TotalLengthShort);
        }
        let payload = bytes.get(header_len..total_len).ok_or(ParseError::Ipv4TotalLengthLong)?;
        Ok(Self { header, options, payload, trailing: &bytes[total_len..] })
    }

    /// Whether the header checksum, over the options too, is right.
    #[must_use]
    #[inline(always)]
    pub fn checksum_is_right(&self) -> bool {
        match self.options {
            [] => self.header.checksum_is_right(),
            options => Sum::of_header(self.header).plus_bytes(options).fold() == 0xffff,
        }
    }
}

/// The header that a packet begins with, and the packet's length as it says; none if there are
/// options or anything is wrong with it.
#[inline(always)]
pub(crate) fn fixed(bytes: &[u8]) -> Option<(&Ipv4Header, usize)> {
    let (header, _) = Ipv4Header::ref_from_prefix(bytes).ok()?;
    let total_len = usize::from(header.total_len.get());
    let is_fixed = header.version_ihl == 0x45 && (HEADER_LEN..=bytes.len()).contains(&total_len);
    is_fixed.then_some((header, total_len))
}

/// Gives the header that `packet` begins with the packet's own length, up to 65,535 bytes, and
/// another protocol; a checksum that was right stays so.
///
/// # Errors
/// [`ParseError::Ipv4Truncated`], with nothing done.
#[inline]
pub fn set_len_and_protocol(packet: &mut [u8], protocol: Protocol) -> Result<(), ParseError> {
    let len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    let (fixed, _) = Ipv4Header::mut_from_prefix(packet).map_err(|_| ParseError::Ipv4Truncated)?;
    let before = (fixed.total_len.get(), u16::from(fixed.protocol.0));
    fixed.checksum = Sum::ZERO
        .plus_u16(!fixed.checksum.get())
        .plus_u16(!before.0)
        .plus_u16(!before.1)
        .plus_u16(len)
        .plus_u16(protocol.0.into())
        .checksum()
        .into();
    fixed.total_len = len.into();
    fixed.protocol = protocol;
    Ok(())
}

/// Writes the checksum of the header that `packet` begins with, over its options too.
///
/// # Errors
/// Like [`Ipv4::parse`], except that the total length is not verified.
pub fn fill_checksum(packet: &mut [u8]) -> Result<(), ParseError> {
    let (fixed, _) = Ipv4Header::mut_from_prefix(packet).map_err(|_| ParseError::Ipv4Truncated)?;
    let header_len = fixed.header_len();
    if header_len < HEADER_LEN {
        return Err(ParseError::Ipv4HeaderLength);
    }
    if header_len == HEADER_LEN {
        fixed.fill_checksum();
        return Ok(());
    }
    fixed.checksum = U16::ZERO;
    let header = packet.get(..header_len).ok_or(ParseError::Ipv4OptionsTruncated)?;
    let checksum = Sum::of(header).checksum();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

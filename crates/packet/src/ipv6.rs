//! IPv6 headers and the chain of extension headers behind them (RFC 8200).

use std::net::Ipv6Addr;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Ecn, ParseError, Protocol};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Where the fixed header has its two addresses.
pub const ADDRESSES: std::ops::Range<usize> = 8..HEADER_LEN;

/// The minimum MTU of links (RFC 8200 §5).
pub const LEAST_MTU: usize = 1280;

/// Extension headers that are parsed; RFC 8200 §4.1 knows at most 6 before the upper layer that are
/// not ESP or AH.
pub const MAX_EXTENSIONS: usize = 8;

/// The fixed 40 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    /// Bytes behind this header.
    pub payload_len: U16,
    /// Type of the next header: an extension header or the upper layer.
    pub next_header: Protocol,
    /// Hops left.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Ipv6Header {
    /// A header with traffic class and flow label 0 and hop limit 64.
    #[must_use]
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: Protocol,
        payload_len: u16,
    ) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: payload_len.into(),
            next_header,
            hop_limit: 64,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// DSCP (6 bits) and ECN (2).
    #[must_use]
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        let [high, low, _, _] = self.version_class_flow.to_bytes();
        (high << 4) | (low >> 4)
    }

    /// Replaces DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        let rest = self.version_class_flow.get() & !(0xff << 20);
        self.version_class_flow = U32::new(rest | u32::from(class) << 20);
    }

    /// The ECN bits.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_tos(self.traffic_class())
    }

    /// The flow label, 20 bits.
    #[must_use]
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }

    /// Replaces the flow label; bits above the 20th are ignored.
    #[inline]
    pub fn set_flow_label(&mut self, label: u32) {
        let rest = self.version_class_flow.get() & !0x000f_ffff;
        self.version_class_flow = U32::new(rest | label & 0x000f_ffff);
    }

    /// Source address.
    #[must_use]
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }
}

/// The first two bytes of hop-by-hop options, destination options and routing headers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ExtensionHeader {
    /// What follows this extension header.
    pub next_header: Protocol,
    /// Length in units of 8 bytes, not counting the first 8.
    pub length: u8,
}

/// The fragment header (RFC 8200 §4.5).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct FragmentHeader {
    /// Type of the first header of the fragmentable part.
    pub next_header: Protocol,
    /// Sent as 0.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), reserved (2), more fragments (1).
    pub offset_more: U16,
    /// Identification of the datagram.
    pub id: U32,
}

impl FragmentHeader {
    /// Offset of the payload in the fragmentable part, in bytes.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u16 {
        self.offset_more.get() & 0xfff8
    }

    /// Whether a later fragment follows.
    #[must_use]
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    /// The fixed header.
    pub header: &'a Ipv6Header,
    /// What the payload length covers: extension headers and upper layer.
    pub payload: &'a [u8],
    /// Bytes behind the payload length: padding of a lower layer.
    pub trailing: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Takes a packet apart; [`chain`](Self::chain) walks its extension headers.
    ///
    /// # Errors
    /// [`ParseError::NotIp`] for another version, [`ParseError::Ipv6Truncated`],
    /// [`ParseError::Ipv6PayloadLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            Ipv6Header::ref_from_prefix(bytes).map_err(|_| ParseError::Ipv6Truncated)?;
        if header.version_class_flow.to_bytes()[0] >> 4 != 6 {
            return Err(ParseError::NotIp);
        }
        let (payload, trailing) = rest
            .split_at_checked(header.payload_len.get().into())
            .ok_or(ParseError::Ipv6PayloadLength)?;
        Ok(Self { header, payload, trailing })
    }

    /// Walks the extension headers.
    ///
    /// # Errors
    /// [`ParseError::ExtensionTruncated`], [`ParseError::ExtensionsTooMany`].
    #[inline]
    pub fn chain(&self) -> Result<ExtensionChain, ParseError> {
        ExtensionChain::walk(self.header.next_header, self.payload)
    }
}

/// Position in the chain of headers, and of the byte that names the header there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderPosition {
    /// Offset from the packet's first byte.
    pub offset: usize,
    /// Offset of the next-header byte that names this header.
    pub next_header_at: usize,
}

impl HeaderPosition {
    /// Directly behind the fixed header.
    const FIRST: Self = Self { offset: HEADER_LEN, next_header_at: 6 };
}

/// Result of parsing the extension headers.
///
/// Hop-by-hop options, routing, fragment and destination options headers are skipped. AH and ESP
/// count as upper layers, as in `net/xfrm/xfrm_policy.c: decode_session6`. A later fragment has no
/// further headers, so the parse ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionChain {
    /// The first protocol that is not an extension header.
    pub upper: Protocol,
    /// Its position.
    pub upper_place: HeaderPosition,
    /// The fragment header, when there is one.
    pub fragment: Option<FragmentHeader>,
    /// Where transport mode inserts ESP (RFC 4303 §3.1.1): behind the last hop-by-hop, routing or
    /// fragment header. Destination options stay outside only if one of those follows them.
    pub esp_place: HeaderPosition,
}

impl ExtensionChain {
    /// Start of a parse, at `first`.
    #[inline]
    pub(crate) const fn begin(first: Protocol) -> Self {
        Self {
            upper: first,
            upper_place: HeaderPosition::FIRST,
            fragment: None,
            esp_place: HeaderPosition::FIRST,
        }
    }

    /// Parses from `first`, the type of the header at the start of `payload`, the bytes behind the
    /// fixed header.
    ///
    /// # Errors
    /// [`ParseError::ExtensionTruncated`], [`ParseError::ExtensionsTooMany`].
    #[inline]
    pub fn walk(first: Protocol, payload: &[u8]) -> Result<Self, ParseError> {
        let mut chain = Self::begin(first);
        for _ in 0..=MAX_EXTENSIONS {
            if !chain.step(payload)? {
                return Ok(chain);
            }
        }
        Err(ParseError::ExtensionsTooMany)
    }

    /// Skips one extension header; `false` if there is none.
    #[inline]
    fn step(&mut self, payload: &[u8]) -> Result<bool, ParseError> {
        if !self.goes_on() {
            return Ok(false);
        }
        self.skip(payload).map(|()| true)
    }

    /// Whether there is an extension header to skip.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        let later_fragment = self.fragment.is_some_and(|fragment| fragment.offset() != 0);
        !later_fragment && is_extension(self.upper)
    }

    pub(crate) fn skip(&mut self, payload: &[u8]) -> Result<(), ParseError> {
        let at = self.upper_place.offset - HEADER_LEN;
        let bytes = payload.get(at..).ok_or(ParseError::ExtensionTruncated)?;
        let (header, _) =
            ExtensionHeader::ref_from_prefix(bytes).map_err(|_| ParseError::ExtensionTruncated)?;
        let kind = self.upper;
        let mut len = (usize::from(header.length) + 1) * 8;
        if kind == Protocol::FRAGMENT {
            let (fragment, _) = FragmentHeader::ref_from_prefix(bytes)
                .map_err(|_| ParseError::ExtensionTruncated)?;
            self.fragment = Some(*fragment);
            len = size_of::<FragmentHeader>();
        }
        if len > bytes.len() {
            return Err(ParseError::ExtensionTruncated);
        }
        self.upper = header.next_header;
        self.upper_place = HeaderPosition {
            offset: self.upper_place.offset + len,
            next_header_at: self.upper_place.offset,
        };
        if kind != Protocol::DSTOPTS {
            self.esp_place = self.upper_place;
        }
        Ok(())
    }
}

/// A packet's fixed header and length; `None` if an extension header follows or it is malformed.
#[inline(always)]
pub(crate) fn fixed(bytes: &[u8]) -> Option<(&Ipv6Header, usize)> {
    let (header, rest) = Ipv6Header::ref_from_prefix(bytes).ok()?;
    let payload_len = usize::from(header.payload_len.get());
    let is_fixed = header.version_class_flow.to_bytes()[0] >> 4 == 6
        && payload_len <= rest.len()
        && !is_extension(header.next_header);
    is_fixed.then_some((header, HEADER_LEN + payload_len))
}

#[inline]
fn is_extension(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::HOPOPTS | Protocol::ROUTING | Protocol::FRAGMENT | Protocol::DSTOPTS
    )
}

//! Network header fields that the data path needs, parsed in one pass without borrowing.

use std::net::IpAddr;

use zerocopy::FromBytes;

use crate::ipv4::{self, Ipv4, Ipv4Header};
use crate::ipv6::{self, Ipv6, Ipv6Header};
use crate::{Ecn, ParseError, Protocol, checksum};

/// Version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Whether a packet is a fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// A whole datagram.
    #[default]
    None,
    /// The first fragment, which has the transport header.
    First {
        /// Identification of the datagram (16 bits in IPv4).
        id: u32,
        /// Whether others follow. `false` is possible in IPv6 only: an atomic fragment (RFC 6946).
        more: bool,
    },
    /// A later fragment, without transport header.
    Later {
        /// Identification of the datagram (16 bits in IPv4).
        id: u32,
        /// Whether others follow.
        more: bool,
        /// Offset of its payload in bytes.
        offset: u16,
    },
}

impl Fragment {
    /// A fragment, unless it is a whole datagram.
    #[inline]
    fn new(id: u32, offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, _) => Self::First { id, more },
            (offset, more) => Self::Later { id, more, offset },
        }
    }
}

/// Network header fields that the data path needs. Offsets count from the packet's first byte.
///
/// ```
/// use uxfrm_packet::{IpPacket, Protocol};
/// # let addresses = [192, 0, 2, 1, 192, 0, 2, 2];
/// # let header = [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0];
/// # let packet = [&header[..], &addresses, &[0, 53, 0, 53, 0, 8, 0, 0]].concat();
/// let ip = IpPacket::parse(&packet)?;
/// assert_eq!((ip.protocol, ip.header_len, ip.total_len), (Protocol::UDP, 20, 28));
/// assert!(ip.dont_fragment);
/// # Ok::<(), uxfrm_packet::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// IPv4 or IPv6; both addresses are of it.
    pub version: Version,
    /// Source address.
    pub source: IpAddr,
    /// Destination address of the fixed header (a routing header may have another one).
    pub destination: IpAddr,
    /// The TOS or traffic-class byte: DSCP and ECN.
    pub tos: u8,
    /// Hops left: TTL or hop limit.
    pub ttl: u8,
    /// IPv4's DF bit; always `true` in IPv6, where routers never fragment.
    pub dont_fragment: bool,
    /// IPv4 options, or IPv6 extension headers of any kind.
    pub has_options: bool,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// IPv6's flow label; 0 in IPv4.
    pub flow_label: u32,
    /// The upper layer: the protocol behind IPv4 options or IPv6 extension headers.
    pub protocol: Protocol,
    /// Bytes before the upper layer: header with options, or with extension headers.
    pub header_len: usize,
    /// Bytes of the packet as its header says: never more than were given, never fewer than
    /// `header_len`.
    pub total_len: usize,
    /// Bytes given beyond `total_len`.
    pub trailing: usize,
    /// Where transport mode puts ESP (RFC 4303 §3.1.1,
    /// [`ExtensionChain::esp_place`](crate::ipv6::ExtensionChain::esp_place)); `header_len` in
    /// IPv4.
    pub esp_offset: usize,
    /// The byte that names what stands at `esp_offset`, and is to say ESP then: 9 in IPv4.
    pub next_header_at: usize,
}

impl IpPacket {
    /// Parses the network header at the start of `bytes`.
    ///
    /// More bytes may follow the packet. The IPv4 header checksum is not verified.
    ///
    /// # Errors
    /// [`ParseError::NotIp`], and those of [`Ipv4::parse`], [`Ipv6::parse`] and [`Ipv6::chain`].
    // Always inlined: the stages use a few fields each, and moving the whole through memory costs
    // more than parsing it.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::of_ipv4(bytes),
            Some(6) => Self::of_ipv6(bytes),
            Some(_) | None => Err(ParseError::NotIp),
        }
    }

    /// Like [`IpPacket::parse`], for IPv4 without options, as nearly all are; `None` for all
    /// others, valid or not.
    #[must_use]
    #[inline(always)]
    pub fn parse_fixed(bytes: &[u8]) -> Option<Self> {
        let (header, total_len) = ipv4::fixed(bytes)?;
        Some(Self::of_header(header, ipv4::HEADER_LEN, total_len, bytes))
    }

    /// Like [`IpPacket::parse`], for IPv6 without extension headers, as nearly all are; `None` for
    /// all others, valid or not.
    #[must_use]
    #[inline(always)]
    pub fn parse_fixed_v6(bytes: &[u8]) -> Option<Self> {
        let (header, total_len) = ipv6::fixed(bytes)?;
        Some(Self {
            version: Version::V6,
            source: header.source().into(),
            destination: header.destination().into(),
            tos: header.traffic_class(),
            ttl: header.hop_limit,
            dont_fragment: true,
            has_options: false,
            fragment: Fragment::None,
            flow_label: header.flow_label(),
            protocol: header.next_header,
            header_len: ipv6::HEADER_LEN,
            total_len,
            trailing: bytes.len() - total_len,
            esp_offset: ipv6::HEADER_LEN,
            next_header_at: 6,
        })
    }

    /// Parses the network header like [`IpPacket::parse`] and passes it to `then`, which is
    /// compiled separately for each kind of header: so an address of one version is not copied as
    /// an enum of both, which would cost more than parsing it.
    ///
    /// # Errors
    /// Like [`IpPacket::parse`].
    #[inline(always)]
    pub fn parse_then<T>(bytes: &[u8], then: impl FnOnce(Self) -> T) -> Result<T, ParseError> {
        if let Some(fixed) = Self::parse_fixed(bytes) {
            return Ok(then(fixed));
        }
        if let Some(fixed) = Self::parse_fixed_v6(bytes) {
            return Ok(then(fixed));
        }
        Self::of_rest(bytes).map(then)
    }

    /// The differentiated services code point, 0 to 63.
    #[must_use]
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// The ECN bits.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_tos(self.tos)
    }

    /// Writes another TOS or traffic-class byte into the packet; `bytes` are those that were
    /// parsed. The IPv4 header checksum is updated, so it stays valid or invalid.
    pub fn set_tos(&self, bytes: &mut [u8], tos: u8) {
        match (self.version, bytes) {
            (Version::V4, [first, old, _, _, _, _, _, _, _, _, high, low, ..]) => {
                let word = |tos: u8| u16::from_be_bytes([*first, tos]);
                let before = u16::from_be_bytes([*high, *low]);
                let checksum = checksum::update(before, word(*old), word(tos));
                *old = tos;
                [*high, *low] = checksum.to_be_bytes();
            }
            (Version::V6, bytes) => {
                if let Ok((header, _)) = Ipv6Header::mut_from_prefix(bytes) {
                    header.set_traffic_class(tos);
                }
            }
            // Not the parsed bytes.
            (Version::V4, _) => {}
        }
    }

    /// Whether the packet is a fragment, the first one included; also IPv6's atomic fragments.
    #[must_use]
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment != Fragment::None
    }

    /// Whether other packets have parts of its datagram: a fragment that is not atomic (RFC 6946).
    #[must_use]
    #[inline]
    pub fn is_piece(&self) -> bool {
        self.is_fragment() && !matches!(self.fragment, Fragment::First { more: false, .. })
    }

    /// The upper layer's bytes; `bytes` are those that were parsed (of others: as much as there
    /// is).
    #[must_use]
    #[inline]
    pub fn upper<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = self.total_len.min(bytes.len());
        bytes.get(self.header_len..end).unwrap_or_default()
    }

    #[inline(always)]
    fn of_ipv4(bytes: &[u8]) -> Result<Self, ParseError> {
        let Ipv4 { header, .. } = Ipv4::parse(bytes)?;
        Ok(Self::of_header(header, header.header_len(), header.total_len.get().into(), bytes))
    }

    /// IPv4 with options, IPv6 with extension headers, and malformed packets.
    #[cold]
    fn of_rest(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::parse(bytes)
    }

    /// For an IPv4 header with valid lengths.
    #[inline(always)]
    fn of_header(header: &Ipv4Header, header_len: usize, total_len: usize, bytes: &[u8]) -> Self {
        let fragment = match header.flags_fragment.get() & !ipv4::DONT_FRAGMENT & 0x7fff {
            0 => Fragment::None,
            _ => Fragment::new(
                header.id.get().into(),
                header.fragment_offset(),
                header.more_fragments(),
            ),
        };
        Self {
            version: Version::V4,
            source: header.source().into(),
            destination: header.destination().into(),
            tos: header.tos,
            ttl: header.ttl,
            dont_fragment: header.dont_fragment(),
            has_options: header_len > ipv4::HEADER_LEN,
            fragment,
            flow_label: 0,
            protocol: header.protocol,
            header_len,
            total_len,
            trailing: bytes.len() - total_len,
            esp_offset: header_len,
            next_header_at: 9,
        }
    }

    #[inline(always)]
    fn of_ipv6(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = Ipv6::parse(bytes)?;
        let chain = packet.chain()?;
        let header = packet.header;
        let fragment = chain.fragment.map_or(Fragment::None, |piece| {
            Fragment::new(piece.id.get(), piece.offset(), piece.more())
        });
        Ok(Self {
            version: Version::V6,
            source: header.source().into(),
            destination: header.destination().into(),
            tos: header.traffic_class(),
            ttl: header.hop_limit,
            dont_fragment: true,
            has_options: chain.upper_place.offset != ipv6::HEADER_LEN,
            fragment,
            flow_label: header.flow_label(),
            protocol: chain.upper,
            header_len: chain.upper_place.offset,
            total_len: bytes.len() - packet.trailing.len(),
            trailing: packet.trailing.len(),
            esp_offset: chain.esp_place.offset,
            next_header_at: chain.esp_place.next_header_at,
        })
    }
}

#[cfg(test)]
mod tests;

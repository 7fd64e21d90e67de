//! Ethernet II headers with 802.1Q and 802.1ad tags.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Tags that are read one inside the other: a service tag and a customer tag.
pub const MAX_TAGS: usize = 2;

/// What a frame carries (IEEE 802 "EtherType").
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct EtherType(pub U16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(U16::from_bytes([0x08, 0x00]));
    /// ARP.
    pub const ARP: Self = Self(U16::from_bytes([0x08, 0x06]));
    /// IPv6.
    pub const IPV6: Self = Self(U16::from_bytes([0x86, 0xdd]));
    /// PPP in GRE (RFC 2637).
    pub const PPP: Self = Self(U16::from_bytes([0x88, 0x0b]));
    /// IPv4 that a router hands to a web cache, in GRE (WCCP).
    pub const WCCP: Self = Self(U16::from_bytes([0x88, 0x3e]));
    /// A customer tag follows (802.1Q).
    pub const VLAN: Self = Self(U16::from_bytes([0x81, 0x00]));
    /// A service tag follows (802.1ad).
    pub const SERVICE_VLAN: Self = Self(U16::from_bytes([0x88, 0xa8]));

    /// Whether a [`VlanTag`] follows.
    #[must_use]
    #[inline]
    pub fn is_tag(self) -> bool {
        self == Self::VLAN || self == Self::SERVICE_VLAN
    }
}

/// An Ethernet address.
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
pub struct MacAddr(pub [u8; 6]);

/// The 14 bytes before everything.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EthernetHeader {
    /// Destination address.
    pub destination: MacAddr,
    /// Source address.
    pub source: MacAddr,
    /// What follows: a tag, or the payload.
    pub ether_type: EtherType,
}

/// The 4 bytes of a tag that follow the [`EtherType`] which announced it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1), VLAN id (12).
    pub control: U16,
    /// What follows the tag.
    pub ether_type: EtherType,
}

impl VlanTag {
    /// The VLAN's number, 0 to 4095.
    #[must_use]
    #[inline]
    pub fn vlan(&self) -> u16 {
        self.control.get() & 0x0fff
    }

    /// The priority code point, 0 to 7.
    #[must_use]
    #[inline]
    pub fn priority(&self) -> u8 {
        self.control.to_bytes()[0] >> 5
    }

    /// Whether the frame may be dropped first.
    #[must_use]
    #[inline]
    pub fn drop_eligible(&self) -> bool {
        self.control.get() & 0x1000 != 0
    }
}

/// A frame taken apart.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a> {
    /// The fixed header.
    pub header: &'a EthernetHeader,
    /// Tags, the outer one first; 0 to [`MAX_TAGS`].
    pub tags: &'a [VlanTag],
    /// What `payload` is, after all tags.
    pub ether_type: EtherType,
    /// The bytes behind header and tags, with the padding of short frames.
    pub payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Takes a frame without preamble and check sequence apart.
    ///
    /// # Errors
    /// [`ParseError::EthernetTruncated`], [`ParseError::VlanTruncated`],
    /// [`ParseError::VlanTooDeep`].
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            EthernetHeader::ref_from_prefix(frame).map_err(|_| ParseError::EthernetTruncated)?;
        let mut ether_type = header.ether_type;
        let (mut count, mut payload) = (0, rest);
        while ether_type.is_tag() {
            if count == MAX_TAGS {
                return Err(ParseError::VlanTooDeep);
            }
            let (tag, behind) =
                VlanTag::ref_from_prefix(payload).map_err(|_| ParseError::VlanTruncated)?;
            (ether_type, payload) = (tag.ether_type, behind);
            count += 1;
        }
        let (tags, _) = <[VlanTag]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| ParseError::VlanTruncated)?;
        Ok(Self { header, tags, ether_type, payload })
    }

    /// Bytes before the payload.
    #[must_use]
    #[inline]
    pub fn header_len(&self) -> usize {
        size_of::<EthernetHeader>() + size_of_val(self.tags)
    }
}

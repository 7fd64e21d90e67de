//! Fields of packets, and their encoding as register loads.

use uxfrm_packet::Version;

use super::message::expression;
use uxfrm_netlink_wire::AttributeWriter;

/// Up to 16 bytes, the size of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegisterValue {
    bytes: [u8; 16],
    length: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Field {
    Meta(Meta),
    Header(Base, u8),
    /// An offset in an IPv6 extension header.
    Extension(Extension, u8),
    /// Whether the extension header exists: a byte, 1 or 0.
    Has(Extension),
    /// Type of the destination in the host's routes (`RTN_*`).
    DestinationKind,
}

/// Types of destinations (`RTN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// An address of the host.
    Local = 2,
    /// An IPv4 broadcast address of a link.
    Broadcast = 3,
    /// An IPv6 anycast address of the host.
    Anycast = 4,
    /// A multicast group, joined or not.
    Multicast = 5,
}

/// `NEXTHDR_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extension {
    Routing = 43,
    Fragment = 44,
}

/// `NFT_EXTHDR_F_PRESENT`
const PRESENT: u32 = 1;

/// `NFT_META_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Meta {
    Mark = 3,
    Interface = 4,
    InterfaceName = 6,
    LeavingName = 7,
    Family = 15,
    /// The upper-layer protocol, behind IPv6 extension headers.
    Protocol = 16,
}

/// `NFT_PAYLOAD_*_HEADER`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Network = 1,
    Transport = 2,
}

/// Sets bits of a packet's mark and keeps the others.
pub(super) fn set_mark_bits(bits: u32, list: &mut AttributeWriter<'_>) {
    const REGISTER: u32 = 1;
    Field::Meta(Meta::Mark).load(REGISTER, size_of::<u32>(), list);
    expression(list, "bitwise", |bitwise| {
        bitwise.be32(1, REGISTER);
        bitwise.be32(2, REGISTER);
        bitwise.be32(3, 4);
        bitwise.nest(4, |data| data.bytes(1, &(!bits).to_ne_bytes()));
        bitwise.nest(5, |data| data.bytes(1, &bits.to_ne_bytes()));
    });
    expression(list, "meta", |meta| {
        meta.be32(2, Meta::Mark as u32);
        meta.be32(3, REGISTER); // NFTA_META_SREG
    });
}

/// Bytes of an ICMP error before the packet that it quotes (RFC 792, RFC 4443 §3).
const BEFORE_QUOTE: u8 = 8;

impl Field {
    /// The same field of the packet that an ICMP error of this version quotes, whose header has
    /// neither options nor extension headers.
    pub(super) fn quoted(self, version: Version) -> Option<Self> {
        let (header, protocol) = match version {
            Version::V4 => (20, 9),
            Version::V6 => (40, 6),
        };
        let in_quote =
            |offset: u8| Some(Self::Header(Base::Transport, BEFORE_QUOTE.checked_add(offset)?));
        match self {
            Self::Meta(Meta::Family) => Some(self),
            Self::Meta(Meta::Protocol) => in_quote(protocol),
            Self::Header(Base::Network, offset) => in_quote(offset),
            Self::Header(Base::Transport, offset) => in_quote(offset.checked_add(header)?),
            Self::Meta(Meta::Mark | Meta::Interface | Meta::InterfaceName | Meta::LeavingName)
            | Self::Extension(..)
            | Self::Has(_)
            | Self::DestinationKind => None,
        }
    }

    /// Loads the first `length` bytes.
    pub(super) fn load(self, register: u32, length: usize, list: &mut AttributeWriter<'_>) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        match self {
            Self::Meta(key) => expression(list, "meta", |meta| {
                meta.be32(1, register);
                meta.be32(2, key as u32);
            }),
            Self::Header(base, offset) => expression(list, "payload", |payload| {
                payload.be32(1, register);
                payload.be32(2, base as u32);
                payload.be32(3, offset.into());
                payload.be32(4, length);
            }),
            Self::Extension(kind, offset) => expression(list, "exthdr", |header| {
                header.be32(1, register);
                header.bytes(2, &[kind as u8]);
                header.be32(3, offset.into());
                header.be32(4, length);
            }),
            Self::DestinationKind => expression(list, "fib", |fib| {
                fib.be32(1, register);
                fib.be32(2, 3); // NFT_FIB_RESULT_ADDRTYPE
                fib.be32(3, 2); // NFTA_FIB_F_DADDR
            }),
            Self::Has(kind) => expression(list, "exthdr", |header| {
                header.be32(1, register);
                header.bytes(2, &[kind as u8]);
                header.be32(3, 0);
                header.be32(4, length);
                header.be32(5, PRESENT);
            }),
        }
    }
}

impl RegisterValue {
    /// At most 16 bytes, which callers ensure.
    pub(super) fn of(value: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        Self { bytes, length: u8::try_from(value.len().min(16)).unwrap_or(16) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    pub(super) const fn length(&self) -> u8 {
        self.length
    }

    /// Padded with zeros to 32 bits, as in a register.
    pub(super) fn padded(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).next_multiple_of(4)]
    }

    /// Masks a register by it.
    pub(super) fn mask(&self, register: u32, list: &mut AttributeWriter<'_>) {
        expression(list, "bitwise", |bitwise| {
            bitwise.be32(1, register);
            bitwise.be32(2, register);
            bitwise.be32(3, self.length.into());
            bitwise.nest(4, |data| data.bytes(1, self.as_slice()));
            bitwise.nest(5, |data| data.bytes(1, &[0; 16][..self.length.into()]));
        });
    }
}

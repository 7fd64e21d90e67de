//! What can be looked at in a packet, and how it is brought into a register.

use super::message::expression;
use uxfrm_netlink_wire::AttributeWriter;

/// Up to 16 bytes: what fits into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Word {
    bytes: [u8; 16],
    length: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Field {
    Meta(Meta),
    Header(Base, u8),
    /// An offset in one of IPv6's extension headers.
    Extension(Extension, u8),
    /// Whether there is such a one: a byte, 1 or 0.
    Has(Extension),
    /// What the host's routes say the destination is (`RTN_*`): an address of its own, a broadcast, another's.
    DestinationKind,
}

/// What a destination is to the host (`RTN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// An own address.
    Local = 2,
    /// An IPv4 broadcast address of a link.
    Broadcast = 3,
    /// An IPv6 anycast address that is the host's as well.
    Anycast = 4,
    /// A group, whether the host has joined it or not.
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
    /// The upper layer's protocol, behind IPv6's extension headers.
    Protocol = 16,
}

/// `NFT_PAYLOAD_*_HEADER`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Network = 1,
    Transport = 2,
}

/// Sets bits of a packet's mark; the others stay.
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

impl Field {
    /// Loads as many bytes of it.
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

impl Word {
    /// At most 16 bytes: this module's users give no more.
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

    /// With the zeros behind it that fill the last 32 bits, as a register has them.
    pub(super) fn padded(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).next_multiple_of(4)]
    }

    /// Masks what is in a register by it.
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

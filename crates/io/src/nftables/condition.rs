//! One condition of a rule: something of a packet, under a mask, is or is not a value.
//!
//! Each becomes two or three expressions of `nf_tables`: load into a register, mask, compare. A packet without what
//! is to be loaded (no such header, too short, a later fragment) meets no condition, neither "is" nor "is not".

use std::net::IpAddr;

use uxfrm_packet::Version;

use crate::message::Attributes;
use crate::rtnetlink::Prefix;

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    field: Field,
    mask: Option<Word>,
    relation: Relation,
    value: Word,
}

/// Up to 16 bytes: what fits into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    bytes: [u8; 16],
    length: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Meta(Meta),
    Header(Base, u8),
    /// An offset in IPv6's fragment header.
    Fragment(u8),
}

/// `NFT_META_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meta {
    Mark = 3,
    Interface = 4,
    InterfaceName = 6,
    LeavingName = 7,
    Family = 15,
    /// The upper layer's protocol, behind IPv6's extension headers.
    Protocol = 16,
}

/// `NFT_PAYLOAD_*_HEADER`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Network = 1,
    Transport = 2,
}

/// `NFT_CMP_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Is = 0,
    IsNot = 1,
}

impl Condition {
    /// It came in by the device of this name. Names longer than the kernel's 15 bytes are cut.
    #[must_use]
    pub fn came_by(name: &str) -> Self {
        Self::is(Field::Meta(Meta::InterfaceName), &padded(name))
    }

    /// It is about to leave by the device of this name, cut likewise.
    #[must_use]
    pub fn leaves_by(name: &str) -> Self {
        Self::is(Field::Meta(Meta::LeavingName), &padded(name))
    }

    /// It came in by the device of this index.
    #[must_use]
    pub fn came_by_index(index: u32) -> Self {
        Self::is(Field::Meta(Meta::Interface), &index.to_ne_bytes())
    }

    /// It came in by some device: it is forwarded, where that is asked about what leaves (kernels before 5.7 don't know there).
    #[must_use]
    pub fn came_in() -> Self {
        Self { relation: Relation::IsNot, ..Self::came_by_index(0) }
    }

    /// It is of this version of IP.
    #[must_use]
    pub fn version(version: Version) -> Self {
        let family = match version {
            Version::V4 => 2,
            Version::V6 => 10,
        };
        Self::is(Field::Meta(Meta::Family), &[family])
    }

    /// Its upper layer's protocol is this one.
    #[must_use]
    pub fn protocol(number: u8) -> Self {
        Self::is(Field::Meta(Meta::Protocol), &[number])
    }

    /// Its upper layer's protocol is another one.
    #[must_use]
    pub fn other_protocol(number: u8) -> Self {
        Self { relation: Relation::IsNot, ..Self::protocol(number) }
    }

    /// Its mark under `mask` is `value`.
    #[must_use]
    pub fn mark(value: u32, mask: u32) -> Self {
        Self::masked(Field::Meta(Meta::Mark), &value.to_ne_bytes(), &mask.to_ne_bytes())
    }

    /// Its source address lies in a prefix; for packets of the prefix's version.
    #[must_use]
    pub fn source(prefix: Prefix) -> Self {
        Self::address(prefix, if prefix.address().is_ipv4() { 12 } else { 8 })
    }

    /// Its destination address lies in a prefix; for packets of the prefix's version.
    #[must_use]
    pub fn destination(prefix: Prefix) -> Self {
        Self::address(prefix, if prefix.address().is_ipv4() { 16 } else { 24 })
    }

    /// A byte of the IP header.
    #[must_use]
    pub fn network_byte(offset: u8, value: u8) -> Self {
        Self::is(Field::Header(Base::Network, offset), &[value])
    }

    /// A byte of the upper layer under a mask.
    #[must_use]
    pub fn upper_byte(offset: u8, value: u8, mask: u8) -> Self {
        Self::masked(Field::Header(Base::Transport, offset), &[value], &[mask])
    }

    /// Two bytes of the upper layer, big-endian, under a mask.
    #[must_use]
    pub fn upper_pair(offset: u8, value: u16, mask: u16) -> Self {
        let field = Field::Header(Base::Transport, offset);
        Self::masked(field, &value.to_be_bytes(), &mask.to_be_bytes())
    }

    /// Four bytes of the upper layer are not all 0.
    #[must_use]
    pub fn upper_word_is_not_zero(offset: u8) -> Self {
        let is_zero = Self::is(Field::Header(Base::Transport, offset), &[0; 4]);
        Self { relation: Relation::IsNot, ..is_zero }
    }

    /// It is IPv4 in one piece.
    #[must_use]
    pub fn whole_ipv4() -> Self {
        Self::masked(Field::Header(Base::Network, 6), &[0; 2], &0x3fff_u16.to_be_bytes())
    }

    /// It is a fragment of IPv6 and not the first.
    #[must_use]
    pub fn later_fragment() -> Self {
        let offset = Self::masked(Field::Fragment(2), &[0, 0], &0xfff8_u16.to_be_bytes());
        Self { relation: Relation::IsNot, ..offset }
    }

    fn address(prefix: Prefix, offset: u8) -> Self {
        let field = Field::Header(Base::Network, offset);
        let host_bits = |bits: u8| u32::from(bits - prefix.length());
        match prefix.address() {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits(32)).unwrap_or(0);
                Self::masked(field, &address.octets(), &mask.to_be_bytes())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits(128)).unwrap_or(0);
                Self::masked(field, &address.octets(), &mask.to_be_bytes())
            }
        }
    }

    fn is(field: Field, value: &[u8]) -> Self {
        Self { field, mask: None, relation: Relation::Is, value: Word::of(value) }
    }

    fn masked<const N: usize>(field: Field, value: &[u8; N], mask: &[u8; N]) -> Self {
        if mask.iter().all(|byte| *byte == 0xff) {
            return Self::is(field, value);
        }
        let mut counted = *value;
        counted.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
        Self { mask: Some(Word::of(mask)), ..Self::is(field, &counted) }
    }

    /// Writes its expressions into a rule's list.
    pub(super) fn describe(&self, list: &mut Attributes<'_>) {
        self.load(list);
        if let Some(mask) = &self.mask {
            expression(list, "bitwise", |bitwise| {
                bitwise.number(1, REGISTER);
                bitwise.number(2, REGISTER);
                bitwise.number(3, mask.length.into());
                bitwise.nest(4, |data| data.bytes(1, mask.as_slice()));
                bitwise.nest(5, |data| data.bytes(1, &[0; 16][..mask.length.into()]));
            });
        }
        expression(list, "cmp", |cmp| {
            cmp.number(1, REGISTER);
            cmp.number(2, self.relation as u32);
            cmp.nest(3, |data| data.bytes(1, self.value.as_slice()));
        });
    }

    fn load(&self, list: &mut Attributes<'_>) {
        let length = u32::from(self.value.length);
        match self.field {
            Field::Meta(key) => expression(list, "meta", |meta| {
                meta.number(1, REGISTER);
                meta.number(2, key as u32);
            }),
            Field::Header(base, offset) => expression(list, "payload", |payload| {
                payload.number(1, REGISTER);
                payload.number(2, base as u32);
                payload.number(3, offset.into());
                payload.number(4, length);
            }),
            Field::Fragment(offset) => expression(list, "exthdr", |header| {
                header.number(1, REGISTER);
                header.bytes(2, &[44]);
                header.number(3, offset.into());
                header.number(4, length);
            }),
        }
    }
}

/// A device's name as the kernel has it in a register.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    padded
}

/// `NFT_REG_1`: 16 bytes.
const REGISTER: u32 = 1;

/// One expression in a rule's list (`NFTA_LIST_ELEM`, `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`).
pub(super) fn expression(
    list: &mut Attributes<'_>,
    name: &str,
    data: impl FnOnce(&mut Attributes<'_>),
) {
    list.nest(1, |element| {
        element.text(1, name);
        element.nest(2, data);
    });
}

impl Word {
    /// At most 16 bytes: this module's constructors give no more.
    fn of(value: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        Self { bytes, length: u8::try_from(value.len().min(16)).unwrap_or(16) }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }
}

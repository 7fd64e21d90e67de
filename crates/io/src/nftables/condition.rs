//! One condition of a rule: something of a packet, under a mask, is or is not a value.
//!
//! Each becomes two or three expressions of `nf_tables`: load into a register, mask, compare. A packet without what
//! is to be loaded (no such header, too short, a later fragment) meets no condition, neither "is" nor "is not".

use std::net::IpAddr;

use uxfrm_packet::Version;

use super::field::{Base, Destination, Extension, Field, Meta, RegisterValue};
use super::key_field::{Question, REGISTER as REGISTER_BYTES, Reply};
use super::message::expression;
use super::simulated_table::Sample;
use crate::message::Attributes;
use crate::rtnetlink::Prefix;

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    field: Field,
    mask: Option<RegisterValue>,
    relation: Relation,
    value: RegisterValue,
}

/// `NFT_CMP_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        let offset = if prefix.address().is_ipv4() { 12 } else { 8 };
        Self::address(prefix, Field::Header(Base::Network, offset))
    }

    /// Its destination address lies in a prefix; for packets of the prefix's version.
    #[must_use]
    pub fn destination(prefix: Prefix) -> Self {
        let offset = if prefix.address().is_ipv4() { 16 } else { 24 };
        Self::address(prefix, Field::Header(Base::Network, offset))
    }

    /// It is IPv6 with a routing header by which it comes to an address in this prefix at last (RFC 8754 §2, RFC 6275 §6.4).
    #[must_use]
    pub fn last_segment(prefix: Prefix) -> Self {
        Self::address(prefix, Field::Extension(Extension::Routing, 8))
    }

    /// It goes where its IP header says; for packets of IPv6.
    #[must_use]
    pub fn no_routing_header() -> Self {
        Self { relation: Relation::IsNot, ..Self::is(Field::Has(Extension::Routing), &[1]) }
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

    /// Two bytes of the upper layer, big-endian, are others than these.
    #[must_use]
    pub fn other_upper_pair(offset: u8, value: u16) -> Self {
        Self { relation: Relation::IsNot, ..Self::upper_pair(offset, value, u16::MAX) }
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
        let field = Field::Extension(Extension::Fragment, 2);
        let offset = Self::masked(field, &[0, 0], &0xfff8_u16.to_be_bytes());
        Self { relation: Relation::IsNot, ..offset }
    }

    /// It is a fragment, the first one or a later one; for packets of this version.
    #[must_use]
    pub fn fragment(version: Version) -> Self {
        match version {
            Version::V4 => Self { relation: Relation::IsNot, ..Self::whole_ipv4() },
            Version::V6 => Self::is(Field::Has(Extension::Fragment), &[1]),
        }
    }

    /// It is no fragment; for packets of this version.
    #[must_use]
    pub fn whole(version: Version) -> Self {
        match version {
            Version::V4 => Self::whole_ipv4(),
            Version::V6 => Self { relation: Relation::IsNot, ..Self::fragment(Version::V6) },
        }
    }

    /// It goes to an address of the host's own.
    #[must_use]
    pub fn to_own_address() -> Self {
        Self::goes_to(Destination::Local)
    }

    /// Its destination is this to the host. Needs `nft_fib_inet`.
    #[must_use]
    pub fn goes_to(destination: Destination) -> Self {
        Self::is(Field::DestinationKind, &(destination as u32).to_ne_bytes())
    }

    /// It is a fragment and not the first; for packets of IPv4.
    #[must_use]
    pub fn later_of_ipv4() -> Self {
        let field = Field::Header(Base::Network, 6);
        let offset = Self::masked(field, &[0; 2], &0x1fff_u16.to_be_bytes());
        Self { relation: Relation::IsNot, ..offset }
    }

    /// It is a fragment of IPv6 with parts of this protocol's header, or of what is behind it.
    #[must_use]
    pub fn fragment_of(protocol: u8) -> Self {
        Self::is(Field::Extension(Extension::Fragment, 0), &[protocol])
    }

    fn address(prefix: Prefix, field: Field) -> Self {
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
        Self { field, mask: None, relation: Relation::Is, value: RegisterValue::of(value) }
    }

    /// Words of zeros at a mask's end are not loaded, as in IPv6 those behind a prefix.
    fn masked<const N: usize>(field: Field, value: &[u8; N], mask: &[u8; N]) -> Self {
        let last = mask.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let kept = (last + 1).next_multiple_of(REGISTER_BYTES).min(N);
        let (value, mask) = (&value[..kept], &mask[..kept]);
        if mask.iter().all(|byte| *byte == 0xff) {
            return Self::is(field, value);
        }
        let counted: Vec<_> = value.iter().zip(mask).map(|(value, mask)| value & mask).collect();
        Self { mask: Some(RegisterValue::of(mask)), ..Self::is(field, &counted) }
    }

    pub(super) const fn answered(
        field: Field,
        mask: Option<RegisterValue>,
        value: RegisterValue,
    ) -> Self {
        Self { field, mask, relation: Relation::Is, value }
    }

    /// What it asks, and the answer that it wants; `None` if it wants any answer but one.
    #[must_use]
    pub fn question(&self) -> Option<(Question, Reply)> {
        match self.relation {
            Relation::Is => Some(Question::new(self.field, self.mask, self.value)),
            Relation::IsNot => None,
        }
    }

    /// Whether it is about the version of IP, on which depends what all else means.
    #[must_use]
    pub fn is_of_version(&self) -> bool {
        self.field == Field::Meta(Meta::Family)
    }

    /// Whether a packet meets it.
    pub(super) fn is_met(&self, packet: &Sample<'_>) -> bool {
        let Some(mut found) = packet.load(self.field, self.value.as_slice().len()) else {
            return false;
        };
        if let Some(mask) = &self.mask {
            found.iter_mut().zip(mask.as_slice()).for_each(|(found, mask)| *found &= mask);
        }
        match self.relation {
            Relation::Is => found == self.value.as_slice(),
            Relation::IsNot => found != self.value.as_slice(),
        }
    }

    /// Writes its expressions into a rule's list.
    pub(super) fn describe(&self, list: &mut Attributes<'_>) {
        self.field.load(REGISTER, self.value.as_slice().len(), list);
        if let Some(mask) = &self.mask {
            mask.mask(REGISTER, list);
        }
        expression(list, "cmp", |cmp| {
            cmp.number(1, REGISTER);
            cmp.number(2, self.relation as u32);
            cmp.nest(3, |data| data.bytes(1, self.value.as_slice()));
        });
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

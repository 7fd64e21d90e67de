//! Conditions of rules: a field of a packet, under a mask, equals or differs from a value.
//!
//! Each becomes two or three `nf_tables` expressions: load into a register, mask, compare. A packet
//! without the field (no such header, too short, a later fragment) matches neither way.

use std::net::IpAddr;

use uxfrm_packet::Version;

use super::field::{Base, Destination, Extension, Field, Meta, RegisterValue};
use super::key_field::{KeyValue, REGISTER as REGISTER_BYTES, SetKeyField};
use super::message::expression;
use super::simulated_table::SamplePacket;
use crate::rtnetlink::RoutePrefix;
use uxfrm_netlink_wire::AttributeWriter;

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
    /// Received by the device of this name. Names longer than the kernel's 15 bytes are cut.
    #[must_use]
    pub fn came_by(name: &str) -> Self {
        Self::is(Field::Meta(Meta::InterfaceName), &padded(name))
    }

    /// About to leave by the device of this name, cut likewise.
    #[must_use]
    pub fn leaves_by(name: &str) -> Self {
        Self::is(Field::Meta(Meta::LeavingName), &padded(name))
    }

    /// Received by the device of this index.
    #[must_use]
    pub fn came_by_index(index: u32) -> Self {
        Self::is(Field::Meta(Meta::Interface), &index.to_ne_bytes())
    }

    /// Of this IP version.
    #[must_use]
    pub fn version(version: Version) -> Self {
        let family = match version {
            Version::V4 => 2,
            Version::V6 => 10,
        };
        Self::is(Field::Meta(Meta::Family), &[family])
    }

    /// Of this upper-layer protocol.
    #[must_use]
    pub fn protocol(number: u8) -> Self {
        Self::is(Field::Meta(Meta::Protocol), &[number])
    }

    /// Of another upper-layer protocol.
    #[must_use]
    pub fn other_protocol(number: u8) -> Self {
        Self { relation: Relation::IsNot, ..Self::protocol(number) }
    }

    /// The mark under `mask` equals `value`.
    #[must_use]
    pub fn mark(value: u32, mask: u32) -> Self {
        Self::masked(Field::Meta(Meta::Mark), &value.to_ne_bytes(), &mask.to_ne_bytes())
    }

    /// The source address is in a prefix; for packets of the prefix's version.
    #[must_use]
    pub fn source(prefix: RoutePrefix) -> Self {
        let offset = if prefix.address().is_ipv4() { 12 } else { 8 };
        Self::address(prefix, Field::Header(Base::Network, offset))
    }

    /// The destination address is in a prefix; for packets of the prefix's version.
    #[must_use]
    pub fn destination(prefix: RoutePrefix) -> Self {
        let offset = if prefix.address().is_ipv4() { 16 } else { 24 };
        Self::address(prefix, Field::Header(Base::Network, offset))
    }

    /// IPv6 with a routing header whose last segment is in this prefix (RFC 8754 §2, RFC 6275
    /// §6.4).
    #[must_use]
    pub fn last_segment(prefix: RoutePrefix) -> Self {
        Self::address(prefix, Field::Extension(Extension::Routing, 8))
    }

    /// IPv6 without a routing header that changes the destination.
    #[must_use]
    pub fn no_routing_header() -> Self {
        Self { relation: Relation::IsNot, ..Self::is(Field::Has(Extension::Routing), &[1]) }
    }

    /// The same condition on the packet that an ICMP error of this version quotes (RFC 792,
    /// RFC 4443 §3); `None` where a quote does not tell. Its IP header is taken to have neither
    /// options nor extension headers. An ICMPv6 redirect is no such error.
    #[must_use]
    pub fn quoted(&self, version: Version) -> Option<Self> {
        Some(Self { field: self.field.quoted(version)?, ..*self })
    }

    /// An ICMPv6 redirect of packets to a destination in this prefix (RFC 4861 §4.5).
    #[must_use]
    pub fn redirects(prefix: RoutePrefix) -> Self {
        Self::address(prefix, Field::Header(Base::Transport, 24))
    }

    /// An IPv4 header without options.
    #[must_use]
    pub fn without_options() -> Self {
        Self::network_byte(0, 0x45)
    }

    /// An IPv4 header with options.
    #[must_use]
    pub fn with_options() -> Self {
        Self { relation: Relation::IsNot, ..Self::without_options() }
    }

    /// A byte of the IP header has this value.
    #[must_use]
    pub fn network_byte(offset: u8, value: u8) -> Self {
        Self::is(Field::Header(Base::Network, offset), &[value])
    }

    /// A byte of the upper layer under a mask has this value.
    #[must_use]
    pub fn upper_byte(offset: u8, value: u8, mask: u8) -> Self {
        Self::masked(Field::Header(Base::Transport, offset), &[value], &[mask])
    }

    /// Two bytes of the upper layer, big-endian, under a mask, have this value.
    #[must_use]
    pub fn upper_pair(offset: u8, value: u16, mask: u16) -> Self {
        let field = Field::Header(Base::Transport, offset);
        Self::masked(field, &value.to_be_bytes(), &mask.to_be_bytes())
    }

    /// Two bytes of the upper layer, big-endian, differ from this value.
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

    /// Unfragmented IPv4.
    #[must_use]
    pub fn whole_ipv4() -> Self {
        Self::masked(Field::Header(Base::Network, 6), &[0; 2], &0x3fff_u16.to_be_bytes())
    }

    /// An IPv6 fragment other than the first.
    #[must_use]
    pub fn later_fragment() -> Self {
        let field = Field::Extension(Extension::Fragment, 2);
        let offset = Self::masked(field, &[0, 0], &0xfff8_u16.to_be_bytes());
        Self { relation: Relation::IsNot, ..offset }
    }

    /// A fragment, first or later; for packets of this version.
    #[must_use]
    pub fn fragment(version: Version) -> Self {
        match version {
            Version::V4 => Self { relation: Relation::IsNot, ..Self::whole_ipv4() },
            Version::V6 => Self::is(Field::Has(Extension::Fragment), &[1]),
        }
    }

    /// Not a fragment; for packets of this version.
    #[must_use]
    pub fn whole(version: Version) -> Self {
        match version {
            Version::V4 => Self::whole_ipv4(),
            Version::V6 => Self { relation: Relation::IsNot, ..Self::fragment(Version::V6) },
        }
    }

    /// To an address of the host.
    #[must_use]
    pub fn to_own_address() -> Self {
        Self::goes_to(Destination::Local)
    }

    /// The destination is of this kind for the host. Needs `nft_fib_inet`.
    #[must_use]
    pub fn goes_to(destination: Destination) -> Self {
        Self::is(Field::DestinationKind, &(destination as u32).to_ne_bytes())
    }

    /// An IPv4 fragment other than the first.
    #[must_use]
    pub fn later_of_ipv4() -> Self {
        let field = Field::Header(Base::Network, 6);
        let offset = Self::masked(field, &[0; 2], &0x1fff_u16.to_be_bytes());
        Self { relation: Relation::IsNot, ..offset }
    }

    /// An IPv6 fragment with parts of this protocol's header or payload.
    #[must_use]
    pub fn fragment_of(protocol: u8) -> Self {
        Self::is(Field::Extension(Extension::Fragment, 0), &[protocol])
    }

    fn address(prefix: RoutePrefix, field: Field) -> Self {
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

    /// Zero words at the end of a mask are not loaded, as in IPv6 behind a prefix.
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

    /// Its field and the value that it requires; `None` for a condition that excludes a value.
    #[must_use]
    pub fn question(&self) -> Option<(SetKeyField, KeyValue)> {
        match self.relation {
            Relation::Is => Some(SetKeyField::new(self.field, self.mask, self.value)),
            Relation::IsNot => None,
        }
    }

    /// Whether it tests the IP version, on which the meaning of other fields depends.
    #[must_use]
    pub fn is_of_version(&self) -> bool {
        self.field == Field::Meta(Meta::Family)
    }

    /// Whether a packet matches.
    pub(super) fn is_met(&self, packet: &SamplePacket<'_>) -> bool {
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

    /// Appends its expressions to a rule's list.
    pub(super) fn describe(&self, list: &mut AttributeWriter<'_>) {
        self.field.load(REGISTER, self.value.as_slice().len(), list);
        if let Some(mask) = &self.mask {
            mask.mask(REGISTER, list);
        }
        expression(list, "cmp", |cmp| {
            cmp.be32(1, REGISTER);
            cmp.be32(2, self.relation as u32);
            cmp.nest(3, |data| data.bytes(1, self.value.as_slice()));
        });
    }
}

/// A device's name as in a register.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    padded
}

/// `NFT_REG_1`: 16 bytes.
const REGISTER: u32 = 1;

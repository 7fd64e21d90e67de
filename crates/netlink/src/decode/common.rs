//! Parts of states and policies: selectors, limits, marks, directions, protocols, modes.

use std::net::IpAddr;

use uxfrm_engine::{
    Direction, Family, IfId, LifetimeLimits, Mark, Mode, PolicyKind, PortMask, Prefix, SaProtocol,
    Selector, SoftHardLimit,
};
use uxfrm_netlink_wire::{NetlinkHeader, NetlinkMessage, aligned};
use zerocopy::FromBytes;

use crate::{
    address::{RawAddress, address},
    attribute::{AttributeType, Attributes},
    layout::{RawLimits, RawMark, RawPolicyType, RawSecurityContext, RawSelector},
    refusal::{NetlinkError, number},
};

/// A selector of a known family; `None` when a prefix is too long for it.
pub(crate) fn selector(family: Family, raw: &RawSelector) -> Option<Selector> {
    let prefix = |bytes, len| Prefix::new(address(family, bytes), len).ok();
    Some(Selector {
        source: prefix(raw.source, raw.source_len)?,
        destination: prefix(raw.destination, raw.destination_len)?,
        protocol: raw.protocol,
        source_port: PortMask { value: raw.source_port.get(), mask: raw.source_port_mask.get() },
        destination_port: PortMask {
            value: raw.destination_port.get(),
            mask: raw.destination_port_mask.get(),
        },
        ifindex: raw.ifindex,
        user: raw.user,
    })
}

/// The kernel's error for a prefix that is too long.
pub(crate) const fn prefix_too_long(family: Family) -> NetlinkError {
    NetlinkError::invalid(match family {
        Family::V4 => "Invalid prefix length in selector (must be <= 32 for IPv4)",
        Family::V6 => "Invalid prefix length in selector (must be <= 128 for IPv6)",
    })
}

/// Limits, unchecked as in the kernel: charon's soft limits may exceed the hard ones.
pub(crate) const fn limits(raw: &RawLimits) -> LifetimeLimits {
    LifetimeLimits {
        bytes: SoftHardLimit { soft: raw.soft_bytes, hard: raw.hard_bytes },
        packets: SoftHardLimit { soft: raw.soft_packets, hard: raw.hard_packets },
        added_seconds: SoftHardLimit { soft: raw.soft_added, hard: raw.hard_added },
        used_seconds: SoftHardLimit { soft: raw.soft_used, hard: raw.hard_used },
    }
}

/// `XFRMA_MARK`; by default the mark that matches all.
pub(crate) fn mark(attributes: &Attributes<'_>) -> Mark {
    let raw = attributes.read::<RawMark>(AttributeType::Mark);
    raw.map_or_else(Mark::default, |raw| Mark { value: raw.value, mask: raw.mask })
}

/// `XFRMA_SET_MARK` and its mask, which is all ones when it is not there.
pub(crate) fn output_mark(attributes: &Attributes<'_>) -> Mark {
    let number = |kind| attributes.read::<u32>(kind);
    number(AttributeType::SetMark).map_or_else(Mark::default, |value| Mark {
        value,
        mask: number(AttributeType::SetMarkMask).unwrap_or(u32::MAX),
    })
}

/// `XFRMA_IF_ID`.
pub(crate) fn if_id(attributes: &Attributes<'_>) -> IfId {
    IfId(attributes.read(AttributeType::IfId).unwrap_or(0))
}

/// `XFRM_POLICY_IN`, `_OUT`, `_FWD`.
pub(crate) const fn policy_direction(number: u8) -> Result<Direction, NetlinkError> {
    match number {
        0 => Ok(Direction::In),
        1 => Ok(Direction::Out),
        2 => Ok(Direction::Forward),
        _ => Err(NetlinkError::invalid("Invalid policy direction")),
    }
}

/// `XFRMA_POLICY_TYPE`; main without it.
pub(crate) fn policy_kind(attributes: &Attributes<'_>) -> Result<PolicyKind, NetlinkError> {
    let raw = attributes.read::<RawPolicyType>(AttributeType::PolicyType);
    match raw.map_or(0, |raw| raw.kind) {
        0 => Ok(PolicyKind::Main),
        1 => Ok(PolicyKind::Sub),
        _ => Err(NetlinkError::invalid("Invalid policy type")),
    }
}

/// The IPsec protocols that states have.
pub(crate) fn protocol(number: u8) -> Option<SaProtocol> {
    SaProtocol::from_number(number).filter(|protocol| *protocol != SaProtocol::Any)
}

/// Whether `wanted` selects `protocol`: 0 is all, 255 ESP, AH and IPComp (`xfrm_id_proto_match`).
pub(crate) const fn protocol_is_meant(protocol: SaProtocol, wanted: u8) -> bool {
    let ipsec = matches!(protocol, SaProtocol::Esp | SaProtocol::Ah | SaProtocol::Comp);
    wanted == 0 || wanted == protocol.number() || (wanted == 255 && ipsec)
}

/// `XFRM_MODE_*`.
pub(crate) const fn mode(number: u8) -> Option<Mode> {
    match number {
        0 => Some(Mode::Transport),
        1 => Some(Mode::Tunnel),
        2 => Some(Mode::RouteOptimization),
        3 => Some(Mode::InTrigger),
        4 => Some(Mode::Beet),
        5 => Some(Mode::Iptfs),
        _ => None,
    }
}

/// A mode's number.
#[must_use]
pub const fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Transport => 0,
        Mode::Tunnel => 1,
        Mode::RouteOptimization => 2,
        Mode::InTrigger => 3,
        Mode::Beet => 4,
        Mode::Iptfs => 5,
    }
}

/// `XFRMA_SA_DIR`, already known to be 1 or 2.
pub(crate) fn sa_direction(attributes: &Attributes<'_>) -> Option<Direction> {
    match attributes.read::<u8>(AttributeType::SaDir)? {
        1 => Some(Direction::In),
        _ => Some(Direction::Out),
    }
}

/// Checks the lengths in `XFRMA_SEC_CTX` and drops it, as a kernel without a security module does.
pub(crate) fn check_security_context(attributes: &Attributes<'_>) -> Result<(), NetlinkError> {
    let Some(value) = attributes.value(AttributeType::SecCtx) else { return Ok(()) };
    let fits = RawSecurityContext::read_from_prefix(value).is_ok_and(|(raw, _)| {
        let len = usize::from(raw.len);
        len <= value.len() && len == size_of::<RawSecurityContext>() + usize::from(raw.text_len)
    });
    if fits { Ok(()) } else { Err(NetlinkError::invalid("Invalid security context length")) }
}

/// `XFRMA_SRCADDR`, `XFRMA_COADDR` in a family.
pub(crate) fn address_attribute(
    attributes: &Attributes<'_>,
    kind: AttributeType,
    family: Family,
) -> Option<IpAddr> {
    attributes.read::<RawAddress>(kind).map(|raw| address(family, raw))
}

/// A message's structure, and its attributes.
pub(crate) fn parts<T: FromBytes>(
    message: NetlinkMessage<'_>,
) -> Result<(T, Attributes<'_>), NetlinkError> {
    let body = message.body();
    let (raw, _) = T::read_from_prefix(body).map_err(|_| NetlinkError::bare(number::EINVAL))?;
    let start = aligned(size_of::<T>());
    let tail = body.get(start..).unwrap_or_default();
    Ok((raw, Attributes::parse(tail, NetlinkHeader::LEN + start)?))
}

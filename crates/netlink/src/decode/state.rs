//! States: `net/xfrm/xfrm_user.c: verify_newsa_info`, `xfrm_state_construct`.

use std::num::NonZeroU32;

use uxfrm_engine::{
    Cpu, Direction, Error, Family, KeepaliveInterval, Mark, Offload, OffloadKind, Reqid, SaConfig,
    SaExtraFlags, SaFlags, SaId, SaProtocol, Selector, Spi, UdpEncap, UdpEncapKind,
};

use super::{algorithm, common, replay};
use crate::{
    address::{self, address},
    attribute::{AttributeType, Attributes},
    layout::{RawEncap, RawOffload, RawSa, RawSaId},
    refusal::NetlinkError,
};

/// `XFRM_OFFLOAD_IPV6` (ignored), `_INBOUND`, `_PACKET`.
const OFFLOAD_IPV6: u8 = 1;
pub(crate) const OFFLOAD_INBOUND: u8 = 2;
pub(crate) const OFFLOAD_PACKET: u8 = 4;

/// Numbers of [`SaProtocol`] where they decide which attributes there may be.
const ESP: u8 = 50;
const AH: u8 = 51;
const COMP: u8 = 108;
const ROUTE2: u8 = 43;
const HAO: u8 = 60;
const TUNNEL: u8 = 1;
const IN_TRIGGER: u8 = 3;
const IPTFS: u8 = 5;

/// Attributes of IP-TFS.
const IPTFS_OPTIONS: [AttributeType; 6] = [
    AttributeType::IptfsDropTime,
    AttributeType::IptfsReorderWindow,
    AttributeType::IptfsDontFrag,
    AttributeType::IptfsInitDelay,
    AttributeType::IptfsMaxQsize,
    AttributeType::IptfsPktSize,
];

/// The state that NEWSA or UPDSA asks for.
pub(crate) fn config(raw: &RawSa, attributes: &Attributes<'_>) -> Result<SaConfig, NetlinkError> {
    let (family, selector) = families(raw)?;
    check_attributes(raw, attributes)?;
    algorithm::check_lengths(attributes)?;
    common::check_security_context(attributes)?;
    let esn = replay::esn_state(raw, attributes)?;
    let mode = common::mode(raw.mode)
        .filter(|_| raw.mode != IN_TRIGGER)
        .ok_or(const { NetlinkError::invalid("Unsupported mode") })?;
    check_iptfs(raw, attributes)?;
    let direction = common::sa_direction(attributes);
    check_mapping_age(direction, attributes)?;
    let flags = SaFlags::from_bits_retain(raw.flags);
    let extra_flags = attributes.read(AttributeType::SaExtraFlags).unwrap_or(0);
    let extra_flags = SaExtraFlags::from_bits_retain(extra_flags);
    check_direction(raw, (direction, flags, extra_flags), attributes)?;
    if attributes.has(AttributeType::AlgComp) {
        return Err(algorithm::compression_not_found());
    }
    let transform = algorithm::transform(attributes)?;
    Ok(SaConfig {
        id: SaId {
            destination: address(family, raw.id.destination),
            spi: Spi(raw.id.spi.get()),
            // Known since `check_attributes`.
            protocol: common::protocol(raw.id.protocol).unwrap_or(SaProtocol::Any),
        },
        source: address(family, raw.source),
        mode,
        reqid: Reqid(raw.reqid),
        acquire_seq: raw.seq,
        transform,
        selector,
        mark: common::mark(attributes),
        output_mark: common::output_mark(attributes),
        if_id: common::if_id(attributes),
        replay: replay::config(raw, esn.as_ref(), attributes)?,
        limits: common::limits(&raw.limits),
        flags,
        extra_flags,
        encap: encap(attributes, family)?,
        nat_keepalive: keepalive(attributes).unwrap_or_default(),
        mapping_age: mapping_age(attributes).unwrap_or_default(),
        tfc_padding: attributes.read(AttributeType::TfcPad).unwrap_or(0),
        direction,
        pcpu: attributes.read(AttributeType::SaPcpu).map(Cpu),
        care_of: common::address_attribute(attributes, AttributeType::CoAddr, family),
        offload: offload(attributes)?,
    })
}

/// The state that GETSA, DELSA, EXPIRE or GETAE means; `None` when there can be none of that name.
pub(crate) fn id(raw: &RawSaId) -> Option<SaId> {
    Some(SaId {
        destination: address(address::family(raw.family)?, raw.destination),
        spi: Spi(raw.spi.get()),
        protocol: common::protocol(raw.protocol)?,
    })
}

/// The id in a whole state.
pub(crate) fn id_of(raw: &RawSa) -> RawSaId {
    RawSaId {
        destination: raw.id.destination,
        spi: raw.id.spi,
        family: raw.family,
        protocol: raw.id.protocol,
        pad: 0,
    }
}

/// A device's name where only its index is known.
pub(crate) fn device_name(ifindex: u32) -> String {
    format!("if{ifindex}")
}

/// The state's family and its selector, if it has one.
fn families(raw: &RawSa) -> Result<(Family, Option<Selector>), NetlinkError> {
    let family = address::family(raw.family).ok_or_else(|| NetlinkError::from(Error::Family))?;
    let other = match raw.selector.family {
        // A selector without family matches all traffic.
        0 if raw.flags & SaFlags::AF_UNSPEC.bits() != 0 => return Ok((family, None)),
        0 => family,
        number => {
            address::family(number).ok_or_else(|| NetlinkError::from(Error::StateSelectorFamily))?
        }
    };
    let selector =
        common::selector(other, &raw.selector).ok_or_else(|| common::prefix_too_long(other))?;
    Ok((family, Some(selector)))
}

/// Checks required and forbidden attributes by protocol.
fn check_attributes(raw: &RawSa, attributes: &Attributes<'_>) -> Result<(), NetlinkError> {
    use AttributeType as Type;
    let any = |kinds: &[Type]| kinds.iter().any(|kind| attributes.has(*kind));
    let (auth, pair) = (
        &[Type::AlgAuth, Type::AlgAuthTrunc],
        &[Type::AlgAuth, Type::AlgAuthTrunc, Type::AlgCrypt],
    );
    let wrong = match raw.id.protocol {
        AH if !any(auth) => "Missing required attribute for AH: AUTH_TRUNC or AUTH",
        AH if any(&[Type::AlgAead, Type::AlgCrypt, Type::AlgComp, Type::TfcPad]) => {
            "Invalid attributes for AH: AEAD, CRYPT, COMP, TFCPAD"
        }
        ESP if any(&[Type::AlgComp]) => "Invalid attribute for ESP: COMP",
        ESP if !any(pair) && !any(&[Type::AlgAead]) => {
            "Missing required attribute for ESP: at least one of AUTH, AUTH_TRUNC, CRYPT, AEAD"
        }
        ESP if any(pair) && any(&[Type::AlgAead]) => {
            "Invalid attribute combination for ESP: AEAD can't be used with AUTH, AUTH_TRUNC, CRYPT"
        }
        ESP if any(&[Type::TfcPad]) && raw.mode != TUNNEL => {
            "TFC padding can only be used in tunnel mode"
        }
        ESP if any(&IPTFS_OPTIONS) && raw.mode != IPTFS => {
            "IP-TFS options can only be used in IP-TFS mode"
        }
        COMP if !any(&[Type::AlgComp]) => "Missing required attribute for COMP: COMP",
        COMP if any(pair) || any(&[Type::AlgAead, Type::TfcPad]) => {
            "Invalid attributes for COMP: AEAD, AUTH, AUTH_TRUNC, CRYPT, TFCPAD"
        }
        COMP if raw.id.spi.get() >= 0x10000 => "SPI is too large for COMP (must be < 0x10000)",
        ROUTE2 | HAO
            if any(pair)
                || any(&[Type::AlgComp, Type::AlgAead, Type::Encap])
                || any(&[Type::SecCtx, Type::TfcPad]) =>
        {
            "Invalid attributes for DSTOPTS/ROUTING"
        }
        ROUTE2 | HAO if !any(&[Type::CoAddr]) => {
            "Missing required COADDR attribute for DSTOPTS/ROUTING"
        }
        AH | ESP | COMP | ROUTE2 | HAO => return Ok(()),
        _ => "Unsupported protocol",
    };
    Err(NetlinkError::invalid(wrong))
}

/// Only an encapsulated state can learn that its peer's address is another, and only on the way in.
fn check_mapping_age(
    direction: Option<Direction>,
    attributes: &Attributes<'_>,
) -> Result<(), NetlinkError> {
    if !attributes.has(AttributeType::MtimerThresh) {
        return Ok(());
    }
    if !attributes.has(AttributeType::Encap) {
        return Err(NetlinkError::invalid(
            "MTIMER_THRESH attribute can only be set on ENCAP states",
        ));
    }
    if direction == Some(Direction::Out) {
        return Err(NetlinkError::invalid(
            "MTIMER_THRESH attribute should not be set on output SA",
        ));
    }
    Ok(())
}

/// Checks IP-TFS attributes; the engine refuses the mode.
fn check_iptfs(raw: &RawSa, attributes: &Attributes<'_>) -> Result<(), NetlinkError> {
    if raw.mode != IPTFS {
        return Ok(());
    }
    if raw.id.protocol != ESP {
        return Err(NetlinkError::invalid("IP-TFS mode only supported with ESP"));
    }
    if !attributes.has(AttributeType::SaDir) {
        return Err(NetlinkError::invalid("IP-TFS mode requires in or out direction attribute"));
    }
    Ok(())
}

/// Checks attributes against the direction; the engine repeats it for other callers.
fn check_direction(
    raw: &RawSa,
    (direction, flags, extra): (Option<Direction>, SaFlags, SaExtraFlags),
    attributes: &Attributes<'_>,
) -> Result<(), NetlinkError> {
    let Some(direction) = direction else {
        return match attributes.has(AttributeType::SaPcpu) {
            true => Err(Error::PcpuWithoutDirection.into()),
            false => Ok(()),
        };
    };
    let wrong_flag = match direction {
        Direction::Out => [
            (SaFlags::DECAP_DSCP, "DECAP_DSCP"),
            (SaFlags::ICMP, "ICMP"),
            (SaFlags::WILDRECV, "WILDRECV"),
        ]
        .into_iter()
        .find(|(flag, _)| flags.contains(*flag))
        .map(|(_, name)| Error::OutputFlag(name)),
        Direction::In | Direction::Forward => flags
            .contains(SaFlags::NOPMTUDISC)
            .then_some(Error::InputFlag("NOPMTUDISC"))
            .or_else(|| {
                [
                    (SaExtraFlags::DONT_ENCAP_DSCP, "DONT_ENCAP_DSCP"),
                    (SaExtraFlags::OSEQ_MAY_WRAP, "OSEQ_MAY_WRAP"),
                ]
                .into_iter()
                .find(|(flag, _)| extra.contains(*flag))
                .map(|(_, name)| Error::InputFlag(name))
            }),
    };
    match wrong_flag {
        Some(error) => Err(error.into()),
        None if direction == Direction::Out && raw.replay_window != 0 => {
            Err(Error::OutputWindow.into())
        }
        None => check_iptfs_direction(direction, attributes)
            .and_then(|()| replay::check_direction(direction, attributes)),
    }
}

/// Options of the other direction.
fn check_iptfs_direction(
    direction: Direction,
    attributes: &Attributes<'_>,
) -> Result<(), NetlinkError> {
    use AttributeType as Type;
    let inputs_only = [
        (Type::IptfsDropTime, "IP-TFS drop time should not be set for output SA"),
        (Type::IptfsReorderWindow, "IP-TFS reorder window should not be set for output SA"),
    ];
    let outputs_only = [
        (Type::IptfsDontFrag, "IP-TFS don't fragment should not be set for input SA"),
        (Type::IptfsInitDelay, "IP-TFS initial delay should not be set for input SA"),
        (Type::IptfsMaxQsize, "IP-TFS max queue size should not be set for input SA"),
        (Type::IptfsPktSize, "IP-TFS packet size should not be set for input SA"),
    ];
    let misplaced = match direction {
        Direction::Out => inputs_only.as_slice(),
        Direction::In | Direction::Forward => outputs_only.as_slice(),
    };
    match misplaced.iter().find(|(kind, _)| attributes.has(*kind)) {
        Some((_, text)) => Err(NetlinkError::invalid(text)),
        None => Ok(()),
    }
}

/// `XFRMA_NAT_KEEPALIVE_INTERVAL`, if it is there; 0 is none.
pub(crate) fn keepalive(attributes: &Attributes<'_>) -> Option<Option<KeepaliveInterval>> {
    attributes.read(AttributeType::NatKeepaliveInterval).map(KeepaliveInterval::from_secs)
}

/// `XFRMA_MTIMER_THRESH`, if it is there; 0 is none.
pub(crate) fn mapping_age(attributes: &Attributes<'_>) -> Option<Option<NonZeroU32>> {
    attributes.read(AttributeType::MtimerThresh).map(NonZeroU32::new)
}

pub(crate) fn encap(
    attributes: &Attributes<'_>,
    family: Family,
) -> Result<Option<UdpEncap>, NetlinkError> {
    let Some(raw) = attributes.read::<RawEncap>(AttributeType::Encap) else { return Ok(None) };
    Ok(Some(UdpEncap {
        kind: UdpEncapKind::from_number(raw.kind).ok_or(Error::Encapsulation)?,
        source_port: raw.source_port.get(),
        destination_port: raw.destination_port.get(),
        original_address: address(family, raw.original_address),
    }))
}

pub(crate) fn offload(attributes: &Attributes<'_>) -> Result<Option<Offload>, NetlinkError> {
    let Some(raw) = attributes.read::<RawOffload>(AttributeType::OffloadDev) else {
        return Ok(None);
    };
    if raw.flags & !(OFFLOAD_IPV6 | OFFLOAD_INBOUND | OFFLOAD_PACKET) != 0 {
        return Err(NetlinkError::invalid("Unrecognized flags in offload request"));
    }
    let has = |flag| raw.flags & flag != 0;
    Ok(Some(Offload {
        kind: if has(OFFLOAD_PACKET) { OffloadKind::Packet } else { OffloadKind::Crypto },
        device: device_name(raw.ifindex),
        direction: if has(OFFLOAD_INBOUND) { Direction::In } else { Direction::Out },
    }))
}

/// The look-up mark of a request.
pub(crate) fn mark(attributes: &Attributes<'_>) -> Mark {
    common::mark(attributes)
}

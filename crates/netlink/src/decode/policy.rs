//! Policies: `net/xfrm/xfrm_user.c: verify_newpolicy_info`, `xfrm_policy_construct`.

use uxfrm_engine::{
    Action, Direction, Family, Mode, Offload, OffloadKind, Policy, PolicyFlags, PolicyIndex,
    PolicyKey, PolicyName, Priority, Reqid, Spi, Template, TemplateLevel,
};
use zerocopy::FromBytes as _;

use super::common;
use crate::{
    address::{self, address},
    attribute::{AttributeType, Attributes},
    layout::{RawOffload, RawPolicy, RawPolicyId, RawTemplate},
    refusal::NetlinkError,
};

const MAX_TEMPLATES: usize = uxfrm_engine::MAX_TEMPLATES;

/// The policy that NEWPOLICY or UPDPOLICY asks for.
pub(crate) fn policy(raw: &RawPolicy, attributes: &Attributes<'_>) -> Result<Policy, NetlinkError> {
    let mut policy = undevised(raw, attributes)?;
    policy.offload = offload(attributes, policy.direction)?;
    Ok(policy)
}

/// The same without its device.
fn undevised(raw: &RawPolicy, attributes: &Attributes<'_>) -> Result<Policy, NetlinkError> {
    let (mut policy, family) = words(raw)?;
    common::check_security_context(attributes)?;
    policy.kind = common::policy_kind(attributes)?;
    policy.templates = templates(attributes, family, policy.direction)?;
    policy.mark = common::mark(attributes);
    policy.if_id = common::if_id(attributes);
    Ok(policy)
}

/// Decodes a policy of a dump, where a device's flags repeat the direction; requests must not.
pub(crate) fn shown(raw: &RawPolicy, attributes: &Attributes<'_>) -> Result<Policy, NetlinkError> {
    let mut policy = undevised(raw, attributes)?;
    let device = attributes.read::<RawOffload>(AttributeType::OffloadDev);
    policy.offload = device.map(|raw| on(raw, policy.direction));
    Ok(policy)
}

/// The policy that GETPOLICY, DELPOLICY or POLEXPIRE names; name `None`: no policy can match.
pub(crate) fn key(
    id: &RawPolicyId,
    attributes: &Attributes<'_>,
) -> Result<Option<PolicyKey>, NetlinkError> {
    let kind = common::policy_kind(attributes)?;
    let direction = common::policy_direction(id.direction)?;
    let name = if id.index != 0 {
        Some(PolicyName::Index(PolicyIndex(id.index)))
    } else {
        common::check_security_context(attributes)?;
        address::family(id.selector.family)
            .and_then(|family| common::selector(family, &id.selector))
            .map(PolicyName::Selector)
    };
    let (mark, if_id) = (common::mark(attributes), common::if_id(attributes));
    Ok(name.map(|name| PolicyKey { direction, kind, mark, if_id, name }))
}

/// `verify_newpolicy_info` in its order, before attributes are applied.
fn words(raw: &RawPolicy) -> Result<(Policy, Family), NetlinkError> {
    if raw.share > SHARE_UNIQUE {
        return Err(NetlinkError::invalid("Invalid policy share"));
    }
    let action = match raw.action {
        0 => Action::Allow,
        1 => Action::Block,
        _ => return Err(NetlinkError::invalid("Invalid policy action")),
    };
    let family = address::family(raw.selector.family)
        .ok_or(const { NetlinkError::invalid("Invalid selector family") })?;
    let selector =
        common::selector(family, &raw.selector).ok_or_else(|| common::prefix_too_long(family))?;
    let policy = Policy {
        direction: common::policy_direction(raw.direction)?,
        kind: Default::default(),
        index: index(raw)?,
        selector,
        priority: Priority(raw.priority),
        action,
        templates: Vec::new(),
        mark: Default::default(),
        if_id: Default::default(),
        flags: PolicyFlags::from_bits_retain(raw.flags),
        limits: common::limits(&raw.limits),
        offload: None,
    };
    Ok((policy, family))
}

/// `XFRM_SHARE_UNIQUE`, the highest.
const SHARE_UNIQUE: u8 = 3;

/// The engine checks this too, but only after the templates.
const fn index(raw: &RawPolicy) -> Result<PolicyIndex, NetlinkError> {
    if raw.index != 0 && raw.index & 7 != raw.direction as u32 {
        return Err(NetlinkError::invalid("Policy index doesn't match direction"));
    }
    Ok(PolicyIndex(raw.index))
}

/// `copy_from_user_tmpl`, `validate_tmpl`.
fn templates(
    attributes: &Attributes<'_>,
    family: Family,
    direction: Direction,
) -> Result<Vec<Template>, NetlinkError> {
    let bytes = attributes.value(AttributeType::Tmpl).unwrap_or_default();
    let raw = bytes.chunks_exact(size_of::<RawTemplate>());
    if raw.len() > MAX_TEMPLATES {
        return Err(NetlinkError::invalid("Template count must be <= XFRM_MAX_DEPTH (6)"));
    }
    let mut outer = address::family_number(family);
    let raw = raw.filter_map(|bytes| RawTemplate::read_from_bytes(bytes).ok());
    raw.map(|mut raw| {
        // Many programs leave it at zero.
        if raw.family == 0 {
            raw.family = address::family_number(family);
        }
        template(&raw, &mut outer, direction)
    })
    .collect()
}

/// Decodes a template for inner family `inner`, and sets `inner` to the family of its output.
fn template(
    raw: &RawTemplate,
    inner: &mut u16,
    direction: Direction,
) -> Result<Template, NetlinkError> {
    let mode = common::mode(raw.mode);
    match mode {
        Some(Mode::Tunnel | Mode::Beet | Mode::Iptfs) => {
            if raw.optional != 0 && direction == Direction::Out {
                return Err(NetlinkError::invalid(
                    "Mode in optional template not allowed in outbound policy",
                ));
            }
        }
        Some(Mode::Transport | Mode::RouteOptimization | Mode::InTrigger) | None => {
            if raw.family != *inner {
                return Err(NetlinkError::invalid(
                    "Mode in template doesn't support a family change",
                ));
            }
        }
    }
    let mode = mode
        .ok_or(const { NetlinkError::invalid("Mode in template must be < XFRM_MODE_MAX (6)") })?;
    *inner = raw.family;
    let family = address::family(raw.family)
        .ok_or(const { NetlinkError::invalid("Invalid family in template") })?;
    let protocol = common::protocol(raw.id.protocol)
        .ok_or(const { NetlinkError::invalid("Invalid XFRM protocol in template") })?;
    check_template_is_served(raw)?;
    Ok(Template {
        source: address(family, raw.source),
        destination: address(family, raw.id.destination),
        protocol,
        spi: Spi(raw.id.spi.get()),
        mode,
        reqid: Reqid(raw.reqid),
        level: if raw.optional == 0 { TemplateLevel::Required } else { TemplateLevel::Use },
    })
}

/// Refuses template settings that the kernel stores and the engine cannot.
fn check_template_is_served(raw: &RawTemplate) -> Result<(), NetlinkError> {
    let masks = [raw.auth_algorithms, raw.encryption_algorithms, raw.compression_algorithms];
    if masks != [u32::MAX; 3] {
        return Err(NetlinkError::not_yet(
            "Algorithm masks in templates are not supported: use all ones",
        ));
    }
    if raw.share != 0 || raw.optional > 1 {
        return Err(NetlinkError::not_yet("Sharing in templates is not supported: use share any"));
    }
    Ok(())
}

/// Offload settings; the engine checks whether the device accepts them.
fn offload(
    attributes: &Attributes<'_>,
    direction: Direction,
) -> Result<Option<Offload>, NetlinkError> {
    let Some(raw) = attributes.read::<RawOffload>(AttributeType::OffloadDev) else {
        return Ok(None);
    };
    if raw.flags != super::state::OFFLOAD_PACKET {
        return Err(NetlinkError::invalid("Unrecognized flags in offload request"));
    }
    Ok(Some(on(raw, direction)))
}

fn on(raw: RawOffload, direction: Direction) -> Offload {
    let device = super::state::device_name(raw.ifindex);
    Offload { kind: OffloadKind::Packet, device, direction }
}

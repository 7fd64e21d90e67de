//! Policies: `net/xfrm/xfrm_user.c: copy_to_user_policy` and the attributes behind it.

use uxfrm_engine::{
    Action, Family, OffloadKind, Policy, PolicyEntry, PolicyFlags, PolicyKind, Template,
    TemplateLevel,
};

use super::common::{self, Calendar};
use crate::{
    address::{family_number, raw},
    attribute::AttributeType,
    datagram::NetlinkDatagram,
    decode::common::mode_number,
    layout::{RawId, RawPolicy, RawPolicyId, RawPolicyType, RawTemplate, RawUsage},
};

/// `struct xfrm_userpolicy_info`; the kernel always says `share any`.
pub(crate) fn info(entry: &PolicyEntry, calendar: Calendar) -> RawPolicy {
    let policy = entry.policy();
    RawPolicy {
        selector: common::selector(&policy.selector),
        limits: common::limits(&policy.limits),
        usage: RawUsage {
            bytes: entry.bytes(),
            packets: entry.packets(),
            added: calendar.seconds(entry.added()),
            used: calendar.seconds_or_never(entry.last_used()),
        },
        priority: policy.priority.0,
        index: entry.index().0,
        direction: common::policy_direction(policy.direction),
        action: action_number(policy.action),
        flags: PolicyFlags::bits(&policy.flags),
        share: 0,
        pad: 0,
    }
}

/// `struct xfrm_userpolicy_id` of a deleted policy, by selector or index as in the request.
pub(crate) fn id(entry: &PolicyEntry, by_index: ByName) -> RawPolicyId {
    let policy = entry.policy();
    let (selector, index) = match by_index {
        ByName::Index => (common::no_selector(), entry.index().0),
        ByName::Selector => (common::selector(&policy.selector), 0),
    };
    let direction = common::policy_direction(policy.direction);
    RawPolicyId { selector, index, direction, pad: [0; 3] }
}

/// How a request named a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByName {
    Index,
    Selector,
}

/// All attributes of a policy, in the kernel's order.
pub(crate) fn attributes(out: &mut NetlinkDatagram, entry: &PolicyEntry) {
    let policy = &entry.policy();
    put_templates(out, policy);
    put_kind(out, policy.kind);
    common::put_mark(out, policy.mark);
    common::put_if_id(out, policy.if_id);
    put_offload(out, entry);
}

/// `XFRMA_OFFLOAD_DEV` of a policy on a device.
pub(crate) fn put_offload(out: &mut NetlinkDatagram, entry: &PolicyEntry) {
    if let Some(device) = entry.device() {
        common::put_offload(out, device, OffloadKind::Packet, entry.direction());
    }
}

/// `XFRMA_POLICY_TYPE`.
pub(crate) fn put_kind(out: &mut NetlinkDatagram, kind: PolicyKind) {
    let kind = kind_number(kind);
    out.attribute(AttributeType::PolicyType, &RawPolicyType { kind, pad: [0; 5] });
}

/// `XFRM_POLICY_TYPE_MAIN`, `_SUB`.
#[must_use]
pub const fn kind_number(kind: PolicyKind) -> u8 {
    match kind {
        PolicyKind::Main => 0,
        PolicyKind::Sub => 1,
    }
}

/// `XFRM_USERPOLICY_BLOCK`, `_ACCEPT`.
#[must_use]
pub const fn default_number(action: Action) -> u8 {
    match action {
        Action::Block => 1,
        Action::Allow => 2,
    }
}

/// `XFRM_POLICY_ALLOW`, `_BLOCK`.
#[must_use]
pub const fn action_number(action: Action) -> u8 {
    match action {
        Action::Allow => 0,
        Action::Block => 1,
    }
}

fn put_templates(out: &mut NetlinkDatagram, policy: &Policy) {
    let templates: Vec<_> = policy.templates.iter().map(template).collect();
    if !templates.is_empty() {
        out.attribute(AttributeType::Tmpl, templates.as_slice());
    }
}

/// `struct xfrm_user_tmpl` that takes every algorithm.
#[must_use]
pub fn template(template: &Template) -> RawTemplate {
    RawTemplate {
        id: RawId {
            destination: raw(template.destination),
            spi: template.spi.0.into(),
            protocol: template.protocol.number(),
            pad: [0; 3],
        },
        family: family_number(Family::of(template.destination)),
        pad: 0,
        source: raw(template.source),
        reqid: template.reqid.0,
        mode: mode_number(template.mode),
        share: 0,
        optional: u8::from(template.level == TemplateLevel::Use),
        pad2: 0,
        auth_algorithms: u32::MAX,
        encryption_algorithms: u32::MAX,
        compression_algorithms: u32::MAX,
    }
}

//! Requests about policies (`ip/xfrm_policy.c`).

use uxfrm_engine::{Family, Template};
use uxfrm_netlink::{
    AttributeType, MessageType, NetlinkFlags,
    client::{
        self, NetlinkRequest, RawOffload, RawPolicy, RawPolicyId, RawSelector, RawTemplate,
        ReplyAttributes,
    },
};
use zerocopy::FromZeros as _;

use super::{Error, device_index, put_context, put_if_id, put_kind, put_mark};
use crate::grammar::{PolicyArgs, PolicyKeyArgs, PolicyTarget, TemplateArgs};

/// `XFRM_OFFLOAD_PACKET`: policies know no other.
const OFFLOAD_PACKET: u8 = 4;

/// `add`, `update`.
pub(super) fn whole(kind: MessageType, words: &PolicyArgs) -> Result<NetlinkRequest, Error> {
    let mut request = NetlinkRequest::new(kind, NetlinkFlags::ACK).body(&info(words));
    put_kind(&mut request, words.kind);
    let templates: Vec<RawTemplate> = words.templates.iter().map(raw_template).collect();
    if !templates.is_empty() {
        request.attribute(AttributeType::Tmpl, templates.as_slice());
    }
    put_mark(&mut request, words.mark);
    if let Some(context) = &words.context {
        put_context(&mut request, context);
    }
    put_if_id(&mut request, words.if_id);
    if let Some(device) = &words.offload_device {
        let ifindex = device_index(device)?;
        let raw = RawOffload { ifindex, flags: OFFLOAD_PACKET, pad: [0; 3] };
        request.attribute(AttributeType::OffloadDev, &raw);
    }
    Ok(request)
}

/// `get`, `delete`
pub(super) fn key(kind: MessageType, key: &PolicyKeyArgs, flags: NetlinkFlags) -> NetlinkRequest {
    let (selector, index) = match &key.target {
        PolicyTarget::Selector(selector) => (client::selector(selector), 0),
        PolicyTarget::Index(index) => {
            let family = client::INET;
            (RawSelector { family, ..RawSelector::new_zeroed() }, index.0)
        }
    };
    let direction = client::policy_direction(key.direction);
    let raw = RawPolicyId { selector, index, direction, pad: [0; 3] };
    let mut request = NetlinkRequest::new(kind, flags).body(&raw);
    put_kind(&mut request, key.kind);
    put_mark(&mut request, key.mark);
    if let Some(context) = &key.context {
        put_context(&mut request, context);
    }
    put_if_id(&mut request, key.if_id);
    request
}

/// Deletes a policy of a dump, with its type: iproute2 omits it and never finds sub policies.
pub(crate) fn delete(policy: &RawPolicy, found: &ReplyAttributes<'_>) -> NetlinkRequest {
    let raw = RawPolicyId {
        selector: policy.selector,
        index: policy.index,
        direction: policy.direction,
        pad: [0; 3],
    };
    let mut request = NetlinkRequest::new(MessageType::DelPolicy, NetlinkFlags::empty()).body(&raw);
    for kind in [AttributeType::PolicyType, AttributeType::Mark, AttributeType::IfId] {
        if let Some(value) = found.value(kind) {
            request.parts(kind as u16, &[value]);
        }
    }
    request
}

fn info(words: &PolicyArgs) -> RawPolicy {
    RawPolicy {
        selector: client::selector(&words.selector),
        limits: client::limits(&words.limits),
        priority: words.priority.0,
        index: words.index.0,
        direction: client::policy_direction(words.direction),
        action: client::action_number(words.action),
        flags: words.flags.bits(),
        ..RawPolicy::new_zeroed()
    }
}

/// Without addresses it has no family: the server gives it the policy's.
fn raw_template(words: &TemplateArgs) -> RawTemplate {
    let family = words.family.unwrap_or(Family::V4);
    let raw = client::template(&Template {
        source: words.source.unwrap_or_else(|| family.unspecified()),
        destination: words.destination.unwrap_or_else(|| family.unspecified()),
        protocol: words.protocol,
        spi: words.spi,
        mode: words.mode,
        reqid: words.reqid,
        level: words.level,
    });
    RawTemplate { family: words.family.map_or(0, client::family_number), ..raw }
}

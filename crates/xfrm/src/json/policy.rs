//! Policies.

use uxfrm_netlink::{
    AttributeType,
    client::{RawPolicy, RawPolicyType, RawTemplate, ReplyAttributes},
};
use zerocopy::FromBytes as _;

use super::{state, writer::Object};
use crate::{
    names::{self, POLICY_FLAGS},
    text::SOCKET,
};

pub(super) fn write(object: &mut Object<'_, '_>, info: &RawPolicy, found: &ReplyAttributes<'_>) {
    object.object("sel", |inner| state::selector(inner, &info.selector, 0));
    let number = info.direction.checked_sub(SOCKET);
    object.text("dir", &names::direction(number.unwrap_or(info.direction)));
    if number.is_some() {
        object.flag("socket", true);
    }
    match info.action {
        0 => object.text("action", "allow"),
        1 => object.text("action", "block"),
        number => object.number("action", number),
    }
    object.number("index", info.index);
    object.number("priority", info.priority);
    kind(object, found);
    object.text("share", &names::share(info.share));
    state::flags(object, "flag", info.flags.into(), POLICY_FLAGS);
    state::marks(object, found);
    if let Some(if_id) = found.read::<u32>(AttributeType::IfId) {
        object.number("if_id", if_id);
    }
    state::offload(object, found);
    templates(object, found);
    state::lifetimes(object, &info.limits, &info.usage);
    if let Some(time) = found.read::<u64>(AttributeType::LastUsed) {
        object.number("lastused", time);
    }
    state::context(object, found);
}

pub(super) fn kind(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    if let Some(raw) = found.read::<RawPolicyType>(AttributeType::PolicyType) {
        object.text("ptype", &names::policy_kind(raw.kind));
    }
}

fn templates(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    let Some(value) = found.value(AttributeType::Tmpl) else { return };
    let all = value.chunks_exact(size_of::<RawTemplate>());
    let all = all.filter_map(|bytes| RawTemplate::read_from_bytes(bytes).ok());
    object.objects("tmpl", all, |inner, raw| {
        inner.text("src", &names::address(raw.family, raw.source));
        inner.text("dst", &names::address(raw.family, raw.id.destination));
        inner.text("proto", &names::ipsec_protocol(raw.id.protocol));
        inner.text("spi", &format!("0x{:08x}", raw.id.spi.get()));
        inner.number("reqid", raw.reqid);
        inner.text("mode", &names::mode(raw.mode));
        match raw.optional {
            0 => inner.text("level", "required"),
            1 => inner.text("level", "use"),
            number => inner.number("level", number),
        }
        inner.text("share", &names::share(raw.share));
    });
}

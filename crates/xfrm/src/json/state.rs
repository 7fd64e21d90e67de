//! States, and what policies share with them.

use uxfrm_netlink::{
    AttributeType,
    client::{
        RawAddress, RawAlgorithm, RawEncap, RawLimits, RawMark, RawOffload, RawReplay,
        RawReplayEsn, RawSa, RawSelector, RawSizedAlgorithm, RawUsage, ReplyAttributes,
    },
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::writer::Object;
use crate::{
    names::{self, EXTRA_FLAGS, STATE_FLAGS},
    text::{Keys, algorithm_name, security_context},
};

pub(super) fn write(object: &mut Object<'_, '_>, info: &RawSa, found: &ReplyAttributes<'_>) {
    object.text("src", &names::address(info.family, info.source));
    object.text("dst", &names::address(info.family, info.id.destination));
    object.text("proto", &names::ipsec_protocol(info.id.protocol));
    object.text("spi", &format!("0x{:08x}", info.id.spi.get()));
    object.number("reqid", info.reqid);
    object.text("mode", &names::mode(info.mode));
    object.number("replay-window", info.replay_window);
    object.number("seq", u32::from_be(info.seq)); // as it is written
    flags(object, "flag", info.flags.into(), STATE_FLAGS);
    if let Some(extra) = found.read(AttributeType::SaExtraFlags) {
        flags(object, "extra-flag", extra, EXTRA_FLAGS);
    }
    marks(object, found);
    algorithms(object, found);
    addresses(object, found, info.family);
    replay(object, found);
    offload(object, found);
    if let Some(if_id) = found.read::<u32>(AttributeType::IfId) {
        object.number("if_id", if_id);
    }
    if let Some(padding) = found.read::<u32>(AttributeType::TfcPad) {
        object.number("tfcpad", padding);
    }
    match found.read::<u8>(AttributeType::SaDir) {
        Some(1) => object.text("dir", "in"),
        Some(2) => object.text("dir", "out"),
        Some(_) | None => {}
    }
    if let Some(number) = found.read::<u32>(AttributeType::SaPcpu) {
        object.number("pcpu-num", number);
    }
    if let Some(seconds) = found.read::<u32>(AttributeType::NatKeepaliveInterval) {
        object.number("nat-keepalive", seconds);
    }
    if let Some(seconds) = found.read::<u32>(AttributeType::MtimerThresh) {
        object.number("mtimer-thresh", seconds);
    }
    if info.selector.as_bytes().iter().any(|byte| *byte != 0) {
        object.object("sel", |inner| selector(inner, &info.selector, info.family));
    }
    lifetimes(object, &info.limits, &info.usage);
    object.object("stats", |inner| {
        inner.number("replay-window", info.replay_window_failures);
        inner.number("replay", info.replay_failures);
        inner.number("failed", info.integrity_failures);
    });
    context(object, found);
}

/// `family` is for a selector without one.
pub(super) fn selector(object: &mut Object<'_, '_>, selector: &RawSelector, family: u16) {
    let family = if selector.family == 0 { family } else { selector.family };
    let prefix = |raw, len| format!("{}/{len}", names::address(family, raw));
    object.text("src", &prefix(selector.source, selector.source_len));
    object.text("dst", &prefix(selector.destination, selector.destination_len));
    if selector.protocol != 0 {
        object.number("proto", selector.protocol);
    }
    let (first, second) = match selector.protocol {
        1 | 58 | 135 => ("type", "code"),
        47 => return key(object, selector),
        _ => ("sport", "dport"),
    };
    if selector.source_port_mask.get() != 0 {
        object.number(first, selector.source_port.get());
    }
    if selector.destination_port_mask.get() != 0 {
        object.number(second, selector.destination_port.get());
    }
    rest_of_selector(object, selector);
}

fn key(object: &mut Object<'_, '_>, selector: &RawSelector) {
    if selector.source_port_mask.get() != 0 || selector.destination_port_mask.get() != 0 {
        let (upper, lower) = (selector.source_port.get(), selector.destination_port.get());
        object.number("key", u32::from(upper) << 16 | u32::from(lower));
    }
    rest_of_selector(object, selector);
}

fn rest_of_selector(object: &mut Object<'_, '_>, selector: &RawSelector) {
    if selector.ifindex != 0 {
        let device = object.device(selector.ifindex);
        object.text("dev", &device);
    }
    if selector.user != 0 {
        object.number("uid", selector.user);
    }
}

pub(super) fn marks(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    let write = |object: &mut Object<'_, '_>, name: &str, value: u32, mask: u32| {
        object.object(name, |inner| {
            inner.text("value", &format!("{value:#x}"));
            inner.text("mask", &format!("{mask:#x}"));
        });
    };
    if let Some(RawMark { value, mask }) = found.read(AttributeType::Mark) {
        write(object, "mark", value, mask);
    }
    if let Some(value) = found.read(AttributeType::SetMark) {
        let mask = found.read(AttributeType::SetMarkMask).unwrap_or(u32::MAX);
        write(object, "output-mark", value, mask);
    }
}

pub(super) fn flags(
    object: &mut Object<'_, '_>,
    name: &str,
    bits: u32,
    known: &[(u32, &'static str)],
) {
    let (set, rest) = names::flags(bits, known);
    let mut set: Vec<String> = set.into_iter().map(str::to_owned).collect();
    if rest != 0 {
        set.push(format!("{rest:#x}"));
    }
    if !set.is_empty() {
        object.texts(name, &set);
    }
}

/// Limits without an end are `null`, and so are times that never came.
pub(super) fn lifetimes(object: &mut Object<'_, '_>, limits: &RawLimits, usage: &RawUsage) {
    let finite = |limit: u64| (limit != u64::MAX).then_some(limit);
    let ends = |limit: u64| (limit != 0).then_some(limit);
    object.object("limit", |inner| {
        inner.number_or_null("byte-soft", finite(limits.soft_bytes));
        inner.number_or_null("byte-hard", finite(limits.hard_bytes));
        inner.number_or_null("packet-soft", finite(limits.soft_packets));
        inner.number_or_null("packet-hard", finite(limits.hard_packets));
        inner.number_or_null("time-soft", ends(limits.soft_added));
        inner.number_or_null("time-hard", ends(limits.hard_added));
        inner.number_or_null("time-use-soft", ends(limits.soft_used));
        inner.number_or_null("time-use-hard", ends(limits.hard_used));
    });
    object.object("current", |inner| {
        inner.number("bytes", usage.bytes);
        inner.number("packets", usage.packets);
        inner.number_or_null("add", ends(usage.added));
        inner.number_or_null("use", ends(usage.used));
    });
}

pub(super) fn offload(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    let Some(raw) = found.read::<RawOffload>(AttributeType::OffloadDev) else { return };
    let device = object.device(raw.ifindex);
    object.object("offload", |inner| {
        inner.text("dev", &device);
        inner.text("dir", if raw.flags & 2 != 0 { "in" } else { "out" });
        inner.text("mode", if raw.flags & 4 != 0 { "packet" } else { "crypto" });
    });
}

pub(super) fn context(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    let text = found.value(AttributeType::SecCtx).and_then(security_context);
    if let Some(text) = text {
        object.text("ctx", &text);
    }
}

/// The kernel tells of `auth` twice; the truncated one says more.
fn algorithms(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    if found.value(AttributeType::AlgAuthTrunc).is_none() {
        plain(object, "auth", found.value(AttributeType::AlgAuth));
    }
    sized(object, ("auth-trunc", "trunc-len"), found.value(AttributeType::AlgAuthTrunc));
    sized(object, ("aead", "icv-len"), found.value(AttributeType::AlgAead));
    plain(object, "enc", found.value(AttributeType::AlgCrypt));
    plain(object, "comp", found.value(AttributeType::AlgComp));
}

fn plain(object: &mut Object<'_, '_>, kind: &str, value: Option<&[u8]>) {
    let Some(Ok((raw, rest))) = value.map(RawAlgorithm::read_from_prefix) else { return };
    object.object(kind, |inner| name_and_key(inner, &raw.name, raw.key_bits, rest));
}

fn sized(object: &mut Object<'_, '_>, (kind, size): (&str, &str), value: Option<&[u8]>) {
    let Some(Ok((raw, rest))) = value.map(RawSizedAlgorithm::read_from_prefix) else { return };
    object.object(kind, |inner| {
        name_and_key(inner, &raw.name, raw.key_bits, rest);
        inner.number(size, raw.icv_bits);
    });
}

fn name_and_key(object: &mut Object<'_, '_>, name: &[u8], bits: u32, rest: &[u8]) {
    object.text("name", &algorithm_name(name));
    let len = usize::try_from(bits / 8).unwrap_or(usize::MAX);
    if let Some(key) = rest.get(..len).filter(|key| !key.is_empty())
        && object.keys() == Keys::Shown
    {
        object.bytes("key", key);
    }
    object.number("bits", bits);
}

fn addresses(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>, family: u16) {
    if let Some(raw) = found.read::<RawEncap>(AttributeType::Encap) {
        object.object("encap", |inner| {
            inner.text("type", &names::encap(raw.kind));
            inner.number("sport", raw.source_port.get());
            inner.number("dport", raw.destination_port.get());
            inner.text("addr", &names::address(family, raw.original_address));
        });
    }
    if let Some(raw) = found.read::<RawAddress>(AttributeType::CoAddr) {
        object.text("coa", &names::address(family, raw));
    }
    if let Some(time) = found.read::<u64>(AttributeType::LastUsed) {
        object.number("lastused", time);
    }
}

fn replay(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    if let Some(RawReplay { sent, received, bitmap }) = found.read(AttributeType::ReplayVal) {
        object.object("replay", |inner| {
            inner.number("seq", received);
            inner.number("oseq", sent);
            inner.text("bitmap", &format!("0x{bitmap:08x}"));
        });
    }
    let long = found.value(AttributeType::ReplayEsnVal).map(RawReplayEsn::read_from_prefix);
    if let Some(Ok((raw, bitmap))) = long {
        object.object("replay-esn", |inner| {
            inner.number("window", raw.window);
            inner.number("seq", raw.received);
            inner.number("seq-hi", raw.received_high);
            inner.number("oseq", raw.sent);
            inner.number("oseq-hi", raw.sent_high);
            let words = bitmap.chunks_exact(4).rev().filter_map(|w| u32::read_from_bytes(w).ok());
            let digits: String = words.map(|word| format!("{word:08x}")).collect();
            inner.text("bitmap", &format!("0x{digits}"));
        });
    }
}

//! Answers as JSON (`-j`, `-j -p`). iproute2 has none for `xfrm`, so this form is ours:
//!
//! - a list is an array of objects with the content of `-s`; other answers are one object;
//!   `monitor` prints an object per line, `"event"` first;
//! - members have the grammar's words (`replay-window`, `if_id`, `auth-trunc`); flags are arrays
//!   of names, with `"0x…"` for unnamed bits;
//! - SPIs, marks, keys and bitmaps are `"0x…"` strings, other numbers are numbers; limits without
//!   an end and times that never came are `null`; times are seconds since 1970;
//! - empty members are left out.

mod policy;
mod state;
mod writer;

use uxfrm_netlink::client::{
    RawAcquire, RawAevent, RawDefaults, RawHashInfo, RawMapping, RawSaId, RawSpdInfo, RawThreshold,
    ReplyAttributes,
};

use self::writer::Object;
use crate::{
    answer::{AnswerMessage, Change},
    names,
    text::{SAD_COUNT, SAD_HASH, SPD_COUNTS, SPD_HASH, THRESHOLDS, WipedText},
};

/// Writes an answer to a question.
pub fn write(page: &mut WipedText<'_>, answer: &AnswerMessage<'_>) {
    tell(page, answer, Cause::Request);
}

/// Writes what `monitor` hears.
pub fn event(page: &mut WipedText<'_>, answer: &AnswerMessage<'_>) {
    tell(page, answer, Cause::Event);
}

/// Why an answer came: a notification also shows what changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Request,
    Event,
}

fn tell(page: &mut WipedText<'_>, answer: &AnswerMessage<'_>, cause: Cause) {
    let mut object = Object::begin(page);
    match answer {
        AnswerMessage::State(one) => {
            change(&mut object, "state", one.change, cause);
            state::write(&mut object, &one.info, &one.found);
        }
        AnswerMessage::Policy(one) => {
            change(&mut object, "policy", one.change, cause);
            policy::write(&mut object, &one.info, &one.found);
        }
        AnswerMessage::Acquire(one, found) => acquire(&mut object, one, found),
        AnswerMessage::StatesFlushed(protocol) => {
            object.text("event", "flush-state");
            object.text("proto", &names::ipsec_protocol(*protocol));
        }
        AnswerMessage::PoliciesFlushed(found) => {
            object.text("event", "flush-policy");
            policy::kind(&mut object, found);
        }
        AnswerMessage::Report(one, _) => {
            object.text("event", "report");
            object.text("proto", &names::ipsec_protocol(one.protocol));
            object.object("sel", |inner| state::selector(inner, &one.selector, 0));
        }
        AnswerMessage::Aevent(one) => aevent(&mut object, one),
        AnswerMessage::Mapping(one) => mapping(&mut object, one),
        AnswerMessage::Defaults(one) => {
            if cause == Cause::Event {
                object.text("event", "set-default");
            }
            defaults(&mut object, one);
        }
        AnswerMessage::SadInfo(found) => sad_info(&mut object, found),
        AnswerMessage::SpdInfo(found) => spd_info(&mut object, found),
        AnswerMessage::Unknown(number) => {
            object.text("event", "unknown");
            object.number("type", *number);
        }
        AnswerMessage::Broken(kind) => {
            object.text("event", "broken");
            object.text("type", &format!("{kind:?}"));
        }
    }
    object.end();
}

/// What happened, if anything did: a list's members are only there.
fn change(object: &mut Object<'_, '_>, what: &str, change: Change, cause: Cause) {
    match change {
        Change::Here if cause == Cause::Request => {}
        Change::Here => object.text("event", &format!("add-{what}")),
        Change::Updated => object.text("event", &format!("update-{what}")),
        Change::Deleted => object.text("event", &format!("delete-{what}")),
        Change::Expired { hard } => {
            object.text("event", &format!("expire-{what}"));
            object.flag("hard", hard != 0);
        }
    }
}

fn acquire(object: &mut Object<'_, '_>, one: &RawAcquire, found: &ReplyAttributes<'_>) {
    object.text("event", "acquire");
    object.text("proto", &names::ipsec_protocol(one.id.protocol));
    object.number("seq", one.seq);
    object.object("sel", |inner| {
        state::selector(inner, &one.selector, one.policy.selector.family);
    });
    object.object("policy", |inner| policy::write(inner, &one.policy, found));
}

fn aevent(object: &mut Object<'_, '_>, one: &RawAevent) {
    object.text("event", "aevent");
    object.number("flags", one.flags);
    object.text("src", &names::address(one.id.family, one.source));
    id(object, &one.id, one.reqid);
}

fn mapping(object: &mut Object<'_, '_>, one: &RawMapping) {
    object.text("event", "mapping");
    let address = |raw| names::address(one.id.family, raw);
    object.text("old-src", &address(one.old_source));
    object.number("old-sport", one.old_source_port.get());
    object.text("new-src", &address(one.new_source));
    object.number("new-sport", one.new_source_port.get());
    id(object, &one.id, one.reqid);
}

fn id(object: &mut Object<'_, '_>, id: &RawSaId, reqid: u32) {
    object.text("dst", &names::address(id.family, id.destination));
    object.text("proto", &names::ipsec_protocol(id.protocol));
    object.text("spi", &format!("0x{:08x}", id.spi.get()));
    object.number("reqid", reqid);
}

fn defaults(object: &mut Object<'_, '_>, one: &RawDefaults) {
    object.text("in", names::default_action(one.inbound));
    object.text("fwd", names::default_action(one.forward));
    object.text("out", names::default_action(one.outbound));
}

fn sad_info(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    if let Some(count) = found.read::<u32>(SAD_COUNT) {
        object.number("count", count);
    }
    buckets(object, found.read(SAD_HASH));
}

fn spd_info(object: &mut Object<'_, '_>, found: &ReplyAttributes<'_>) {
    if let Some(raw) = found.read::<RawSpdInfo>(SPD_COUNTS) {
        object.number("in", raw.inbound);
        object.number("out", raw.outbound);
        object.number("fwd", raw.forward);
        object.object("socket", |inner| {
            inner.number("in", raw.socket_inbound);
            inner.number("out", raw.socket_outbound);
            inner.number("fwd", raw.socket_forward);
        });
    }
    buckets(object, found.read(SPD_HASH));
    for ((number, _), name) in THRESHOLDS.into_iter().zip(["hthresh4", "hthresh6"]) {
        if let Some(RawThreshold { local, remote }) = found.read(number) {
            object.object(name, |inner| {
                inner.number("local", local);
                inner.number("remote", remote);
            });
        }
    }
}

fn buckets(object: &mut Object<'_, '_>, hash: Option<RawHashInfo>) {
    if let Some(RawHashInfo { buckets, most }) = hash {
        object.object("buckets", |inner| {
            inner.number("count", buckets);
            inner.number("max", most);
        });
    }
}

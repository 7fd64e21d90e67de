//! Rules that accept all packets of one condition, as those that uxfrm proposes.
//!
//! A rule is a list of expressions: it loads a field into a register, compares it, and has a
//! verdict. Only those that load and compare one field and accept are told; what other rules do is
//! not judged, so none behind a rule that may drop counts.

use std::net::{Ipv4Addr, Ipv6Addr};

use uxfrm_netlink_wire::{NetlinkMessage, RawAttributes, find_attribute};

use super::{number, text};

/// `NFTA_RULE_*`
pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
const EXPRESSIONS: u16 = 4;
/// `NFTA_LIST_ELEM`
const ELEMENT: u16 = 1;
/// `NFTA_EXPR_*`
const NAME: u16 = 1;
const DATA: u16 = 2;
/// `NFTA_META_KEY`, `NFT_META_*`
const META_KEY: u16 = 2;
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const NFPROTO: u32 = 15;
const L4PROTO: u32 = 16;
/// `NFTA_PAYLOAD_*`, `NFT_PAYLOAD_NETWORK_HEADER`
const BASE: u16 = 2;
const OFFSET: u16 = 3;
const LENGTH: u16 = 4;
const NETWORK_HEADER: u32 = 1;
/// `NFTA_CMP_*`, `NFT_CMP_EQ`
const OPERATION: u16 = 2;
const COMPARED: u16 = 3;
const EQUAL: u32 = 0;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_*`, `NFTA_VERDICT_CODE`, `NF_ACCEPT`
const IMMEDIATE: u16 = 2;
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
const CODE: u16 = 1;
const ACCEPT: u32 = 1;
/// `IPPROTO_ESP`
const ESP: u8 = 50;

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleEffect {
    /// It accepts all packets of this condition, as `iifname "uxfrm0"`.
    AcceptsAll(String),
    /// It accepts some.
    AcceptsSome,
    /// It may drop packets, or hand them on.
    Other,
}

impl RuleEffect {
    /// Of a rule of the kernel's.
    pub(super) fn of(message: NetlinkMessage<'_>) -> Option<Self> {
        let (_, attributes) = message.body().split_first_chunk::<4>()?;
        let list = find_attribute(attributes, EXPRESSIONS).unwrap_or_default();
        let elements = RawAttributes::of(list).filter(|element| element.kind == ELEMENT);
        let expressions = elements.filter_map(|element| {
            let name = text(element.value, NAME)?;
            Some((name, find_attribute(element.value, DATA).unwrap_or_default()))
        });
        let expressions: Vec<_> = expressions.filter(|(name, _)| name != "counter").collect();
        Some(effect(&expressions))
    }
}

fn effect(expressions: &[(String, &[u8])]) -> RuleEffect {
    let Some((last, conditions)) = expressions.split_last() else { return RuleEffect::Other };
    if last.0 != "immediate" || verdict(last.1) != Some(ACCEPT) {
        return RuleEffect::Other;
    }
    let (pairs, rest) = conditions.as_chunks::<2>();
    let compared = pairs.iter().map(|[load, compare]| condition(load, compare));
    // What IP version the next condition is for, which its own words say.
    let told = compared.filter(|condition| condition.as_deref() != Some(""));
    match (&told.collect::<Option<Vec<_>>>().as_deref(), rest) {
        (Some([condition]), []) => RuleEffect::AcceptsAll(condition.clone()),
        (Some(_) | None, _) => RuleEffect::AcceptsSome,
    }
}

/// The condition in the words of `nft`; an empty one for the IP version.
fn condition(load: &(String, &[u8]), compare: &(String, &[u8])) -> Option<String> {
    if compare.0 != "cmp" || number(compare.1, OPERATION)? != EQUAL {
        return None;
    }
    let value = find_attribute(find_attribute(compare.1, COMPARED)?, VALUE)?;
    match load.0.as_str() {
        "meta" => match number(load.1, META_KEY)? {
            IIFNAME => Some(format!("iifname \"{}\"", device(value))),
            OIFNAME => Some(format!("oifname \"{}\"", device(value))),
            L4PROTO if value == [ESP] => Some("meta l4proto esp".to_owned()),
            NFPROTO => Some(String::new()),
            _other => None,
        },
        "payload" if number(load.1, BASE)? == NETWORK_HEADER => {
            address(number(load.1, OFFSET)?, number(load.1, LENGTH)?, value)
        }
        _other => None,
    }
}

/// `ip saddr …`, by where the address is.
fn address(offset: u32, length: u32, value: &[u8]) -> Option<String> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
    let v6 = || <[u8; 16]>::try_from(value).ok().map(Ipv6Addr::from);
    match (offset, length) {
        (12, 4) => v4().map(|address| format!("ip saddr {address}")),
        (16, 4) => v4().map(|address| format!("ip daddr {address}")),
        (8, 16) => v6().map(|address| format!("ip6 saddr {address}")),
        (24, 16) => v6().map(|address| format!("ip6 daddr {address}")),
        _other => None,
    }
}

/// A name without what fills it up.
fn device(value: &[u8]) -> String {
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn verdict(immediate: &[u8]) -> Option<u32> {
    let verdict = find_attribute(find_attribute(immediate, IMMEDIATE)?, VERDICT)?;
    number(verdict, CODE)
}

#[cfg(test)]
mod tests {
    use uxfrm_netlink_wire::{AttributeWriter, NetlinkFlags, NetlinkMessages, append_message};

    use super::*;

    fn expression(
        list: &mut AttributeWriter<'_>,
        name: &str,
        fill: impl FnOnce(&mut AttributeWriter<'_>),
    ) {
        list.nest(ELEMENT, |element| {
            element.text(NAME, name);
            element.nest(DATA, fill);
        });
    }

    fn meta(list: &mut AttributeWriter<'_>, key: u32, value: &[u8]) {
        expression(list, "meta", |data| data.be32(META_KEY, key));
        expression(list, "cmp", |data| {
            data.be32(OPERATION, EQUAL);
            data.nest(COMPARED, |data| data.bytes(VALUE, value));
        });
    }

    fn ends(list: &mut AttributeWriter<'_>, code: u32) {
        expression(list, "counter", |_| {});
        expression(list, "immediate", |data| {
            data.nest(IMMEDIATE, |data| data.nest(VERDICT, |data| data.be32(CODE, code)));
        });
    }

    fn read(fill: impl FnOnce(&mut AttributeWriter<'_>)) -> RuleEffect {
        let mut bytes = Vec::new();
        append_message(&mut bytes, 10 << 8 | 6, NetlinkFlags::MULTI, 1, [2, 0, 0, 0], |rule| {
            rule.nest(EXPRESSIONS, fill);
        });
        NetlinkMessages::of(&bytes).next().and_then(RuleEffect::of).unwrap()
    }

    #[test]
    fn rule_that_accepts_a_device_is_recognised_and_no_other() {
        let name = b"uxfrm0\0\0\0\0\0\0\0\0\0\0";
        let accepts = |condition: &str| RuleEffect::AcceptsAll(condition.to_owned());
        let by_device = |key, code| {
            read(|list| {
                meta(list, key, name);
                ends(list, code);
            })
        };
        assert_eq!(by_device(IIFNAME, ACCEPT), accepts("iifname \"uxfrm0\""));
        assert_eq!(by_device(OIFNAME, ACCEPT), accepts("oifname \"uxfrm0\""));
        assert_eq!(by_device(OIFNAME, 0), RuleEffect::Other);
        let both = read(|list| {
            meta(list, IIFNAME, name);
            meta(list, L4PROTO, &[ESP]);
            ends(list, ACCEPT);
        });
        assert_eq!(both, RuleEffect::AcceptsSome, "a narrower one");
        let esp = read(|list| {
            meta(list, NFPROTO, &[2]);
            meta(list, L4PROTO, &[ESP]);
            ends(list, ACCEPT);
        });
        assert_eq!(esp, accepts("meta l4proto esp"));
        assert_eq!(read(|list| expression(list, "counter", |_| {})), RuleEffect::Other);
        assert_eq!(address(16, 4, &[10, 8, 0, 2]).as_deref(), Some("ip daddr 10.8.0.2"));
    }
}

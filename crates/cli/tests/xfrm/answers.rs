//! The same answers from the wire give the same text.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use uxfrm_netlink::client::{
    NetlinkRequest, RawAlgorithm, RawEncap, RawId, RawLimits, RawMark, RawOffload, RawPolicy,
    RawPolicyType, RawReplay, RawReplayEsn, RawSa, RawSelector, RawSizedAlgorithm, RawTemplate,
    RawUsage, padded_name,
};
use uxfrm_netlink::{AttributeType as Type, MessageType, NetlinkFlags};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::programs::{ip, is_new, run_ip, run_ours};
use crate::server::Server;

/// The `ip` that the answers are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Debian's: without attributes that it does not print.
    Old,
    /// iproute2 7: all attributes.
    New,
}

#[test]
fn states_have_the_same_text() {
    compare(state, "state");
}

#[test]
fn policies_have_the_same_text() {
    compare(policy, "policy");
}

fn compare<S: Strategy<Value = NetlinkRequest>>(strategy: impl Fn(Known) -> S, object: &str) {
    let Some(ip) = ip() else { return };
    let known = if is_new(&ip) { Known::New } else { Known::Old };
    let mut runner = TestRunner::deterministic();
    let strategy = strategy(known);
    let answers = (0..400).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let server = Server::start(answers);
    for words in [&[][..], &["-s"], &["-o"], &["-s", "-s"], &["-6"], &["-o", "-s"]] {
        let theirs = run_ip(&ip, &server, &[words, &["xfrm", object]].concat(), "");
        let ours = run_ours(&server, &[words, &[object]].concat(), "");
        assert_eq!((theirs.code, &*theirs.err), (Some(0), ""), "{words:?}");
        assert_eq!((ours.code, &*ours.err), (Some(0), ""), "{words:?}");
        assert!(theirs.out.len() > 10_000);
        for (place, (theirs, ours)) in theirs.out.lines().zip(ours.out.lines()).enumerate() {
            assert_eq!(theirs, ours, "{words:?}, line {place}");
        }
        assert_eq!(theirs.out, ours.out, "{words:?}");
    }
}

/// Filters select the same objects.
#[test]
fn filtered_lists_have_the_same_members() {
    let Some(ip) = ip() else { return };
    let mut runner = TestRunner::deterministic();
    let answers = |object: &str, runner: &mut TestRunner| -> Vec<NetlinkRequest> {
        let state = state(Known::Old);
        let policy = policy(Known::Old);
        (0..300)
            .map(|_| match object {
                "state" => state.new_tree(runner).unwrap().current(),
                _policy => policy.new_tree(runner).unwrap().current(),
            })
            .collect()
    };
    for (object, filters) in [
        (
            "state",
            &[
                "list src 10.0.0.0/8",
                "list dst fd00::/12",
                "list proto esp",
                "list mode tunnel",
                "list reqid 3",
                "list flag esn noecn",
                "list nokeys",
                "list src 10.0.0.0/8 mode transport",
            ][..],
        ),
        (
            "policy",
            &[
                "list dir in",
                "list dir out action block",
                "list src 10.0.0.0/9",
                "list nosock",
                "list priority 3",
                "list index 3",
                "list ptype sub",
                "list flag icmp",
                "list proto tcp",
                "list sport 3",
            ],
        ),
    ] {
        let server = Server::start(answers(object, &mut runner));
        for filter in filters {
            let words: Vec<&str> = std::iter::once(object).chain(filter.split(' ')).collect();
            let theirs = run_ip(&ip, &server, &[&["xfrm"], &words[..]].concat(), "");
            let ours = run_ours(&server, &words, "");
            assert_eq!(theirs, ours, "{filter}");
            assert!(!ours.out.is_empty(), "{filter} chooses none");
        }
    }
}

/// Infos and defaults, with one answer each.
#[test]
fn counts_and_defaults_have_the_same_text() {
    let Some(ip) = ip() else { return };
    let server = Server::start(Vec::new());
    for words in ["state count", "policy count", "policy getdefault"] {
        for options in [&[][..], &["-s"], &["-s", "-s"], &["-o"]] {
            let words: Vec<&str> = words.split(' ').collect();
            let theirs = run_ip(&ip, &server, &[options, &["xfrm"], &words[..]].concat(), "");
            let ours = run_ours(&server, &[options, &words[..]].concat(), "");
            assert_eq!(theirs, ours, "{options:?} {words:?}");
        }
    }
}

/// JSON output is valid for any state.
#[test]
fn lists_are_valid_json() {
    let mut runner = TestRunner::deterministic();
    let (state, policy) = (state(Known::New), policy(Known::New));
    for (object, count) in [("state", 50), ("policy", 50)] {
        let answers = (0..count)
            .map(|_| match object {
                "state" => state.new_tree(&mut runner).unwrap().current(),
                _policy => policy.new_tree(&mut runner).unwrap().current(),
            })
            .collect();
        let server = Server::start(answers);
        for options in [&["-j"][..], &["-j", "-p"]] {
            let ours = run_ours(&server, &[options, &[object]].concat(), "");
            let value: serde_json::Value = serde_json::from_str(&ours.out).unwrap();
            assert_eq!(value.as_array().unwrap().len(), count);
        }
        let hidden = run_ours(&server, &["-j", "state", "list", "nokeys"], "");
        assert!(object == "policy" || !hidden.out.contains("\"key\":\"0x"));
    }
}

fn address() -> impl Strategy<Value = [u8; 16]> {
    let v4 = any::<[u8; 3]>().prop_map(|[b, c, d]| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[10, b, c, d]);
        bytes
    });
    let v6 = any::<[u8; 16]>().prop_map(|mut bytes| {
        bytes[..2].copy_from_slice(&[0xfd, 0]);
        bytes
    });
    let short = any::<[u8; 4]>().prop_map(|tail| {
        let mut bytes = [0; 16];
        bytes[12..].copy_from_slice(&tail);
        bytes
    });
    prop_oneof![v4, v6, short]
}

fn family() -> impl Strategy<Value = u16> {
    prop_oneof![4 => Just(2_u16), 4 => Just(10), 1 => Just(0)]
}

/// Small numbers that filters use, and any others.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..5_u32, any::<u32>()]
}

fn selector() -> impl Strategy<Value = RawSelector> {
    let ports = (0..6_u16, 0..6_u16, any::<[bool; 2]>());
    let protocol =
        prop_oneof![Just(0_u8), Just(6), Just(1), Just(58), Just(47), Just(135), any::<u8>()];
    let rest = (prop_oneof![Just(0_u32), Just(1), Just(999_999)], 0..3_u32);
    (address(), address(), ports, family(), any::<[u8; 2]>(), protocol, rest).prop_map(
        |(
            destination,
            source,
            (to, from, [has_to, has_from]),
            family,
            [d, s],
            protocol,
            (ifindex, user),
        )| RawSelector {
            destination,
            source,
            destination_port: to.into(),
            destination_port_mask: if has_to { 0xffff } else { 0 }.into(),
            source_port: from.into(),
            source_port_mask: if has_from { 0xffff } else { 0 }.into(),
            family,
            destination_len: d,
            source_len: s,
            protocol,
            pad: [0; 3],
            ifindex,
            user,
        },
    )
}

fn limits() -> impl Strategy<Value = (RawLimits, RawUsage)> {
    let limit = || prop_oneof![Just(u64::MAX), Just(0), any::<u64>()];
    // Within the dates that both programs format alike.
    let time = || prop_oneof![Just(0_u64), 1_u64..4_000_000_000];
    let four = || (limit(), limit(), limit(), limit());
    (four(), four(), any::<[u64; 2]>(), time(), time()).prop_map(
        |(sizes, seconds, [bytes, packets], added, used)| {
            let limits = RawLimits {
                soft_bytes: sizes.0,
                hard_bytes: sizes.1,
                soft_packets: sizes.2,
                hard_packets: sizes.3,
                soft_added: seconds.0,
                hard_added: seconds.1,
                soft_used: seconds.2,
                hard_used: seconds.3,
            };
            (limits, RawUsage { bytes, packets, added, used })
        },
    )
}

fn id() -> impl Strategy<Value = RawId> {
    let protocol = prop_oneof![3 => Just(50_u8), 1 => Just(51), 1 => Just(108), 1 => Just(43), 1 => Just(60), 1 => any::<u8>()];
    (address(), number(), protocol).prop_map(|(destination, spi, protocol)| RawId {
        destination,
        spi: spi.into(),
        protocol,
        pad: [0; 3],
    })
}

type Attribute = (u16, Vec<u8>);

fn attribute(
    kind: Type,
    value: impl Strategy<Value = Vec<u8>> + 'static,
) -> BoxedStrategy<Option<Attribute>> {
    prop::option::weighted(0.3, value.prop_map(move |value| (kind as u16, value))).boxed()
}

fn bytes_of(value: impl Strategy<Value = u32> + 'static) -> impl Strategy<Value = Vec<u8>> {
    value.prop_map(|number| number.to_ne_bytes().to_vec())
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn plain(name: &'static str) -> impl Strategy<Value = Vec<u8>> {
    (key(), prop::bool::weighted(0.05)).prop_map(move |(key, is_cut)| {
        let bits = u32::try_from(key.len() * 8).unwrap() + if is_cut { 8 } else { 0 };
        let raw = RawAlgorithm { name: padded_name(name), key_bits: bits };
        [raw.as_bytes(), &key].concat()
    })
}

fn sized(name: &'static str) -> impl Strategy<Value = Vec<u8>> {
    (key(), 0..256_u32).prop_map(move |(key, icv_bits)| {
        let key_bits = u32::try_from(key.len() * 8).unwrap();
        let raw = RawSizedAlgorithm { name: padded_name(name), key_bits, icv_bits };
        [raw.as_bytes(), &key].concat()
    })
}

fn mark() -> impl Strategy<Value = Vec<u8>> {
    (number(), number()).prop_map(|(value, mask)| RawMark { value, mask }.as_bytes().to_vec())
}

fn long_replay() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(any::<u32>(), 0..20), any::<[u32; 5]>()).prop_map(
        |(bitmap, [sent, received, sent_high, received_high, window])| {
            let words = u32::try_from(bitmap.len()).unwrap();
            let raw = RawReplayEsn { words, sent, received, sent_high, received_high, window };
            [raw.as_bytes(), bitmap.as_slice().as_bytes()].concat()
        },
    )
}

fn encap() -> impl Strategy<Value = Vec<u8>> {
    (0..9_u16, any::<[u16; 2]>(), address()).prop_map(|(kind, [from, to], original_address)| {
        let (source_port, destination_port) = (from.into(), to.into());
        RawEncap { kind, source_port, destination_port, pad: 0, original_address }
            .as_bytes()
            .to_vec()
    })
}

fn templates() -> impl Strategy<Value = Vec<u8>> {
    let one = (id(), family(), address(), number(), any::<[u32; 3]>(), (0..7_u8, 0..5_u8, 0..3_u8))
        .prop_map(|(id, family, source, reqid, [a, e, c], (mode, share, optional))| RawTemplate {
            id,
            family,
            pad: 0,
            source,
            reqid,
            mode: if mode == 5 { 0 } else { mode }, // we print a name, iproute2 a number
            share,
            optional,
            pad2: 0,
            auth_algorithms: a,
            encryption_algorithms: e,
            compression_algorithms: c,
        });
    prop::collection::vec(one, 0..4).prop_map(|all| all.as_slice().as_bytes().to_vec())
}

fn context() -> impl Strategy<Value = Vec<u8>> {
    "[a-z_:]{0,30}".prop_map(|text| {
        let len = u16::try_from(text.len() + 1).unwrap();
        let head = [len + 8, 8, 0x0101, len];
        [head.as_bytes(), text.as_bytes(), &[0]].concat()
    })
}

/// Attributes that both programs print.
fn common() -> Vec<BoxedStrategy<Option<Attribute>>> {
    vec![
        attribute(Type::Mark, mark()),
        attribute(Type::SetMark, bytes_of(number())),
        attribute(Type::SetMarkMask, bytes_of(number())),
        attribute(Type::IfId, bytes_of(number())),
        attribute(Type::SecCtx, context()),
        attribute(
            Type::LastUsed,
            (0_u64..4_000_000_000).prop_map(|time| time.to_ne_bytes().to_vec()),
        ),
    ]
}

fn offload() -> impl Strategy<Value = Vec<u8>> {
    (0..3_u32, any::<u8>())
        .prop_map(|(ifindex, flags)| RawOffload { ifindex, flags, pad: [0; 3] }.as_bytes().to_vec())
}

fn whole<T: zerocopy::IntoBytes + zerocopy::Immutable>(
    kind: MessageType,
    info: &T,
    attributes: Vec<Option<Attribute>>,
) -> NetlinkRequest {
    let mut request = NetlinkRequest::new(kind, NetlinkFlags::empty()).body(info);
    for (kind, value) in attributes.into_iter().flatten() {
        request.parts(kind, &[&value]);
    }
    request
}

fn state(known: Known) -> impl Strategy<Value = NetlinkRequest> {
    let mut attributes = common();
    attributes.extend([
        attribute(Type::AlgAuth, plain("hmac(sha1)")),
        attribute(Type::AlgAuthTrunc, sized("hmac(sha256)")),
        attribute(Type::AlgAead, sized("rfc4106(gcm(aes))")),
        attribute(Type::AlgCrypt, plain("cbc(aes)")),
        attribute(Type::AlgComp, plain("deflate")),
        attribute(Type::Encap, encap()),
        attribute(Type::CoAddr, address().prop_map(|address| address.to_vec())),
        attribute(
            Type::ReplayVal,
            any::<[u32; 3]>().prop_map(|[sent, received, bitmap]| {
                RawReplay { sent, received, bitmap }.as_bytes().to_vec()
            }),
        ),
        attribute(Type::ReplayEsnVal, long_replay()),
        attribute(Type::TfcPad, bytes_of(number())),
        attribute(Type::SaExtraFlags, bytes_of(0..8_u32)),
    ]);
    if known == Known::New {
        attributes.extend([
            attribute(Type::OffloadDev, offload()),
            attribute(Type::SaDir, (0..4_u8).prop_map(|number| vec![number])),
            attribute(Type::SaPcpu, bytes_of(number())),
        ]);
    }
    let selector = prop_oneof![Just(RawSelector::new_zeroed()), selector()];
    let numbers = (number(), number(), any::<[u32; 3]>());
    let octets = (prop_oneof![0..5_u8, 6..9_u8], any::<u8>(), prop_oneof![Just(0_u8), any::<u8>()]);
    (
        selector,
        id(),
        address(),
        limits(),
        numbers,
        octets,
        prop_oneof![Just(2_u16), Just(10)],
        attributes,
    )
        .prop_map(
            |(
                selector,
                id,
                source,
                (limits, usage),
                (seq, reqid, failures),
                (mode, window, flags),
                family,
                attributes,
            )| {
                let info = RawSa {
                    selector,
                    id,
                    source,
                    limits,
                    usage,
                    replay_window_failures: failures[0],
                    replay_failures: failures[1],
                    integrity_failures: failures[2],
                    seq,
                    reqid,
                    family,
                    mode,
                    replay_window: window,
                    flags,
                    pad: [0; 7],
                };
                whole(MessageType::NewSa, &info, attributes)
            },
        )
}

fn policy(known: Known) -> impl Strategy<Value = NetlinkRequest> {
    let mut attributes = common();
    attributes.extend([
        attribute(Type::Tmpl, templates()),
        attribute(
            Type::PolicyType,
            (0..3_u8).prop_map(|kind| RawPolicyType { kind, pad: [0; 5] }.as_bytes().to_vec()),
        ),
    ]);
    if known == Known::New {
        attributes.push(attribute(Type::OffloadDev, offload()));
    }
    let octets = (0..7_u8, 0..3_u8, prop_oneof![Just(0_u8), any::<u8>()], 0..5_u8);
    (selector(), limits(), number(), number(), octets, attributes).prop_map(
        |(
            selector,
            (limits, usage),
            priority,
            index,
            (direction, action, flags, share),
            attributes,
        )| {
            let info = RawPolicy {
                selector,
                limits,
                usage,
                priority,
                index,
                direction,
                action,
                flags,
                share,
                pad: 0,
            };
            whole(MessageType::NewPolicy, &info, attributes)
        },
    )
}

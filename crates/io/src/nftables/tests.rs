use proptest::prelude::*;

use uxfrm_packet::Version;

use super::message::question;
use super::*;
use crate::rtnetlink::RoutePrefix;
use uxfrm_netlink_wire::{AttributeWriter, RawAttributes};

/// An attribute in the kernel's form: length, kind, payload, padding to four bytes.
fn attr(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 4).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attr(kind | 0x8000, &parts.concat())
}

fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[attr(1, format!("{name}\0").as_bytes()), nested(2, data)])
}

fn message(kind: u16, flags: u16, sequence: u32, generic: [u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + body.len()).unwrap();
    [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4],
        &generic,
        body,
    ]
    .concat()
}

/// The expressions of one condition, as they are sent.
fn described(condition: Condition) -> Vec<u8> {
    let flags = NetlinkFlags::empty();
    let list = |list: &mut AttributeWriter<'_>| condition.describe(list);
    question(Kind::NewRule, flags, 0, list).split_off(20)
}

fn load(name: &str, numbers: &[u32]) -> Vec<u8> {
    let numbered = numbers.iter().zip(1..);
    expression(
        name,
        &numbered.map(|(number, kind)| attr(kind, &number.to_be_bytes())).collect::<Vec<_>>(),
    )
}

fn compare(relation: u32, value: &[u8]) -> Vec<u8> {
    let [register, relation] = [1, relation].map(u32::to_be_bytes);
    let value = nested(3, &[attr(1, value)]);
    expression("cmp", &[attr(1, &register), attr(2, &relation), value])
}

fn mask(mask: &[u8]) -> Vec<u8> {
    let one = 1_u32.to_be_bytes();
    let length = u32::try_from(mask.len()).unwrap().to_be_bytes();
    let (mask, xor) = (nested(4, &[attr(1, mask)]), nested(5, &[attr(1, &vec![0; mask.len()])]));
    expression("bitwise", &[attr(1, &one), attr(2, &one), attr(3, &length), mask, xor])
}

/// An extension header expression: kind, offset, length, flags.
fn extension(kind: u8, offset: u32, length: u32, flags: Option<u32>) -> Vec<u8> {
    let numbers = [(3, Some(offset)), (4, Some(length)), (5, flags)];
    let numbers = numbers.into_iter().filter_map(|(at, number)| Some((at, number?)));
    let mut attributes = vec![attr(1, &1_u32.to_be_bytes()), attr(2, &[kind])];
    attributes.extend(numbers.map(|(at, number)| attr(at, &number.to_be_bytes())));
    expression("exthdr", &attributes)
}

/// Its header begins behind ICMP's eight bytes.
#[test]
fn condition_on_a_quoted_packet_loads_from_the_error() {
    let prefix = |text: &str, length| RoutePrefix::new(text.parse().unwrap(), length).unwrap();
    let at = |offset, value: &[u8]| {
        let length = u32::try_from(value.len()).unwrap();
        [load("payload", &[1, 2, offset, length]), compare(0, value)].concat()
    };
    let address = [10, 1, 2, 3];
    let of_v6: std::net::Ipv6Addr = "fd01::9".parse().unwrap();
    for (condition, version, expected) in [
        (Condition::source(prefix("10.1.2.3", 32)), Version::V4, at(20, &address)),
        (Condition::destination(prefix("10.1.2.3", 32)), Version::V4, at(24, &address)),
        (Condition::protocol(17), Version::V4, at(17, &[17])),
        (Condition::upper_pair(2, 53, 0xffff), Version::V4, at(30, &[0, 53])),
        (Condition::source(prefix("fd01::9", 128)), Version::V6, at(16, &of_v6.octets())),
        (Condition::destination(prefix("fd01::9", 128)), Version::V6, at(32, &of_v6.octets())),
        (Condition::protocol(17), Version::V6, at(14, &[17])),
        (Condition::upper_pair(0, 53, 0xffff), Version::V6, at(48, &[0, 53])),
    ] {
        assert_eq!(described(condition.quoted(version).unwrap()), expected, "{condition:?}");
    }
    assert_eq!(
        described(Condition::redirects(prefix("fd01::9", 128))),
        at(24, &of_v6.octets()),
        "behind the target's address"
    );
    for untold in [
        Condition::mark(1, 1),
        Condition::came_by("lo"),
        Condition::no_routing_header(),
        Condition::later_fragment(),
        Condition::to_own_address(),
    ] {
        assert_eq!(untold.quoted(Version::V6), None, "{untold:?}");
    }
}

/// Load, mask, compare: `include/uapi/linux/netfilter/nf_tables.h` has the numbers.
#[test]
fn a_condition_is_load_mask_and_compare() {
    let prefix = |text: &str, length| RoutePrefix::new(text.parse().unwrap(), length).unwrap();
    let cases: [(Condition, &[Vec<u8>]); 15] = [
        (Condition::protocol(17), &[load("meta", &[1, 16]), compare(0, &[17])]),
        (Condition::other_protocol(6), &[load("meta", &[1, 16]), compare(1, &[6])]),
        (Condition::version(Version::V6), &[load("meta", &[1, 15]), compare(0, &[10])]),
        (
            Condition::came_by("lo"),
            &[load("meta", &[1, 6]), compare(0, b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0")],
        ),
        (
            Condition::leaves_by("lo"),
            &[load("meta", &[1, 7]), compare(0, b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0")],
        ),
        (Condition::came_by_index(7), &[load("meta", &[1, 4]), compare(0, &7_u32.to_ne_bytes())]),
        (
            Condition::mark(0x12, 0x0f),
            &[
                load("meta", &[1, 3]),
                mask(&0x0f_u32.to_ne_bytes()),
                compare(0, &2_u32.to_ne_bytes()),
            ],
        ),
        (
            Condition::source(prefix("10.1.2.3", 23)),
            &[
                load("payload", &[1, 1, 12, 4]),
                mask(&[255, 255, 254, 0]),
                compare(0, &[10, 1, 2, 0]),
            ],
        ),
        (
            Condition::destination(prefix("10.1.2.3", 32)),
            &[load("payload", &[1, 1, 16, 4]), compare(0, &[10, 1, 2, 3])],
        ),
        (
            Condition::destination(prefix("::", 0)),
            &[load("payload", &[1, 1, 24, 4]), mask(&[0; 4]), compare(0, &[0; 4])],
        ),
        (
            Condition::upper_pair(2, 500, 0xffff),
            &[load("payload", &[1, 2, 2, 2]), compare(0, &[1, 244])],
        ),
        (
            Condition::upper_byte(0, 0x85, 0x0f),
            &[load("payload", &[1, 2, 0, 1]), mask(&[0x0f]), compare(0, &[5])],
        ),
        (
            Condition::later_fragment(),
            &[extension(44, 2, 2, None), mask(&[0xff, 0xf8]), compare(1, &[0, 0])],
        ),
        (
            Condition::last_segment(prefix("fd02::", 32)),
            &[extension(43, 8, 4, None), compare(0, &[0xfd, 2, 0, 0])],
        ),
        (Condition::no_routing_header(), &[extension(43, 0, 1, Some(1)), compare(1, &[1])]),
    ];
    for (condition, expressions) in cases {
        assert_eq!(described(condition), expressions.concat(), "{condition:?}");
    }
}

/// Message types are 10 << 8 | kind; flags are REQUEST, CREATE, APPEND; the last message requests
/// an answer.
#[test]
fn a_table_is_one_transaction() {
    let rule = Rule {
        conditions: vec![Condition::protocol(50)],
        set_lookup: None,
        counter: Some("hits"),
        verdict: RuleVerdict::Goto("more"),
    };
    let table = Table {
        name: "t".to_owned(),
        counters: vec!["hits"],
        sets: Vec::new(),
        chains: vec![Chain { name: "in", hook: Some(Hook::Input), rules: vec![rule] }],
    };
    let mut batch = Batch::new(7);
    table.describe(Ownership::Own, &mut batch);
    let name = attr(1, b"t\0");
    let hook = nested(4, &[attr(1, &1_u32.to_be_bytes()), attr(2, &(-300_i32).to_be_bytes())]);
    let verdict = nested(2, &[attr(1, &(-4_i32).to_be_bytes()), attr(2, b"more\0")]);
    let expressions = nested(
        4,
        &[
            load("meta", &[1, 16]),
            compare(0, &[50]),
            expression("objref", &[attr(1, &1_u32.to_be_bytes()), attr(2, b"hits\0")]),
            expression("immediate", &[attr(1, &[0; 4]), nested(2, &[verdict])]),
        ],
    );
    let inet = [1, 0, 0, 0];
    let expected = [
        message(16, 1, 7, [0, 0, 0, 10], &[]),
        message(0x0a00, 0x401, 8, inet, &[name.clone(), attr(2, &6_u32.to_be_bytes())].concat()),
        message(
            0x0a12,
            0x401,
            9,
            inet,
            &[name.clone(), attr(2, b"hits\0"), attr(3, &1_u32.to_be_bytes()), nested(4, &[])]
                .concat(),
        ),
        message(
            0x0a03,
            0x401,
            10,
            inet,
            &[name.clone(), attr(3, b"in\0"), hook, attr(7, b"filter\0")].concat(),
        ),
        message(0x0a06, 0xc05, 11, inet, &[name, attr(2, b"in\0"), expressions].concat()),
        message(17, 1, 12, [0, 0, 0, 10], &[]),
    ];
    assert_eq!(batch.last_sequence(), 11);
    assert_eq!(batch.part(11).unwrap().to_string(), "rule 1 of chain in");
    assert_eq!((batch.part(7), batch.part(12)), (None, None));
    assert_eq!(batch.finish(), expected.concat());
}

/// A set has a name, a length, and keys in as many messages as needed; a rule loads its fields from
/// register 8 on and looks them up.
#[test]
fn set_is_filled_and_looked_up() {
    let set = SetId(7);
    let mut keys = SetKeys::new(8);
    keys.push(&[10, 1, 0, 0, 0, 53, 0, 0]);
    let changes =
        [TableChange::AddSet { set, length: 8 }, TableChange::AddKeys { set, keys: keys.clone() }];
    let mut batch = Batch::new(1);
    changes.iter().for_each(|change| change.describe("t", 1, &mut batch));
    let names = [attr(1, b"t\0"), attr(2, b"set7\0")].concat();
    let numbers = [(4, 4), (5, 8), (10, 7_u32)];
    let numbers = numbers.map(|(kind, number)| attr(kind, &number.to_be_bytes())).concat();
    let key = nested(1, &[attr(1, &[10, 1, 0, 0, 0, 53, 0, 0])]);
    let elements = nested(3, &[nested(1, &[key])]);
    let expected = [
        message(0x0a09, 0x401, 2, [1, 0, 0, 0], &[names.clone(), numbers].concat()),
        message(0x0a0c, 0x405, 3, [1, 0, 0, 0], &[names, elements].concat()),
    ]
    .concat();
    assert_eq!(batch.finish()[20..20 + expected.len()], expected);

    let source = RoutePrefix::new("10.1.2.3".parse().unwrap(), 16).unwrap();
    let asked = [Condition::source(source), Condition::upper_pair(2, 53, 0xffff)];
    let (questions, replies): (Vec<_>, Vec<_>) =
        asked.iter().map(|condition| condition.question().unwrap()).unzip();
    let replies: Vec<_> = replies.iter().flat_map(|reply| reply.as_bytes()).copied().collect();
    assert_eq!(keys.iter().next(), Some(&replies[..]));
    let of = |question: &SetKeyField, at| question_bytes(|list| question.describe(at, list));
    let eight = 8_u32.to_be_bytes();
    let mask = [nested(4, &[attr(1, &[255, 255, 0, 0])]), nested(5, &[attr(1, &[0; 4])])];
    let masked = [attr(1, &eight), attr(2, &eight), attr(3, &4_u32.to_be_bytes()), mask.concat()];
    let first = [load("payload", &[8, 1, 12, 4]), expression("bitwise", &masked)].concat();
    assert_eq!(of(&questions[0], 0), first);
    assert_eq!(of(&questions[1], 1), load("payload", &[9, 2, 2, 2]));
}

fn question_bytes(describe: impl FnOnce(&mut AttributeWriter<'_>)) -> Vec<u8> {
    question(Kind::NewRule, NetlinkFlags::empty(), 0, describe).split_off(20)
}

#[test]
fn set_keys_span_several_messages() {
    let mut keys = SetKeys::new(4);
    (0..10_000_u32).for_each(|key| keys.push(&key.to_be_bytes()));
    let mut batch = Batch::new(1);
    SetId(1).elements(Kind::NewElements, "t", &keys, &mut batch);
    assert_eq!(batch.last_sequence(), 4, "three messages");
    let [first, second] = keys.halves().unwrap();
    assert_eq!([first.iter().len(), second.iter().len()], [5000; 2]);
    assert!(keys.iter().eq(first.iter().chain(second.iter())));
    assert_eq!(SetKeys::new(4).halves(), None);
}

#[test]
fn table_change_flushes_and_adds_rules() {
    let chain = Chain { name: "in", hook: None, rules: Vec::new() };
    let name = "t".to_owned();
    let table = Table { name, counters: Vec::new(), sets: Vec::new(), chains: vec![chain] };
    let mut batch = Batch::new(1);
    table.describe_change(&[], &mut batch);
    let flush = message(0x0a08, 5, 2, [1, 0, 0, 0], &attr(1, b"t\0"));
    assert_eq!(batch.finish()[20..20 + flush.len()], flush);
}

#[test]
fn answers_are_read() {
    let errno = |code: i32| [&code.to_ne_bytes()[..], &[0; 12]].concat();
    let datagram = [
        message(2, 0, 3, (-13_i32).to_ne_bytes(), &errno(0)),
        message(2, 0, 4, [0; 4], &errno(0)),
        message(0x0a12, 2, 5, [1, 0, 0, 0], &attr(1, b"t\0")),
        message(3, 2, 6, [0; 4], &[]),
        message(1, 0, 7, [0; 4], &[]),
    ]
    .concat();
    let read: Vec<_> = answers(&datagram).map(|answer| (answer.sequence, answer.payload)).collect();
    let table = attr(1, b"t\0");
    assert_eq!(
        read,
        [
            (3, Payload::Result(13)),
            (4, Payload::Result(0)),
            (5, Payload::Attributes(&table)),
            (6, Payload::Done),
            (7, Payload::Other),
        ]
    );
}

#[test]
fn a_counter_is_read_and_those_of_other_tables_are_not() {
    let counter = nested(4, &[attr(1, &9_u64.to_be_bytes()), attr(2, &3_u64.to_be_bytes())]);
    let object = [attr(1, b"t\0"), attr(2, b"hits\0"), counter].concat();
    let hits = CounterValue { name: "hits".to_owned(), packets: 3 };
    assert_eq!(count("t", &object), Some(hits));
    assert_eq!(count("u", &object), None);
    assert_eq!(count("t", &object[..20]), None);
}

#[test]
fn missing_nf_tables_differs_from_refusal() {
    let of = |errno| Error::of("table t", io::Error::from_raw_os_error(errno));
    for errno in [libc::EPROTONOSUPPORT, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOENT] {
        assert!(matches!(of(errno), Error::Unsupported { .. }), "{errno}");
    }
    assert!(matches!(of(libc::EPERM), Error::NotPermitted { .. }));
    assert!(matches!(of(libc::ENOMEM), Error::Refused { .. }));
}

proptest! {
    /// No content makes parsing panic or read beyond the end.
    #[test]
    fn arbitrary_answers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let read: usize = RawAttributes::of(&bytes).map(|found| found.value.len()).sum();
        prop_assert!(read <= bytes.len());
        for answer in answers(&bytes) {
            if let Payload::Attributes(found) = answer.payload {
                let _ = count("t", found);
            }
        }
        let _ = find_attribute(&bytes, 1);
    }

    /// The same with nearly correct lengths, so that parsing gets further.
    #[test]
    fn arbitrary_attribute_lengths_do_not_panic(lengths in prop::collection::vec(0_u8..24, 0..64)) {
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| [*length, 0, 10, 10]).collect();
        let _ = (RawAttributes::of(&bytes).count(), answers(&bytes).count(), count("t", &bytes));
    }
}

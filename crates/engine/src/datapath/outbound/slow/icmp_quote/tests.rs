//! Which errors are about protected packets: a table of policies, and of what errors quote.

use uxfrm_crypto::Backend;

use super::*;
use crate::spd::table::tests::policy;
use crate::{
    Action, Database, Family, IfId, Mark, Mode, Moment, Policy, PolicyFlags, PolicyKind, PortMask,
    Prefix, Reqid, SaProtocol, Selector, Spi, Template, TemplateLevel,
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn hosts(family: Family) -> [IpAddr; 2] {
    let hosts = match family {
        Family::V4 => ["10.2.0.1", "10.1.0.1"],
        Family::V6 => ["fd00:2::1", "fd00:1::1"],
    };
    hosts.map(|host| host.parse().unwrap())
}

/// Protects what one host sends to the other, as far as `change` lets it.
fn protecting(family: Family, change: impl FnOnce(&mut Policy)) -> Policy {
    let [source, destination] = hosts(family).map(Prefix::host);
    let template = Template {
        source: family.unspecified(),
        destination: family.unspecified(),
        spi: Spi(0),
        protocol: SaProtocol::Esp,
        mode: Mode::Transport,
        reqid: Reqid(0),
        level: TemplateLevel::Required,
    };
    let selector = Selector::between(source, destination);
    let mut policy =
        Policy { selector, templates: vec![template], ..policy(Direction::Forward, 5) };
    change(&mut policy);
    policy
}

fn passing(family: Family, change: impl FnOnce(&mut Policy)) -> Policy {
    protecting(family, |policy| {
        policy.templates.clear();
        policy.priority = crate::Priority(1);
        change(policy);
    })
}

fn header(family: Family, protocol: u8, upper: &[u8]) -> Vec<u8> {
    let length = u16::try_from(upper.len()).unwrap();
    let [source, destination] = hosts(family);
    let mut bytes = match family {
        Family::V4 => {
            let [a, b] = (20 + length).to_be_bytes();
            vec![0x45, 0, a, b, 0, 1, 0, 0, 64, protocol, 0, 0]
        }
        Family::V6 => {
            let [a, b] = length.to_be_bytes();
            vec![0x60, 0, 0, 0, a, b, protocol, 64]
        }
    };
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(upper);
    bytes
}

/// A quoted packet from port 7 to port 9.
fn udp(family: Family) -> Vec<u8> {
    header(family, 17, &[0, 7, 0, 9, 0, 8, 0, 0])
}

/// An error of this type that quotes.
fn error(family: Family, kind: u8, quoted: &[u8]) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], quoted].concat();
    header(family, if family == Family::V4 { 1 } else { 58 }, &message)
}

fn told_unreachable(family: Family, quoted: &[u8]) -> Vec<u8> {
    error(family, if family == Family::V4 { 3 } else { 1 }, quoted)
}

fn is_dropped(policies: &[Policy], bytes: &[u8], mark: u32) -> bool {
    let mut database = Database::new(Backend::Portable, 1);
    database.apply(Moment(0), |change| {
        policies.iter().for_each(|policy| {
            change.add_policy(policy.clone()).unwrap();
        });
    });
    let ip = IpPacket::parse(bytes).unwrap();
    let flow = FlowKey { mark, ifindex: 0, ..FlowKey::of_bytes(&ip, bytes) };
    is_about_protected(&database.snapshot().spd, bytes, &flow)
}

fn by_protocol(policy: &mut Policy) {
    policy.selector.protocol = 17;
}

fn by_port(policy: &mut Policy) {
    policy.selector.protocol = 17;
    policy.selector.destination_port = PortMask::exactly(9);
}

fn by_other_port(policy: &mut Policy) {
    policy.selector.protocol = 17;
    policy.selector.destination_port = PortMask::exactly(10);
}

fn by_mark(policy: &mut Policy) {
    policy.mark = Mark { value: 5, mask: 0xff };
}

fn by_device(policy: &mut Policy) {
    policy.selector.ifindex = 3;
}

fn held(policy: &mut Policy) {
    policy.action = Action::Block;
    policy.templates.clear();
    policy.flags |= PolicyFlags::HELD;
}

#[test]
fn what_quote_tells_decides() {
    for family in FAMILIES {
        for (name, change, dropped) in [
            ("addresses", (|_| {}) as fn(&mut Policy), true),
            ("protocol", by_protocol, true),
            ("another protocol", |policy| policy.selector.protocol = 6, false),
            ("port", by_port, true),
            ("another port", by_other_port, false),
            ("in", |policy| policy.direction = Direction::In, true),
            ("out", |policy| policy.direction = Direction::Out, false),
            ("sub", |policy| policy.kind = PolicyKind::Sub, true),
            ("level use", |policy| policy.templates[0].level = TemplateLevel::Use, false),
            ("held", held, true),
            (
                "block",
                |policy| {
                    policy.action = Action::Block;
                    policy.templates.clear();
                },
                false,
            ),
            ("interface id", |policy| policy.if_id = IfId(3), false),
        ] {
            let told = told_unreachable(family, &udp(family));
            let policy = protecting(family, change);
            assert_eq!(is_dropped(&[policy], &told, 0), dropped, "{name} {family:?}");
        }
    }
}

/// What a quote hides, the quote, and what hence may match.
type Untold = (&'static str, Family, Vec<u8>, fn(&mut Policy));

#[test]
fn what_quote_does_not_tell_counts_as_protected() {
    let mut later = header(Family::V4, 17, &[0, 1, 0, 2, 0, 3, 0, 4]);
    later[7] = 3;
    let options = {
        let mut bytes = udp(Family::V4);
        bytes[0] = 0x46;
        bytes.splice(20..20, [1, 1, 1, 0]);
        bytes
    };
    let short = udp(Family::V4)[..22].to_vec();
    let behind = |next: u8| header(Family::V6, next, &[17, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 9]);
    let keyed = |family| header(family, 47, &[0x20, 0, 8, 0, 0, 1, 0, 2]);
    let by_key = |policy: &mut Policy| {
        policy.selector.protocol = 47;
        policy.selector.destination_port = PortMask::exactly(2);
    };
    let cases: [Untold; 15] = [
        ("later fragment", Family::V4, later, by_port),
        ("too short for ports", Family::V4, short, by_port),
        ("hop-by-hop options", Family::V6, behind(0), by_protocol),
        ("routing header", Family::V6, behind(43), by_protocol),
        ("fragment header", Family::V6, behind(44), by_port),
        ("AH", Family::V6, behind(51), by_port),
        ("destination options", Family::V6, behind(60), by_port),
        ("mark", Family::V4, udp(Family::V4), by_mark),
        ("mark", Family::V6, udp(Family::V6), by_mark),
        ("device", Family::V4, udp(Family::V4), by_device),
        ("device", Family::V6, udp(Family::V6), by_device),
        ("mark and port", Family::V4, udp(Family::V4), |policy| {
            by_mark(policy);
            by_port(policy);
        }),
        ("key of GRE", Family::V4, keyed(Family::V4), by_key),
        ("key of GRE", Family::V6, keyed(Family::V6), by_key),
        ("held with mark", Family::V4, udp(Family::V4), |policy| {
            by_mark(policy);
            held(policy);
        }),
    ];
    for (name, family, quoted, change) in cases {
        let told = told_unreachable(family, &quoted);
        assert!(is_dropped(&[protecting(family, change)], &told, 0), "{name} {family:?}");
        // Nor does a policy let these pass that asks for the same.
        let passing = passing(family, |policy| {
            change(policy);
            (policy.action, policy.flags) = (Action::Allow, PolicyFlags::empty());
        });
        let behind = protecting(family, |_| {});
        assert!(is_dropped(&[passing, behind], &told, 0), "passing by {name} {family:?}");
    }
    // Ports behind IP options can be read.
    let told = told_unreachable(Family::V4, &options);
    assert!(is_dropped(&[protecting(Family::V4, by_port)], &told, 0));
    assert!(!is_dropped(&[protecting(Family::V4, by_other_port)], &told, 0));
}

#[test]
fn types_and_codes_of_quoted_icmp_are_read() {
    for (family, protocol) in [(Family::V4, 1), (Family::V6, 58)] {
        let quoted = header(family, protocol, &[128, 3, 0, 0, 0, 0, 0, 0]);
        for (kind, dropped) in [(128, true), (8, false)] {
            let policy = protecting(family, |policy| {
                policy.selector.protocol = protocol;
                policy.selector.source_port = PortMask::exactly(kind);
            });
            assert_eq!(
                is_dropped(&[policy], &told_unreachable(family, &quoted), 0),
                dropped,
                "{kind}"
            );
        }
    }
}

#[test]
fn policies_for_all_addresses_are_told_apart_by_mark_of_error() {
    for family in FAMILIES {
        let told = told_unreachable(family, &udp(family));
        let for_all = |change: fn(&mut Policy)| {
            protecting(family, |policy| {
                policy.selector = Selector::any(family);
                change(policy);
            })
        };
        for (mark, dropped) in [(0, false), (5, true), (0x105, true), (6, false)] {
            assert_eq!(is_dropped(&[for_all(by_mark)], &told, mark), dropped, "{mark:#x}");
        }
        assert!(!is_dropped(&[for_all(by_device)], &told, 0));
        assert!(is_dropped(&[for_all(|_| {})], &told, 0));
    }
}

#[test]
fn first_policy_decides() {
    for family in FAMILIES {
        let told = told_unreachable(family, &udp(family));
        let all = || protecting(family, |policy| policy.selector.destination = Prefix::any(family));
        assert!(!is_dropped(&[passing(family, by_port), all()], &told, 0));
        assert!(is_dropped(&[passing(family, by_other_port), all()], &told, 0));
        let late = passing(family, |policy| policy.priority = crate::Priority(9));
        assert!(is_dropped(&[late.clone(), all()], &told, 0));
        assert!(is_dropped(&[late, protecting(family, by_mark)], &told, 0));
        assert!(!is_dropped(&[passing(family, |_| {}), protecting(family, by_mark)], &told, 0));
        // A sub policy that lets pass leaves the word to the main one.
        let sub = passing(family, |policy| policy.kind = PolicyKind::Sub);
        assert!(is_dropped(&[sub.clone(), all()], &told, 0));
        assert!(!is_dropped(&[sub], &told, 0));
    }
}

#[test]
fn redirects_are_judged_by_their_destination() {
    let [source, destination] = hosts(Family::V6);
    let about = |target: IpAddr| {
        let IpAddr::V6(target) = target else { unreachable!() };
        let body = [[0; 16], target.octets()].concat();
        let mut bytes = error(Family::V6, 137, &body);
        let IpAddr::V6(source) = source else { unreachable!() };
        bytes[24..40].copy_from_slice(&source.octets());
        bytes
    };
    assert!(is_dropped(&[protecting(Family::V6, by_port)], &about(destination), 0));
    assert!(!is_dropped(&[protecting(Family::V6, by_port)], &about(source), 0));
    let short = error(Family::V6, 137, &[0; 20]);
    assert!(is_dropped(&[protecting(Family::V6, by_port)], &short, 0));
}

#[test]
fn unreadable_quotes_are_dropped_where_there_are_policies() {
    for family in FAMILIES {
        let told = told_unreachable(family, &[0x45; 12]);
        assert!(is_dropped(&[protecting(family, |_| {})], &told, 0));
        assert!(!is_dropped(&[], &told, 0));
        let echo = error(family, if family == Family::V4 { 8 } else { 128 }, &udp(family));
        assert!(!is_dropped(&[protecting(family, |_| {})], &echo, 0));
    }
}

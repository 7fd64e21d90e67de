use std::io::Write as _;

use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, PathMtus};
use uxfrm_host_facts::packet_filter::{DroppingChain, FilterHook, ForeignChains};

use super::*;
use crate::{batch::apply, clock::now, config::Mtu, routes::LastingMtus};

const KEY: &str = "0x4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b";
const BACK_KEY: &str = "0x93c293c293c293c293c293c293c293c293c293c2";

/// A host that forwards, and whose addresses nobody asks for.
fn host() -> HostSettings {
    HostSettings::inline()
}

/// Both states and all policies of a gateway, as the README has them.
fn right() -> Vec<String> {
    let state = |src, dst, spi, key| {
        format!(
            "xfrm state add src {src} dst {dst} proto esp spi {spi} reqid 1 mode tunnel \
             replay-window 128 flag esn aead rfc4106(gcm(aes)) {key} 128"
        )
    };
    let policy = |src, dst, dir, from, to| {
        format!(
            "xfrm policy add src {src} dst {dst} dir {dir} tmpl src {from} dst {to} proto esp \
             reqid 1 mode tunnel"
        )
    };
    let (here, there) = ("10.9.0.1", "10.9.0.2");
    vec![
        state(here, there, "0x1001", KEY),
        state(there, here, "0x1002", BACK_KEY),
        policy("10.1.0.0/24", "10.2.0.0/24", "out", here, there),
        policy("10.2.0.0/24", "10.1.0.0/24", "in", there, here),
        policy("10.2.0.0/24", "10.1.0.0/24", "fwd", there, here),
    ]
}

fn findings_of(lines: &[String], host: HostSettings) -> Vec<String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
    let mut database = Database::new(Backend::Auto, 1);
    apply::load(&mut database, &[file.path().to_owned()], now()).unwrap();
    findings(&database.snapshot(), &host)
}

/// What is found once `change` has been made to the right lines.
fn found(change: impl FnOnce(&mut Vec<String>)) -> Vec<String> {
    let mut lines = right();
    change(&mut lines);
    findings_of(&lines, host())
}

#[test]
fn right_gateway_has_no_findings() {
    assert_eq!(found(|_| {}), Vec::<String>::new());
}

#[test]
fn each_mistake_is_found_once() {
    type Change = fn(&mut Vec<String>);
    let cases: [(&str, Change, &[&str]); 20] = [
        (
            "reqid",
            |lines| lines[2] = lines[2].replace("reqid 1", "reqid 2"),
            &["no state fits", "it has reqid 1, the template reqid 2"],
        ),
        (
            "mode",
            |lines| lines[0] = lines[0].replace("mode tunnel", "mode transport"),
            &["no state fits", "it has mode transport, the template mode tunnel"],
        ),
        (
            "peer",
            |lines| lines[0] = lines[0].replace("dst 10.9.0.2", "dst 10.9.0.3"),
            &["no state fits", "it has dst 10.9.0.3, the template dst 10.9.0.2"],
        ),
        (
            "source",
            |lines| lines[1] = lines[1].replace("src 10.9.0.2", "src 10.9.0.4"),
            &["no state fits", "it has src 10.9.0.4, the template src 10.9.0.2"],
        ),
        (
            "no state",
            |lines| drop(lines.remove(0)),
            &["note: no state fits `tmpl src 10.9.0.1 dst 10.9.0.2 reqid 1 mode tunnel`"],
        ),
        (
            "no fwd",
            |lines| drop(lines.pop()),
            &["has no `dir fwd` beside it", "policy add src 10.2.0.0/24 dst 10.1.0.0/24 dir fwd"],
        ),
        (
            "fwd for another protocol",
            |lines| lines[4] = lines[4].replace("dst 10.1.0.0/24", "dst 10.1.0.0/24 proto udp"),
            &[],
        ),
        (
            "fwd for other ports",
            |lines| {
                for line in &mut lines[2..5] {
                    let port = if line.contains("dir out") { "dport" } else { "sport" };
                    *line = line.replace(" dir", &format!(" proto tcp {port} 80 dir"));
                }
                lines[4] = lines[4].replace("sport 80", "sport 443");
            },
            &["has no `dir fwd` beside it"],
        ),
        (
            "fwd that blocks",
            |lines| {
                let plain = lines[4].split(" tmpl").next().unwrap();
                lines[4] = format!("{plain} action block");
            },
            &["note: `policy src 10.2.0.0/24 dst 10.1.0.0/24 dir in` has no `dir fwd` beside it"],
        ),
        (
            "behind a block",
            |lines| {
                lines[2] = lines[2].replace(" tmpl", " priority 9 tmpl");
                lines.push("xfrm policy add dst 10.2.0.0/16 dir out action block".to_owned());
            },
            &[
                "warning: `policy src 10.1.0.0/24 dst 10.2.0.0/24 dir out priority 9` never decides",
                "drops all of its packets",
            ],
        ),
        (
            "behind a bypass",
            |lines| lines.insert(0, "xfrm policy add dst 10.2.0.0/16 dir out".to_owned()),
            &["never decides", "lets all of its packets pass PLAIN"],
        ),
        (
            "one key",
            |lines| lines[1] = lines[1].replace(BACK_KEY, KEY),
            &["warning: `state src 10.9.0.1 dst 10.9.0.2 spi 0x00001001` and `state src 10.9.0.2 \
               dst 10.9.0.1 spi 0x00001002` have one key for both directions"],
        ),
        (
            "another family, out",
            |lines| *lines = over_v6(),
            &["it is for IPv6 packets alone: `flag af-unspec` is for both families"],
        ),
        (
            "another family, in",
            |lines| *lines = over_v6(),
            &["for those of the other: what comes in is dropped", "add `flag af-unspec`"],
        ),
        (
            "af-unspec",
            |lines| {
                let either = |line: &String| line.replace("flag esn", "flag esn flag af-unspec");
                *lines = over_v6().iter().map(either).collect();
            },
            &[],
        ),
        (
            "no way back",
            |lines| lines.truncate(3),
            &[
                "has no policy for the way back",
                "policy add src 10.2.0.0/24 dst 10.1.0.0/24 dir in",
            ],
        ),
        (
            "unused state",
            |lines| {
                let other = lines[0].replace("spi 0x1001", "spi 0x2001");
                lines.push(other.replace("reqid 1", "reqid 9"));
            },
            &["no policy has a template for `state src 10.9.0.1 dst 10.9.0.2 spi 0x00002001`"],
        ),
        (
            "no authentication",
            |lines| {
                lines[1] =
                    with_algorithms(&lines[1], "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f")
            },
            &["warning: `state src 10.9.0.2 dst 10.9.0.1 spi 0x00001002` does not authenticate"],
        ),
        (
            "no replay window",
            |lines| lines[1] = lines[1].replace("replay-window 128 flag esn", ""),
            &["note: `state src 10.9.0.2 dst 10.9.0.1 spi 0x00001002` has no replay window"],
        ),
        (
            "no cipher",
            |lines| {
                let auth = "enc ecb(cipher_null) \"\" auth-trunc hmac(sha1) 0x0001020304050607080900010203040506070809 96";
                lines[0] = with_algorithms(&lines[0], auth);
            },
            &["note: `state src 10.9.0.1 dst 10.9.0.2 spi 0x00001001` authenticates only"],
        ),
    ];
    for (name, change, expected) in cases {
        let found = found(change);
        let all = found.join("\n");
        assert!(expected.iter().all(|words| all.contains(words)), "{name}: {all}");
        let first = expected.first().copied().unwrap_or_default();
        let own = found.iter().filter(|finding| finding.contains(first)).count();
        let own = if expected.is_empty() { usize::from(all.is_empty()) } else { own };
        assert!(own >= 1 && !all.contains("4d1b"), "{name}: {all}");
    }
}

/// The right lines between IPv6 addresses.
fn over_v6() -> Vec<String> {
    let lines = right().into_iter();
    lines.map(|line| line.replace("10.9.0.1", "fd09::1").replace("10.9.0.2", "fd09::2")).collect()
}

/// Ends that are not as they should be, on a host with these addresses.
#[test]
fn ends_are_compared_with_the_hosts_addresses() {
    let here = |own: &[&str], unreachable: &[&str]| {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let (addresses, unreachable) = (Some(addresses(own)), addresses(unreachable));
        findings_of(&right(), HostSettings { addresses, unreachable, ..host() })
    };
    assert_eq!(here(&["10.9.0.1", "127.0.0.1"], &[]), Vec::<String>::new());
    let [elsewhere] = &here(&["192.0.2.1"], &["10.9.0.2"])[..] else { panic!("one") };
    assert!(elsewhere.starts_with("note: neither 10.9.0.1 nor 10.9.0.2 is an address of this"));
    let [oneself] = &here(&["10.9.0.1", "10.9.0.2"], &[])[..] else { panic!("one") };
    assert!(oneself.starts_with("warning: both ends of `state src 10.9.0."));
    let [nowhere] = &here(&["10.9.0.1"], &["10.9.0.2"])[..] else { panic!("one") };
    assert!(nowhere.starts_with("warning: the kernel has no route to 10.9.0.2"), "{nowhere}");

    let mut lines = right();
    lines.push(lines[0].replace("10.9.0.1", "10.9.0.77").replace("0x1001", "0x1009"));
    let addresses = Some(["10.9.0.1".parse().unwrap()].into());
    let all = findings_of(&lines, HostSettings { addresses, ..host() }).join("\n");
    assert!(all.contains("warning: neither 10.9.0.2 nor 10.9.0.77 is an address"), "{all}");
}

fn with_algorithms(line: &str, algorithms: &str) -> String {
    format!("{}{algorithms}", line.split("aead").next().unwrap())
}

#[test]
fn forwarding_is_asked_for_by_family() {
    let off = HostSettings { forwards_v4: false, ..host() };
    let all = findings_of(&right(), off).join("\n");
    assert!(all.contains("net.ipv4.ip_forward is 0") && !all.contains("ipv6"), "{all}");
    let v6 = HostSettings { forwards_v6: false, ..host() };
    assert_eq!(findings_of(&right(), v6), Vec::<String>::new(), "no IPv6 policy asks for it");
}

/// Hosts in transport mode, by policies for all that goes between them and a network.
fn transport(destination: &str) -> Vec<String> {
    let lines = right().into_iter().filter(|line| !line.contains("dir fwd"));
    let lines = lines.map(|line| line.replace("mode tunnel", "mode transport"));
    let lines = lines.map(|line| line.replace("src 10.1.0.0/24 dst 10.2.0.0/24", destination));
    let back: Vec<_> = destination.split(' ').collect();
    let back = format!("src {} dst {}", back[3], back[1]);
    let lines = lines.map(|line| line.replace("src 10.2.0.0/24 dst 10.1.0.0/24", &back));
    let ends = ["tmpl src 10.9.0.1 dst 10.9.0.2", "tmpl src 10.9.0.2 dst 10.9.0.1"];
    lines.map(|line| line.replace(ends[0], "tmpl").replace(ends[1], "tmpl")).collect()
}

#[test]
fn policies_that_leave_ends_to_packets_have_the_states_of_any_host() {
    for selector in ["src 10.9.0.1 dst 10.9.0.0/24", "src 0.0.0.0/0 dst 0.0.0.0/0"] {
        assert_eq!(findings_of(&transport(selector), host()), Vec::<String>::new(), "{selector}");
    }
    let elsewhere = findings_of(&transport("src 10.9.0.1 dst 10.8.0.0/24"), host()).join("\n");
    assert!(elsewhere.contains("no state fits"), "{elsewhere}");
}

#[test]
fn policy_fwd_for_a_host_asks_for_no_forwarding() {
    let off = HostSettings { forwards_v4: false, ..host() };
    let lines: Vec<_> =
        right().iter().map(|line| line.replace("10.1.0.0/24", "10.1.0.1/32")).collect();
    assert_eq!(findings_of(&lines, off), Vec::<String>::new());
}

#[test]
fn many_findings_of_a_rule_are_bounded() {
    let found = found(|lines| {
        for spi in 0..500 {
            let other = lines[0].replace("spi 0x1001", &format!("spi {:#x}", 0x2000 + spi));
            lines.push(other.replace("reqid 1", "reqid 9"));
        }
    });
    assert_eq!(found.len(), MOST);
    assert!(found.last().unwrap().contains("… and 490 more like this"), "{found:?}");
}

/// A gateway with an address in the net behind it, which sends all into the tunnel.
fn all_into_the_tunnel(extra: &[&str]) -> Vec<String> {
    let all = right().into_iter().map(|line| line.replace("10.2.0.0/24", "0.0.0.0/0"));
    let all = all.map(|line| line.replace(" tmpl", " priority 9 tmpl"));
    let lines: Vec<_> = all.chain(extra.iter().map(|line| (*line).to_owned())).collect();
    let own = ["10.9.0.1", "10.1.0.1"].map(|own| own.parse().unwrap());
    findings_of(&lines, HostSettings { addresses: Some(own.into()), ..host() })
}

#[test]
fn policy_that_takes_the_gateways_answers_to_its_own_hosts_is_found() {
    let found = all_into_the_tunnel(&[]);
    assert_eq!(found.len(), 1, "{found:?}");
    for words in [
        "warning: `policy src 10.1.0.0/24 dst 0.0.0.0/0 dir out priority 9` takes what the gateway \
         sends from 10.1.0.1 to hosts in 10.1.0.0/24",
        "policy add src 10.1.0.0/24 dst 10.1.0.0/24 dir out, and the same with",
    ] {
        assert!(found[0].contains(words), "{found:?}");
    }
    let late = all_into_the_tunnel(&["xfrm policy add dst 10.1.0.0/24 dir out priority 10"]);
    assert!(late.iter().any(|line| line.contains("takes what the gateway sends")), "{late:?}");
}

#[test]
fn answers_to_own_hosts_that_stay_outside_are_right() {
    let pass = "xfrm policy add src 10.1.0.0/24 dst 10.1.0.0/24 dir out priority 1";
    assert_eq!(all_into_the_tunnel(&[pass]), Vec::<String>::new());
    let own = |own: &[&str]| Some(own.iter().map(|own| own.parse().unwrap()).collect());
    for (lines, addresses) in [
        (right(), own(&["10.9.0.1", "10.1.0.1"])),
        (transport("src 10.9.0.0/24 dst 10.9.0.0/24"), own(&["10.9.0.1"])),
    ] {
        let found = findings_of(&lines, HostSettings { addresses, ..host() });
        assert_eq!(found, Vec::<String>::new());
    }
}

/// A gateway of these lines, with a fixed MTU, on a network of 1500 bytes.
fn with_mtu(lines: &[String], mtu: u16) -> Vec<String> {
    let addresses = Some(["10.9.0.1".parse().unwrap()].into());
    let paths = Some(LastingMtus { usual: 1500, narrow: PathMtus::new() });
    findings_of(lines, HostSettings { mtu: Mtu::Fixed(mtu), addresses, paths, ..host() })
}

#[test]
fn fixed_mtu_is_compared_with_what_tunnels_take() {
    for (mtu, expected) in [(1446, 0), (1400, 0), (1447, 1)] {
        let found = with_mtu(&right(), mtu);
        assert_eq!(found.len(), expected, "{mtu}: {found:?}");
        let says = |line: &String| line.contains("mtu = 1447` is more than the 1446 bytes");
        assert!(found.iter().all(says), "{found:?}");
    }
    assert_eq!(with_mtu(&[], 1500), Vec::<String>::new(), "an IKE daemon makes the states");
}

#[test]
fn fixed_mtu_of_a_hub_is_compared_with_the_network() {
    // All that comes from the peer may go to it.
    let hub: Vec<_> = right()
        .iter()
        .map(|line| line.replace("10.1.0.0/24", "10.0.0.0/8").replace("10.2.0.0/24", "10.0.0.0/8"))
        .collect();
    for (mtu, expected) in [(1446, 1), (1499, 1), (1500, 0), (9000, 0)] {
        let found = with_mtu(&hub, mtu);
        let about: Vec<_> = found.iter().filter(|line| line.contains("[host] mtu")).collect();
        assert_eq!(about.len(), expected, "{mtu}: {found:?}");
        assert!(about.iter().all(|line| line.contains("less than the 1500 bytes of the network")));
    }
}

#[test]
fn chains_of_others_that_drop_what_is_forwarded_are_told() {
    let accepting = |family, rules, accepted: &[&str]| {
        let accepted = accepted.iter().map(|way| format!("{way} \"uxfrm0\"")).collect();
        let (table, chain) = ("filter".to_owned(), "FORWARD".to_owned());
        let hook = FilterHook::Forward;
        let chain = DroppingChain { family, table, chain, hook, rules, accepted };
        let filter = ForeignChains { chains: vec![chain], legacy: Vec::new() };
        findings_of(&right(), HostSettings { filter, tun: "uxfrm0".to_owned(), ..host() })
    };
    let with = |family, rules| accepting(family, rules, &[]);
    assert_eq!(accepting("ip", 3, &["oifname", "iifname"]), Vec::<String>::new());
    let [half] = &accepting("ip", 3, &["iifname"])[..] else { panic!("one") };
    assert!(half.contains("oifname") && !half.contains("iifname"), "{half}");
    let [may] = &with("ip", 3)[..] else { panic!("one") };
    assert!(may.starts_with("note: table ip filter, chain FORWARD (hook forward, policy"), "{may}");
    assert!(may.contains("nft insert rule ip filter FORWARD oifname \"uxfrm0\" accept"), "{may}");
    let [does] = &with("inet", 0)[..] else { panic!("one") };
    assert!(does.starts_with("warning: table inet") && does.contains("has no rules"), "{does}");
    assert_eq!(with("ip6", 0), Vec::<String>::new(), "there is no IPv6 policy");
}

#[test]
fn a_running_gateway_warns_of_what_is_new_and_not_of_notes() {
    let snapshot = |lines: &[String]| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
        let mut database = Database::new(Backend::Auto, 1);
        apply::load(&mut database, &[file.path().to_owned()], now()).unwrap();
        database.snapshot()
    };
    let (right, v6) = (snapshot(&right()), snapshot(&over_v6()));
    let host = host();
    let new = |before, now| new_warnings((before, &host), (now, &host));
    let warned = new(&*right, &*v6);
    assert!(warned.iter().any(|line| line.contains("flag af-unspec")), "{warned:?}");
    assert!(warned.iter().all(|line| line.starts_with("warning: ")), "{warned:?}");
    assert_eq!(new(&*v6, &*v6), Vec::<String>::new());
    assert_eq!(new(&*v6, &*right), Vec::<String>::new());
    assert_eq!(warnings(&v6, &host), warned);
    let many = (0..u32::try_from(SEARCHED).unwrap()).map(|net| {
        let net = std::net::Ipv4Addr::from(0x0b00_0000 | net);
        format!("xfrm policy add src {net}/32 dst 10.2.0.0/24 dir in action block")
    });
    let many: Vec<_> = over_v6().into_iter().chain(many).collect();
    assert_eq!(warnings(&snapshot(&many), &host), Vec::<String>::new());
}

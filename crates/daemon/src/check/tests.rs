use std::io::Write as _;

use uxfrm_crypto::Backend;
use uxfrm_engine::Database;

use super::*;
use crate::{batch::apply, clock::now};

const HOST: HostSettings = HostSettings { forwards_v4: true, forwards_v6: true };
const KEY: &str = "0x4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b";

/// Both states and all policies of a gateway, as the README has them.
fn right() -> Vec<String> {
    let state = |src, dst, spi| {
        format!(
            "xfrm state add src {src} dst {dst} proto esp spi {spi} reqid 1 mode tunnel \
             replay-window 128 flag esn aead rfc4106(gcm(aes)) {KEY} 128"
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
        state(here, there, "0x1001"),
        state(there, here, "0x1002"),
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
    findings(&database.snapshot(), host)
}

/// What is found once `change` has been made to the right lines.
fn found(change: impl FnOnce(&mut Vec<String>)) -> Vec<String> {
    let mut lines = right();
    change(&mut lines);
    findings_of(&lines, HOST)
}

#[test]
fn right_gateway_has_no_findings() {
    assert_eq!(found(|_| {}), Vec::<String>::new());
}

#[test]
fn each_mistake_is_found_once() {
    type Change = fn(&mut Vec<String>);
    let cases: [(&str, Change, &[&str]); 11] = [
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
        let own = found.iter().filter(|finding| finding.contains(expected[0])).count();
        assert!(own >= 1 && !all.contains("4d1b"), "{name}: {all}");
    }
}

fn with_algorithms(line: &str, algorithms: &str) -> String {
    format!("{}{algorithms}", line.split("aead").next().unwrap())
}

#[test]
fn forwarding_is_asked_for_by_family() {
    let off = HostSettings { forwards_v4: false, ..HOST };
    let all = findings_of(&right(), off).join("\n");
    assert!(all.contains("net.ipv4.ip_forward is 0") && !all.contains("ipv6"), "{all}");
    let v6 = HostSettings { forwards_v6: false, ..HOST };
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
        assert_eq!(findings_of(&transport(selector), HOST), Vec::<String>::new(), "{selector}");
    }
    let elsewhere = findings_of(&transport("src 10.9.0.1 dst 10.8.0.0/24"), HOST).join("\n");
    assert!(elsewhere.contains("no state fits"), "{elsewhere}");
}

#[test]
fn policy_fwd_for_a_host_asks_for_no_forwarding() {
    let off = HostSettings { forwards_v4: false, ..HOST };
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

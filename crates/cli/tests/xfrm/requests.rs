//! The same arguments give the same bytes on the wire.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::programs::{ip, is_new, run_ip, run_ours};
use crate::server::Server;

/// Lines with every keyword that Debian's iproute2 knows.
const LINES: &str = "
state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x100 reqid 1 mode tunnel enc cbc(aes) 0x00112233445566778899aabbccddeeff auth hmac(sha1) 0x0001
s a dst 10.0.0.2 proto esp spi 1 aead rfc4106(gcm(aes)) 1234567890123456dcba 128 mode t sel src 10.1.2.3/24 dst 10.2.0.0/16
state add src fd00::1 dst fd00::2 proto esp spi 7 enc ecb(cipher_null) '' auth-trunc hmac(sha256) 0xabc 128 mode beet
state add src ::1 dst ::2 proto ah spi 7 auth md5 secret sel proto tcp sport 1 dport 65535
state add src ::1 dst ::2 proto comp spi 7 comp deflate mode tunnel
state add dst 10.0.0.2 proto esp spi 1 enc a b mark 5 output-mark 7 if_id 0
state add dst 10.0.0.2 proto esp spi 1 enc a b mark 5 mask 0x0f output-mark 7 mask 0xff if_id 9 tfcpad 1400
state add dst 10.0.0.2 proto esp spi 1 enc a b mark 5 mask 0 output-mark 0 mask 3 seq 9
state update dst 10.0.0.2 proto esp spi 1 enc a b replay-window 32 replay-seq 3 replay-oseq 4
state add dst 10.0.0.2 proto esp spi 1 enc a b replay-window 33
state add dst 10.0.0.2 proto esp spi 1 enc a b flag esn replay-window 100 replay-seq 3 replay-oseq 4 replay-seq-hi 1 replay-oseq-hi 2
state add dst 10.0.0.2 proto esp spi 1 enc a b flag noecn decap-dscp nopmtudisc wildrecv icmp af-unspec align4 extra-flag dont-encap-dscp oseq-may-wrap
state add dst 10.0.0.2 proto esp spi 1 enc a b flag 0x11 extra-flag 0x10000003
state add dst 10.0.0.2 proto esp spi 1 enc a b limit time-soft 1 limit time-hard 2 limit time-use-soft 3 limit time-use-hard 4 limit byte-soft 5 limit byte-hard 6 limit packet-soft 7 limit packet-hard 8
state add dst 10.0.0.2 proto esp spi 1 ctx system_u:object_r enc a b encap espinudp 4500 4501 10.9.9.9 auth c d
state add dst ::2 proto esp spi 1 encap espinudp-nonike 1 2 any enc a b
state add dst ::2 proto esp spi 1 encap espintcp 1 2 0.0.0.0 enc a b
state add dst ::2 src ::1 proto route2 mode ro coa fd00::5
state add dst ::2 src ::1 proto hao mode in_trigger coa fd00::5/64
state add proto esp spi 1 enc a b sel dst 10.0.0.0/8 dev lo proto icmp type 8 code 0
state add proto esp spi 1 enc a b sel src 10.0.0.0/8 proto gre key 1.2.3.4
state add proto esp spi 1 enc a b sel proto mobility-header type 3
state allocspi dst 10.0.0.2 proto esp
state allocspi src 10.0.0.1 dst 10.0.0.2 proto comp reqid 3 seq 5 mode tunnel mark 3
state allocspi dst ::2 proto ah min 0x200 max 0x300 mark 3 mask 4
state delete dst 10.0.0.2 proto esp spi 0x100
state delete src ::1 dst ::2 proto ah spi 1 mark 7 mask 3
state get dst 10.0.0.2 proto esp spi 0x100 mark 8 mask 7
state flush
state flush proto ah
state count
policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16
policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto udp sport 500 dir fwd ctx label mark 1 mask 3 index 17 ptype sub action block priority 100 flag localok icmp limit packet-hard 9 if_id 7 tmpl src 10.0.0.1 dst 10.0.0.2 proto esp spi 3 mode tunnel level use reqid 9 tmpl proto comp reqid 5 level required
policy update src 10.0.0.0/8 dir in tmpl proto esp src fd00::1 dst fd00::2 mode tunnel
policy add dir in src fd00::/8 tmpl proto ah
policy add dir in flag 0x83 dev lo
policy delete dir in src 10.0.0.0/8
policy delete dir fwd index 9 ptype main mark 3 ctx label if_id 4
policy get dir out dst fd00::/8 proto 99
policy flush
policy flush ptype sub
policy count
policy set hthresh4 24 32 hthresh6 64 128
policy set hthresh6 1 2
policy setdefault in block fwd accept out block
policy setdefault out accept
policy getdefault
";

/// Lines that only iproute2 7 knows.
const NEW_LINES: &str = "
state add dst 10.0.0.2 proto esp spi 1 enc a b dir in pcpu-num 3
state add dst 10.0.0.2 proto esp spi 1 enc a b flag esn dir out
state add dst 10.0.0.2 proto esp spi 1 enc a b dir in offload packet dev lo dir in
state add dst 10.0.0.2 proto esp spi 1 enc a b offload crypto dev lo dir out dir out
state allocspi dst 10.0.0.2 proto esp dir out pcpu-num 0 mark 1
policy add dir in offload packet dev lo
policy setdefault in allow
";

const OLD_LINES: &str = "
state add dst 10.0.0.2 proto esp spi 1 enc a b offload dev lo dir in
state add dst 10.0.0.2 proto esp spi 1 enc a b offload dev lo dir out
";

#[test]
fn batch_lines_are_the_same_bytes() {
    let Some(ip) = ip() else { return };
    let more = if is_new(&ip) { NEW_LINES } else { OLD_LINES };
    let random = random_lines(300).join("\n");
    let script: String = [LINES, more, &random]
        .concat()
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| format!("xfrm {line}\n"))
        .collect();
    let server = Server::start(Vec::new());
    let theirs = run_ip(&ip, &server, &["-batch", "-"], &script);
    assert_eq!((theirs.code, theirs.err.as_str()), (Some(0), ""));
    let theirs = server.take();
    assert_eq!(theirs.len(), script.lines().count());
    let ours = run_ours(&server, &["-batch", "-"], &script);
    assert_eq!((ours.code, ours.err.as_str()), (Some(0), ""));
    let ours = server.take();
    for ((line, theirs), ours) in script.lines().zip(theirs).zip(&ours) {
        assert_eq!(hex(&comparable(&theirs)), hex(&comparable(ours)), "{line}");
    }
    assert_eq!(ours.len(), script.lines().count());
}

/// Single commands are compared in full, without the exceptions of a pipeline; so are lists, which
/// would end a batch of iproute2.
#[test]
fn single_commands_are_the_same_bytes() {
    let Some(ip) = ip() else { return };
    let server = Server::start(Vec::new());
    for line in [
        "xfrm state",
        "-6 xfrm state list",
        "xfrm state list nokeys src 10.0.0.0/8 dst 10.0.0.2 proto esp spi 1 mode tunnel reqid 3 flag esn",
        "xfrm sa show proto 50",
        "xfrm policy",
        "xfrm policy list src 10.0.0.0/8 dir in action block",
        "xfrm state flush",
        "-4 xfrm policy add dir in",
        "-6 xfrm policy add dir in src any",
        "-6 xfrm state get proto esp spi 1",
        "xfrm state get dst ::1 proto esp spi 1",
        "xfrm policy deleteall",
        "xfrm state deleteall",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        if line.contains("proto 50") {
            continue; // iproute2 takes a name, we a name or a number
        }
        let theirs = run_ip(&ip, &server, &words, "");
        let theirs_heard = server.take();
        let without: Vec<&str> = words.iter().copied().filter(|word| *word != "xfrm").collect();
        let ours = run_ours(&server, &without, "");
        let ours_heard = server.take();
        assert_eq!((theirs.out, theirs.code), (ours.out, ours.code), "{line}");
        let shown = |heard: Vec<Vec<u8>>| -> Vec<String> {
            heard.into_iter().map(|bytes| hex(&without_sequence(bytes))).collect()
        };
        assert_eq!(shown(theirs_heard), shown(ours_heard), "{line}");
    }
}

/// A request without parts that differ between runs, without the acknowledgement that a pipeline
/// omits, and without the flag that stops it at an error.
fn comparable(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = without_sequence(bytes.to_vec());
    bytes[6] &= !4;
    bytes[7] &= !0x40;
    bytes
}

/// Without the sequence number, and without two bytes of `encap` that iproute2 leaves
/// uninitialized.
fn without_sequence(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[8..12].fill(0);
    let header = [28_u8, 0, 4, 0]; // length and type of XFRMA_ENCAP
    if let Some(place) = bytes.windows(4).position(|window| window == header) {
        bytes[place + 10..place + 12].fill(0);
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect());
    words.collect::<Vec<String>>().join(" ")
}

fn random_lines(count: usize) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let lines = prop_oneof![state(), policy()];
    (0..count).map(|_| lines.new_tree(&mut runner).unwrap().current()).collect()
}

/// A subset of these parts, in any order.
fn some_of(parts: Vec<BoxedStrategy<String>>) -> impl Strategy<Value = String> {
    let each: Vec<_> = parts
        .into_iter()
        .map(|part| prop::option::weighted(0.4, part).prop_map(Option::unwrap_or_default))
        .collect();
    each.prop_shuffle().prop_map(|parts: Vec<String>| {
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    })
}

fn words(pattern: &str) -> BoxedStrategy<String> {
    prop::string::string_regex(pattern).unwrap().boxed()
}

const NUMBER: &str = "(0|[1-9][0-9]{0,8}|0x[0-9a-f]{1,8})";
const V4: &str = "10\\.[0-9]\\.[0-9]\\.[1-9]";
const V6: &str = "fd00:[0-9a-f]{1,3}::[1-9]";

fn selector(address: &'static str, longest: u8) -> BoxedStrategy<String> {
    let end = move |name: &'static str| {
        (words(address), 0..=longest)
            .prop_map(move |(address, len)| format!("{name} {address}/{len}"))
    };
    let upper = prop_oneof![
        Just(String::new()),
        words("proto (tcp|udp) sport (0|[1-9][0-9]{0,3}) dport [1-9][0-9]{0,3}"),
        words("proto 1 type [0-9] code [0-9]"),
        words(&format!("proto gre key {NUMBER}")),
        words("proto [2-9]"),
    ];
    (end("src"), end("dst"), upper)
        .prop_map(|(source, destination, upper)| {
            format!("{source} {destination} {upper}").trim().to_owned()
        })
        .boxed()
}

fn state() -> BoxedStrategy<String> {
    prop_oneof![state_of(V4, 32), state_of(V6, 128)].boxed()
}

fn state_of(address: &'static str, longest: u8) -> BoxedStrategy<String> {
    let id = words(&format!("src {address} dst {address} proto esp spi 0x[1-9a-f][0-9a-f]{{0,7}}"));
    let algorithm = prop_oneof![
        words(
            "enc cbc\\(aes\\) 0x[0-9a-f]{0,64} auth-trunc hmac\\(sha256\\) 0x[0-9a-f]{64} (96|128)"
        ),
        words("aead rfc4106\\(gcm\\(aes\\)\\) 0x[0-9a-f]{40} (64|96|128)"),
        words("auth sha1 [a-z]{1,20} enc aes [a-z]{16}"),
    ];
    let parts = some_of(vec![
        words("mode (transport|tunnel|beet)"),
        words(&format!("mark {NUMBER}( mask {NUMBER})?")),
        words(&format!("output-mark {NUMBER}( mask {NUMBER})?")),
        words(&format!("reqid {NUMBER}")),
        words(&format!("seq {NUMBER}")),
        words("replay-window [1-9][0-9]{0,2} replay-seq [0-9] replay-oseq [0-9]"),
        words("flag (noecn|icmp|align4)( wildrecv)?"),
        words("extra-flag (dont-encap-dscp|oseq-may-wrap)"),
        words(&format!("if_id {NUMBER}")),
        words("tfcpad [1-9][0-9]{0,3}"),
        words("limit (time|byte|packet)-(soft|hard) [1-9][0-9]{0,17}"),
        words("limit time-use-(soft|hard) [1-9][0-9]{0,8}"),
        words("encap espinudp [1-9][0-9]{0,3} 4500 10\\.1\\.1\\.1"),
        words("ctx [a-z:_]{1,40}"),
        selector(address, longest).prop_map(|selector| format!("sel {selector}")).boxed(),
    ]);
    (words("state (add|update)"), id, algorithm, parts)
        .prop_map(|(command, id, algorithm, parts)| {
            format!("{command} {id} {algorithm} {parts}").trim_end().to_owned()
        })
        .boxed()
}

fn policy() -> BoxedStrategy<String> {
    let parts = some_of(vec![
        words(&format!("mark {NUMBER}( mask {NUMBER})?")),
        words(&format!("index {NUMBER}")),
        words("ptype (main|sub)"),
        words("action (allow|block)"),
        words(&format!("priority {NUMBER}")),
        words("flag (localok|icmp)"),
        words("limit (time|byte|packet)-(soft|hard) [1-9][0-9]{0,17}"),
        words(&format!("if_id {NUMBER}")),
        words("ctx [a-z:_]{1,40}"),
    ]);
    let template = words(&format!(
        "( tmpl (src ({V4}) dst ({V4})|src ({V6}) dst ({V6})|dst ({V4})) proto (esp|ah|comp)( spi [1-9])?( mode (tunnel|transport|beet))?( reqid {NUMBER})?( level (use|required))?){{0,3}}"
    ));
    let selector = prop_oneof![selector(V4, 32), selector(V6, 128)];
    (words("policy (add|update)"), selector, words("dir (in|out|fwd)"), parts, template)
        .prop_map(|(command, selector, dir, parts, template)| {
            let line = format!("{command} {selector} {dir} {parts} {template}");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .boxed()
}

use std::net::IpAddr;

use uxfrm_engine::{
    Action, Cpu, Direction, Family, IfId, LifetimeLimits, Mark, Mode, Offload, OffloadKind, Policy,
    PolicyFlags, PolicyIndex, PolicyKind, PortMask, Prefix, Priority, ReplayConfig, Reqid,
    SaConfig, SaExtraFlags, SaFlags, SaProtocol, SoftHardLimit, Spi, Template, TemplateLevel,
    UdpEncap, UdpEncapKind,
};

use super::*;

mod property;

const KEY: &str = "0x1c0cf2bb72ce67ba245b593076dfb27a";
const ID: &str = "src 10.0.0.1 dst 10.0.0.2 proto esp spi 1";

fn one(line: &str) -> Command {
    let mut commands = parse("test", line).unwrap_or_else(|errors| panic!("{line}: {errors:?}"));
    assert_eq!(commands.len(), 1, "{line}");
    commands.remove(0).value
}

fn state(words: &str) -> SaConfig {
    let line = format!("xfrm state add {ID} enc cbc(aes) {KEY} {words}");
    let Command::StateAdd(state) = one(&line) else { panic!("{line}") };
    *state
}

fn policy(words: &str) -> Policy {
    let Command::PolicyAdd(policy) = one(&format!("xfrm policy add {words}")) else { panic!() };
    *policy
}

fn error(line: &str) -> String {
    let errors = parse("x.batch", line).expect_err(line);
    assert_eq!(errors.len(), 1, "{line}");
    errors[0].to_string()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str, len: u8) -> Prefix {
    Prefix::new(ip(text), len).unwrap()
}

/// `seeds/001`, slide 22: left side, as it stands.
const NIANTIC: &str = "\
ip x p add dir out src 14.0.0.52/24 dst 14.0.0.70/24 tmpl proto esp src 14.0.0.52 dst 14.0.0.70 spi 0x07 mode transport reqid 0x07
ip x p add dir in src 14.0.0.70/24 dst 14.0.0.52/24 tmpl proto esp dst 14.0.0.52 src 14.0.0.70 spi 0x07 mode transport reqid 0x07
ip x s add proto esp src 14.0.0.52 dst 14.0.0.70 spi 0x07 mode transport reqid 0x07 replay-window 32 aead 'rfc4106(gcm(aes))' 1234567890123456dcba 128 sel src 14.0.0.52/24 dst 14.0.0.70/24 offload dev eth4 dir out
ip x s add proto esp dst 14.0.0.52 src 14.0.0.70 spi 0x07 mode transport reqid 0x07 replay-window 32 aead 'rfc4106(gcm(aes))' 1234567890123456dcba 128 sel src 14.0.0.70/24 dst 14.0.0.52/24 offload dev eth4 dir out
";

#[test]
fn the_niantic_slides_lines_are_read_as_they_stand() {
    let commands = parse("slide", NIANTIC).unwrap();
    let [out, inbound, sender, receiver] = &commands[..] else { panic!("{commands:?}") };
    let Command::PolicyAdd(out) = &out.value else { panic!() };
    assert_eq!(out.direction, Direction::Out);
    assert_eq!(out.selector.source.to_string(), "14.0.0.52/24");
    assert_eq!(
        out.templates,
        [Template {
            source: ip("14.0.0.52"),
            destination: ip("14.0.0.70"),
            protocol: SaProtocol::Esp,
            spi: Spi(7),
            mode: Mode::Transport,
            reqid: Reqid(7),
            level: TemplateLevel::Required,
        }]
    );
    let Command::PolicyAdd(inbound) = &inbound.value else { panic!() };
    assert_eq!((inbound.direction, inbound.templates[0].source), (Direction::In, ip("14.0.0.70")));
    let Command::StateAdd(sender) = &sender.value else { panic!() };
    assert_eq!(sender.transform.transform.name(), "rfc4106(gcm(aes))");
    assert_eq!(sender.transform.encryption_key.expose(), b"1234567890123456dcba");
    assert_eq!(sender.replay.window, 32);
    assert_eq!(sender.selector.unwrap().destination.to_string(), "14.0.0.70/24");
    let Command::StateAdd(receiver) = &receiver.value else { panic!() };
    assert_eq!((receiver.id.spi, receiver.id.destination), (Spi(7), ip("14.0.0.52")));
    // The slide's `dir out` on the receiving state is what the device is told; the state still
    // receives.
    assert_eq!(receiver.offload.as_ref().unwrap().direction, Direction::Out);
    assert_eq!(receiver.direction, None);
}

/// `seeds/004`: the script, with the shell's part done.
#[test]
fn flow_cache_example_is_parsed() {
    let text = format!(
        "ip xfrm state add src 192.168.11.2 dst 192.168.11.1 spi 1 proto esp \\  \n\
         mode tunnel reqid 1 auth sha1 {KEY} enc 'cbc(aes)' \"{KEY}\"\n\n\
         ip xfrm policy add src 192.168.13.0/24 dst 192.168.12.0/24 dir out \\\n\
         tmpl dst 192.168.11.1 proto esp mode tunnel reqid 1\n"
    );
    let commands = parse("script", &text).unwrap();
    assert_eq!(commands.iter().map(|command| command.line).collect::<Vec<_>>(), [1, 4]);
    let Command::StateAdd(state) = &commands[0].value else { panic!() };
    assert_eq!(state.transform.transform.name(), "cbc(aes)/hmac(sha1)");
    assert_eq!(state.transform.authentication_key.len(), 16);
    assert_eq!((state.mode, state.transform.transform.icv_len()), (Mode::Tunnel, 12));
    let Command::PolicyAdd(policy) = &commands[1].value else { panic!() };
    assert_eq!(policy.templates[0].source, ip("0.0.0.0"));
    assert_eq!(policy.templates[0].destination, ip("192.168.11.1"));
}

#[test]
fn every_word_of_a_state_lands_in_its_field() {
    let s = state(
        "mode tu mark 0x10 mask 0xf0 reqid 16 seq 9 replay-window 128 replay-seq 7 replay-seq-hi 1 \
         replay-oseq 8 replay-oseq-hi 2 flag esn noecn decap-dscp flag nopmtudisc extra-flag dont-encap-dscp \
         oseq-may-wrap sel src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp sport 80 dport 0x1f90 limit time-soft 1 \
         limit time-hard 2 limit time-use-soft 3 limit time-use-hard 4 limit byte-soft 5 limit byte-hard 6 \
         limit packet-soft 7 limit packet-hard 8 encap espinudp 4500 4501 0.0.0.0 ctx label output-mark 3 mask 7 \
         if_id 5 tfcpad 1400 dir in pcpu-num 2 offload packet dev eth4 dir in auth-trunc hmac(sha256) 0xaa 128",
    );
    assert_eq!((s.source, s.id.destination, s.id.spi), (ip("10.0.0.1"), ip("10.0.0.2"), Spi(1)));
    assert_eq!(
        (s.mode, s.reqid, s.acquire_seq, s.if_id),
        (Mode::Tunnel, Reqid(16), 9_u32.to_be(), IfId(5))
    );
    assert_eq!(s.mark, Mark { value: 0x10, mask: 0xf0 });
    assert_eq!(s.output_mark, Mark { value: 3, mask: 7 });
    assert_eq!(s.replay, ReplayConfig { window: 128, sent: 8 | 2 << 32, received: 7 | 1 << 32 });
    assert_eq!(s.flags, SaFlags::ESN | SaFlags::NOECN | SaFlags::DECAP_DSCP | SaFlags::NOPMTUDISC);
    assert_eq!(s.extra_flags, SaExtraFlags::all());
    let selector = s.selector.unwrap();
    assert_eq!(selector.protocol, 6);
    assert_eq!(selector.source_port, PortMask::exactly(80));
    assert_eq!(selector.destination_port, PortMask::exactly(8080));
    assert_eq!(s.limits.added_seconds, SoftHardLimit { soft: 1, hard: 2 });
    assert_eq!(s.limits.used_seconds, SoftHardLimit { soft: 3, hard: 4 });
    assert_eq!(s.limits.bytes, SoftHardLimit { soft: 5, hard: 6 });
    assert_eq!(s.limits.packets, SoftHardLimit { soft: 7, hard: 8 });
    let encap = UdpEncap {
        kind: UdpEncapKind::Esp,
        source_port: 4500,
        destination_port: 4501,
        original_address: ip("0.0.0.0"),
    };
    assert_eq!(s.encap, Some(encap));
    assert_eq!((s.tfc_padding, s.direction, s.pcpu), (1400, Some(Direction::In), Some(Cpu(2))));
    let device = "eth4".to_owned();
    let offload = Offload { kind: OffloadKind::Packet, device, direction: Direction::In };
    assert_eq!(s.offload, Some(offload));
    assert_eq!(s.transform.transform.icv_len(), 16);
}

#[test]
fn what_a_state_does_not_say_has_the_kernels_defaults() {
    let s = state("");
    let never = SoftHardLimit { soft: 0, hard: 0 };
    let limits =
        LifetimeLimits { added_seconds: never, used_seconds: never, ..LifetimeLimits::default() };
    assert_eq!((s.mode, s.mark, s.limits), (Mode::Transport, Mark::default(), limits));
    assert_eq!(s.selector, Some(uxfrm_engine::Selector::any(Family::V4)));
    assert_eq!(state("flag af-unspec").selector, None);
    assert_eq!(state("sel src ::/0 dst ::/0").selector.unwrap().family(), Family::V6);
    assert_eq!(state("sel proto udp").selector.unwrap().protocol, 17);
    assert_eq!(state("mark 5").mark, Mark { value: 5, mask: u32::MAX });
    assert_eq!(state("mark 5 mask 0").mark, Mark::default());
    assert_eq!(state("set-mark 5").output_mark, Mark { value: 5, mask: u32::MAX });
    assert_eq!(state("output-mark 0 mask 1").output_mark, Mark::default());
    assert_eq!(state("replay-seq 1 replay-seq-hi 1").replay.received, 1);
    assert_eq!(state("flag esn dir out").replay.window, 0);
    assert_eq!(state("flag 0x81 replay-window 1").flags, SaFlags::ESN | SaFlags::NOECN);
    assert_eq!(state("offload dev x dir in").offload.unwrap().kind, OffloadKind::Crypto);
    for (kind, meaning) in [
        ("espinudp", UdpEncapKind::Esp),
        ("espinudp-nonike", UdpEncapKind::NonIke),
        ("espintcp", UdpEncapKind::Tcp),
    ] {
        assert_eq!(state(&format!("encap {kind} 1 2 any")).encap.unwrap().kind, meaning);
    }
}

#[test]
fn modes_and_protocols() {
    for (word, mode) in [
        ("transport", Mode::Transport),
        ("tunnel", Mode::Tunnel),
        ("t", Mode::Transport),
        ("beet", Mode::Beet),
        ("iptfs", Mode::Iptfs),
    ] {
        assert_eq!(state(&format!("mode {word}")).mode, mode);
    }
    for (words, protocol) in [
        ("proto ah spi 1 auth sha1 k", SaProtocol::Ah),
        ("proto 51 spi 1 auth sha1 k", SaProtocol::Ah),
        ("proto comp spi 1 comp deflate", SaProtocol::Comp),
        ("proto route2 mode ro coa ::1", SaProtocol::Route2),
        ("proto hao mode in_trigger coa ::1", SaProtocol::Hao),
    ] {
        let line = format!("xfrm state add src ::1 dst ::2 {words}");
        let Command::StateAdd(state) = one(&line) else { panic!() };
        assert_eq!(state.id.protocol, protocol);
    }
}

#[test]
fn every_word_of_a_policy_lands_in_its_field() {
    let p = policy(
        "src 10.1.0.0/16 dst 10.2.0.0/16 dev lo proto icmp type 8 code 0 dir fwd ctx label mark 1 mask 3 index 17 \
         ptype sub action block priority 100 flag localok icmp cpu-acquire limit packet-hard 9 if_id 7 \
         offload packet dev eth4 tmpl src ::1 dst ::2 proto esp mode tunnel level use tmpl proto comp reqid 5",
    );
    assert_eq!(
        (p.direction, p.kind, p.index),
        (Direction::Forward, PolicyKind::Sub, PolicyIndex(17))
    );
    assert_eq!((p.action, p.priority, p.if_id), (Action::Block, Priority(100), IfId(7)));
    let all_words = PolicyFlags::all().difference(PolicyFlags::HELD);
    assert_eq!((p.mark, p.flags), (Mark { value: 1, mask: 3 }, all_words));
    assert_eq!(p.limits.packets, SoftHardLimit { soft: SoftHardLimit::NONE, hard: 9 });
    assert_eq!((p.selector.protocol, p.selector.ifindex), (1, 1));
    assert_eq!(p.selector.source_port, PortMask::exactly(8));
    assert_eq!(p.selector.destination_port, PortMask::exactly(0));
    let offload = p.offload.unwrap();
    assert_eq!((offload.kind, offload.direction), (OffloadKind::Packet, Direction::Forward));
    assert_eq!((p.templates[0].level, p.templates[0].mode), (TemplateLevel::Use, Mode::Tunnel));
    // A template without addresses has the family of what was named last, as with `ip`.
    assert_eq!((p.templates[1].destination, p.templates[1].reqid), (ip("::"), Reqid(5)));
}

#[test]
fn selectors() {
    let gre = policy("dir in proto gre key 0x10002").selector;
    assert_eq!(
        (gre.source_port, gre.destination_port),
        (PortMask::exactly(1), PortMask::exactly(2))
    );
    assert_eq!(policy("dir in proto gre key 0.1.0.2").selector, gre);
    assert_eq!(policy("dir in sport 0").selector.source_port, PortMask::default());
    assert_eq!(policy("dir in").selector.family(), Family::V4);
    assert_eq!(policy("dir in src ::1 dst any").selector.destination, prefix("::", 0));
    assert_eq!(policy("dir in proto any").selector.protocol, 0);
    let Command::PolicyAdd(p) = one("ip -6 xfrm policy add dir in src any") else { panic!() };
    assert_eq!(p.selector.family(), Family::V6);
}

#[test]
fn commands_and_their_abbreviations() {
    for (line, debug) in [
        ("x s", "StateList("),
        ("xf sa l", "StateList("),
        ("xfrm state show nokeys proto esp", "StateListWithoutKeys("),
        ("xfrm state deleteall mode tunnel reqid 1 flag esn src 10.0.0.0/8", "StateDeleteAll("),
        ("xfrm state d dst 10.0.0.2 proto esp spi 1 mark 1", "StateDelete("),
        ("xfrm state get dst 10.0.0.2 proto esp spi 1", "StateGet("),
        ("xfrm state flush", "StateFlush { protocol: None"),
        ("xfrm s f proto esp", "StateFlush { protocol: Some(Esp)"),
        ("xfrm state count", "StateCount"),
        (
            "xfrm state allocspi dst 10.0.0.2 proto esp reqid 1 seq 2 min 256 max 512 dir in",
            "StateAllocSpi(",
        ),
        ("xfrm p", "PolicyList("),
        ("xfrm policy delete dir in index 8", "PolicyDelete("),
        ("xfrm policy get dir in src 10.0.0.0/8 ptype sub if_id 1 mark 1", "PolicyGet("),
        (
            "xfrm policy deleteall nosock dir out action block priority 1 flag icmp",
            "PolicyDeleteAll(",
        ),
        ("xfrm policy flush", "PolicyFlush { kind: None"),
        ("xfrm policy flush ptype sub", "PolicyFlush { kind: Some(Sub)"),
        ("xfrm policy c", "PolicyCount"),
        (
            "xfrm policy set hthresh4 24 32 hthresh6 64 128",
            "SetHthresh { v4: Some(Hthresh { local: 24, remote: 32",
        ),
        (
            "xfrm policy setdefault in block fwd accept",
            "SetDefault { inbound: Some(Block), forward: Some(Allow), outbound: None",
        ),
        ("xfrm policy getd", "GetDefault"),
    ] {
        let shown = format!("{:?}", one(line));
        assert!(shown.starts_with(debug), "{line}: {shown}");
    }
    assert!(matches!(one("/sbin/ip\txfrm state count\r\n"), Command::StateCount));
}

#[test]
fn errors_name_file_line_word_and_what_was_expected() {
    let text =
        format!("# states\nxfrm state add {ID}\\\n prot esp\nxfrm state count\nxfrm polcy add\n");
    let errors = parse("states.batch", &text).unwrap_err();
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()[1],
        "states.batch:5:6: \"polcy\" is unknown; expected one of: state sa policy monitor save sync help"
    );
    assert!(
        errors[0]
            .to_string()
            .starts_with("states.batch:3:2: \"prot\" is unknown; expected one of: mode mark")
    );

    let aead = format!("xfrm state add {ID} aead rfc4106(gcm(aes))");
    for (line, message) in [
        (
            "xfrm state add prot esp".to_owned(),
            "1:16: \"prot\" is unknown; expected one of: src dst proto spi mode",
        ),
        ("addr add 10.0.0.1/8".to_owned(), "1:1: \"addr\" is unknown; expected \"xfrm\""),
        ("ip -n ns xfrm state".to_owned(), "1:4: \"-n\" is unknown"),
        ("xfrm monitor".to_owned(), "1:6: \"monitor\" never ends"),
        ("xfrm".to_owned(), "1:1: command line is not complete: \"xfrm\" takes one of: state sa"),
        (format!("xfrm state add {ID} mode"), "command line is not complete: \"mode\" takes MODE"),
        (
            format!("xfrm state add {ID} mode tunel"),
            "1:63: argument \"tunel\" is wrong: MODE value is invalid; expected one of: transport tunnel",
        ),
        (
            format!("xfrm state add {ID} reqid 99999999999"),
            "REQID value is invalid; expected a number from 0 to 4294967295",
        ),
        (
            format!("xfrm state add {ID} mode tunnel src 10.0.0.1"),
            "argument \"src\" is wrong: unknown",
        ),
        ("xfrm state add mode tunnel".to_owned(), "Not enough information: ID is required"),
        ("xfrm state add src 10.0.0.1".to_owned(), "argument \"XFRM-PROTO\" is required"),
        (
            "xfrm state add src 10.0.0.1 dst ::1 proto esp".to_owned(),
            "1:33: argument \"::1\" is wrong: the same address family is required",
        ),
        ("xfrm state add src any".to_owned(), "unrecognized address family"),
        (
            "xfrm policy add src 10.1.0.1/33 dst 10.2.0.1/32 dir out".to_owned(),
            "any valid prefix is expected rather than \"10.1.0.1/33\"",
        ),
        (
            "ip -6 xfrm policy add src 10.1.0.1".to_owned(),
            "inet6 prefix is expected rather than \"10.1.0.1\"",
        ),
        (
            format!("{aead} {KEY}00000000 128 enc cbc(aes) {KEY}"),
            "duplicate \"ALGO-TYPE\": \"enc\" is the second value",
        ),
        (
            format!("xfrm state add {ID} enc aes {KEY} enc aes {KEY}"),
            "duplicate \"ALGO-TYPE\": \"enc\" is the second value",
        ),
        (format!("{aead} {KEY}"), "command line is not complete: \"aead\" takes ALGO-ICV-LEN"),
        (
            format!("{aead} {KEY} 128"),
            "unable to initialize cryptographic operations: rfc4106(gcm(aes)) takes a key of 160, 224 or 288 bits, not 128",
        ),
        (
            format!("xfrm state add {ID} enc cbc(des) {KEY}"),
            "Requested CRYPT algorithm not found: \"cbc(des)\"; enc takes one of: cbc(aes)",
        ),
        (
            format!("xfrm state add {ID} auth sha1 {KEY}"),
            "ALGO-TYPE value \"enc\" or \"aead\" is required with XFRM-PROTO value \"esp\"",
        ),
        (
            format!("xfrm state add {ID} enc aes {KEY} mode ro"),
            "MODE value is invalid with XFRM-PROTO value \"esp\"",
        ),
        (
            format!("xfrm state add {ID} enc aes {KEY} coa 10.0.0.1"),
            "\"coa\" is invalid with XFRM-PROTO value \"esp\"",
        ),
        (
            format!("xfrm state add {ID} enc aes {KEY} flag esn"),
            "esn flag set without replay-window",
        ),
        (
            format!("xfrm state add {ID} replay-window 4097"),
            "replay-window (4097) > XFRMA_REPLAY_ESN_MAX (4096)",
        ),
        (
            format!("xfrm state add {ID} sel bogus"),
            "\"bogus\" is unknown; expected one of: src dst dev proto sport",
        ),
        (
            format!("xfrm state add {ID} offload dev"),
            "command line is not complete: \"dev\" takes DEV",
        ),
        (
            format!("xfrm state add {ID} flag bogus"),
            "FLAG value is invalid; expected one of: noecn",
        ),
        ("xfrm state allocspi dst ::1 proto esp spi 1".to_owned(), "\"spi\" is invalid"),
        ("xfrm state allocspi dst ::1 proto esp min 2".to_owned(), "\"max\" is missing"),
        (
            "xfrm state flush proto esp proto ah".to_owned(),
            "duplicate \"proto\": \"proto\" is the second value",
        ),
        ("xfrm policy add src 10.0.0.0/8".to_owned(), "Not enough information: DIR is required"),
        (
            "xfrm policy add dir in dir out".to_owned(),
            "duplicate \"dir\": \"dir\" is the second value",
        ),
        ("xfrm policy add dir up".to_owned(), "DIR value is invalid; expected one of: in out fwd"),
        (
            "xfrm policy add dir in proto esp sport 1".to_owned(),
            "\"sport\" and \"dport\" are invalid with PROTO value \"esp\"",
        ),
        (
            "xfrm policy add dir in proto tcp type 1".to_owned(),
            "\"type\" and \"code\" are invalid with PROTO value \"tcp\"",
        ),
        (
            "xfrm policy add dir in proto tcp key 1".to_owned(),
            "\"key\" is invalid with PROTO value \"tcp\"",
        ),
        ("xfrm policy add dir in offload crypto dev x".to_owned(), "Invalid offload mode"),
        (
            "xfrm policy add dir in tmpl bogus".to_owned(),
            "\"bogus\" is unknown; expected one of: src dst proto spi mode reqid level",
        ),
        (
            "xfrm policy add dir in tmpl src 10.0.0.1 reqid 1 dst 10.0.0.2 proto esp".to_owned(),
            "src, dst, proto and spi of a tmpl have to stand together",
        ),
        (
            "xfrm policy add src 10.0.0.0/8 dir in tmpl proto esp mode tunnel src 10.0.0.1"
                .to_owned(),
            "src, dst, proto and spi of a tmpl have to stand together",
        ),
        (format!("xfrm policy add dir in{}", " tmpl proto esp".repeat(7)), "Too many tmpls"),
        ("xfrm policy delete dir in".to_owned(), "either SELECTOR or INDEX is required"),
        (
            "xfrm policy delete dir in index 1 src ::1".to_owned(),
            "either \"SELECTOR\" is duplicate",
        ),
        (
            "xfrm policy set hthresh4 33 1".to_owned(),
            "argument \"33\" is wrong: LBITS value is invalid; expected a number from 0 to 32",
        ),
        ("xfrm policy setdefault in reject".to_owned(), "expected one of: block accept allow"),
        (
            format!("xfrm state add {ID} auth sha1 $KEY"),
            "shell variables are not expanded here (\"KEY\")",
        ),
    ] {
        let shown = error(&line);
        assert!(
            shown.starts_with("x.batch:1:") && shown.contains(message),
            "{line}\n{shown}\n{message}"
        );
    }
}

/// Short keys look like words, and stand where a name was forgotten.
#[test]
fn no_error_shows_a_short_key_for_a_name() {
    for key in ["secretkey", "deadbeef", "0x1c0cf2bb", "10.1.2.3", "AAAA"] {
        for words in [
            format!("aead {key} 0x1122334455667788990011223344556677889900 128"),
            format!("aead {key} 128 64"),
            format!("enc {key} 0x11223344556677889900112233445566"),
            format!("auth {key} 0x11223344556677889900112233445566"),
            format!("auth-trunc {key} 0x11223344556677889900112233445566 96"),
        ] {
            let shown = format!("{:?}", parse("x", &format!("xfrm state add {ID} {words}")));
            assert!(!shown.contains(key), "{words}: {shown}");
        }
    }
}

/// Wherever a key may slip to when a word before it was forgotten, no error shows it.
#[test]
fn no_error_shows_a_key() {
    for key in ["0x1c0cf2bb72ce67ba245b593076dfb27a", "1234567890123456dcba", "pass phrase"] {
        for words in [
            format!("enc '{key}'"),
            format!("enc '{key}' mode tunnel"),
            format!("enc aes '{key}' '{key}'"),
            format!("auth-trunc sha1 128 '{key}'"),
            format!("aead '{key}' 128 64"),
            format!("aead '{key}' 0x1122334455667788990011223344556677889900 128"),
            format!("enc '{key}' 0x11223344556677889900112233445566"),
            format!("aead 'rfc4106(gcm(aes))' '{key}' '{key}'"),
            format!("enc aes 0x12'{key}"),
            format!("enc aes '0x{key}'"),
            format!("enc aes {KEY} reqid '{key}'"),
            format!("enc aes {KEY} mode '{key}'"),
            format!("enc aes {KEY} sel src '{key}'"),
            format!("enc aes \"$HOME{key}\""),
        ] {
            let shown = format!("{:?}", parse("x", &format!("xfrm state add {ID} {words}")));
            assert!(!shown.contains(key), "{words}: {shown}");
        }
    }
}

//! Any text, any order of words, and policies written and read back.

use proptest::prelude::*;

use super::*;

/// A policy as `ip` would be given it, and what has to come of it.
fn policies() -> impl Strategy<Value = (String, Policy)> {
    let direction = prop_oneof![
        Just(("in", Direction::In)),
        Just(("out", Direction::Out)),
        Just(("fwd", Direction::Forward))
    ];
    let ends = prop_oneof![
        (any::<[u8; 4]>(), 0..=32_u8, any::<[u8; 4]>(), 0..=32_u8)
            .prop_map(|(s, sl, d, dl)| (prefix_of(s.into(), sl), prefix_of(d.into(), dl))),
        (any::<[u8; 16]>(), 0..=128_u8, any::<[u8; 16]>(), 0..=128_u8)
            .prop_map(|(s, sl, d, dl)| (prefix_of(s.into(), sl), prefix_of(d.into(), dl))),
    ];
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), 1_u32.., any::<u64>());
    (direction, ends, numbers, 1_u16.., 0..=MAX).prop_map(
        |((word, direction), (source, destination), (priority, index, value, mask, bytes), port, templates)| {
            let template = Template {
                source: source.address(),
                destination: destination.address(),
                protocol: SaProtocol::Esp,
                spi: Spi(value),
                mode: Mode::Tunnel,
                reqid: Reqid(index),
                level: TemplateLevel::Required,
            };
            let mut policy = policy(&format!("dir {word}"));
            policy.direction = direction;
            policy.selector.source = source;
            policy.selector.destination = destination;
            policy.selector.protocol = 17;
            policy.selector.destination_port = PortMask::exactly(port);
            policy.priority = Priority(priority);
            policy.index = PolicyIndex(index);
            policy.mark = Mark { value, mask };
            policy.limits.bytes.hard = bytes;
            policy.templates = vec![template; templates];
            let tmpl = format!(
                " tmpl src {} dst {} proto esp spi {value:#x} mode tunnel reqid {index}",
                template.source, template.destination
            );
            let line = format!(
                "xfrm policy add src {source} dst {destination} proto udp dport {port} dir {word} priority {priority} \
                 index {index} mark {value:#x} mask {mask:#x} limit byte-hard {bytes}{}",
                tmpl.repeat(templates)
            );
            (line, policy)
        },
    )
}

const MAX: usize = uxfrm_engine::MAX_TEMPLATES;

fn prefix_of(address: IpAddr, len: u8) -> Prefix {
    Prefix::new(address, len).unwrap()
}

/// Words of the grammar in any order, with values that some of them take.
fn word_soup() -> impl Strategy<Value = String> {
    let words = [
        "ip",
        "xfrm",
        "x",
        "state",
        "policy",
        "add",
        "update",
        "delete",
        "list",
        "flush",
        "set",
        "setdefault",
        "allocspi",
        "src",
        "dst",
        "proto",
        "spi",
        "mode",
        "tunnel",
        "reqid",
        "mark",
        "mask",
        "sel",
        "tmpl",
        "limit",
        "byte-hard",
        "encap",
        "espinudp",
        "enc",
        "auth",
        "auth-trunc",
        "aead",
        "comp",
        "rfc4106(gcm(aes))",
        "cbc(aes)",
        "sha1",
        "0x00112233445566778899aabbccddeeff",
        "10.0.0.1/8",
        "::1",
        "any",
        "esp",
        "tcp",
        "1",
        "128",
        "in",
        "out",
        "fwd",
        "dir",
        "flag",
        "esn",
        "0x80",
        "offload",
        "packet",
        "dev",
        "lo",
        "key",
        "sport",
        "hthresh4",
        "coa",
        "'",
        "\"",
        "\\\n",
        "#",
        "\n",
        "index",
        "level",
        "use",
        "-6",
        "$X",
        "4294967296",
        "",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..40)
        .prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = parse("x", &text);
    }

    #[test]
    fn no_order_of_words_panics(text in word_soup()) {
        let _ = parse("x", &text);
        let _ = parse("x", &format!("xfrm state add {text}"));
        let _ = parse("x", &format!("xfrm policy add {text}"));
    }

    #[test]
    fn policy_printed_and_parsed_is_unchanged((line, policy) in policies()) {
        let Command::PolicyAdd(read) = one(&line) else { panic!() };
        prop_assert_eq!(*read, policy);
    }
}

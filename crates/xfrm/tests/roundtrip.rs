//! Printed states and policies can be added again with the same request; no bytes from the wire
//! make a printer panic.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use proptest::prelude::*;
use uxfrm_netlink::client::NetlinkRequest;
use uxfrm_netlink::{MessageType, NetlinkFlags, NetlinkMessages};
use uxfrm_xfrm::answer::AnswerMessage;
use uxfrm_xfrm::grammar::{self, Line, Notation, Style, XfrmCommand};
use uxfrm_xfrm::json;
use uxfrm_xfrm::names::Names;
use uxfrm_xfrm::request::request;
use uxfrm_xfrm::text::{Keys, WipedText};

fn command(line: &str) -> XfrmCommand {
    let words: Vec<&str> = line.split_whitespace().collect();
    match grammar::words(&words, None) {
        Ok(Line::Command(command)) => command,
        other => panic!("{line}: {other:?}"),
    }
}

/// What `list` shows of a request that the server took as it is.
fn shown(request: &NetlinkRequest, style: Style) -> String {
    let names = Names::none();
    let mut page = WipedText::new(style, Keys::Shown, &names);
    let message = NetlinkMessages::of(request.bytes()).next().unwrap();
    page.answer(&AnswerMessage::of(&message));
    page.text().to_owned()
}

fn check(object: &str, line: &str) {
    let (first, _) = request(&command(&format!("{object} add {line}"))).unwrap();
    let text = shown(&first, Style::default());
    let (second, _) = request(&command(&format!("{object} add {text}"))).unwrap();
    let again = shown(&second, Style::default());
    assert_eq!(text, again, "{line}");
    // Order of attributes apart, which is that of the words.
    assert_eq!(first.bytes().len(), second.bytes().len(), "{line}\n{text}");
    let verbose = Style { statistics: 1, ..Style::default() };
    assert_eq!(shown(&first, verbose), shown(&second, verbose), "{line}");
}

const V4: &str = "10\\.[0-9]\\.[0-9]\\.[1-9]";
const V6: &str = "fd00:[1-9a-f]{1,3}::[1-9]";

fn pattern(text: String) -> BoxedStrategy<String> {
    prop::string::string_regex(&text).unwrap().boxed()
}

fn states() -> impl Strategy<Value = String> {
    let of = |address: &str, len: u8| {
        pattern(format!(
            "src {address} dst {address} proto esp spi 0x[1-9a-f][0-9a-f]{{0,7}} reqid [1-9][0-9]{{0,8}} \
             mode (transport|tunnel|beet)( replay-window [12]?[0-9])?( flag (noecn|icmp)( align4)?)? \
             (auth-trunc hmac\\(sha256\\) 0x([0-9a-f]{{2}}){{32}} (96|128) enc cbc\\(aes\\) 0x([0-9a-f]{{2}}){{16}}|\
             aead rfc4106\\(gcm\\(aes\\)\\) 0x([0-9a-f]{{2}}){{20}} (64|96|128))\
             ( if_id [1-9][0-9]{{0,4}})?( tfcpad [1-9][0-9]{{0,3}})?( dir (in|out))?( pcpu-num [0-9])?\
             ( sel src {address}/[12]?[0-9] dst {address}/{len}( proto [2-5]| proto 6 sport [1-9][0-9]{{0,3}})?)?"
        ))
    };
    prop_oneof![of(V4, 32), of(V6, 128)]
}

fn policies() -> impl Strategy<Value = String> {
    let template = format!(
        "tmpl (src {V4} dst {V4}|src {V6} dst {V6}) proto (esp|ah|comp)( spi 0x0000000[1-9])? reqid [1-9][0-9]{{0,7}} \
         mode (tunnel|transport)( level use)?"
    );
    let of = |address: &str| {
        pattern(format!(
            "src {address}/[12]?[0-9] dst {address}/32( proto 47 key [1-9][0-9]{{0,7}}| proto 1 type [0-9] code [0-9])? \
             dir (in|out|fwd)( action block)? priority [1-9][0-9]{{0,8}}( ptype (main|sub))?( flag (localok|icmp))?\
             ( {template}){{0,3}}( if_id [1-9])?"
        ))
    };
    prop_oneof![of(V4), of(V6)]
}

proptest! {
    #[test]
    fn states_are_printed_as_they_are_said(line in states()) {
        check("state", &line);
    }

    #[test]
    fn policies_are_printed_as_they_are_said(line in policies()) {
        check("policy", &line);
    }

    #[test]
    fn no_bytes_make_a_printer_panic(
        kind in 0x10_u16..0x2a,
        body in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..600),
        statistics in 0_u8..3,
    ) {
        let Some(kind) = MessageType::from_number(kind) else { return Ok(()) };
        let request = NetlinkRequest::new(kind, NetlinkFlags::empty()).body(body.as_slice());
        for notation in [Notation::Text, Notation::Oneline] {
            shown(&request, Style { statistics, notation, ..Style::default() });
        }
        let names = Names::none();
        let mut page = WipedText::new(Style::default(), Keys::Shown, &names);
        let message = NetlinkMessages::of(request.bytes()).next().unwrap();
        json::write(&mut page, &AnswerMessage::of(&message));
        serde_json::from_str::<serde_json::Value>(page.text()).unwrap();
    }
}

/// What iproute2 7 sends for what Debian's does not know, byte for byte behind the fixed part.
#[test]
fn newer_words_are_encoded_as_by_newer_iproute2() {
    let id = "state add dst 10.0.0.2 proto esp spi 1 enc a b";
    for (line, attributes) in [
        (format!("{id} dir in pcpu-num 3"), "05002100010000000800230003000000"),
        (
            format!("{id} dir out offload packet dev lo dir out"),
            "0c001c0001000000040000000500210002000000",
        ),
        (format!("{id} offload crypto dev lo dir in"), "0c001c000100000002000000"),
        ("policy add dir in offload packet dev lo".to_owned(), "0c001c000100000004000000"),
    ] {
        let (request, _) = request(&command(&line)).unwrap();
        let hex: String = request.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.ends_with(attributes), "{line}: {hex}");
    }
    assert!(request(&command(&format!("{id} offload packet dev no-such-device dir in"))).is_err());
}

/// In iproute2 7's words and order.
#[test]
fn newer_attributes_print_as_by_newer_iproute2() {
    let line = "state add dst 10.0.0.2 proto esp spi 1 enc a b dir in pcpu-num 3 if_id 5 tfcpad 9 offload packet dev lo dir in";
    let (state, _) = request(&command(line)).unwrap();
    let text = shown(&state, Style::default());
    assert!(
        text.ends_with(
            "\tcrypto offload parameters: dev lo dir in mode packet\n\tif_id 0x5\n\ttfcpad 9\n\tdir in\n\tpcpu-num 3\n"
        ),
        "{text}"
    );
    let (policy, _) = request(&command("policy add dir in offload packet dev lo")).unwrap();
    let text = shown(&policy, Style::default());
    assert!(text.ends_with("\tcrypto offload parameters: dev lo mode packet\n"), "{text}");
}

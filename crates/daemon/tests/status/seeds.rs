//! What the corpus of `status` began with: each request with all that it may say, and what is
//! refused.

use uxfrm_status::protocol::RequestRefusal;

use super::{REQUESTS, StatusAnswer};

const REQUEST_LINES: &str = r#"{"version":1,"ask":"counters"}
{"version":1,"ask":"workers"}
{"version":1,"ask":"status","peer":"192.0.2.0/24","limit":10,"order":"traffic"}
{"version":1,"ask":"status","after":"192.0.2.2 192.0.2.1 0 tunnel esp 0"}
{"version":1,"ask":"drops","from":7,"reason":"in_no_state","peer":"2001:db8::1"}
{"version":1,"ask":"drop-tallies","by":"sa"}
{"version":1,"ask":"drop-tallies","by":"policy"}
{"version":1,"ask":"why","source":"10.1.0.1","destination":"10.2.0.1","protocol":6,"source_port":1,"destination_port":80,"mark":7}
{"version":1,"ask":"capture","filter":{"host":"10.0.0.0/8"},"snaplen":96,"rate":10}
{"version":1,"ask":"trace","packets":3,"filter":{}}
"#;

const REFUSED_LINES: &str = r#"{"version":1,"ask":"weather"}
{"version":9,"ask":"counters"}
{"ask":"counters"}
{"version":1}
{"version":1,"ask":"status","limit":-1}
{"version":1,"ask":"drops","unknown":[[[[]]]]}
{"version":1,"version":1,"ask":"counters","ask":"status"}
{"version":1,"ask":"\u0000\u001f\u200b\ud83d\ude00"}
[1]
nonsense
"#;

/// Names of inputs, and the inputs.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let named = REQUESTS.map(|name| format!("{{\"version\":1,\"ask\":\"{name}\"}}\n"));
    let refusal = StatusAnswer::Refusal(RequestRefusal::new("that is no request")).to_line();
    vec![
        ("names".to_owned(), named.concat().into_bytes()),
        ("requests".to_owned(), REQUEST_LINES.as_bytes().to_vec()),
        ("refused".to_owned(), REFUSED_LINES.as_bytes().to_vec()),
        ("refusal".to_owned(), refusal),
    ]
}

/// Whatever a request is called, a seed asks it.
#[test]
fn seeds_have_every_request() {
    for name in REQUESTS {
        let asked = format!("\"ask\":\"{name}\"");
        assert!(REQUEST_LINES.contains(&asked), "{name}");
    }
}

/// Seeds that are refused for another reason than they seem to be would reach no decoder.
#[test]
fn request_seeds_are_requests() {
    for line in REQUEST_LINES.lines() {
        let read = uxfrm_status::protocol::StatusRequest::from_line(line.as_bytes());
        assert!(read.is_ok(), "{line}: {read:?}");
    }
}

//! What is refused, and what is said of it.

use std::io;
use std::time::Duration;

use axum::body::Body;
use uxfrm_control_client::stat;
use uxfrm_status::protocol::{RequestRefusal, StatusAnswer, StatusRequest};

use crate::fake::{FakeGateway, TOKEN, Told, ask, drops, get, open, record, request, with_token};

const LOCAL: (&str, &str) = ("host", "127.0.0.1:8080");

/// A refusal is a problem with all its fields.
fn assert_problem(told: &Told, status: u16, says: &str, about: &str) {
    let text = String::from_utf8_lossy(&told.body);
    assert_eq!(told.status.as_u16(), status, "{about}: {text}");
    assert_eq!(told.header("content-type"), "application/problem+json", "{about}");
    let problem = told.json();
    assert_eq!(problem["status"], status, "{about}");
    for field in ["type", "title", "detail", "next"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{about}: {text}");
    }
    assert!(text.contains(says), "{about}: {text}");
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let gateway = FakeGateway::well();
    for (path, says) in [
        ("status?limit=x", r#"limit is \"x\": it takes a number up to 10000"#),
        ("status?limit=-1", r#"limit is \"-1\": it takes a number"#),
        ("status?limit=", r#"limit is \"\": it takes a number"#),
        ("status?limit=10001", "limit is 10001: it takes a number up to 10000"),
        ("status?peer=no%20sense", r#"peer is \"no sense\": it takes an IP address or a prefix"#),
        ("status?colour=red", "no parameter colour here; there are: peer, limit, after, order"),
        ("status?limit=1&limit=2", "the parameter limit is there twice"),
        ("status?order=colour", r#"order is \"colour\": it takes name or traffic"#),
        ("counters?all=1", "no parameter all here; there are: "),
        ("drops?from=x", r#"from is \"x\": it takes a number"#),
        ("drop-tallies", "the parameter by is missing: it takes sa, policy or device"),
        ("drop-tallies?by=colour", r#"by is \"colour\": it takes sa, policy or device"#),
        ("why", "the parameter source is missing: it takes an IP address"),
        ("why?source=10.0.0.1", "the parameter destination is missing"),
        ("why?source=x&destination=10.0.0.1", r#"source is \"x\": it takes an IP address"#),
        ("why?source=10.0.0.1&destination=::1", "different families"),
        ("why?source=10.0.0.1&destination=10.0.0.2&protocol=256", "a number up to 255, or icmp"),
        ("why?source=10.0.0.1&destination=10.0.0.2&protocol=x", r#"protocol is \"x\": it takes"#),
        ("why?source=10.0.0.1&destination=10.0.0.2&source_port=65536", "up to 65535"),
        ("why?source=10.0.0.1&destination=10.0.0.2&mark=x", r#"mark is \"x\": it takes a number"#),
        ("why?source=10.0.0.1&destination=10.0.0.2&spi=0x1ffffffff", "a number of 32 bits"),
        ("why?source=10.0.0.1&destination=10.0.0.2&way=up", r#"way is \"up\": it takes in or out"#),
        ("why?source=10.0.0.1&destination=10.0.0.2&spi=1&way=out", "comes in"),
        ("why?source=10.0.0.1&destination=10.0.0.2&esp_source=10.0.0.3", "say its spi"),
        ("why?drop=x", r#"drop is \"x\": it takes the number of a record"#),
        ("why?drop=1&way=in", "drop names the packet: leave out the other parameters"),
        ("why?drop=1&source=10.0.0.1&destination=10.0.0.2", "leave out the other parameters"),
        ("events?from=1", "no parameter from here"),
        ("events?seconds=86401", "seconds is 86401: it takes a number up to 86400"),
    ] {
        let told = ask(&open(&gateway), get(&format!("/api/v1/{path}"))).await;
        assert_problem(&told, 400, says, path);
        let problem = told.json();
        assert!(problem["next"].as_str().unwrap().starts_with("/api/v1/openapi.json"), "{path}");
        assert!(!problem["detail"].as_str().unwrap().contains("deserialize"), "{path}");
    }
    assert!(gateway.asked.lock().unwrap().is_empty(), "the gateway is not troubled");
}

#[tokio::test]
async fn dropped_packet_without_record_or_addresses_is_not_found() {
    let gateway = FakeGateway::new(|request| match request {
        StatusRequest::Drops(query) => {
            let mut report = drops(6);
            report.records = vec![record(query.from.unwrap().max(4), "in_malformed")];
            Ok(StatusAnswer::Drops(report))
        }
        StatusRequest::Counters
        | StatusRequest::Status(_)
        | StatusRequest::DropTallies(_)
        | StatusRequest::Why(_)
        | StatusRequest::Workers
        | StatusRequest::Capture(_)
        | StatusRequest::Trace(_) => unreachable!("there is no packet to ask about"),
    });
    for (number, says) in [(3, "no record has number 3"), (5, "left no addresses to explain")] {
        let told = ask(&open(&gateway), get(&format!("/api/v1/why?drop={number}"))).await;
        assert_problem(&told, 404, says, "why?drop");
    }
}

#[tokio::test]
async fn long_query_is_refused_before_it_is_read() {
    let gateway = FakeGateway::well();
    for (path, bytes, status) in [
        ("/api/v1/status", 1024, 200),
        ("/api/v1/status", 1025, 414),
        ("/api/v1/drops", 1025, 414),
        ("/metrics", 15_000, 414),
        ("/nothing", 1025, 414),
    ] {
        let text = format!("{path}?after={}", "x".repeat(bytes - "after=".len()));
        let told = ask(&open(&gateway), get(&text)).await;
        if status == 414 {
            assert_problem(&told, 414, "1024 bytes are the most", &text);
        } else {
            assert_eq!(told.status, status, "{path} {bytes}");
        }
    }
    assert_eq!(gateway.asked.lock().unwrap().len(), 1, "only the short one");
}

#[tokio::test]
async fn other_paths_methods_and_hosts_are_refused() {
    let gateway = FakeGateway::well();
    let host = ("host", "localhost");
    for (method, path, fields, status) in [
        ("GET", "/nothing", &[host][..], 404),
        ("GET", "/api/v2/status", &[host], 404),
        ("GET", "/api/v1/status/", &[host], 404),
        ("GET", "/../etc/passwd", &[host], 404),
        ("GET", "/login", &[host], 404),
        ("POST", "/api/v1/status", &[host], 405),
        ("DELETE", "/api/v1/status", &[host], 405),
        ("OPTIONS", "/api/v1/status", &[host], 405),
        ("PUT", "/", &[host], 405),
        ("GET", "/api/v1/status", &[], 421),
        ("GET", "/api/v1/status", &[host, host], 421),
        ("GET", "/api/v1/status", &[("host", "evil.example")], 421),
        ("GET", "/healthz", &[("host", "evil.example")], 421),
        ("GET", "http://evil.example/api/v1/status", &[host], 421),
    ] {
        let told = ask(&open(&gateway), request(method, path, fields)).await;
        assert_problem(&told, status, "next", &format!("{method} {path} {fields:?}"));
    }
    assert!(gateway.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let gateway = FakeGateway::well();
    let router = with_token(&gateway);
    let wrong = format!("Bearer {}", TOKEN.replace('0', "1"));
    let short = format!("Bearer {}", &TOKEN[1..]);
    let basic = format!("Basic {TOKEN}");
    for field in [
        ("x-none", ""),
        ("authorization", ""),
        ("authorization", "Bearer"),
        ("authorization", "Bearer "),
        ("authorization", &wrong),
        ("authorization", &short),
        ("authorization", &basic),
        ("cookie", "uxfrm-session="),
        ("cookie", "uxfrm-session=0123456789abcdef"),
        ("cookie", &format!("uxfrm-session={TOKEN}")),
    ] {
        for path in ["/api/v1/status", "/api/v1/events", "/api/v1/openapi.json", "/metrics", "/x"] {
            let told = ask(&router, request("GET", path, &[LOCAL, field])).await;
            assert_problem(&told, 401, "Bearer TOKEN", &format!("{path} {field:?}"));
            assert_eq!(told.header("www-authenticate"), "Bearer realm=\"uxfrm\"");
        }
    }
    assert!(gateway.asked.lock().unwrap().is_empty());
    let right = format!("bearer {TOKEN}");
    let told = ask(&router, request("GET", "/api/v1/status", &[LOCAL, ("authorization", &right)]));
    assert_eq!(told.await.status, 200);
    let told = ask(&router, request("GET", "/healthz", &[LOCAL])).await;
    assert_eq!(told.status, 200, "says nothing of the gateway");
    let told = ask(&router, request("GET", "/", &[LOCAL])).await;
    assert_eq!((told.status.as_u16(), told.header("location")), (303, "/login"));
}

#[tokio::test]
async fn browser_logs_in_with_the_token() {
    let gateway = FakeGateway::well();
    let router = with_token(&gateway);
    let form = |body: String, kind: &str| {
        let request = request("POST", "/login", &[LOCAL, ("content-type", kind)]);
        request.map(|_| Body::from(body))
    };
    const FORM: &str = "application/x-www-form-urlencoded";
    for (body, kind, status) in [
        (format!("token={}", &TOKEN[1..]), FORM, 401),
        ("token=".to_owned(), FORM, 401),
        (String::new(), FORM, 400),
        (format!("token={TOKEN}&more=1"), FORM, 400),
        (format!("token={TOKEN}"), "text/plain", 400),
        (format!("token={}", "x".repeat(5000)), FORM, 413),
    ] {
        let told = ask(&router, form(body.clone(), kind)).await;
        assert_problem(&told, status, "token=TOKEN", &body);
        assert_eq!(told.header("set-cookie"), "");
    }
    let told = ask(&router, request("GET", "/login", &[LOCAL])).await;
    assert!(told.status == 200 && String::from_utf8_lossy(&told.body).contains("<form"));
    let told = ask(&router, form(format!("token={TOKEN}"), FORM)).await;
    assert_eq!((told.status.as_u16(), told.header("location")), (303, "/"));
    let cookie = told.header("set-cookie");
    assert!(cookie.contains("HttpOnly; SameSite=Strict; Path=/") && !cookie.contains(TOKEN));
    let session = cookie.split(';').next().unwrap();
    let cookies = format!("other=1; {session}");
    for path in ["/api/v1/status", "/"] {
        let told = ask(&router, request("GET", path, &[LOCAL, ("cookie", &cookies)])).await;
        assert_eq!(told.status, 200, "{path}");
    }
    let elsewhere = [("host", "evil.example"), ("cookie", cookies.as_str())];
    assert_eq!(ask(&router, request("GET", "/api/v1/status", &elsewhere)).await.status, 421);
    let router = with_token(&gateway);
    let told = ask(&router, request("GET", "/", &[LOCAL, ("cookie", &cookies)])).await;
    assert_eq!(told.status, 303, "a session ends with its process");
}

#[tokio::test]
async fn gateway_that_does_not_answer_is_told_with_a_command() {
    type Row = (fn() -> stat::Error, u16, &'static str);
    let table: [Row; 10] = [
        (|| stat::Error::Absent(io::ErrorKind::ConnectionRefused.into()), 503, "start uxfrm"),
        (|| stat::Error::Stranger(io::ErrorKind::PermissionDenied.into()), 502, "uxfrm status"),
        (|| stat::Error::NotAllowed, 503, "[status]"),
        (|| stat::Error::TurnedAway("all are in use".to_owned()), 503, "ask again in a second"),
        (|| stat::Error::Silent(Duration::from_secs(5)), 503, "systemctl status uxfrm"),
        (|| stat::Error::WentAway(io::ErrorKind::ConnectionReset.into()), 503, "ask again"),
        (|| stat::Error::OlderRelease, 502, "uxfrm upgrade"),
        (|| stat::Error::AnotherQuestion, 502, "uxfrm upgrade"),
        (|| uxfrm_status::protocol::Error::Version.into(), 502, "uxfrm upgrade"),
        (|| stat::Error::Refused(RequestRefusal::new("no reason x")), 400, "no reason x"),
    ];
    for (error, status, says) in table {
        let gateway = FakeGateway::new(move |_| Err(error()));
        for path in ["/api/v1/status", "/api/v1/drops"] {
            let told = ask(&open(&gateway), get(path)).await;
            assert_problem(&told, status, says, &format!("{:?}", error()));
            assert_eq!(told.header("retry-after"), if status == 503 { "1" } else { "" });
        }
    }
    let gateway = FakeGateway::new(|_| panic!("as a fault of ours would"));
    assert_problem(&ask(&open(&gateway), get("/api/v1/status")).await, 500, "log", "a panic");
}

//! Each path is one question to the gateway, and its answer as it is.

use uxfrm_status::drops::{
    DropAdvice, DropQuery, DropReport, DropScope, DropStatus, DropTallyQuery, FlowStatus,
};
use uxfrm_status::explanation::{EspQuery, FlowQuery, FlowWay};
use uxfrm_status::gateway::{StatusQuery, TunnelOrder};
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};

use crate::fake::{FakeGateway, ask, document, drops, get, open, record, request};

fn why() -> FlowQuery {
    FlowQuery {
        source: [10, 2, 0, 1].into(),
        destination: [10, 1, 0, 1].into(),
        protocol: Some(17),
        source_port: Some(7),
        destination_port: Some(9),
        mark: Some(16),
        way: Some(FlowWay::In),
        esp: Some(EspQuery {
            spi: 0x1002,
            source: Some([192, 0, 2, 2].into()),
            destination: Some([192, 0, 2, 1].into()),
        }),
    }
}

#[tokio::test]
async fn path_is_a_question_to_the_gateway() {
    let peer = || Some("192.0.2.0/24".parse().unwrap());
    let table = [
        ("counters", StatusRequest::Counters),
        ("workers", StatusRequest::Workers),
        ("status", StatusRequest::Status(StatusQuery::default())),
        (
            "status?peer=192.0.2.0%2F24&limit=7&after=x",
            StatusRequest::Status(StatusQuery {
                peer: peer(),
                limit: Some(7),
                after: Some("x".to_owned()),
                order: TunnelOrder::Name,
            }),
        ),
        (
            "status?order=traffic",
            StatusRequest::Status(StatusQuery {
                order: TunnelOrder::Traffic,
                ..StatusQuery::default()
            }),
        ),
        (
            "drops?from=3&reason=in_replay&peer=192.0.2.0/24",
            StatusRequest::Drops(DropQuery {
                from: Some(3),
                reason: Some("in_replay".to_owned()),
                peer: peer(),
            }),
        ),
        (
            "drop-tallies?by=policy",
            StatusRequest::DropTallies(DropTallyQuery { by: DropScope::Policy }),
        ),
        (
            "why?source=10.2.0.1&destination=10.1.0.1&protocol=udp&source_port=7&destination_port=9\
             &mark=0x10&way=in&spi=0x1002&esp_source=192.0.2.2&esp_destination=192.0.2.1",
            StatusRequest::Why(why()),
        ),
    ];
    for (path, asked) in table {
        let gateway = FakeGateway::well();
        let told = ask(&open(&gateway), get(&format!("/api/v1/{path}"))).await;
        assert_eq!(told.status, 200, "{path}: {:?}", String::from_utf8_lossy(&told.body));
        assert_eq!(told.header("content-type"), "application/json");
        assert_eq!(*gateway.asked.lock().unwrap(), std::slice::from_ref(&asked), "{path}");
        let mut answer = serde_json::to_value(document(&asked)).unwrap();
        answer.as_object_mut().unwrap().remove("answer");
        assert_eq!(told.json(), answer, "{path}");
    }
}

#[tokio::test]
async fn dropped_packet_is_explained_by_its_number() {
    let flow = FlowStatus {
        source: [10, 2, 0, 1].into(),
        destination: [10, 1, 0, 1].into(),
        protocol: 17,
        source_port: 7,
        destination_port: 9,
    };
    let dropped = DropStatus { flow: Some(flow), ..record(17, "out_no_state") };
    let advice = DropAdvice {
        reason: "out_no_state".to_owned(),
        cause: "There is none.".to_owned(),
        next: "`uxfrm xfrm state`".to_owned(),
    };
    let gateway = FakeGateway::new(move |request| {
        let StatusRequest::Drops(_) = request else { return Ok(document(request)) };
        let (records, advice) = (vec![dropped.clone()], vec![advice.clone()]);
        Ok(StatusAnswer::Drops(DropReport { records, advice, ..drops(18) }))
    });
    let told = ask(&open(&gateway), get("/api/v1/why?drop=17")).await;
    let explained = told.json();
    assert_eq!((told.status.as_u16(), &explained["outcome"]), (200, &"dropped".into()));
    assert_eq!(explained["verdict"], "was dropped: out_no_state");
    assert_eq!(explained["drop"]["cause"], "There is none.");
    let asked = gateway.asked.lock().unwrap();
    let [StatusRequest::Drops(from), StatusRequest::Why(query)] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(
        (from.from, query.way, query.destination_port),
        (Some(17), Some(FlowWay::Out), Some(9))
    );
}

#[tokio::test]
async fn every_answer_has_the_header_fields_of_browsers() {
    let gateway = FakeGateway::well();
    for path in ["/", "/api/v1/status", "/api/v1/openapi.json", "/healthz", "/nothing", "/metrics"]
    {
        let told = ask(&open(&gateway), get(path)).await;
        let policy = told.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}");
        assert_eq!(told.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(told.header("referrer-policy"), "no-referrer", "{path}");
        assert!(!told.header("cache-control").is_empty(), "{path}");
        assert_eq!(told.header("access-control-allow-origin"), "", "{path}");
    }
}

#[tokio::test]
async fn head_has_no_body_and_known_files_are_not_sent_again() {
    let gateway = FakeGateway::well();
    let head = request("HEAD", "/api/v1/status", &[("host", "localhost")]);
    let told = ask(&open(&gateway), head).await;
    assert_eq!((told.status.as_u16(), told.body.len()), (200, 0));
    let told = ask(&open(&gateway), get("/")).await;
    assert_eq!(told.header("content-type"), "text/html; charset=utf-8");
    let tag = told.header("etag").to_owned();
    let known = request("GET", "/", &[("host", "localhost"), ("if-none-match", &tag)]);
    let told = ask(&open(&gateway), known).await;
    assert_eq!((told.status.as_u16(), told.body.len()), (304, 0));
    let told = ask(&open(&gateway), get("/healthz")).await;
    assert_eq!((told.status.as_u16(), told.body.as_slice()), (200, b"ok\n".as_slice()));
}

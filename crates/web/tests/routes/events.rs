//! What listeners to events are told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use uxfrm_status::health::Health;
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};
use uxfrm_web::access::Client;
use uxfrm_web::events::{ChangedTunnel, GatewayNews, TunnelWatch, TurnKind};

use crate::fake::{FakeGateway, ask, document, drops, get, open, record, status, tunnel};

/// What has arrived by the time that all of `wanted` are in it.
async fn heard(body: &mut Body, wanted: &[&str]) -> String {
    let mut text = String::new();
    let all = async {
        while !wanted.iter().all(|wanted| text.contains(wanted)) {
            let frame = body.frame().await.unwrap().unwrap();
            text += &String::from_utf8_lossy(frame.data_ref().unwrap());
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await.is_ok();
    assert!(in_time, "{wanted:?} not in {text}");
    text
}

#[tokio::test]
async fn drops_and_health_are_told_as_they_change() {
    let rounds = AtomicUsize::new(0);
    let gateway = FakeGateway::new(move |request| match request {
        StatusRequest::Drops(query) => {
            let mut report = drops(6);
            // The old record is no news.
            let first = if query.from.is_none() { 4 } else { 5 };
            report.records = vec![record(first, "in_no_state")];
            Ok(StatusAnswer::Drops(report))
        }
        StatusRequest::Status(_) => {
            let is_first = rounds.fetch_add(1, Ordering::SeqCst) == 0;
            let health = if is_first { Health::Up } else { Health::Down };
            Ok(StatusAnswer::Status(Box::new(status(vec![tunnel(7, health)]))))
        }
        StatusRequest::Counters
        | StatusRequest::DropTallies(_)
        | StatusRequest::Why(_)
        | StatusRequest::Workers
        | StatusRequest::Capture(_)
        | StatusRequest::Trace(_) => Ok(document(request)),
    });
    let answer = open(&gateway).oneshot(get("/api/v1/events")).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    let text = heard(&mut body, &["event: heartbeat\n", "event: drop\n", "event: tunnel\n"]).await;
    assert!(text.starts_with("retry: ") || text.starts_with(':'), "{text}");
    assert!(text.contains("id: 5\n") && !text.contains("id: 4\n"), "{text}");
    let line = text.lines().find(|line| line.contains("\"reqid\":7")).unwrap();
    assert!(line.contains(r#""before":"up","health":"down""#), "{line}");
    assert!(text.contains(r#""totals":{"tunnels":1"#), "{text}");
}

#[tokio::test]
async fn stream_lasts_as_long_as_it_is_asked_for() {
    let gateway = FakeGateway::well();
    let told = ask(&open(&gateway), get("/api/v1/events?seconds=0")).await;
    assert_eq!((told.status.as_u16(), told.header("content-type")), (200, "text/event-stream"));
    assert!(told.body.ends_with(b"\n\n"), "{:?}", String::from_utf8_lossy(&told.body));
}

#[tokio::test]
async fn streams_are_bounded_and_make_room() {
    let gateway = FakeGateway::well();
    let router = open(&gateway);
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(router.clone().oneshot(get("/api/v1/events")).await.unwrap());
    }
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(ask(&router, get("/api/v1/events")).await.status, 503);
    drop(streams.pop());
    assert_eq!(router.oneshot(get("/api/v1/events")).await.unwrap().status(), 200);
}

/// Who has all streams gives one up for somebody else, and can't have that back.
#[tokio::test]
async fn streams_are_shared_among_users() {
    let router = open(&FakeGateway::well());
    let listen = |user| {
        let mut request = get("/api/v1/events");
        request.extensions_mut().insert(Client::User(user));
        router.clone().oneshot(request)
    };
    let mut greedy = Vec::new();
    for _ in 0..16 {
        greedy.push(listen(1000).await.unwrap());
    }
    for other in [0, 1001] {
        let stream = listen(other).await.unwrap();
        assert_eq!(stream.status(), 200, "{other}");
        let oldest = greedy.remove(0).into_body().collect();
        let ended = tokio::time::timeout(Duration::from_secs(60), oldest).await;
        assert!(ended.is_ok_and(|body| body.is_ok()), "the oldest stream ends");
        assert_eq!(listen(1000).await.unwrap().status(), 503);
        greedy.push(stream);
    }
}

fn changed(reqid: u32, before: Option<Health>, health: Option<Health>) -> GatewayNews {
    let known = tunnel(reqid, Health::Up);
    GatewayNews::Tunnel(ChangedTunnel {
        local: known.local,
        remote: known.remote,
        mode: known.mode,
        reqid,
        if_id: 0,
        before,
        health,
        explanation: None,
    })
}

#[test]
fn watch_tells_what_is_different() {
    use Health::{Down, Idle, OneWay, Up};
    let mut watch = TunnelWatch::default();
    assert_eq!(watch.see(&status(vec![tunnel(1, Up), tunnel(2, Down)])), []);
    assert_eq!(watch.see(&status(vec![tunnel(1, Up), tunnel(2, Down)])), []);
    let news = watch.see(&status(vec![tunnel(1, OneWay), tunnel(3, Idle)]));
    let expected = [
        changed(1, Some(Up), Some(OneWay)),
        changed(3, None, Some(Idle)),
        changed(2, Some(Down), None),
    ];
    assert_eq!(news, expected);
    // Of more tunnels than are told only the bad ones that come are news.
    let mut many = status(vec![tunnel(1, OneWay), tunnel(4, Down), tunnel(5, Up)]);
    many.totals.tunnels = 5000;
    assert_eq!(watch.see(&many).len(), 3, "all were known, so 4 and 5 are new, and 3 is gone");
    many.tunnels.extend([tunnel(6, Down), tunnel(7, Up)]);
    assert_eq!(watch.see(&many), [changed(6, None, Some(Down))]);
}

#[test]
fn watch_tells_who_went_and_came() {
    let kind = |news: Vec<GatewayNews>| match news.as_slice() {
        [GatewayNews::Gateway(turn)] => Some((turn.kind, turn.pid)),
        _none_or_more => None,
    };
    let mut watch = TunnelWatch::default();
    let lost = watch.lose("none").into_iter().collect();
    assert_eq!(kind(lost), Some((TurnKind::Went, None)));
    assert_eq!(watch.lose("none"), None, "once");
    let mut told = status(vec![]);
    assert_eq!(kind(watch.see(&told)), Some((TurnKind::Came, Some(1))));
    told.gateway.pid = 2;
    assert_eq!(kind(watch.see(&told)), Some((TurnKind::Replaced, Some(2))));
    assert_eq!(watch.see(&told), []);
}

//! `/metrics`: four questions to the gateway, and a page in the form that is asked for.

use std::io;

use uxfrm_control_client::stat;
use uxfrm_metrics::figures::Figures;
use uxfrm_status::gateway::TunnelOrder;
use uxfrm_status::health::Health;
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};

use crate::fake::{FakeGateway, ask, document, get, open, request, status, tunnel};

#[tokio::test]
async fn page_is_of_what_the_gateway_tells() {
    let gateway = FakeGateway::new(|request| {
        let StatusRequest::Status(query) = request else { return Ok(document(request)) };
        assert_eq!(query.order, TunnelOrder::Traffic);
        let tunnels = vec![tunnel(1, Health::Down), tunnel(2, Health::Up)];
        Ok(StatusAnswer::Status(Box::new(status(tunnels))))
    });
    let told = ask(&open(&gateway), get("/metrics?tunnels=7")).await;
    assert_eq!(told.status, 200);
    assert_eq!(told.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(told.body).unwrap();
    for line in [
        "uxfrm_up 1",
        r#"uxfrm_tunnels{health="down"} 1"#,
        r#"uxfrm_tunnel_up{peer="192.0.2.2",local="192.0.2.1",reqid="1",mode="tunnel"} 0"#,
        r#"uxfrm_tunnel_up{peer="192.0.2.2",local="192.0.2.1",reqid="2",mode="tunnel"} 1"#,
    ] {
        assert!(text.lines().any(|told| told == line), "{line}\n{text}");
    }
    assert_eq!(*gateway.asked.lock().unwrap(), Figures::requests(7));
}

#[tokio::test]
async fn page_is_in_the_form_that_is_asked_for() {
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let asked = request("GET", "/metrics", &[("host", "localhost"), ("accept", accept)]);
    let told = ask(&open(&FakeGateway::well()), asked).await;
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(told.header("content-type"), open_metrics);
    assert_eq!(told.header("vary"), "accept");
    assert!(told.body.ends_with(b"# EOF\n"));
}

/// So that an alert can tell the gateway's end from that of `uxfrm web`.
#[tokio::test]
async fn without_a_gateway_the_page_says_so() {
    let gateway =
        FakeGateway::new(|_| Err(stat::Error::Absent(io::ErrorKind::ConnectionRefused.into())));
    let told = ask(&open(&gateway), get("/metrics")).await;
    assert_eq!(told.status, 200);
    let text = String::from_utf8(told.body).unwrap();
    assert!(text.ends_with("\nuxfrm_up 0\n") && text.lines().count() == 3, "{text}");
}

#[tokio::test]
async fn unknown_parameter_is_refused() {
    for path in ["/metrics?tunnel=7", "/metrics?tunnels=many", "/metrics?tunnels=10001"] {
        assert_eq!(ask(&open(&FakeGateway::well()), get(path)).await.status, 400, "{path}");
    }
}

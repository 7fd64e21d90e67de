//! A gateway that is made up, and requests to routes before it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;
use uxfrm_control_client::stat;
use uxfrm_status::counters::CounterReport;
use uxfrm_status::drops::{DropReport, DropStatus, DropTallyReport};
use uxfrm_status::explanation::{FlowExplanation, FlowOutcome};
use uxfrm_status::gateway::{GatewayIdentity, GatewayStatus, PlainPolicies, StatusTotals};
use uxfrm_status::health::Health;
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};
use uxfrm_status::tunnel::{FailureStatus, PolicyTally, TrafficStatus, TunnelStatus};
use uxfrm_status::workers::WorkerReport;
use uxfrm_web::access::{Access, AccessToken, KnownHosts};
use uxfrm_web::source::Source;

/// The token of [`with_token`].
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

type Script = dyn Fn(&StatusRequest) -> Result<StatusAnswer, stat::Error> + Send + Sync;

/// Answers by a function, and remembers what it was asked.
pub(crate) struct FakeGateway {
    script: Box<Script>,
    pub(crate) asked: Mutex<Vec<StatusRequest>>,
    pub(crate) count: AtomicUsize,
}

impl FakeGateway {
    pub(crate) fn new(
        script: impl Fn(&StatusRequest) -> Result<StatusAnswer, stat::Error> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            asked: Mutex::default(),
            count: AtomicUsize::new(0),
        })
    }

    /// One that answers everything.
    pub(crate) fn well() -> Arc<Self> {
        Self::new(|request| Ok(document(request)))
    }
}

impl Source for FakeGateway {
    fn ask(&self, request: &StatusRequest) -> Result<StatusAnswer, stat::Error> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.asked.lock().unwrap().push(request.clone());
        (self.script)(request)
    }
}

/// An answer of the kind that is asked for.
pub(crate) fn document(request: &StatusRequest) -> StatusAnswer {
    match request {
        StatusRequest::Counters => {
            StatusAnswer::Counters(CounterReport { at: 7, ..CounterReport::default() })
        }
        StatusRequest::Status(_) => StatusAnswer::Status(Box::new(status(Vec::new()))),
        StatusRequest::Drops(_) => StatusAnswer::Drops(drops(0)),
        StatusRequest::Workers => StatusAnswer::Workers(WorkerReport::default()),
        StatusRequest::Capture(_) | StatusRequest::Trace(_) => {
            unreachable!("no route asks for them")
        }
        StatusRequest::DropTallies(_) => StatusAnswer::DropTallies(DropTallyReport {
            at: 7,
            tallies: Vec::new(),
            tallies_total: 0,
        }),
        StatusRequest::Why(query) => StatusAnswer::Why(Box::new(FlowExplanation {
            flow: format!("{} -> {}", query.source, query.destination),
            direction: "out".to_owned(),
            tun: "uxfrm0".to_owned(),
            outcome: FlowOutcome::LeavesPlain,
            verdict: "leaves PLAIN".to_owned(),
            steps: Vec::new(),
            encapsulation: None,
            drop: None,
        })),
    }
}

pub(crate) fn drops(next: u64) -> DropReport {
    DropReport { at: 7, records: Vec::new(), advice: Vec::new(), next, lost: 0 }
}

/// A record of a packet without addresses.
pub(crate) fn record(number: u64, reason: &str) -> DropStatus {
    DropStatus {
        number,
        at_ms: 1,
        reason: reason.to_owned(),
        packets: 1,
        esp: None,
        flow: None,
        send_error: None,
        state: None,
        policy: None,
        device: None,
        length: None,
        head: None,
    }
}

/// A gateway with these tunnels.
pub(crate) fn status(tunnels: Vec<TunnelStatus>) -> GatewayStatus {
    let mut totals = StatusTotals::default();
    tunnels.iter().for_each(|tunnel| totals.count(tunnel.health));
    GatewayStatus {
        gateway: GatewayIdentity {
            version: "0.1.0".to_owned(),
            pid: 1,
            started: 1,
            uptime_seconds: 6,
            configuration: "/etc/uxfrm/uxfrm.toml".to_owned(),
            mode: "host".to_owned(),
            tun: "uxfrm0".to_owned(),
            workers: 1,
            udp_ports: vec![4500],
            interfaces: Vec::new(),
            devices: Vec::new(),
            key_manager_listens: false,
        },
        at: 7,
        age_seconds: 0,
        totals,
        plain: PlainPolicies::default(),
        tunnels,
        unmatched_states: Vec::new(),
        unmatched_states_total: 0,
        next: None,
        notices: Vec::new(),
    }
}

/// A tunnel by its reqid.
pub(crate) fn tunnel(reqid: u32, health: Health) -> TunnelStatus {
    TunnelStatus {
        local: [192, 0, 2, 1].into(),
        remote: [192, 0, 2, 2].into(),
        mode: "tunnel".to_owned(),
        protocol: "esp".to_owned(),
        reqid,
        if_id: 0,
        health,
        reason: None,
        explanation: None,
        nets: Vec::new(),
        nets_total: 0,
        policies: PolicyTally::default(),
        cipher: None,
        encapsulation: None,
        device: None,
        sent: TrafficStatus::default(),
        received: TrafficStatus::default(),
        failures: FailureStatus::default(),
        drops: uxfrm_status::counters::CounterList::default(),
        icmp_errors: Vec::new(),
        rekey: None,
        expiry: None,
        sequence_ratio: None,
        states: Vec::new(),
        states_total: 0,
    }
}

/// Routes as a Unix socket has them.
pub(crate) fn open(gateway: &Arc<FakeGateway>) -> Router {
    let routes = uxfrm_web::router(Arc::clone(gateway) as Arc<dyn Source>);
    uxfrm_web::guarded(routes, &Access::new(KnownHosts::of_unix_socket(&[]), None))
}

/// Routes as a loopback address has them.
pub(crate) fn with_token(gateway: &Arc<FakeGateway>) -> Router {
    use std::os::unix::fs::OpenOptionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let mut options = std::fs::File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, TOKEN.as_bytes()).unwrap();
    let token = Arc::new(AccessToken::read(&path).unwrap());
    let routes = uxfrm_web::router(Arc::clone(gateway) as Arc<dyn Source>);
    let hosts = KnownHosts::of_address("127.0.0.1:8080".parse().unwrap(), &[]);
    uxfrm_web::guarded(routes, &Access::new(hosts, Some(token)))
}

/// A request with header fields.
pub(crate) fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// A GET of a local client.
pub(crate) fn get(path: &str) -> Request<Body> {
    request("GET", path, &[("host", "localhost")])
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Told {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Asks.
pub(crate) async fn ask(router: &Router, request: Request<Body>) -> Told {
    let answer = router.clone().oneshot(request).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Told { status: head.status, headers: head.headers, body }
}

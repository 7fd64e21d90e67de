//! Many clients are not many questions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;
use uxfrm_status::health::Health;
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};
use uxfrm_web::access::Client;

use crate::fake::{
    FakeGateway, TOKEN, Told, ask, document, get, open, request, status, tunnel, with_token,
};

const FORM: &str = "application/x-www-form-urlencoded";

/// Lets answers wait until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn wait(&self) {
        let is_open = self.0.lock().unwrap();
        drop(self.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

#[tokio::test]
async fn same_requests_share_an_answer_and_few_are_asked_at_once() {
    let gate = Arc::new(Gate::default());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (waited, counted, highest) = (Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
    let gateway = FakeGateway::new(move |request| {
        let at_once = counted.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(at_once, Ordering::SeqCst);
        waited.wait();
        counted.fetch_sub(1, Ordering::SeqCst);
        Ok(document(request))
    });
    let router = open(&gateway);
    let paths = (0..8).flat_map(|limit| [limit; 4]);
    let asked: Vec<_> = paths
        .map(|limit| {
            let router = router.clone();
            let request = get(&format!("/api/v1/status?limit={limit}"));
            tokio::spawn(async move { ask(&router, request).await })
        })
        .collect();
    while now.load(Ordering::SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    gate.open();
    for told in asked {
        assert_eq!(told.await.unwrap().status, 200);
    }
    assert_eq!(gateway.count.load(Ordering::SeqCst), 8, "32 requests of 8 kinds");
    assert!(most.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn client_that_goes_takes_no_answer_from_others() {
    let gate = Arc::new(Gate::default());
    let waited = Arc::clone(&gate);
    let gateway = FakeGateway::new(move |request| {
        waited.wait();
        Ok(document(request))
    });
    let router = open(&gateway);
    let first = router.clone();
    let first = tokio::spawn(async move { ask(&first, get("/api/v1/counters")).await });
    while gateway.count.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn(async move { ask(&router, get("/api/v1/counters")).await });
    tokio::task::yield_now().await;
    first.abort();
    gate.open();
    assert_eq!(second.await.unwrap().status, 200);
    assert_eq!(*gateway.asked.lock().unwrap(), [StatusRequest::Counters]);
}

/// Clients of a gateway that answers once its gate is open.
struct Clients {
    gate: Arc<Gate>,
    gateway: Arc<FakeGateway>,
    router: Router,
    begun: Arc<AtomicUsize>,
}

impl Clients {
    /// Of a router that knows them by this function.
    fn of(router: fn(&Arc<FakeGateway>) -> Router) -> Self {
        let gate = Arc::new(Gate::default());
        let waited = Arc::clone(&gate);
        let gateway = FakeGateway::new(move |request| {
            waited.wait();
            Ok(document(request))
        });
        Self { gate, router: router(&gateway), gateway, begun: Arc::default() }
    }

    fn new() -> Self {
        Self::of(open)
    }

    /// One of a few users who ask what only they ask.
    fn begin(&self, limit: usize) -> JoinHandle<Told> {
        self.send(by_user(limit, limit / 16))
    }

    fn send(&self, request: Request<Body>) -> JoinHandle<Told> {
        let (router, begun) = (self.router.clone(), Arc::clone(&self.begun));
        tokio::spawn(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            ask(&router, request).await
        })
    }

    /// As many as are asked at once, so that others have to wait.
    async fn first(&self) -> Vec<JoinHandle<Told>> {
        let first = (0..4).map(|limit| self.begin(limit)).collect();
        while self.gateway.count.load(Ordering::SeqCst) < 4 {
            tokio::task::yield_now().await;
        }
        first
    }

    /// Until so many have begun to wait.
    async fn wait(&self, clients: usize) {
        while self.begun.load(Ordering::SeqCst) < clients {
            tokio::task::yield_now().await;
        }
    }
}

/// What only this one asks, by a user of a Unix socket.
fn by_user(limit: usize, user: usize) -> Request<Body> {
    let mut request = get(&format!("/api/v1/status?limit={limit}"));
    let number = 1000 + u32::try_from(user).unwrap();
    request.extensions_mut().insert(Client::User(number));
    request
}

#[tokio::test]
async fn one_client_leaves_places_to_others() {
    let clients = Clients::new();
    let mut asked = clients.first().await;
    asked.extend((4..20).map(|limit| clients.send(by_user(limit, 7))));
    clients.wait(20).await;
    let told = ask(&clients.router, by_user(20, 7)).await;
    assert_eq!((told.status.as_u16(), told.header("retry-after")), (503, "1"));
    assert!(String::from_utf8_lossy(&told.body).contains("too many requests of yours"));
    asked.push(clients.send(by_user(21, 8)));
    // What somebody else waits for needs no place.
    asked.push(clients.send(by_user(21, 7)));
    clients.wait(22).await;
    clients.gate.open();
    for told in asked {
        assert_eq!(told.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn token_is_one_client_and_each_session_another() {
    let clients = Clients::of(with_token);
    let local = ("host", "127.0.0.1:8080");
    let form = request("POST", "/login", &[local, ("content-type", FORM)]);
    let told = ask(&clients.router, form.map(|_| Body::from(format!("token={TOKEN}")))).await;
    let session = told.header("set-cookie").split(';').next().unwrap().to_owned();
    let bearer = format!("Bearer {TOKEN}");
    let by = |limit: usize, field: (&str, &str)| {
        request("GET", &format!("/api/v1/status?limit={limit}"), &[local, field])
    };
    let of_token = |limit| by(limit, ("authorization", &bearer));
    let mut asked: Vec<_> = (0..4).map(|limit| clients.send(of_token(limit))).collect();
    while clients.gateway.count.load(Ordering::SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    asked.extend((4..20).map(|limit| clients.send(of_token(limit))));
    clients.wait(20).await;
    assert_eq!(ask(&clients.router, of_token(20)).await.status, 503);
    asked.push(clients.send(by(21, ("cookie", &session))));
    clients.wait(21).await;
    clients.gate.open();
    for told in asked {
        assert_eq!(told.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn requests_beyond_those_that_may_wait_are_told_at_once() {
    let clients = Clients::new();
    let mut asked = clients.first().await;
    asked.extend((4..68).map(|limit| clients.begin(limit)));
    clients.wait(68).await;
    let told = ask(&clients.router, by_user(1000, 1000)).await;
    assert_eq!(told.status, 503, "while nobody has been answered");
    assert!(String::from_utf8_lossy(&told.body).contains("too many requests are waiting"));
    // Who shares an answer needs no place.
    asked.push(clients.begin(67));
    clients.wait(69).await;
    clients.gate.open();
    for told in asked {
        assert_eq!(told.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn request_that_nobody_waits_for_gives_up_its_place() {
    let clients = Clients::new();
    let mut asked = clients.first().await;
    for round in 1..4 {
        let gone: Vec<_> = (0..64).map(|client| clients.begin(round * 64 + client)).collect();
        clients.wait(4 + round * 64).await;
        for gone in gone {
            gone.abort();
            assert!(gone.await.unwrap_err().is_cancelled());
        }
    }
    asked.push(clients.begin(1000));
    clients.wait(4 + 3 * 64 + 1).await;
    clients.gate.open();
    for told in asked {
        assert_eq!(told.await.unwrap().status, 200);
    }
    let count = clients.gateway.count.load(Ordering::SeqCst);
    assert_eq!(count, 5, "what nobody awaits is not asked");
}

/// A slow reader keeps its own share of memory, and no other's.
#[tokio::test]
async fn answers_left_unread_are_one_clients() {
    let gateway = FakeGateway::new(|_| {
        let tunnels = (0..10_000).map(|reqid| tunnel(reqid, Health::Up)).collect();
        Ok(StatusAnswer::Status(Box::new(status(tunnels))))
    });
    let router = open(&gateway);
    let mut unread = Vec::new();
    let refused = loop {
        let answer = router.clone().oneshot(by_user(unread.len() + 1, 7)).await.unwrap();
        if answer.status() != 200 {
            break answer;
        }
        unread.push(answer);
        assert!(unread.len() < 100, "nothing is counted");
    };
    assert_eq!(refused.status(), 503);
    let told = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&told).contains("you have not read the answers before"));
    assert_eq!(ask(&router, by_user(1, 8)).await.status, 200);
    drop(unread.pop());
    assert_eq!(ask(&router, by_user(200, 7)).await.status, 200);
}

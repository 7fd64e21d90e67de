//! Many clients are not many questions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use tokio::task::JoinHandle;
use uxfrm_status::protocol::StatusRequest;

use crate::fake::{FakeGateway, Told, ask, document, get, open};

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
    fn new() -> Self {
        let gate = Arc::new(Gate::default());
        let waited = Arc::clone(&gate);
        let gateway = FakeGateway::new(move |request| {
            waited.wait();
            Ok(document(request))
        });
        Self { gate, router: open(&gateway), gateway, begun: Arc::default() }
    }

    /// One that asks what only it asks.
    fn begin(&self, limit: usize) -> JoinHandle<Told> {
        let (router, begun) = (self.router.clone(), Arc::clone(&self.begun));
        let request = get(&format!("/api/v1/status?limit={limit}"));
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

#[tokio::test]
async fn requests_beyond_those_that_may_wait_are_told_at_once() {
    let clients = Clients::new();
    let mut asked = clients.first().await;
    asked.extend((4..68).map(|limit| clients.begin(limit)));
    clients.wait(68).await;
    let told = ask(&clients.router, get("/api/v1/status?limit=1000")).await;
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

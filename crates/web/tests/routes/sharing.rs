//! Many clients are not many questions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use uxfrm_status::protocol::StatusRequest;

use crate::fake::{FakeGateway, ask, document, get, open};

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

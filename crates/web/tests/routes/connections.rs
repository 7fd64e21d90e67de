//! Connections by real sockets: whose places they take, and when they end.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use tokio::net::{UnixListener, UnixStream};
use uxfrm_web::server::{Listener, serve};

use crate::fake::{FakeGateway, TOKEN, document, open, with_token};

const PATIENCE: Duration = Duration::from_secs(60);

fn served(path: &Path, router: Router) {
    let listener = Listener::Unix(UnixListener::bind(path).unwrap());
    drop(tokio::spawn(serve(listener, router)));
}

/// Sends a request that lets the connection live on, and reads until `end` or the server's close.
async fn exchange(stream: &UnixStream, fields: &str, path: &str, end: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n{fields}\r\n");
    stream.writable().await.unwrap();
    assert_eq!(stream.try_write(request.as_bytes()).unwrap(), request.len());
    let mut text = Vec::new();
    let all = async {
        while !text.ends_with(end.as_bytes()) {
            stream.readable().await.unwrap();
            let mut part = [0; 4096];
            match stream.try_read(&mut part) {
                Ok(0) => break,
                Ok(bytes) => text.extend_from_slice(&part[..bytes]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, all).await.is_ok();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(in_time, "{path}: neither {end:?} nor an end after {text}");
    text
}

#[tokio::test]
async fn connection_without_the_token_ends_with_its_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    served(&path, with_token(&FakeGateway::well()));
    // No answer ends so: these are read until the server closes.
    let never = "\0";
    for (asked, status) in [("/healthz", 200), ("/", 303), ("/style.css", 200), ("/metrics", 401)] {
        let stream = UnixStream::connect(&path).await.unwrap();
        let told = exchange(&stream, "", asked, never).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{asked}: {told}");
        assert!(told.contains("connection: close\r\n"), "{asked}: {told}");
    }
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..3 {
        let told = exchange(&stream, &token, "/healthz", "ok\n").await;
        assert!(told.starts_with("HTTP/1.1 200") && told.ends_with("ok\n"), "{told}");
    }
}

#[tokio::test]
async fn listener_without_a_token_keeps_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    served(&path, open(&FakeGateway::well()));
    let stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..3 {
        let told = exchange(&stream, "", "/healthz", "ok\n").await;
        assert!(!told.contains("connection: close") && told.ends_with("ok\n"), "{told}");
    }
}

/// The kernel tells whose connection it is.
#[tokio::test]
async fn user_of_a_unix_socket_is_one_client() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let closed = std::sync::Mutex::new(closed);
    let gateway = FakeGateway::new(move |request| {
        // Until the gate goes.
        let _gone = closed.lock().unwrap().recv();
        Ok(document(request))
    });
    served(&path, open(&gateway));
    let mut refused = Vec::new();
    let mut asked = tokio::task::JoinSet::new();
    for limit in 0..30 {
        let stream = UnixStream::connect(&path).await.unwrap();
        let path = format!("/api/v1/status?limit={limit}");
        asked.spawn(async move { exchange(&stream, "", &path, "}").await });
    }
    // Four are asked, and sixteen wait.
    while refused.len() < 10 {
        refused.push(asked.join_next().await.unwrap().unwrap());
    }
    assert!(refused.iter().all(|told| told.contains("too many requests of yours")), "{refused:?}");
    drop(gate);
    while let Some(told) = asked.join_next().await {
        assert!(told.unwrap().starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn listener_that_is_full_fills_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let [full, other] = ["full", "other"].map(|name| directory.path().join(name));
    let gateway = FakeGateway::well();
    for path in [&full, &other] {
        served(path, open(&gateway));
    }
    let mut held = Vec::new();
    for _ in 0..128 {
        let stream = UnixStream::connect(&full).await.unwrap();
        exchange(&stream, "", "/healthz", "ok\n").await;
        held.push(stream);
    }
    let stream = UnixStream::connect(&other).await.unwrap();
    let told = exchange(&stream, "", "/healthz", "ok\n").await;
    assert!(told.ends_with("ok\n"), "{told}");
    drop(held);
}

//! Connections by real sockets: whose places they take, and when they end.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_web::server::{Listener, serve};

use crate::fake::{FakeGateway, TOKEN, document, open, with_token};

const PATIENCE: Duration = Duration::from_secs(60);

/// As many as a listener has places.
const PLACES: usize = 256;

/// Both ends of all connections of all tests are this process's.
fn allow_descriptors() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

fn served(path: &Path, router: Router) {
    let listener = Listener::Unix(UnixListener::bind(path).unwrap());
    drop(tokio::spawn(serve(listener, router, SubordinateUsers::default())));
}

/// What has come, or nothing at the server's end of it.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut room = [0; 4096];
    let mut buffer = ReadBuf::new(&mut room);
    poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer)).await?;
    Ok(buffer.filled().to_vec())
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    let written = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes)).await;
    // What has just been connected has room.
    assert_eq!(written.unwrap(), bytes.len());
}

/// Whether the server has ended it, of one that sends nothing.
fn is_over(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    read.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true)
}

/// Sends a request that lets the connection live on, and reads until `end` or the server's close.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    fields: &str,
    path: &str,
    end: &str,
) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n{fields}\r\n");
    write(stream, request.as_bytes()).await;
    let mut text = Vec::new();
    let all = async {
        while !text.ends_with(end.as_bytes()) {
            match read(stream).await.unwrap() {
                part if part.is_empty() => break,
                part => text.extend(part),
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
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let told = exchange(&mut stream, "", asked, never).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{asked}: {told}");
        assert!(told.contains("connection: close\r\n"), "{asked}: {told}");
    }
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let mut stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..3 {
        let told = exchange(&mut stream, &token, "/healthz", "ok\n").await;
        assert!(told.starts_with("HTTP/1.1 200") && told.ends_with("ok\n"), "{told}");
    }
}

#[tokio::test]
async fn listener_without_a_token_keeps_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    served(&path, open(&FakeGateway::well()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    for _ in 0..3 {
        let told = exchange(&mut stream, "", "/healthz", "ok\n").await;
        assert!(!told.contains("connection: close") && told.ends_with("ok\n"), "{told}");
    }
}

/// A gateway that answers once the gate goes.
fn gateway_behind_gate() -> (std::sync::mpsc::Sender<()>, std::sync::Arc<FakeGateway>) {
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let closed = std::sync::Mutex::new(closed);
    let gateway = FakeGateway::new(move |request| {
        let _gone = closed.lock().unwrap().recv();
        Ok(document(request))
    });
    (gate, gateway)
}

/// The kernel tells whose connection it is.
#[tokio::test]
async fn user_of_a_unix_socket_is_one_client() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (gate, gateway) = gateway_behind_gate();
    served(&path, open(&gateway));
    let mut refused = Vec::new();
    let mut asked = tokio::task::JoinSet::new();
    for limit in 0..30 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let path = format!("/api/v1/status?limit={limit}");
        asked.spawn(async move { exchange(&mut stream, "", &path, "}").await });
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
    allow_descriptors();
    let directory = tempfile::tempdir().unwrap();
    let [full, other] = ["full", "other"].map(|name| directory.path().join(name));
    let gateway = FakeGateway::well();
    for path in [&full, &other] {
        served(path, open(&gateway));
    }
    let mut held = Vec::new();
    for _ in 0..PLACES {
        let mut stream = UnixStream::connect(&full).await.unwrap();
        exchange(&mut stream, "", "/healthz", "ok\n").await;
        held.push(stream);
    }
    let mut stream = UnixStream::connect(&other).await.unwrap();
    let told = exchange(&mut stream, "", "/healthz", "ok\n").await;
    assert!(told.ends_with("ok\n"), "{told}");
    drop(held);
}

/// Silent connections make room for each other, and for those that have shown the token.
#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    allow_descriptors();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(tokio::spawn(serve(
        Listener::Tcp(listener),
        with_token(&FakeGateway::well()),
        SubordinateUsers::default(),
    )));
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let mut silent = Vec::new();
    let mut known = Vec::new();
    for round in 0..4 {
        for _ in 0..150 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        known.push(TcpStream::connect(address).await.unwrap());
        for stream in &mut known {
            let told = exchange(stream, &token, "/healthz", "ok\n").await;
            assert!(told.ends_with("ok\n"), "{round}: {told}");
        }
        let latest = silent.iter().rev().take(50);
        assert_eq!(latest.filter(|stream| is_over(stream)).count(), 0, "{round}");
    }
    assert!(silent[..300].iter().all(is_over), "the oldest make room");
}

/// A client all of whose places are in use is told so, and does not wait for one.
#[tokio::test]
async fn connection_too_many_is_refused() {
    allow_descriptors();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (gate, gateway) = gateway_behind_gate();
    served(&path, open(&gateway));
    let mut asked = Vec::new();
    for _ in 0..PLACES {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let request = b"GET /api/v1/counters HTTP/1.1\r\nHost: localhost\r\n\r\n";
        write(&mut stream, request).await;
        asked.push(stream);
    }
    // Until all of them are being answered, a newcomer takes the place of one that is not.
    let told = loop {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let told = exchange(&mut stream, "", "/healthz", "\n").await;
        if told.starts_with("HTTP/1.1 503") {
            break told;
        }
    };
    assert!(told.ends_with("\r\n\r\nno connection is free, and none makes room\r\n"), "{told}");
    let length = told.split_once("\r\n\r\n").unwrap().1.len();
    assert!(told.contains(&format!("Content-Length: {length}\r\n")), "{told}");
    drop(gate);
}

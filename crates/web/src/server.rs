//! Connections: HTTP/1.1 within bounds of number, size and time.
//!
//! No client holds up another: each connection is a task, and one that is idle, slow to ask or slow
//! to read is closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::access::Client;

/// Connections of a listener at a time; the next ones wait in its queue.
const CONNECTIONS: usize = 128;
/// How long a request's head may take to arrive, and a connection be idle.
const HEAD: Duration = Duration::from_secs(15);
/// How long a client may read nothing of its answer.
const UNREAD: Duration = Duration::from_secs(15);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// Header fields of a request.
const HEADER_FIELDS: usize = 64;
/// Between two tries to accept, where the process has no more descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A loopback address.
    Tcp(TcpListener),
}

/// Serves connections for ever. Each listener has places of its own, so that who may reach one
/// can't fill another.
pub async fn serve(listener: Listener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let router = router.clone();
        match accept(&listener).await {
            Ok(stream) => drop(tokio::spawn(async move {
                stream.talk(router).await;
                drop(place);
            })),
            Err(error) => {
                tracing::debug!("accept: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A client's connection.
enum Connection {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

async fn accept(listener: &Listener) -> io::Result<Connection> {
    match listener {
        Listener::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        Listener::Tcp(listener) => Ok(Connection::Tcp(listener.accept().await?.0)),
    }
}

impl Connection {
    async fn talk(self, router: Router) {
        match self {
            Self::Unix(stream) => {
                let user = stream.peer_cred().map(|peer| Client::User(peer.uid())).ok();
                talk(stream, user, router).await;
            }
            // Of a loopback address the kernel tells nobody.
            Self::Tcp(stream) => talk(stream, None, router).await,
        }
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + 'static,
    client: Option<Client>,
    router: Router,
) {
    let routes = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        if let Some(client) = client {
            request.extensions_mut().insert(client);
        }
        routes.call(request)
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADER_FIELDS)
        .serve_connection(TokioIo::new(Box::pin(stream)), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!("connection: {error}");
    }
}

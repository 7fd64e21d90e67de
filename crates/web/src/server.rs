//! Connections: HTTP/1.1 within bounds of number, size and time.
//!
//! No client holds up another: each connection is a task, one that is idle, slow to ask or slow to
//! read is closed, and where all places are taken whoever has the most makes room. The kernel tells
//! whose a connection is, also of a loopback address.

mod loopback_user;
mod tracked_body;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_io_timeout::TimeoutStream;
use uxfrm_host_facts::subordinate_users::SubordinateUsers;

use crate::access::Client;
use crate::shared_places::{CurrentNeed, Need, SharedPlaces};
use loopback_user::LoopbackUsers;
use tracked_body::TrackedBody;

/// Connections of a listener at a time.
const CONNECTIONS: usize = 256;
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
/// What a client is told where all places are in use, by itself or by others with as few.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: text/plain\r\nContent-Length: 44\r\n\r\n\
    no connection is free, and none makes room\r\n";

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A loopback address.
    Tcp(TcpListener),
}

/// Serves connections for ever; those of subordinate users count as their owners'. Each listener
/// has places of its own, so that who may reach one can't fill another.
pub async fn serve(listener: Listener, router: Router, subordinates: SubordinateUsers) {
    let places = SharedPlaces::new(CONNECTIONS);
    let mut users = listener.users();
    loop {
        match accept(&listener, users.as_mut()).await {
            Ok((connection, user)) => {
                let client = user.map(|user| Client::User(subordinates.owner_of(user)));
                begin(connection, client, &places, &router);
            }
            Err(error) => {
                tracing::debug!("accept: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
        // Who has connected is heard before the next ones take places.
        tokio::task::yield_now().await;
    }
}

/// Serves a connection, if there is a place for it.
fn begin(connection: Connection, client: Option<Client>, places: &SharedPlaces, router: &Router) {
    let Some((place, given_away)) =
        places.enter(client.unwrap_or(Client::Stranger), Need::Unproven)
    else {
        return connection.refuse();
    };
    let router = router.clone();
    drop(tokio::spawn(async move {
        let talk = connection.talk(client, place.need(), router);
        tokio::select! {
            () = talk => {}
            _another = given_away => tracing::debug!("a connection makes room for another"),
        }
    }));
}

impl Listener {
    /// Who tells whose connections are, where sockets themselves do not.
    fn users(&self) -> Option<LoopbackUsers> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(_) => {
                let failed = |error: &io::Error| {
                    tracing::warn!(
                        "all who connect to a loopback address share its places: {error}"
                    );
                };
                LoopbackUsers::open().inspect_err(failed).ok()
            }
        }
    }
}

/// A client's connection.
enum Connection {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

async fn accept(
    listener: &Listener,
    users: Option<&mut LoopbackUsers>,
) -> io::Result<(Connection, Option<u32>)> {
    match listener {
        Listener::Unix(listener) => {
            let (stream, _unnamed) = listener.accept().await?;
            let user = stream.peer_cred().map(|peer| peer.uid()).ok();
            Ok((Connection::Unix(stream), user))
        }
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            let user = users.and_then(|users| user(users, &stream, peer).ok());
            Ok((Connection::Tcp(stream), user))
        }
    }
}

fn user(
    users: &mut LoopbackUsers,
    stream: &tokio::net::TcpStream,
    peer: SocketAddr,
) -> io::Result<u32> {
    let told = users.of(peer, stream.local_addr()?);
    told.inspect_err(|error| tracing::debug!("whose {peer} is: {error}"))
}

impl Connection {
    async fn talk(self, client: Option<Client>, need: &CurrentNeed, router: Router) {
        match self {
            Self::Unix(stream) => talk(stream, client, need, router).await,
            Self::Tcp(stream) => talk(stream, client, need, router).await,
        }
    }

    /// Says that there is no place, and ends.
    fn refuse(self) {
        let told = match &self {
            Self::Unix(stream) => stream.try_write(FULL),
            Self::Tcp(stream) => stream.try_write(FULL),
        };
        tracing::debug!("a connection too many: {told:?}");
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + 'static,
    client: Option<Client>,
    need: &CurrentNeed,
    router: Router,
) {
    let routes = TowerToHyperService::new(router);
    let answer = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(need.clone());
        if let Some(client) = client {
            request.extensions_mut().insert(client);
        }
        let answer = routes.call(request);
        async {
            let body = |body| Body::new(TrackedBody::new(body, need.clone()));
            answer.await.map(|answer| answer.map(body))
        }
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

//! Who may ask: `Host`, token, session.
//!
//! A browser on this machine may be told by any page to ask here. So `Host` has to name this server
//! (DNS rebinding), no other origin is let in, and over TCP, which has no file mode, every request
//! that gets anything has the token: as `Authorization: Bearer`, or as the session's cookie that
//! `POST /login` gives for it. A session ends after twelve hours, or with the process. A request
//! without any of these is the last one of its connection, so that strangers hold no places, and
//! until one has come that has them the connection is the first to make room for others.

mod client;
mod host;
mod session;
mod token;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Redirect, Response};

pub use client::Client;
pub use host::KnownHosts;
pub(crate) use session::{COOKIE, Sessions};
pub use token::{AccessToken, TokenError};

use crate::login;
use crate::page;
use crate::problem::{Problem, ProblemKind};
use crate::shared_places::{CurrentNeed, Need};

/// What a listener asks of its clients.
#[derive(Debug)]
pub struct Access {
    hosts: KnownHosts,
    token: Option<Arc<AccessToken>>,
    sessions: Sessions,
}

impl Access {
    /// Clients have to know one of these names and, if there is one, the token.
    #[must_use]
    pub fn new(hosts: KnownHosts, token: Option<Arc<AccessToken>>) -> Arc<Self> {
        Arc::new(Self { hosts, token, sessions: Sessions::default() })
    }

    /// Puts the check before all routes of a router, and the login beside them if there is a token.
    pub fn guard(self: &Arc<Self>, router: Router) -> Router {
        let router = match self.token {
            Some(_) => router.merge(login::router(Arc::clone(self))),
            None => router,
        };
        router.layer(middleware::from_fn_with_state(Arc::clone(self), check))
    }

    /// A new session's cookie, for who knows the token.
    pub(crate) fn log_in(&self, token: &str, client: Client) -> Option<HeaderValue> {
        let is_right = self.token.as_ref().is_some_and(|own| own.matches(token.as_bytes()));
        is_right.then(|| self.sessions.begin(client)).flatten()
    }

    /// Who asks, if that may. Where the kernel tells whose the connection is, it is that user.
    fn client_of(&self, request: &Request) -> Option<Client> {
        let connected: Option<Client> = request.extensions().get().copied();
        let Some(token) = &self.token else { return Some(connected.unwrap_or_default()) };
        let headers = request.headers();
        let bearer = headers.get(header::AUTHORIZATION).and_then(bearer);
        let known = match bearer {
            Some(bearer) => token.matches(bearer).then_some(Client::Token),
            None => {
                let cookies = headers.get_all(header::COOKIE).into_iter();
                cookies.filter_map(|value| value.to_str().ok()).find_map(|text| self.session(text))
            }
        };
        known.map(|client| connected.unwrap_or(client))
    }

    fn session(&self, cookies: &str) -> Option<Client> {
        let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        let mut named = pairs.filter(|(name, _)| *name == COOKIE);
        named.find_map(|(_, value)| self.sessions.number_of(value)).map(Client::Session)
    }
}

/// What follows `Bearer`, whose case does not matter.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = value.as_bytes().split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| token.trim_ascii())
}

async fn check(State(access): State<Arc<Access>>, mut request: Request, next: Next) -> Response {
    let client = access.client_of(&request);
    let is_known = client.is_some();
    if is_known && let Some(need) = request.extensions().get::<CurrentNeed>() {
        need.set(Need::Busy);
    }
    // Who logs in is not known before; but whose the connection is.
    let connected: Option<Client> = request.extensions().get().copied();
    request.extensions_mut().insert(client.or(connected).unwrap_or_default());
    let mut answer = if let Err(problem) = access.hosts.check(&request) {
        problem.into_response()
    } else if is_known || is_public(request.uri()) {
        next.run(request).await
    } else {
        refusal(request.uri())
    };
    if !is_known {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// What a stranger is told, or where a browser goes.
fn refusal(uri: &Uri) -> Response {
    if uri.path() == "/" {
        return Redirect::to("/login").into_response();
    }
    let problem = Problem::new(
        ProblemKind::Unauthorized,
        "the request has no token, or a wrong one",
        "Authorization: Bearer TOKEN, with the token of --token-file; browsers log in at /login",
    );
    let mut answer = problem.into_response();
    let scheme = HeaderValue::from_static("Bearer realm=\"uxfrm\"");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    answer
}

/// What says nothing about the gateway.
fn is_public(uri: &Uri) -> bool {
    let path = uri.path();
    ["/healthz", "/login"].contains(&path) || (path != "/" && page::has(path))
}

//! `/login`: a browser gives the token once and has a session for it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::extract::{Form, FromRequest as _};
use axum::http::header;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use serde::Deserialize;
use zeroize::Zeroize as _;

use crate::access::Access;
use crate::page;
use crate::problem::{Problem, ProblemKind};

/// Bytes of a login.
const LARGEST: usize = 4096;
/// How long its bytes may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the form sends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// The routes.
pub(crate) fn router(access: Arc<Access>) -> Router {
    let log_in = move |request: Request| log_in(access, request);
    let login = get(async || page::login()).post(log_in);
    Router::new().route("/login", login).layer(DefaultBodyLimit::max(LARGEST))
}

async fn log_in(access: Arc<Access>, request: Request) -> Result<Response, Problem> {
    let client = request.extensions().get().copied().unwrap_or_default();
    let read = tokio::time::timeout(PATIENCE, Form::<Login>::from_request(request, &()));
    let Ok(read) = read.await else {
        return Err(wrong(ProblemKind::BadRequest, "the form has not arrived"));
    };
    let Form(Login { mut token }) = read.map_err(|rejection| {
        let is_large = rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE;
        let kind = if is_large { ProblemKind::TooLarge } else { ProblemKind::BadRequest };
        wrong(kind, rejection.body_text())
    })?;
    let cookie = access.log_in(token.trim(), client);
    token.zeroize();
    match cookie {
        Some(cookie) => Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()),
        None => Err(wrong(ProblemKind::Unauthorized, "that is not the token of --token-file")),
    }
}

fn wrong(kind: ProblemKind, detail: impl Into<String>) -> Problem {
    Problem::new(kind, detail, "POST /login with token=TOKEN as a form")
}

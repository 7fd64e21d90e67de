//! What went wrong, as `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use uxfrm_control_client::stat;

use crate::answers;

/// Where kinds of problems are described.
const PAGE: &str = "https://github.com/uxfrm/uxfrm/blob/main/docs/web.md#";

/// What went wrong, and what would be right (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// The kind of problem, as an address where it is described.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The status code.
    pub status: u16,
    /// What was wrong this time.
    pub detail: String,
    /// What would be right, or what to try next.
    pub next: String,
}

/// Kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// A parameter is unknown, missing or wrong.
    BadRequest,
    /// No token, or a wrong one.
    Unauthorized,
    /// `Host` names another server.
    WrongHost,
    /// There is no such page.
    NotFound,
    /// Neither GET nor HEAD.
    MethodNotAllowed,
    /// The request is larger than any needs to be.
    TooLarge,
    /// The request's query is longer than any needs to be.
    QueryTooLong,
    /// The gateway gives an answer that can't be used.
    BadGateway,
    /// No gateway answers.
    NoGateway,
    /// Too many ask.
    Busy,
    /// There is no such thing yet.
    NotImplemented,
    /// A fault of this program.
    Internal,
}

impl ProblemKind {
    /// Its name in addresses, its words and its status code.
    const fn row(self) -> (&'static str, &'static str, StatusCode) {
        match self {
            Self::BadRequest => ("bad-request", "Bad request", StatusCode::BAD_REQUEST),
            Self::Unauthorized => ("unauthorized", "Token required", StatusCode::UNAUTHORIZED),
            Self::WrongHost => ("wrong-host", "Wrong host", StatusCode::MISDIRECTED_REQUEST),
            Self::NotFound => ("not-found", "Not found", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => {
                ("method-not-allowed", "Method not allowed", StatusCode::METHOD_NOT_ALLOWED)
            }
            Self::TooLarge => ("too-large", "Request too large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::QueryTooLong => ("query-too-long", "Query too long", StatusCode::URI_TOO_LONG),
            Self::BadGateway => ("bad-gateway", "Bad gateway", StatusCode::BAD_GATEWAY),
            Self::NoGateway => {
                ("no-gateway", "No gateway answers", StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::Busy => ("busy", "Too busy", StatusCode::SERVICE_UNAVAILABLE),
            Self::NotImplemented => {
                ("not-implemented", "Not implemented", StatusCode::NOT_IMPLEMENTED)
            }
            Self::Internal => ("internal", "Internal error", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

impl Problem {
    /// A problem: what was wrong, and what would be right.
    #[must_use]
    pub fn new(kind: ProblemKind, detail: impl Into<String>, next: impl Into<String>) -> Self {
        let (name, title, status) = kind.row();
        Self {
            kind: format!("{PAGE}{name}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            next: next.into(),
        }
    }
}

impl From<answers::Error> for Problem {
    fn from(error: answers::Error) -> Self {
        match &error {
            answers::Error::Gateway(gateway) => of_gateway(gateway),
            answers::Error::Busy | answers::Error::Greedy | answers::Error::Unread => {
                Self::new(ProblemKind::Busy, error.to_string(), "ask again in a second")
            }
            answers::Error::Lost => {
                Self::new(ProblemKind::Internal, error.to_string(), "see the log of uxfrm-web")
            }
        }
    }
}

fn of_gateway(error: &stat::Error) -> Problem {
    let (kind, next) = match error {
        stat::Error::Absent(_) => {
            (ProblemKind::NoGateway, "systemctl start uxfrm, or: uxfrm run CONFIG.toml")
        }
        stat::Error::Stranger(_) => {
            (ProblemKind::BadGateway, "uxfrm status, as root: it tells who listens")
        }
        stat::Error::NotAllowed => (
            ProblemKind::NoGateway,
            "`group = \"uxfrm-web\"`, or the group that uxfrm-web runs with, in [status] of the \
             gateway's configuration, and restart it",
        ),
        stat::Error::TurnedAway(_) => (ProblemKind::Busy, "ask again in a second"),
        stat::Error::Silent(_) => (ProblemKind::NoGateway, "systemctl status uxfrm"),
        stat::Error::WentAway(_) | stat::Error::Io(_) => {
            (ProblemKind::NoGateway, "ask again; then: systemctl status uxfrm")
        }
        stat::Error::OlderRelease => (ProblemKind::BadGateway, "uxfrm upgrade"),
        stat::Error::Protocol(_) | stat::Error::AnotherQuestion => {
            (ProblemKind::BadGateway, "uxfrm upgrade, and systemctl restart uxfrm-web")
        }
        stat::Error::Refused(refusal) => {
            let next = "/api/v1/openapi.json lists the parameters of each request";
            return Problem::new(ProblemKind::BadRequest, refusal.message.clone(), next);
        }
    };
    Problem::new(kind, error.to_string(), next)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain text in named fields can't fail.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut answer = (status, body).into_response();
        let json = HeaderValue::from_static("application/problem+json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

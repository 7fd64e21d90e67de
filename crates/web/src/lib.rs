//! `uxfrm web`: an HTTP API of the gateway that runs in this network namespace.
//!
//! A process of its own, `uxfrm-web`, without privileges, capabilities or keys. It asks the gateway
//! by its status socket alone, so it can do what `[status] group` may do: read. The gateway and the
//! program `uxfrm` link no HTTP.
//!
//! | module | content |
//! | --- | --- |
//! | [`access`] | `Host`, token, session |
//! | [`source`] | where documents come from |
//! | [`answers`] | answers for many clients at once: shared, bounded |
//! | [`api`] | `/api/v1/…` |
//! | [`events`] | `/api/v1/events`: what happens |
//! | [`metrics`], [`page`] | `/metrics`, and the files of the page |
//! | [`openapi`] | the description of all of it |
//! | [`problem`] | what went wrong, as RFC 9457 |
//! | [`sockets`], [`server`] | listeners; connections, within bounds |
//! | `shared_places` | places that clients share: connections, event streams |
//! | [`privileges`] | what is given up before it serves |
#![forbid(unsafe_code)]

pub mod access;
pub mod answers;
pub mod api;
pub mod events;
mod headers;
mod login;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod privileges;
pub mod problem;
pub mod server;
mod shared_places;
pub mod sockets;
pub mod source;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{map_request, map_response};
use axum::routing::get;

use access::Access;
use answers::GatewayAnswers;
use problem::{Problem, ProblemKind};
use source::Source;

/// Bytes of a query, all of whose parameters are short.
const QUERY_BYTES: usize = 1 << 10;

/// All routes, for documents of this source.
pub fn router(source: Arc<dyn Source>) -> Router {
    let answers = GatewayAnswers::new(source);
    Router::new()
        .merge(events::router(&answers))
        .merge(api::router())
        .merge(metrics::router())
        .merge(page::router())
        .route("/healthz", get(async || "ok\n"))
        .fallback(async || not_found())
        .method_not_allowed_fallback(async || method_not_allowed())
        .layer(map_request(short_query))
        .with_state(answers)
}

/// Those routes behind what a listener asks of its clients.
pub fn guarded(router: Router, access: &Arc<Access>) -> Router {
    access.guard(router).layer(map_response(async |answer| headers::add(answer)))
}

/// Lets requests pass whose query is short, before anything of them is kept.
async fn short_query(request: Request) -> Result<Request, Problem> {
    let bytes = request.uri().query().map_or(0, str::len);
    if bytes <= QUERY_BYTES {
        return Ok(request);
    }
    let detail = format!("the query has {bytes} bytes; {QUERY_BYTES} bytes are the most");
    let next = "/api/v1/openapi.json lists the parameters of each request";
    Err(Problem::new(ProblemKind::QueryTooLong, detail, next))
}

fn not_found() -> Problem {
    let next = "/api/v1/openapi.json lists all there is";
    Problem::new(ProblemKind::NotFound, "there is no such page", next)
}

fn method_not_allowed() -> Problem {
    Problem::new(ProblemKind::MethodNotAllowed, "this server only tells", "GET or HEAD")
}

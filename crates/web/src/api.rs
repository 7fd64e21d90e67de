//! `GET /api/v1/…`: the gateway's documents.

mod flow;
mod query;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use uxfrm_status::counters::CounterReport;
use uxfrm_status::drops::{DropQuery, DropReport, DropTallyQuery, DropTallyReport};
use uxfrm_status::explanation::FlowExplanation;
use uxfrm_status::gateway::{GatewayStatus, StatusQuery};
use uxfrm_status::protocol::StatusRequest;
use uxfrm_status::workers::WorkerReport;

use crate::answers::GatewayAnswers;
use crate::openapi;
use crate::problem::Problem;
pub(crate) use flow::FlowParameters;
pub(crate) use query::{NoParameters, Query};
use query::{misfit, wrong};

/// The routes.
pub fn router() -> Router<GatewayAnswers> {
    Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/counters", get(counters))
        .route("/api/v1/drops", get(drops))
        .route("/api/v1/drop-tallies", get(drop_tallies))
        .route("/api/v1/why", get(why))
        .route("/api/v1/workers", get(workers))
        .route("/api/v1/openapi.json", get(document))
}

/// The gateway and its tunnels, the worst first; with `after`, by name.
#[utoipa::path(get, path = "/api/v1/status", params(StatusQuery), tag = "gateway", responses(
    (status = 200, description = "The gateway and its tunnels", body = GatewayStatus),
    openapi::Problems
))]
pub(crate) async fn status(
    State(answers): State<GatewayAnswers>,
    Query(query): Query<StatusQuery>,
) -> Result<Response, Problem> {
    within_most("limit", query.limit)?;
    tell(answers, StatusRequest::Status(query)).await
}

/// What was dropped, by the kernel's names and by reason; flow caches.
#[utoipa::path(get, path = "/api/v1/counters", tag = "gateway", responses(
    (status = 200, description = "Counters", body = CounterReport),
    openapi::Problems
))]
pub(crate) async fn counters(
    State(answers): State<GatewayAnswers>,
    Query(NoParameters {}): Query<NoParameters>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::Counters).await
}

/// Packets that were dropped: of the last 1,024 records, the oldest first.
#[utoipa::path(get, path = "/api/v1/drops", params(DropQuery), tag = "gateway", responses(
    (status = 200, description = "Dropped packets", body = DropReport),
    openapi::Problems
))]
pub(crate) async fn drops(
    State(answers): State<GatewayAnswers>,
    Query(query): Query<DropQuery>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::Drops(query)).await
}

/// How many packets of each state, policy or device were dropped.
#[utoipa::path(get, path = "/api/v1/drop-tallies", params(DropTallyQuery), tag = "gateway", responses(
    (status = 200, description = "Counts of dropped packets", body = DropTallyReport),
    openapi::Problems
))]
pub(crate) async fn drop_tallies(
    State(answers): State<GatewayAnswers>,
    Query(query): Query<DropTallyQuery>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::DropTallies(query)).await
}

/// What a packet would meet, and why: as `uxfrm why -j`.
#[utoipa::path(get, path = "/api/v1/why", params(FlowParameters), tag = "gateway", responses(
    (status = 200, description = "What the packet would meet", body = FlowExplanation),
    openapi::Problems
))]
pub(crate) async fn why(
    State(answers): State<GatewayAnswers>,
    Query(parameters): Query<FlowParameters>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::Why(parameters.query()?)).await
}

/// Workers, their ports, offload devices.
#[utoipa::path(get, path = "/api/v1/workers", tag = "gateway", responses(
    (status = 200, description = "Workers and devices", body = WorkerReport),
    openapi::Problems
))]
pub(crate) async fn workers(
    State(answers): State<GatewayAnswers>,
    Query(NoParameters {}): Query<NoParameters>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::Workers).await
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "server", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object),
    openapi::Problems
))]
pub(crate) async fn document() -> Response {
    json(openapi::text().into())
}

/// Lets a number of tunnels pass that an answer may have.
pub(crate) fn within_most(name: &str, number: Option<u32>) -> Result<(), Problem> {
    match number {
        Some(number) if number > StatusQuery::MOST => Err(wrong(misfit(name, number))),
        Some(_) | None => Ok(()),
    }
}

async fn tell(answers: GatewayAnswers, request: StatusRequest) -> Result<Response, Problem> {
    let answer = answers.ask(request).await?;
    Ok(json(answers.json(answer).await?))
}

fn json(text: bytes::Bytes) -> Response {
    let mut answer = text.into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

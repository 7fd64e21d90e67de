//! `GET /api/v1/…`: the gateway's documents.

mod flow;
mod query;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use uxfrm_control_client::stat;
use uxfrm_status::counters::CounterReport;
use uxfrm_status::dropped::{self, DroppedPacket};
use uxfrm_status::drops::{DropQuery, DropReport, DropTallyQuery, DropTallyReport};
use uxfrm_status::explanation::FlowExplanation;
use uxfrm_status::gateway::{GatewayStatus, StatusQuery};
use uxfrm_status::protocol::StatusRequest;
use uxfrm_status::workers::WorkerReport;

use crate::answers::{self, GatewayAnswers};
use crate::openapi;
use crate::problem::{Problem, ProblemKind};
pub(crate) use flow::FlowParameters;
use flow::FlowQuestion;
pub(crate) use query::{NoParameters, Query};
pub(crate) use query::{misfit, wrong};

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
    answers: GatewayAnswers,
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
    answers: GatewayAnswers,
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
    answers: GatewayAnswers,
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
    answers: GatewayAnswers,
    Query(query): Query<DropTallyQuery>,
) -> Result<Response, Problem> {
    tell(answers, StatusRequest::DropTallies(query)).await
}

/// What a packet would meet, and why: as `uxfrm why -j`.
///
/// With `drop`, what one met that was dropped: as `uxfrm why -j --drop N`.
#[utoipa::path(get, path = "/api/v1/why", params(FlowParameters), tag = "gateway", responses(
    (status = 200, description = "What the packet would meet", body = FlowExplanation),
    openapi::NoSuchDrop,
    openapi::Problems
))]
pub(crate) async fn why(
    answers: GatewayAnswers,
    Query(parameters): Query<FlowParameters>,
) -> Result<Response, Problem> {
    match parameters.question()? {
        FlowQuestion::Flow(query) => tell(answers, StatusRequest::Why(query)).await,
        FlowQuestion::Drop(number) => tell_drop(&answers, number).await,
    }
}

/// Workers, their ports, offload devices.
#[utoipa::path(get, path = "/api/v1/workers", tag = "gateway", responses(
    (status = 200, description = "Workers and devices", body = WorkerReport),
    openapi::Problems
))]
pub(crate) async fn workers(
    answers: GatewayAnswers,
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

/// As `uxfrm why -j --drop N`.
async fn tell_drop(answers: &GatewayAnswers, number: u64) -> Result<Response, Problem> {
    let answer = answers.drops(DroppedPacket::request(number)).await?;
    let report = answer.drops().ok_or_else(other_answer)?;
    let dropped = DroppedPacket::find(report, number).map_err(no_such_packet)?;
    let answer = answers.why(dropped.query().map_err(no_such_packet)?).await?;
    let mut explanation = answer.why().ok_or_else(other_answer)?.clone();
    dropped.tell(&mut explanation);
    // Its maps have text as keys, the only thing that could fail.
    let text = move || serde_json::to_vec(&explanation).unwrap_or_default();
    Ok(json(answers.written(text).await?))
}

fn no_such_packet(error: dropped::Error) -> Problem {
    Problem::new(ProblemKind::NotFound, error.to_string(), "/api/v1/drops lists the last 1,024")
}

fn other_answer() -> Problem {
    answers::Error::Gateway(stat::Error::AnotherQuestion.into()).into()
}

fn json(text: bytes::Bytes) -> Response {
    let mut answer = text.into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

//! `GET /metrics`: figures for Prometheus.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use crate::answers::GatewayAnswers;
use crate::problem::{Problem, ProblemKind};

/// The route.
pub fn router() -> Router<GatewayAnswers> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(_answers): State<GatewayAnswers>) -> Result<Response, Problem> {
    Err(Problem::new(
        ProblemKind::NotImplemented,
        "this release has no metrics",
        "/api/v1/status and /api/v1/counters have the figures",
    ))
}

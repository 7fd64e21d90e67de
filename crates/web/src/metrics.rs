//! `GET /metrics`: figures for Prometheus, in its text format or in OpenMetrics, as `Accept` asks.
//!
//! `?tunnels=N` sets how many tunnels have series of their own. Answers are shared, and pages count
//! with them: however many clients read slowly, memory is bounded.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Deserialize;
use uxfrm_metrics::figures::{DEFAULT_TUNNELS, Figures};
use uxfrm_metrics::format::TextFormat;
use uxfrm_metrics::page::page;

use crate::answers::{Error, GatewayAnswer, GatewayAnswers};
use crate::api::{Query, within_most};
use crate::openapi;
use crate::problem::Problem;

/// What a scrape may ask for.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScrapeParameters {
    /// Tunnels that have series of their own at the most: 1000 without, and 10000 are the most.
    #[param(maximum = 10_000)]
    tunnels: Option<u32>,
}

/// The route.
pub fn router() -> Router<GatewayAnswers> {
    Router::new().route("/metrics", get(metrics))
}

/// Figures for Prometheus, also in OpenMetrics: the series are described in docs/metrics.md.
#[utoipa::path(get, path = "/metrics", params(ScrapeParameters), tag = "server", responses(
    (status = 200, description = "Series; `uxfrm_up` is 0 where no gateway answers",
        content((String = "text/plain"), (String = "application/openmetrics-text"))),
    openapi::Problems
))]
pub(crate) async fn metrics(
    answers: GatewayAnswers,
    Query(parameters): Query<ScrapeParameters>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    within_most("tunnels", parameters.tunnels)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = TextFormat::chosen(accept);
    let told = match told(&answers, parameters.tunnels.unwrap_or(DEFAULT_TUNNELS)).await {
        Ok(told) => Some(told),
        Err(Error::Gateway(_)) => None,
        Err(error @ (Error::Busy | Error::Greedy | Error::Unread | Error::Lost)) => {
            return Err(error.into());
        }
    };
    let text = answers.written(move || page(figures(told), format).into_bytes()).await?;
    let mut answer = text.into_response();
    let headers = answer.headers_mut();
    let content_type = HeaderValue::from_static(format.content_type());
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(answer)
}

/// An answer to each of [`Figures::requests`].
type PageAnswers = [Arc<GatewayAnswer>; 4];

/// What the gateway answers to all that a page needs.
async fn told(answers: &GatewayAnswers, tunnels: u32) -> Result<PageAnswers, Error> {
    let [status, counters, devices, workers] = Figures::requests(tunnels);
    Ok([
        answers.ask(status).await?,
        answers.ask(counters).await?,
        answers.ask(devices).await?,
        answers.ask(workers).await?,
    ])
}

fn figures(told: Option<PageAnswers>) -> Figures {
    let figures = told.and_then(|[status, counters, devices, workers]| {
        let (status, counters) = (status.status()?.clone(), counters.counters()?.clone());
        let (devices, workers) = (devices.drop_tallies()?.clone(), workers.workers()?.clone());
        Some(Figures::new(status, counters, devices, workers))
    });
    figures.unwrap_or_else(Figures::silent)
}

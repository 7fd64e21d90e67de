//! Query parameters, refused with a [`Problem`].

use axum::extract::{FromRequestParts, Query as AxumQuery};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::problem::{Problem, ProblemKind};

/// Query parameters of a request.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

/// None.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        match AxumQuery::<T>::try_from_uri(&parts.uri) {
            Ok(AxumQuery(query)) => Ok(Self(query)),
            Err(error) => Err(wrong(error.body_text())),
        }
    }
}

/// A parameter is wrong.
pub(super) fn wrong(detail: impl Into<String>) -> Problem {
    let next = "/api/v1/openapi.json lists the parameters of each request";
    Problem::new(ProblemKind::BadRequest, detail, next)
}

//! Query parameters, refused with a [`Problem`].

use std::fmt;

use axum::extract::{FromRequestParts, Query as AxumQuery};
use axum::http::Uri;
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
            Err(error) => Err(wrong(words(&parts.uri, &error.body_text()))),
        }
    }
}

/// What each parameter takes.
const TAKEN: [(&str, &str); 18] = [
    ("peer", "an IP address or a prefix, as 192.0.2.7 or 192.0.2.0/24"),
    ("limit", "a number up to 10000"),
    ("tunnels", "a number up to 10000"),
    ("order", "name or traffic"),
    ("from", "a number, the `next` of the answer before"),
    ("by", "sa, policy or device"),
    ("drop", "the number of a record that /api/v1/drops lists"),
    ("seconds", "a number up to 86400"),
    ("way", "in or out"),
    ("source", "an IP address"),
    ("destination", "an IP address"),
    ("esp_source", "an IP address"),
    ("esp_destination", "an IP address"),
    ("source_port", "a number up to 65535"),
    ("destination_port", "a number up to 65535"),
    ("protocol", "a number up to 255, or icmp, ipip, tcp, udp, gre, esp, ipv6-icmp or sctp"),
    ("mark", "a number of 32 bits, in decimal or as 0x10"),
    ("spi", "a number of 32 bits, in decimal or as 0x1001"),
];

/// What is wrong with a query, in words of who asks: `fault` speaks of Rust's types.
fn words(uri: &Uri, fault: &str) -> String {
    let fault = fault.strip_prefix("Failed to deserialize query string: ").unwrap_or(fault);
    // The fault of a value comes behind the parameter's name, which stands alone where it is all.
    let (place, fault) = fault.split_once(": ").unwrap_or(("", fault));
    let named = fault.split('`').nth(1).unwrap_or_default();
    if fault.starts_with("missing field") {
        return is_missing(named);
    }
    if fault.starts_with("duplicate field") {
        return format!("the parameter {named} is there twice");
    }
    if fault.starts_with("unknown field") {
        let known = fault.split_once("expected ").map_or("none", |(_, known)| known);
        let known = known.trim_start_matches("one of ").replace('`', "");
        return format!("there is no parameter {named} here; there are: {known}");
    }
    match AxumQuery::<Vec<(String, String)>>::try_from_uri(uri) {
        Ok(AxumQuery(pairs)) => match pairs.into_iter().find(|(name, _)| name == place) {
            Some((name, value)) => misfit(&name, &value),
            None => fault.to_owned(),
        },
        Err(_no_pairs) => fault.to_owned(),
    }
}

/// A parameter is needed and not there.
pub(crate) fn missing(name: &str) -> Problem {
    wrong(is_missing(name))
}

fn is_missing(name: &str) -> String {
    format!("the parameter {name} is missing: {}", taken(name))
}

/// That a parameter's value is not what it takes.
pub(crate) fn misfit(name: &str, value: impl fmt::Debug) -> String {
    format!("{name} is {value:?}: {}", taken(name))
}

fn taken(name: &str) -> String {
    let taken = TAKEN.iter().find(|(known, _)| *known == name);
    taken.map_or_else(|| "no such value".to_owned(), |(_, taken)| format!("it takes {taken}"))
}

/// A parameter is wrong.
pub(crate) fn wrong(detail: impl Into<String>) -> Problem {
    let next = "/api/v1/openapi.json lists the parameters of each request";
    Problem::new(ProblemKind::BadRequest, detail, next)
}

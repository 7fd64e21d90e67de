//! Header fields that every answer has: browsers run nothing of other hosts, show it in no frame,
//! guess no types, tell nobody where they came from, and keep nothing.

use axum::http::HeaderValue;
use axum::http::header::{self, HeaderName};
use axum::response::Response;

/// Nothing but files of this server; no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; font-src 'self'; manifest-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const FIELDS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Adds them.
pub(crate) fn add(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in FIELDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

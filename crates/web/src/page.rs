//! The page: files of `crates/web/page/`, which are part of the program. They say nothing about the
//! gateway, so they are given without a token; what they show they ask `/api/v1/` for.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

/// A file that is part of the program.
struct PageFile {
    /// Where it is asked for.
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A row: path, content type, file below `crates/web/page/`.
macro_rules! file {
    ($path:literal, $content_type:expr, $file:literal) => {
        PageFile {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../page/", $file)),
        }
    };
}

/// The page where a browser gives the token.
static LOGIN: PageFile = file!("/login", HTML, "login.html");

/// All files.
static FILES: &[PageFile] = &[
    file!("/", HTML, "index.html"),
    file!("/icon.svg", "image/svg+xml", "icon.svg"),
    file!("/style.css", "text/css; charset=utf-8", "style.css"),
    file!("/advice.js", SCRIPT, "advice.js"),
    file!("/api.js", SCRIPT, "api.js"),
    file!("/app.js", SCRIPT, "app.js"),
    file!("/chart.js", SCRIPT, "chart.js"),
    file!("/dom.js", SCRIPT, "dom.js"),
    file!("/format.js", SCRIPT, "format.js"),
    file!("/login.js", SCRIPT, "login.js"),
    file!("/picker.js", SCRIPT, "picker.js"),
    file!("/rates.js", SCRIPT, "rates.js"),
    file!("/sample.js", SCRIPT, "sample.js"),
    file!("/stream.js", SCRIPT, "stream.js"),
    file!("/views/drops.js", SCRIPT, "views/drops.js"),
    file!("/views/events.js", SCRIPT, "views/events.js"),
    file!("/views/states.js", SCRIPT, "views/states.js"),
    file!("/views/tunnels.js", SCRIPT, "views/tunnels.js"),
    file!("/views/why.js", SCRIPT, "views/why.js"),
    file!("/views/workers.js", SCRIPT, "views/workers.js"),
];

/// The routes.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let serve = move |headers: HeaderMap| async move { file.answer(&headers) };
        router.route(file.path, get(serve))
    })
}

/// Whether there is such a file.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// The page where a browser gives the token.
pub(crate) fn login() -> Response {
    LOGIN.answer(&HeaderMap::new())
}

impl PageFile {
    fn answer(&self, asked: &HeaderMap) -> Response {
        let tag = self.tag();
        let known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag);
        let status = if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let body = if known { Body::empty() } else { Body::from(self.bytes) };
        let headers: [(HeaderName, HeaderValue); 3] = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.content_type)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::ETAG, tag),
        ];
        (status, headers, body).into_response()
    }

    fn tag(&self) -> HeaderValue {
        let mut hasher = DefaultHasher::new();
        self.bytes.hash(&mut hasher);
        let tag = format!("\"{:016x}\"", hasher.finish());
        HeaderValue::from_str(&tag).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
    }
}

//! The OpenAPI document: docs/openapi.json, and `GET /api/v1/openapi.json`.

use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{RefOr, Response, ResponseBuilder, content::ContentBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, ToSchema as _};

use uxfrm_status::drops::{DropScope, DropStatus};
use uxfrm_status::explanation::FlowWay;
use uxfrm_status::openapi::{AddressText, PrefixText};

use crate::access::COOKIE;
use crate::events::{ChangedTunnel, GatewayTurn, Heartbeat, MissedEvents};
use crate::problem::Problem;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "uxfrm web",
        version = "1",
        description = "What a running gateway of uxfrm tells about itself. Read only.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    paths(
        crate::api::status,
        crate::api::counters,
        crate::api::drops,
        crate::api::drop_tallies,
        crate::api::why,
        crate::api::workers,
        crate::api::document,
        crate::events::events,
        crate::metrics::metrics,
    ),
    components(schemas(
        Problem,
        AddressText,
        PrefixText,
        DropScope,
        DropStatus,
        FlowWay,
        ChangedTunnel,
        GatewayTurn,
        Heartbeat,
        MissedEvents,
    )),
    modifiers(&Token),
)]
struct Document;

/// How a client shows that it knows the token, where the server has one.
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token of `--token-file`."))
            .build();
        let cookie = ApiKeyValue::with_description(COOKIE, "A browser's, by `POST /login`.");
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        let none = Vec::<String>::new;
        document.security = Some(vec![
            SecurityRequirement::new("token", none()),
            SecurityRequirement::new("session", none()),
            SecurityRequirement::default(),
        ]);
    }
}

/// The document as text, with an end of line.
#[must_use]
pub fn text() -> String {
    // Its maps have text as keys, the only thing that could fail.
    let text = Document::openapi().to_pretty_json().unwrap_or_default();
    // OpenAPI's registry of formats writes them so; utoipa has a hyphen there.
    text.replace("\"format\": \"u-int", "\"format\": \"uint") + "\n"
}

/// Answers that every document may have.
pub(crate) struct Problems;

impl IntoResponses for Problems {
    fn responses() -> std::collections::BTreeMap<String, RefOr<Response>> {
        let all = [
            ("400", "A parameter is unknown, missing or wrong"),
            ("401", "The server has a token, and the request none or another"),
            ("414", "The query has more than 1,024 bytes"),
            ("421", "`Host` names another server"),
            ("502", "The gateway gives an answer that can't be used"),
            ("503", "No gateway answers, or too many ask"),
        ];
        all.into_iter().map(|(code, words)| (code.to_owned(), problem(words))).collect()
    }
}

/// What `why` may answer besides.
pub(crate) struct NoSuchDrop;

impl IntoResponses for NoSuchDrop {
    fn responses() -> std::collections::BTreeMap<String, RefOr<Response>> {
        let words = "`drop`: no record has this number, or its packet had no addresses";
        [("404".to_owned(), problem(words))].into()
    }
}

fn problem(words: &str) -> RefOr<Response> {
    let schema = utoipa::openapi::Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description(words)
        .content("application/problem+json", content)
        .build()
        .into()
}

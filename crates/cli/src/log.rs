//! Logging: filtered by `RUST_LOG`, `info` and above without it; to stderr as text or JSON, or to
//! the journal.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::arguments::LogFormat;

/// Starts logging for the whole process. Call it once, before anything else. Without a format it is
/// text.
pub(crate) fn start(format: Option<LogFormat>) {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let (layer, fault) = layer(format.unwrap_or(LogFormat::Text));
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    if let Some(error) = fault {
        tracing::warn!(%error, "the journal does not answer: the log goes to stderr as text");
    }
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer of a format, and why it is another one.
fn layer(format: LogFormat) -> (AnyLayer, Option<io::Error>) {
    match format {
        LogFormat::Text => (text(), None),
        LogFormat::Json => {
            let json = fmt::layer().json().flatten_event(true).with_writer(io::stderr);
            (Box::new(json.with_target(false)), None)
        }
        LogFormat::Journald => match tracing_journald::layer() {
            Ok(journal) => {
                (Box::new(journal.with_field_prefix(Some(FIELD_PREFIX.to_owned()))), None)
            }
            Err(error) => (text(), Some(error)),
        },
    }
}

/// Fields of journal entries: `UXFRM_SPI`, `UXFRM_DESTINATION`.
const FIELD_PREFIX: &str = "UXFRM";

fn text() -> AnyLayer {
    let text = fmt::layer().with_writer(io::stderr).with_target(false);
    Box::new(text.with_ansi(io::stderr().is_terminal()))
}

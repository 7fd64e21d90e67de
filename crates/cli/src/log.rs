//! Logging: filtered by `RUST_LOG`, `info` and above without it; to stderr as text or JSON, or to
//! the journal.

use std::io::{self, IsTerminal};

use nix::sys::stat::fstat;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::arguments::LogFormat;

/// What systemd tells services of which stderr is the journal: device and inode of it.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Starts logging for the whole process. Call it once, before anything else. Without a format it is
/// text, or entries with fields where stderr is the journal.
pub(crate) fn start(format: Option<LogFormat>) {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let chosen = format.unwrap_or_else(|| match is_journal() {
        true => LogFormat::Journald,
        false => LogFormat::Text,
    });
    let (layer, fault) = layer(chosen);
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

/// Whether stderr is the journal.
fn is_journal() -> bool {
    let told = std::env::var(JOURNAL).ok();
    let own = fstat(io::stderr()).ok().map(|stat| (stat.st_dev, stat.st_ino));
    told.zip(own).is_some_and(|(told, own)| is_stream(&told, own))
}

/// Whether `JOURNAL_STREAM` names this device and inode.
fn is_stream(told: &str, own: (u64, u64)) -> bool {
    let pair = told.split_once(':').map(|(device, inode)| (device.parse(), inode.parse()));
    pair == Some((Ok(own.0), Ok(own.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_is_known_by_device_and_inode() {
        for (told, own, expected) in [
            ("8:4711", (8, 4711), true),
            ("8:4711", (8, 4712), false),
            ("9:4711", (8, 4711), false),
            ("", (8, 4711), false),
            ("8", (8, 4711), false),
            ("8:x", (8, 4711), false),
        ] {
            assert_eq!(is_stream(told, own), expected, "{told}");
        }
    }
}

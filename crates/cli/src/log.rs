//! Logging: filtered by `RUST_LOG`, `info` and above without it; to stderr as text or JSON, or to
//! the journal.
//!
//! A gateway's lines go through a bounded [queue], so that whoever reads the log does not hold up
//! the thread that writes a line.

mod journal;
mod level;
mod queue;
mod stderr;

use std::io::{self, IsTerminal};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::arguments::LogFormat;
use journal::{JournalLayer, JournalSocket};
use queue::LogQueue;
pub(crate) use queue::LogThread;
use stderr::{LineForm, StderrLines};

/// Starts logging to stderr as text, for commands that end by themselves. Call it once, before
/// anything else.
pub(crate) fn start() {
    begin(text(io::stderr), None);
}

/// Starts logging for a gateway; call it once, before anything else. Lines are written as long as
/// what is returned lives.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start_queued(format: LogFormat) -> io::Result<LogThread> {
    let (journal, fault) = match (format == LogFormat::Journald).then(JournalSocket::open) {
        Some(Ok(journal)) => (Some(journal), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let (layer, thread) = match journal {
        Some(journal) => {
            let (queue, thread) = queue::start(journal)?;
            (JournalLayer::new(queue).boxed(), thread)
        }
        None if format == LogFormat::Json => {
            let (queue, thread) = queue::start(StderrLines::open(LineForm::Json)?)?;
            (json(queue), thread)
        }
        None => {
            let (queue, thread) = queue::start(StderrLines::open(LineForm::Text)?)?;
            (text(queue), thread)
        }
    };
    begin(layer, fault);
    Ok(thread)
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn begin(layer: AnyLayer, fault: Option<io::Error>) {
    let (filter, advice) = level::from_environment();
    let filter = level::with_ready(filter);
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    if let Some(advice) = advice {
        tracing::warn!("{advice}");
    }
    if let Some(error) = fault {
        tracing::warn!(%error, "the journal does not answer: the log goes to stderr as text");
    }
}

fn json(queue: LogQueue) -> AnyLayer {
    fmt::layer().json().flatten_event(true).with_writer(queue).with_target(false).boxed()
}

fn text(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) -> AnyLayer {
    let text = fmt::layer().with_writer(writer).with_target(false);
    text.with_ansi(io::stderr().is_terminal()).boxed()
}

//! Entries of the journal with fields (`systemd.journal-fields(7)`), in its native protocol.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::queue::{LineSink, LogQueue, lost_words};

/// Where the journal listens.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Fields of our own: `UXFRM_SPI`, `UXFRM_DESTINATION`.
const FIELD_PREFIX: &str = "UXFRM_";

/// `SYSLOG_IDENTIFIER`.
const IDENTIFIER: &str = "uxfrm";

/// A socket that sends entries to the journal.
#[derive(Debug)]
pub(super) struct JournalSocket(UnixDatagram);

impl JournalSocket {
    /// A socket to a journal that listens.
    ///
    /// # Errors
    /// The kernel's when none does.
    pub(super) fn open() -> io::Result<Self> {
        UnixDatagram::unbound()?.connect(JOURNAL)?;
        UnixDatagram::unbound().map(Self)
    }
}

impl LineSink for JournalSocket {
    fn write_line(&mut self, entry: &[u8]) {
        // By name each time: a journal that comes back has a socket of its own.
        let _unheard = self.0.send_to(entry, JOURNAL);
    }

    fn lost(&self, count: u64) -> Vec<u8> {
        let mut entry = Entry::of(Level::WARN);
        entry.field("MESSAGE", lost_words(count));
        entry.0
    }
}

/// Makes an entry of each event.
#[derive(Debug)]
pub(super) struct JournalLayer(LogQueue);

impl JournalLayer {
    pub(super) const fn new(queue: LogQueue) -> Self {
        Self(queue)
    }
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        let mut entry = Entry::of(*about.level());
        entry.field("TARGET", about.target());
        if let Some(file) = about.file() {
            entry.field("CODE_FILE", file);
        }
        if let Some(line) = about.line() {
            entry.field("CODE_LINE", line);
        }
        event.record(&mut entry);
        self.0.put(&entry.0);
    }
}

/// Fields, each its name, the length of its value and that.
struct Entry(Vec<u8>);

impl Entry {
    fn of(level: Level) -> Self {
        let mut entry = Self(Vec::with_capacity(256));
        entry.field("PRIORITY", priority(level));
        entry.field("SYSLOG_IDENTIFIER", IDENTIFIER);
        entry
    }

    fn field(&mut self, name: &str, value: impl fmt::Display) {
        let mut text = String::new();
        // A string takes all.
        let _written = write!(text, "{value}");
        self.0.extend(name.as_bytes());
        self.0.push(b'\n');
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self.0.push(b'\n');
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(&name(field.name()), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(&name(field.name()), format_args!("{value:?}"));
    }
}

/// The journal takes upper case, digits and underscores.
fn name(field: &str) -> String {
    if field == "message" {
        return "MESSAGE".to_owned();
    }
    let letter = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
    };
    FIELD_PREFIX.chars().chain(field.chars().map(letter)).collect()
}

/// What `syslog(3)` calls a level: `info` is a notice, so that `debug` is above the journal's own.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 5,
        Level::DEBUG => 6,
        Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_several_lines_is_one_field() {
        let mut entry = Entry::of(Level::ERROR);
        entry.field("MESSAGE", "a\nUXFRM_SPI=0");
        let head = b"PRIORITY\n\x01\0\0\0\0\0\0\x003\nSYSLOG_IDENTIFIER\n\x05\0\0\0\0\0\0\0uxfrm\n";
        let message = b"MESSAGE\n\x0d\0\0\0\0\0\0\0a\nUXFRM_SPI=0\n";
        assert_eq!(entry.0, [&head[..], message].concat());
    }

    #[test]
    fn field_names_are_the_journals() {
        for (field, is) in [("message", "MESSAGE"), ("spi", "UXFRM_SPI"), ("a.b-c", "UXFRM_A_B_C")]
        {
            assert_eq!(name(field), is);
        }
    }
}

//! Lines of text or JSON on stderr.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use super::queue::{LineSink, lost_words};

/// Form of a line that the queue itself writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineForm {
    /// As text.
    Text,
    /// As a JSON object.
    Json,
}

/// A descriptor of its own: who prints to [`io::stderr`] does not wait for its lock while a line
/// of the log is not read.
#[derive(Debug)]
pub(super) struct StderrLines {
    file: File,
    form: LineForm,
}

impl StderrLines {
    /// A descriptor for what stderr is now.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(form: LineForm) -> io::Result<Self> {
        let file = io::stderr().as_fd().try_clone_to_owned()?.into();
        Ok(Self { file, form })
    }
}

impl LineSink for StderrLines {
    fn write_line(&mut self, line: &[u8]) {
        let _unheard = self.file.write_all(line);
    }

    fn lost(&self, count: u64) -> Vec<u8> {
        let words = lost_words(count);
        let line = match self.form {
            LineForm::Text => format!("{words}\n"),
            LineForm::Json => {
                format!("{}\n", serde_json::json!({ "level": "WARN", "message": words }))
            }
        };
        line.into()
    }
}

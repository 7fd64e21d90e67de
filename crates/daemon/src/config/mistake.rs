//! What is wrong with a configuration's text, and where.

use std::fmt;

use super::complaint;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The text's name.
    pub source_name: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source_name, line, column, message } = self;
        write!(out, "{source_name}:{line}:{column}: {message}")
    }
}

/// The same, before lines were counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fault {
    /// The byte at which it begins.
    pub(super) place: usize,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn of_toml(error: &toml::de::Error) -> Self {
        let place = error.span().map_or(0, |span| span.start);
        Self { place, message: complaint::plain(error.message()) }
    }

    pub(super) fn told(self, source: &str, text: &str) -> Mistake {
        let (line, column) = place(text, self.place);
        Mistake { source_name: source.to_owned(), line, column, message: self.message }
    }
}

/// Line and column of a byte, from 1.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

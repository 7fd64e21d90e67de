//! Errors in a configuration's text, with line and column, in words of the file: serde and toml
//! name Rust's types.

use std::fmt;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The text's name.
    pub source_name: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source_name, line, column, message } = self;
        write!(out, "{source_name}:{line}:{column}: {message}")
    }
}

/// The same, before lines were counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RawDiagnostic {
    /// The byte at which it begins.
    pub(super) place: usize,
    pub(super) message: String,
}

impl RawDiagnostic {
    pub(super) fn of_toml(error: &toml::de::Error) -> Self {
        let place = error.span().map_or(0, |span| span.start);
        Self { place, message: plain(error.message()) }
    }

    pub(super) fn told(self, source: &str, text: &str) -> Diagnostic {
        let (line, column) = place(text, self.place);
        Diagnostic { source_name: source.to_owned(), line, column, message: self.message }
    }
}

/// Line and column of a byte, from 1.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

/// Their names for what they expected or found, and what to call it.
const WORDS: [(&str, &str); 14] = [
    ("i64", "a whole number"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a nonzero u64", "a whole number of 1 or more"),
    ("a boolean", "true or false"),
    ("a string", "text in quotes"),
    ("path string", "a path in quotes"),
    ("a sequence", "a list in square brackets"),
    ("struct Families", "a section with ipv4 and ipv6"),
    ("struct Words", "a table, as in { mode = \"auto\" }"),
    ("invalid type: map", "invalid type: a table"),
    ("invalid type: sequence", "invalid type: a list"),
    ("wanted string or table", "expected text in quotes"),
];

/// A message of serde's or toml's for whoever wrote the file.
fn plain(message: &str) -> String {
    match message.rsplit_once(", expected ") {
        Some((found, expected)) => format!("{}, expected {}", called(found), called(expected)),
        None => called(message).to_owned(),
    }
}

fn called(words: &str) -> &str {
    WORDS.iter().find(|(theirs, _)| *theirs == words).map_or(words, |(_, ours)| ours)
}

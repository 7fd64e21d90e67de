//! What can be wrong with a line, in iproute2's words where it has some; and where.

use std::{fmt, io};

use super::{cursor::Fault, secret::Shown};

/// A place in a text; both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// What is wrong with a line. No variant holds a byte of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A word that does not belong here.
    #[error("{word} is unknown; expected {}", one_of(.expected))]
    Unknown {
        /// The word.
        word: Shown,
        /// The words that do.
        expected: Vec<&'static str>,
    },
    /// A value that its keyword does not take.
    #[error("argument {word} is wrong: {what}; expected {expected}")]
    Wrong {
        /// The value.
        word: Shown,
        /// What is wrong with it.
        what: String,
        /// What would be right.
        expected: String,
    },
    /// A word that iproute2 would take for something else.
    #[error("argument {word} is wrong: {what}")]
    Misplaced {
        /// The word.
        word: Shown,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No address or prefix, or not of the family that was asked for.
    #[error("{family} {kind} is expected rather than {word}")]
    Address {
        /// `inet`, `inet6` or `any valid`.
        family: &'static str,
        /// `address` or `prefix`.
        kind: &'static str,
        /// The value.
        word: Shown,
    },
    /// The line ends where a value or word has to come.
    #[error("command line is not complete: {after} takes {takes}")]
    Incomplete {
        /// The last word understood.
        after: Shown,
        /// What has to come behind it.
        takes: String,
    },
    /// A part without which the command says nothing.
    #[error("argument \"{0}\" is required")]
    Required(&'static str),
    /// A part that may be there once and is there twice.
    #[error("duplicate \"{part}\": {word} is the second value")]
    Duplicate {
        /// The part.
        part: &'static str,
        /// The second one.
        word: Shown,
    },
    /// Parts that don't go together.
    #[error("{0}")]
    Rule(String),
    /// A name or key that no algorithm takes.
    #[error("{what}: {detail}; {algorithm} takes {expected}")]
    Algorithm {
        /// The kernel's words.
        what: String,
        /// What was given.
        detail: String,
        /// `enc`, `auth`, `auth-trunc` or `aead`.
        algorithm: &'static str,
        /// The names that would do.
        expected: String,
    },
}

/// A wrong line of a batch file: `states.batch:3:21: "prot" is unknown; expected one of: src dst proto spi`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}:{line}:{column}: {error}")]
pub struct BatchError {
    /// The text's name, usually a path.
    pub source_name: String,
    /// Line, from 1.
    pub line: u32,
    /// Column of the offending word in characters, from 1.
    pub column: u32,
    /// What is wrong.
    pub error: Error,
}

impl BatchError {
    pub(super) fn new(source: &str, Fault { at, error }: Fault) -> Self {
        Self { source_name: source.to_owned(), line: at.line, column: at.column, error }
    }
}

/// Why a batch file gave no commands.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It can't be read, or is no UTF-8.
    #[error("Cannot open file \"{source_name}\" for reading: {error}")]
    Read {
        /// The path.
        source_name: String,
        /// What the system said.
        error: io::Error,
    },
    /// It has wrong lines: all of them, one a line.
    #[error("{}", Listed(.0))]
    Lines(Vec<BatchError>),
}

struct Listed<'a>(&'a [BatchError]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(out, "{separator}{error}")?;
        }
        Ok(())
    }
}

/// `one of: a b c`, or `"a"`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [] => "the end of the line".to_owned(),
        [only] => format!("\"{only}\""),
        _ => format!("one of: {}", words.join(" ")),
    }
}

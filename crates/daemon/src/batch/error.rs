//! The wrong lines of a batch file, with its name.

use std::{fmt, io};

use uxfrm_xfrm::grammar::{Error, SyntaxError};

/// A wrong line of a batch file:
/// `states.batch:3:21: "prot" is unknown; expected one of: src dst proto spi`.
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
    pub(super) fn new(source: &str, SyntaxError { at, error }: SyntaxError) -> Self {
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

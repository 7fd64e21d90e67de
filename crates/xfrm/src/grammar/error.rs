//! What can be wrong with a line, in iproute2's words where it has some; and where.

use super::secret::RedactedWord;

/// A place in a text; both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// What is wrong with a line. No variant holds a byte of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A word that does not belong here.
    #[error("{word} is unknown; expected {}", one_of(.expected))]
    Unknown {
        /// The word.
        word: RedactedWord,
        /// The words that do.
        expected: Vec<&'static str>,
    },
    /// A value that its keyword does not take.
    #[error("argument {word} is wrong: {what}; expected {expected}")]
    Wrong {
        /// The value.
        word: RedactedWord,
        /// What is wrong with it.
        what: String,
        /// What would be right.
        expected: String,
    },
    /// A word that iproute2 would take for something else.
    #[error("argument {word} is wrong: {what}")]
    Misplaced {
        /// The word.
        word: RedactedWord,
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
        word: RedactedWord,
    },
    /// The line ends where a value or word has to come.
    #[error("command line is not complete: {after} takes {takes}")]
    Incomplete {
        /// The last word understood.
        after: RedactedWord,
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
        word: RedactedWord,
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

/// `one of: a b c`, or `"a"`.
pub fn one_of(words: &[&str]) -> String {
    match words {
        [] => "the end of the line".to_owned(),
        [only] => format!("\"{only}\""),
        _ => format!("one of: {}", words.join(" ")),
    }
}

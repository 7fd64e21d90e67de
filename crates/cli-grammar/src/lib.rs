//! Shared code of the grammars of `uxfrm xfrm`, `fou`, `link` and `dev`.
//!
//! A grammar is a table of [`WordAndValue`]s and code that reads them. Help, completion and manual
//! are made from the table, so they cannot disagree; a test in each grammar checks the table
//! against the code.
//!
//! | module | owns |
//! | --- | --- |
//! | [`cursor`] | reading the words of a command, with iproute2's error texts |
//! | [`completion`] | the words that may come next |
//! | [`page`] | help and manual |

#![forbid(unsafe_code)]

pub mod completion;
pub mod cursor;
pub mod page;

pub use cursor::{Cursor, Error, is_abbreviation};

/// A word and its value's placeholder, empty for none.
pub type WordAndValue = (&'static str, &'static str);

/// The words of a table.
#[must_use]
pub fn words_of(phrases: &[WordAndValue]) -> Vec<String> {
    phrases.iter().map(|(word, _)| (*word).to_owned()).collect()
}

/// Whether a word of the table takes a value.
#[must_use]
pub fn takes_value(phrases: &[WordAndValue], word: &str) -> bool {
    phrases.iter().any(|(known, takes)| *known == word && !takes.is_empty())
}

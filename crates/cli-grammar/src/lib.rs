//! What the grammars of `uxfrm xfrm`, `fou`, `link` and `dev` share.
//!
//! A grammar is a table of [`Phrase`]s and code that reads them. The table makes the help page, the completion and the manual, so that none of
//! these can say what the others do not; a test in each grammar holds the table against the code.
//!
//! | module | is |
//! | --- | --- |
//! | [`cursor`] | the words of a command, one after the other, and what can be wrong with one, in iproute2's texts |
//! | [`completion`] | what may come next |
//! | [`page`] | help and manual |

#![forbid(unsafe_code)]

pub mod completion;
pub mod cursor;
pub mod page;

pub use cursor::{Cursor, Error, is_abbreviation};

/// A word and what it takes; nothing, if that is empty.
pub type Phrase = (&'static str, &'static str);

/// The words of a table.
#[must_use]
pub fn words_of(phrases: &[Phrase]) -> Vec<String> {
    phrases.iter().map(|(word, _)| (*word).to_owned()).collect()
}

/// Whether a word of the table takes something.
#[must_use]
pub fn takes_value(phrases: &[Phrase], word: &str) -> bool {
    phrases.iter().any(|(known, takes)| *known == word && !takes.is_empty())
}

//! The words of a command, one after the other.

use std::str::FromStr;

/// Errors, with iproute2's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The line ends where something must follow.
    #[error("Command line is not complete. Expected {0}")]
    Incomplete(&'static str),
    /// An unknown command.
    #[error("Command \"{word}\" is unknown, try {known}")]
    Command {
        /// The word.
        word: String,
        /// The known words.
        known: &'static str,
    },
    /// An unknown option.
    #[error("\"{word}\"? expected {known}")]
    Option {
        /// The word.
        word: String,
        /// The known words.
        known: &'static str,
    },
    /// An invalid value.
    #[error("argument \"{word}\" is wrong: {what}")]
    Argument {
        /// The value.
        word: String,
        /// What it should be.
        what: &'static str,
    },
}

impl Error {
    /// `word` is no command; `known` are.
    #[must_use]
    pub fn command(word: &str, known: &'static str) -> Self {
        Self::Command { word: word.to_owned(), known }
    }

    /// `word` is no option; `known` are.
    #[must_use]
    pub fn option(word: &str, known: &'static str) -> Self {
        Self::Option { word: word.to_owned(), known }
    }

    /// `word` is no value; it should be `what`.
    #[must_use]
    pub fn argument(word: &str, what: &'static str) -> Self {
        Self::Argument { word: word.to_owned(), what }
    }
}

/// Whether `word` begins `whole` (`lib/utils.c: matches`).
#[must_use]
pub fn is_abbreviation(word: &str, whole: &str) -> bool {
    !word.is_empty() && whole.starts_with(word)
}

/// Reads words from the front.
#[derive(Debug)]
pub struct Cursor<'a, 'w> {
    words: &'a [&'w str],
}

impl<'a, 'w> Cursor<'a, 'w> {
    /// Before the first word.
    #[must_use]
    pub fn new(words: &'a [&'w str]) -> Self {
        Self { words }
    }

    /// The words that are still to be read.
    #[must_use]
    pub fn rest(&self) -> &'a [&'w str] {
        self.words
    }

    /// The next word, if there is one.
    pub fn take(&mut self) -> Option<&'w str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// Whether the next word is `word`, and past it then.
    pub fn skip(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    /// The next word; `expected` is what the line is incomplete without.
    ///
    /// # Errors
    /// [`Error::Incomplete`] at the end.
    pub fn next(&mut self, expected: &'static str) -> Result<&'w str, Error> {
        self.take().ok_or(Error::Incomplete(expected))
    }

    /// Past the last word.
    ///
    /// # Errors
    /// [`Error::Option`] with the next word, where `known` might have stood.
    pub fn end(&mut self, known: &'static str) -> Result<(), Error> {
        self.take().map_or(Ok(()), |word| Err(Error::option(word, known)))
    }

    /// A value as Rust reads it.
    ///
    /// # Errors
    /// [`Error::Incomplete`], or [`Error::Argument`] for another word.
    pub fn value<V: FromStr>(&mut self, what: &'static str) -> Result<V, Error> {
        let word = self.next(what)?;
        word.parse().map_err(|_| Error::argument(word, what))
    }

    /// A number in decimal, or hexadecimal behind `0x`.
    ///
    /// # Errors
    /// [`Error::Incomplete`], or [`Error::Argument`] for other words and larger numbers.
    pub fn number<N: TryFrom<u64>>(&mut self, what: &'static str) -> Result<N, Error> {
        let word = self.next(what)?;
        number(word).ok_or_else(|| Error::argument(word, what))
    }

    /// A number in hexadecimal, with or without `0x`.
    ///
    /// # Errors
    /// [`Error::Incomplete`], or [`Error::Argument`] for other words and larger numbers.
    pub fn hex<N: TryFrom<u64>>(&mut self, what: &'static str) -> Result<N, Error> {
        let word = self.next(what)?;
        let value = u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16);
        let number = value.ok().and_then(|value| N::try_from(value).ok());
        number.ok_or_else(|| Error::argument(word, what))
    }
}

/// A number in decimal, or hexadecimal behind `0x`.
#[must_use]
pub fn number<N: TryFrom<u64>>(word: &str) -> Option<N> {
    let value = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    N::try_from(value.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_reads_words_in_order() {
        let mut cursor = Cursor::new(&["dev", "eth0", "0x10", "ff", "more"]);
        assert!(cursor.skip("dev") && !cursor.skip("dev"));
        assert_eq!(cursor.next("a name"), Ok("eth0"));
        assert_eq!(cursor.number::<u8>("a byte"), Ok(16));
        assert_eq!(cursor.hex::<u16>("hex"), Ok(255));
        assert_eq!(cursor.rest(), ["more"]);
        assert_eq!(cursor.end("nothing"), Err(Error::option("more", "nothing")));
        assert_eq!(cursor.take(), None);
        assert_eq!(cursor.end("nothing"), Ok(()));
    }

    #[test]
    fn cursor_errors_name_the_word() {
        for (result, text) in [
            (
                Cursor::new(&[]).number::<u8>("a byte"),
                "Command line is not complete. Expected a byte",
            ),
            (Cursor::new(&["256"]).number("a byte"), "argument \"256\" is wrong: a byte"),
            (Cursor::new(&["0x"]).number("a byte"), "argument \"0x\" is wrong: a byte"),
            (Cursor::new(&["xyz"]).hex("a byte"), "argument \"xyz\" is wrong: a byte"),
            (Cursor::new(&["-1"]).value("a byte"), "argument \"-1\" is wrong: a byte"),
        ] {
            assert_eq!(result.unwrap_err().to_string(), text);
        }
        let error = Error::command("fly", "add or del");
        assert_eq!(error.to_string(), "Command \"fly\" is unknown, try add or del");
    }
}

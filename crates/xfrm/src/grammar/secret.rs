//! Which words of a line may be shown in an error.

use std::fmt;

use uxfrm_crypto::{AEAD_NAMES, AUTH_NAMES, CIPHER_NAMES};

/// A word as an error shows it: quoted, or only its length where it may be a misplaced key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedWord(SecretForm);

#[derive(Debug, Clone, PartialEq, Eq)]
enum SecretForm {
    Plain(String),
    Hidden { characters: usize },
}

/// No keyword is longer.
const LONGEST_KEYWORD: usize = 14;
/// `0x` and a 64-bit number: no number is longer.
const LONGEST_NUMBER: usize = 18;

impl RedactedWord {
    /// A word before any key of its line: shown unless it is long and looks like key material.
    pub(super) fn word(text: &str) -> Self {
        if text.chars().count() <= LONGEST_NUMBER || !is_hexadecimal(text) {
            Self::plain(text)
        } else {
            Self::key(text)
        }
    }

    /// A word behind `enc`, `auth`, `aead` …, where a forgotten name or length moves the key: shown
    /// only if it looks like a keyword, an address or an algorithm.
    pub(super) fn behind_key(text: &str) -> Self {
        if is_keyword_like(text) || is_address_like(text) || is_algorithm_like(text) {
            Self::plain(text)
        } else {
            Self::key(text)
        }
    }

    /// A word in the place of an algorithm's name: shown only if it is one, or written as one is.
    /// Short words are keys as well as names.
    pub(super) fn name(text: &str) -> Self {
        let mut known = AEAD_NAMES.iter().chain(CIPHER_NAMES).chain(AUTH_NAMES);
        if known.any(|name| *name == text) || is_algorithm_like(text) {
            Self::plain(text)
        } else {
            Self::key(text)
        }
    }

    /// A key.
    pub(super) fn key(text: &str) -> Self {
        Self(SecretForm::Hidden { characters: text.chars().count() })
    }

    fn plain(text: &str) -> Self {
        Self(SecretForm::Plain(text.to_owned()))
    }
}

impl fmt::Display for RedactedWord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            SecretForm::Plain(text) => write!(out, "\"{}\"", text.escape_debug()),
            SecretForm::Hidden { characters } => {
                write!(out, "(a word of {characters} characters, not shown as it may be a key)")
            }
        }
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.strip_prefix("0x").unwrap_or(text).chars().all(|c| c.is_ascii_hexdigit())
}

fn is_keyword_like(text: &str) -> bool {
    text.len() <= LONGEST_KEYWORD
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

fn is_address_like(text: &str) -> bool {
    text.contains(['.', ':'])
        && text.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/'))
}

fn is_algorithm_like(text: &str) -> bool {
    text.contains('(')
        && text.ends_with(')')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '(' | ')' | ',' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_key_is_not_shown() {
        for key in ["1234567890123456dcba", "0x1c0cf2bb72ce67ba245b593076dfb27a", "se cret"] {
            assert!(!RedactedWord::behind_key(key).to_string().contains(key), "{key}");
        }
        assert!(
            !RedactedWord::word("1c0cf2bb72ce67ba245b593076dfb27a").to_string().contains("1c0c")
        );
        assert!(!RedactedWord::key("x").to_string().contains('x'));
    }

    #[test]
    fn short_key_in_place_of_a_name_is_not_shown() {
        for key in ["secret", "deadbeef", "10.0.0.1", "0x11", "a:b", "pass(word"] {
            assert!(!RedactedWord::name(key).to_string().contains(key), "{key}");
        }
        for name in ["rfc4106(gcm(aes))", "hmac(sha256)", "cbc(nothing)"] {
            assert_eq!(RedactedWord::name(name).to_string(), format!("\"{name}\""));
        }
    }

    #[test]
    fn word_that_is_no_key_is_shown() {
        for word in
            ["replay-oseq-hi", "10.0.0.300/24", "rfc7539esp(chacha20,poly1305)", "2001:db8::1"]
        {
            assert_eq!(RedactedWord::behind_key(word).to_string(), format!("\"{word}\""));
        }
        assert_eq!(RedactedWord::word("0xffffffffffffffff").to_string(), "\"0xffffffffffffffff\"");
    }
}

//! Labels: bounded, and printable.

use std::borrow::Cow;

/// The most bytes of a label's value.
pub(crate) const LONGEST: usize = 128;

/// Names and values.
pub(crate) type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A value as it stands in a page: at most [`LONGEST`] bytes, `…` for the rest, and `�` for what
/// can't be printed.
pub(crate) fn value(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let replaced = text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter });
    let mut short = String::new();
    for letter in replaced {
        // With room for the mark behind it.
        if short.len() + letter.len_utf8() > LONGEST - '…'.len_utf8() {
            short.push('…');
            break;
        }
        short.push(letter);
    }
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_printable() {
        assert_eq!(value("10.1.0.0/16"), "10.1.0.0/16");
        assert_eq!(value("a\nb\0"), "a\u{fffd}b\u{fffd}");
        assert_eq!(value(r#"\"#), r#"\"#, "escaped by whoever writes it");
        let long = value(&"ä".repeat(500)).into_owned();
        assert!(long.len() <= LONGEST && long.ends_with("ä…"), "{long}");
        assert_eq!(value(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
        assert_eq!(value(&"x".repeat(LONGEST + 1)).len(), LONGEST);
    }
}

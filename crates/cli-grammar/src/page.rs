//! Help for a terminal, manual in roff.

use std::fmt::Write as _;

use crate::WordAndValue;

/// Columns of a line of help.
pub const WIDTH: usize = 90;

/// `NAME := [ one ] [ other VALUE ]`: any number of them.
pub fn options(text: &mut String, name: &str, phrases: &[WordAndValue]) {
    let pieces = phrases.iter().map(|phrase| format!("[ {} ]", joined(*phrase)));
    wrap(text, &format!("{name} :="), pieces);
}

/// `NAME := one | other VALUE`: one of them.
pub fn choice(text: &mut String, name: &str, phrases: &[WordAndValue]) {
    let pieces = phrases.iter().enumerate().map(|(place, phrase)| {
        let bar = if place == 0 { "" } else { "| " };
        format!("{bar}{}", joined(*phrase))
    });
    wrap(text, &format!("{name} :="), pieces);
}

/// A word and its value's placeholder.
#[must_use]
pub fn joined((word, takes): WordAndValue) -> String {
    if takes.is_empty() { word.to_owned() } else { format!("{word} {takes}") }
}

/// Wraps pieces behind a beginning at [`WIDTH`].
pub fn wrap(text: &mut String, beginning: &str, pieces: impl Iterator<Item = String>) {
    let mut line = beginning.to_owned();
    for piece in pieces {
        if line.len() + 1 + piece.len() > WIDTH {
            *text += &line;
            text.push('\n');
            line = "       ".to_owned();
        }
        line.push(' ');
        line += &piece;
    }
    *text += &line;
    text.push('\n');
}

/// A section of a manual: each word with its value.
pub fn section(page: &mut String, title: &str, phrases: &[WordAndValue]) {
    // Writing to a string does not fail.
    let _ = writeln!(page, ".SH {}", escaped(title));
    terms(page, phrases);
}

/// Each word with its value, in a manual.
pub fn terms(page: &mut String, phrases: &[WordAndValue]) {
    for (word, takes) in phrases {
        // Writing to a string does not fail.
        let _ = writeln!(page, ".TP\n.BI \"{}\" \" {}\"", escaped(word), escaped(takes));
    }
}

/// Escapes hyphens and backslashes for roff.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [WordAndValue; 2] = [("over", "INTERFACE"), ("lost-event", "")];

    #[test]
    fn help_shows_every_word_with_its_value() {
        let mut text = String::new();
        options(&mut text, "ADD", &TABLE);
        choice(&mut text, "ONE", &TABLE);
        assert_eq!(
            text,
            "ADD := [ over INTERFACE ] [ lost-event ]\nONE := over INTERFACE | lost-event\n"
        );
    }

    #[test]
    fn long_help_lines_wrap_with_indent() {
        let mut text = String::new();
        options(&mut text, "ADD", &[("abcdefghijklmnopqrstuvwxyz", ""); 4]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].len() <= WIDTH && lines[1].starts_with("        [ "), "{text}");
    }

    #[test]
    fn manual_escapes_hyphens() {
        let mut page = String::new();
        section(&mut page, "FAULTS", &TABLE);
        assert_eq!(
            page,
            ".SH FAULTS\n.TP\n.BI \"over\" \" INTERFACE\"\n.TP\n.BI \"lost\\-event\" \" \"\n"
        );
    }
}

//! Which lines of a text are new, and which are gone.

use std::collections::HashMap;

/// Lines of `before` that `after` has not, each behind `-`, and then those of `after` behind `+`.
pub(super) fn changed_lines(before: &str, after: &str) -> Vec<String> {
    let gone = missing(before, after).map(|line| format!("- {line}"));
    let new = missing(after, before).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// Lines of a text that another one has not as often.
fn missing<'a>(text: &'a str, other: &str) -> impl Iterator<Item = &'a str> {
    let mut there = HashMap::<String, usize>::new();
    for line in lines(other) {
        *there.entry(line.to_owned()).or_default() += 1;
    }
    lines(text).filter(move |line| match there.get_mut(*line) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        Some(_) | None => true,
    })
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_by_table() {
        for (before, after, changed) in [
            ("a\nb\n", "a\n b\n\n", vec![]),
            ("a\nb", "b\nc", vec!["- a", "+ c"]),
            ("a\na", "a", vec!["- a"]),
            ("", "a\na", vec!["+ a", "+ a"]),
        ] {
            assert_eq!(changed_lines(before, after), changed);
        }
    }
}

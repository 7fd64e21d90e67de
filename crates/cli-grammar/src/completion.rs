//! Completion of command lines.

use crate::WordAndValue;

/// Splits off the last word, which is being typed and may be empty.
#[must_use]
pub fn typed<'a, 'w>(words: &'a [&'w str]) -> (&'w str, &'a [&'w str]) {
    words.split_last().map_or(("", &[]), |(last, rest)| (*last, rest))
}

/// The candidates that begin with the typed word, sorted, each once.
#[must_use]
pub fn matching(typed: &str, mut candidates: Vec<String>) -> Vec<String> {
    candidates.retain(|word| word.starts_with(typed));
    candidates.sort();
    candidates.dedup();
    candidates
}

/// The words behind options (possibly abbreviated) and their values.
#[must_use]
pub fn behind_options<'w>(words: &[&'w str], options: &[WordAndValue]) -> Vec<&'w str> {
    let mut words = words.iter().copied().peekable();
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        let entry = options.iter().find(|(word, _)| word.starts_with(option));
        if entry.is_some_and(|(_, takes)| !takes.is_empty()) {
            words.next();
        }
    }
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_skips_options_with_values() {
        let options = [("-json", ""), ("-netns", "NAME")];
        for (words, left) in [
            (&["-j", "-net", "blue", "show"][..], &["show"][..]),
            (&["-netns"], &[]),
            (&["-new", "show"], &["show"]),
            (&["show", "-j"], &["show", "-j"]),
        ] {
            assert_eq!(behind_options(words, &options), left, "{words:?}");
        }
    }

    #[test]
    fn completion_candidates_are_sorted_and_unique() {
        let candidates = ["set", "show", "add", "show"].map(str::to_owned).to_vec();
        assert_eq!(matching("s", candidates), ["set", "show"]);
        assert_eq!(typed(&["add", ""]), ("", &["add"][..]));
        assert_eq!(typed(&[]), ("", &[][..]));
    }
}

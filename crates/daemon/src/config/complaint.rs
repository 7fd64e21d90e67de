//! What serde and toml say of a value, in words of the file: their own name Rust's types, which tell nobody what would be right.

/// Their names for what they expected or found, and what to call it.
const WORDS: [(&str, &str); 14] = [
    ("i64", "a whole number"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a nonzero u64", "a whole number of 1 or more"),
    ("a boolean", "true or false"),
    ("a string", "text in quotes"),
    ("path string", "a path in quotes"),
    ("a sequence", "a list in square brackets"),
    ("struct Families", "a section with ipv4 and ipv6"),
    ("struct Words", "a table, as in { mode = \"auto\" }"),
    ("invalid type: map", "invalid type: a table"),
    ("invalid type: sequence", "invalid type: a list"),
    ("wanted string or table", "expected text in quotes"),
];

/// A message of serde's or toml's for whoever wrote the file.
pub(super) fn plain(message: &str) -> String {
    match message.rsplit_once(", expected ") {
        Some((found, expected)) => format!("{}, expected {}", called(found), called(expected)),
        None => called(message).to_owned(),
    }
}

fn called(words: &str) -> &str {
    WORDS.iter().find(|(theirs, _)| *theirs == words).map_or(words, |(_, ours)| ours)
}

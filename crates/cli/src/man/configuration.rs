//! uxfrm.toml(5) and its page of the book, from the example that has every key.

use std::fmt::Write as _;

/// The configuration with every key, each with what it does above it.
const EXAMPLE: &str = include_str!("../../../../docs/example.toml");

/// What a line of the example is, or several of prose.
#[derive(Debug, PartialEq, Eq)]
enum ExampleLine<'a> {
    /// `[section]`, or `[[device]]`.
    Section(&'a str),
    /// A key with its default or an example, and whether it is one that may be left out.
    Key { line: &'a str, is_default: bool },
    /// What stands above either.
    Prose(String),
}

fn lines_of(text: &str) -> Vec<ExampleLine<'_>> {
    let mut read = Vec::new();
    // Its first paragraph is about the file.
    let text = text.split_once("\n\n").map_or(text, |(_, keys)| keys);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (is_default, content) = match line.strip_prefix('#') {
            Some(rest) => (false, rest.trim_start()),
            None => (true, line),
        };
        if let Some(section) = section(content) {
            read.push(ExampleLine::Section(section));
        } else if is_default || is_key(content) {
            read.push(ExampleLine::Key { line: content, is_default });
        } else if let Some(ExampleLine::Prose(prose)) = read.last_mut() {
            prose.push(' ');
            prose.push_str(content);
        } else {
            read.push(ExampleLine::Prose(content.to_owned()));
        }
    }
    read
}

fn section(line: &str) -> Option<&str> {
    let name = line.trim_start_matches('[').trim_end_matches(']');
    let is_name = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '.');
    (line.starts_with('[') && line.ends_with(']') && is_name).then_some(line)
}

/// `name = value`.
fn is_key(line: &str) -> bool {
    let Some((name, _)) = line.split_once(" = ") else { return false };
    name.chars()
        .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

/// What stands above a section or a key comes below it on a page.
fn in_reading_order(lines: Vec<ExampleLine<'_>>) -> Vec<ExampleLine<'_>> {
    let mut ordered = Vec::new();
    let mut above: Option<ExampleLine<'_>> = None;
    for line in lines {
        match line {
            ExampleLine::Prose(_) => ordered.extend(above.replace(line)),
            ExampleLine::Section(_) | ExampleLine::Key { .. } => {
                ordered.push(line);
                ordered.extend(above.take());
            }
        }
    }
    ordered.extend(above);
    ordered
}

/// The manual page.
pub(super) fn manual() -> String {
    let mut page = String::from(
        ".TH UXFRM.TOML 5\n.SH NAME\nuxfrm.toml \\- configuration of uxfrm(8)\n.SH DESCRIPTION\n\
         TOML (https://toml.io), read by uxfrm run, check, reload and guard. A key that is not \
         there has the value shown; one shown behind # is not set without its line. Wrong keys \
         and values are refused, with their line and what would be right.\n.SH KEYS\n",
    );
    for each in in_reading_order(lines_of(EXAMPLE)) {
        // A string takes all.
        let _written = match each {
            ExampleLine::Section(name) => writeln!(page, ".SS {}", roff(name)),
            ExampleLine::Key { line, is_default } => {
                let sign = if is_default { "" } else { "# " };
                writeln!(page, ".TP\n.B {sign}{}", roff(line))
            }
            ExampleLine::Prose(prose) => writeln!(page, "{}", roff(&prose)),
        };
    }
    page.push_str(".SH SEE ALSO\nuxfrm(8), uxfrm-check(8), uxfrm-reload(8)\n");
    page
}

fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins so would be a request.
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

/// The page of the book.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(
        "# uxfrm.toml(5)\n\n\
         What `uxfrm run`, `check`, `reload` and `guard` read. A key that is not there has the \
         value shown;\none shown behind `#` is not set without its line. Wrong keys and values are \
         refused, with their\nline and what would be right.\n\n\
         It is made from `docs/example.toml`, by `UPDATE=1 cargo test -p uxfrm-cli man::`.\n",
    );
    for each in in_reading_order(lines_of(EXAMPLE)) {
        let _written = match each {
            ExampleLine::Section(name) => writeln!(page, "\n## {name}"),
            ExampleLine::Key { line, is_default } => {
                let sign = if is_default { "" } else { "# " };
                writeln!(page, "\n`{sign}{line}`\n")
            }
            ExampleLine::Prose(prose) => {
                writeln!(page, "\n{}", super::filled(&prose, super::COLUMNS))
            }
        };
    }
    page.replace("\n\n\n", "\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_example_is_on_the_page() {
        let page = page();
        let keys = EXAMPLE.lines().map(|line| line.trim_start_matches(['#', ' ']));
        let keys: Vec<_> = keys.filter(|line| is_key(line)).collect();
        assert!(keys.len() > 30, "{keys:?}");
        for key in keys {
            assert!(page.contains(&format!("{key}`\n")), "{key}");
        }
        super::super::tests::hold("configuration.md", &page);
    }

    #[test]
    fn pieces_by_table() {
        let text = "# About\n# it.\n\n[a]\n# What\nkey = 1\n# other = [\"x\"]\n# [[b.c]]\n";
        let expected = [
            ExampleLine::Section("[a]"),
            ExampleLine::Key { line: "key = 1", is_default: true },
            ExampleLine::Prose("What".to_owned()),
            ExampleLine::Key { line: "other = [\"x\"]", is_default: false },
            ExampleLine::Section("[[b.c]]"),
        ];
        assert_eq!(in_reading_order(lines_of(text)), expected);
    }

    #[test]
    fn manual_has_no_line_that_is_a_request_by_chance() {
        assert_eq!(roff(".x -y"), "\\&.x \\-y");
        for line in manual().lines().filter(|line| line.starts_with('.')) {
            let request = line.split(' ').next().unwrap_or_default();
            assert!([".TH", ".SH", ".SS", ".TP", ".B"].contains(&request), "{line}");
        }
    }
}

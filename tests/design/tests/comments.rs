//! The comments check: files, types and members that comments and pages name are in the code.
//!
//! rustdoc resolves the links of doc comments. It does not see plain code spans, `//` comments,
//! tests and pages, which are read here.

#[path = "comments/code.rs"]
mod code;

use std::fs;
use std::path::{Path, PathBuf};

use code::Code;

/// Names in examples of how files are called.
const PLACEHOLDERS: &[&str] = &["foo/tests.rs", "path.rs"];

#[test]
fn files_that_comments_name_exist() {
    let sources = rust_files();
    let missing = complaints(|file, span| lacks_file(&sources, file, span));
    assert!(missing.is_empty(), "no such file:\n  {}", missing.join("\n  "));
}

#[test]
fn types_and_members_that_comments_name_exist() {
    let code = Code::of(rust_files().iter().map(|file| read(file)));
    assert!(code.members.len() > 1000, "sources were lost: {} types", code.members.len());
    let missing = complaints(|file, span| {
        // Pages also name other programs' words, such as systemd's.
        (is_rust(file) || span.contains("::")) && code.lacks(span)
    });
    assert!(missing.is_empty(), "not in the code:\n  {}", missing.join("\n  "));
}

#[test]
fn the_check_misses_files() {
    let sources = ["crates/a/src/sa.rs", "crates/b/src/routes/plan.rs"].map(PathBuf::from);
    let from_a = Path::new("crates/a/src/lib.rs");
    assert!(!lacks_file(&sources, from_a, "sa.rs"));
    assert!(lacks_file(&sources, from_a, "plan.rs"), "another crate's needs a folder");
    assert!(!lacks_file(&sources, from_a, "routes/plan.rs"));
    assert!(!lacks_file(&sources, Path::new("docs/x.md"), "plan.rs"));
    assert!(lacks_file(&sources, from_a, "src/gone.rs"));
    assert!(lacks_file(&sources, from_a, "routes/gone.rs::look_up"));
    assert!(!lacks_file(&sources, from_a, "two words.rs"));
}

#[test]
fn the_check_misses_types_and_members() {
    let code = Code::of([String::from(
        "/// A [`Vanished`] one.
         struct Sa { field: u8 }
         #[derive(Clone)] enum Kind { Variant }
         impl Sa { const C: u8 = 0; fn method() { External::new() } }
         trait Charge { fn provided() {} } impl Charge for Kind {}
         type Alias = Sa;
         macro_rules! flags { ($t:ident) => { struct $t; impl $t { fn bits() {} } } }
         flags! { Flags }",
    )]);
    for there in [
        "Sa::field",
        "Sa::C",
        "crate::x::Sa::method()",
        "Kind::Variant",
        "Kind::clone",
        "Kind::provided",
        "Alias::method",
        "Flags::bits",
        "External::other",
        "SHOUTING::x",
        "a phrase of Sa::gone",
    ] {
        assert!(!code.lacks(there), "{there}");
    }
    for gone in [
        "Sa::gone",
        "Kind::gone()",
        "Alias::gone",
        "Vanished",
        "crate::Vanished::method",
        "Flags::no",
    ] {
        assert!(code.lacks(gone), "{gone}");
    }
}

#[test]
fn code_spans_are_those_of_comments_outside_of_fences() {
    let source = "//! `a` and `b\n//! c`, an open `\n//!\n//! `d`\n//! ```\n//! `no`\n//! ```\nlet x = \"`no`\"; // `e`\n";
    assert_eq!(
        code_spans(source, true),
        [(1, "a"), (1, "b c"), (4, "d"), (8, "e")].map(|(line, span)| (line, span.to_owned()))
    );
    assert_eq!(code_spans("x\n`a`\n", false), [(2, "a".to_owned())]);
}

/// `file:line: span` of each code span, in comments and pages, that is stale.
fn complaints(is_stale: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in [rust_files(), pages()].concat() {
        for (line, span) in code_spans(&read(&file), is_rust(&file)) {
            if is_stale(&file, &span) {
                found.push(format!("{}:{line}: `{span}`", file.display()));
            }
        }
    }
    found
}

/// A bare name in a source is a file of the same package; with folders, and in pages, of any.
fn lacks_file(sources: &[PathBuf], from: &Path, span: &str) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let named = span.split("::").next().unwrap_or(span).trim_start_matches("../");
    if !named.ends_with(".rs") || !named.chars().all(is_path) || PLACEHOLDERS.contains(&named) {
        return false;
    }
    let is_ours = is_rust(from) && !named.contains('/');
    let package = if is_ours { package(from) } else { PathBuf::new() };
    !sources.iter().any(|source| source.starts_with(&package) && source.ends_with(named))
}

fn is_rust(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "rs")
}

fn package(file: &Path) -> PathBuf {
    let depth = if file.starts_with("crates") { 2 } else { 1 };
    file.components().take(depth).collect()
}

/// Line and text of what stands in backquotes, which may go over lines of one paragraph.
fn code_spans(source: &str, is_rust: bool) -> Vec<(usize, String)> {
    let mut spans = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    let mut is_fenced = false;
    for (index, line) in source.lines().enumerate() {
        let text = if is_rust { comment(line) } else { Some(line.trim()) };
        let text = text.unwrap_or_default();
        let is_fence = text.starts_with("```");
        is_fenced ^= is_fence;
        if text.is_empty() || is_fence {
            spans.extend(paragraph_spans(&std::mem::take(&mut paragraph)));
        } else if !is_fenced {
            paragraph.push((index + 1, text));
        }
    }
    spans.extend(paragraph_spans(&paragraph));
    spans
}

fn paragraph_spans(lines: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut pieces: Vec<(usize, String)> = vec![(0, String::new())];
    for (number, line) in lines {
        for (index, piece) in line.split('`').enumerate() {
            match pieces.last_mut() {
                Some((_, last)) if index == 0 => {
                    *last = format!("{last} {piece}").trim_start().to_owned();
                }
                _ => pieces.push((*number, piece.to_owned())),
            }
        }
    }
    let closed = pieces.len().saturating_sub(1);
    pieces.into_iter().take(closed).skip(1).step_by(2).collect()
}

/// The text of the comment that a line of Rust is or ends with.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let text = line.strip_prefix("//").or_else(|| Some(line.split_once(" // ")?.1))?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Paths from the root of the tree.
fn rust_files() -> Vec<PathBuf> {
    let folders = ["bench", "crates", "examples", "fuzz", "loom", "testkit", "tests/design"];
    folders.iter().flat_map(|folder| files(Path::new(folder), "rs")).collect()
}

/// All pages but those that tell of the past.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(Path::new(""), "md");
    pages.retain(|page| !page.starts_with("docs/bench-history") && !page.ends_with("CHANGELOG.md"));
    pages
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).expect("a folder of the tree") {
        let entry = entry.expect("a folder of the tree");
        let path = folder.join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().expect("a file of the tree").is_dir() {
            if name != "target" && !name.starts_with('.') {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    found
}

fn read(file: &Path) -> String {
    fs::read_to_string(root().join(file)).expect("a file of the tree")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

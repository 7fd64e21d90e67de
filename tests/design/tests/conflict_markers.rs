//! No file of the repository keeps what a merge left undecided.

use std::path::Path;
use std::process::Command;
use std::{fs, str};

/// What git begins the lines with, each followed by a blank or the line's end.
const MARKERS: [&str; 3] = ["<<<<<<<", "|||||||", ">>>>>>>"];

#[test]
fn no_file_has_conflict_markers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output();
    let listed = match listed {
        Ok(listed) if listed.status.success() => listed.stdout,
        Ok(_) | Err(_) => return println!("not run: this is no checkout of git"),
    };
    let names = str::from_utf8(&listed).expect("names in UTF-8").split_terminator('\0');
    let marked: Vec<_> = names.filter(|name| has_markers(&root.join(name))).collect();
    assert!(marked.is_empty(), "conflict markers in:\n  {}", marked.join("\n  "));
}

fn has_markers(file: &Path) -> bool {
    // Binary files, and those that are gone in the work tree.
    let Ok(text) = fs::read_to_string(file) else { return false };
    text.lines().any(is_marker)
}

fn is_marker(line: &str) -> bool {
    let rest = MARKERS.iter().find_map(|marker| line.strip_prefix(marker));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[test]
fn markers_are_told_from_other_lines() {
    for marker in MARKERS {
        assert!(is_marker(&format!("{marker} HEAD")) && is_marker(marker));
        assert!(!is_marker(&format!("  {marker} HEAD")) && !is_marker(&format!("{marker}x")));
    }
}

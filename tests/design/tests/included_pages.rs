//! Each code block of a page that rustdoc includes names its language: rustdoc compiles those
//! without one as Rust.

use std::fs;
use std::path::{Path, PathBuf};

const INCLUDED: &str = "#[doc = include_str!(\"";

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("its entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn included_by(source: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(source).expect("a source file");
    let pages = text.lines().filter_map(|line| line.trim().strip_prefix(INCLUDED));
    let names = pages.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name);
    names.map(|name| source.parent().expect("its directory").join(name)).collect()
}

/// Lines, from 1, where a block begins that names no language.
fn nameless_blocks(page: &str) -> Vec<usize> {
    let fences = (1..).zip(page.lines()).filter(|(_, line)| line.trim_start().starts_with("```"));
    let beginnings = fences.step_by(2);
    beginnings.filter(|(_, line)| line.trim() == "```").map(|(number, _)| number).collect()
}

#[test]
fn a_block_without_a_language_is_found() {
    let page = "```rust\nlet a = 1;\n```\n\n```\na = 1\n```\n```toml\na = 1\n```\n";
    assert_eq!(nameless_blocks(page), [5]);
}

#[test]
fn blocks_of_included_pages_name_their_language() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates"), &mut files);
    let pages: Vec<_> = files.iter().flat_map(|source| included_by(source)).collect();
    assert!(!pages.is_empty(), "no source file includes a page");
    for page in pages {
        let text = fs::read_to_string(&page).expect("the page");
        let nameless = nameless_blocks(&text);
        assert!(nameless.is_empty(), "{}: blocks at lines {nameless:?}", page.display());
    }
}

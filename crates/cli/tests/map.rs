//! The map check: each `file::function` that ARCHITECTURE.md names is there.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_function_on_the_map_exists() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let places = places(&page);
    assert!(places.len() > 30, "the map was cut: {} places", places.len());
    let sources = rust_files(&root().join("crates"));
    let missing: Vec<_> =
        places.into_iter().filter(|(file, function)| !exists(&sources, file, function)).collect();
    assert!(missing.is_empty(), "not in the code: {missing:#?}");
}

#[test]
fn every_source_file_named_in_architecture_exists() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let files = [rust_files(&root().join("crates")), rust_files(&root().join("bench"))].concat();
    let files = [files, rust_files(&root().join("testkit"))].concat();
    let named = page.split('`').skip(1).step_by(2).filter(|code| is_file_name(code));
    let missing: Vec<_> =
        named.filter(|name| !files.iter().any(|file| file.ends_with(name))).collect();
    assert!(missing.is_empty(), "no such files: {missing:?}");
}

fn is_file_name(code: &str) -> bool {
    Path::new(code).extension().is_some_and(|extension| extension == "rs")
}

/// The places of a page: what stands in backquotes as `path.rs::function`.
fn places(page: &str) -> Vec<(String, String)> {
    let codes = page.split('`').skip(1).step_by(2);
    let split = codes.filter_map(|code| code.split_once(".rs::"));
    split.map(|(file, function)| (format!("{file}.rs"), function.to_owned())).collect()
}

/// Whether some file of that path, or end of a path, has a function of that name outside its tests.
fn exists(sources: &[PathBuf], file: &str, function: &str) -> bool {
    let named = sources.iter().filter(|source| source.ends_with(file));
    named.map(|source| fs::read_to_string(source).expect("a source file")).any(|text| {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        ["(", "<"].iter().any(|after| code.contains(&format!("fn {function}{after}")))
    })
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a folder of sources").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

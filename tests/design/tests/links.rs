//! Links between the repository's pages lead to files and headings that are there, and the book has
//! each page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Pages of the repository's root that scripts/book puts into the book, as its summary names them.
const OF_ROOT: [&str; 3] = ["../ARCHITECTURE.md", "../README.md#a-gateway", "../SECURITY.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Pages of the root and of `docs`, with all beneath.
fn pages() -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut found: Vec<_> = listed(&root()).into_iter().filter(is_page).collect();
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for path in listed(&directory) {
            if path.is_dir() {
                directories.push(path);
            } else if is_page(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    let paths: io::Result<Vec<_>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    paths.expect("its entries")
}

/// The text outside of blocks and of code in a line.
fn prose(text: &str) -> String {
    let mut is_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let ends = prose.match_indices("](").map(|(at, _)| &prose[at + 2..]);
    ends.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()).collect()
}

/// As GitHub and mdBook make it of a heading.
fn slug(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    let kept = letters.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(page).unwrap_or_default();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| slug(line.trim_start_matches('#')) == wanted)
}

fn fault(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let directory = page.parent().expect("a page is somewhere");
    let target = if file.is_empty() { page.to_owned() } else { directory.join(file) };
    if !target.exists() {
        return Some(format!("{}: {link}: no such file", page.display()));
    }
    let is_there = heading.is_empty() || has_heading(&target, heading);
    (!is_there).then(|| format!("{}: {link}: no such heading", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let links = links(&text);
        count += links.len();
        faults.extend(links.iter().filter_map(|link| fault(&page, link)));
    }
    assert!(count > 100, "{count} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn book_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the summary");
    let named: BTreeSet<_> = links(&summary).into_iter().collect();
    let pages = listed(&root().join("docs")).into_iter();
    let names = pages.filter_map(|page| page.file_name()?.to_str().map(str::to_owned));
    let pages = names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md");
    let missing: Vec<_> = pages.filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    assert!(OF_ROOT.iter().all(|name| named.contains(*name)));
}

#[test]
fn headings_and_links_are_read_as_github_does() {
    assert_eq!(slug(" `uxfrm setup`"), "uxfrm-setup");
    assert_eq!(slug("Of the way out"), "of-the-way-out");
    assert_eq!(slug("What a restart costs?"), "what-a-restart-costs");
    let text = "a [b](c.md#d) `[no](x.md)`\n```\n[no](y.md)\n```\n[e](f.md)";
    assert_eq!(links(text), ["c.md#d", "f.md"]);
}

//! The glossary check: one word has one meaning. Names that docs/glossary.tsv replaced are in no
//! crate, and a public type's name is one crate's alone. Comments and pages fit 100 columns.
#![expect(clippy::wildcard_enum_match_arm, reason = "the enum is of syn, which adds to it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, Meta, Visibility};

/// Public type names that several crates may have, each with the reason.
const SHARED: &[(&str, &str)] = &[("Error", "each library has one, and the path says whose")];

#[test]
fn replaced_names_are_gone() {
    let replaced = replaced_names();
    let mut left = Vec::new();
    for found in workspace_names() {
        if let Some(new) = replaced.get(&(found.kind, found.name.clone())) {
            left.push(format!(
                "{}: {} `{}` is `{new}` today",
                found.file.display(),
                found.kind,
                found.name
            ));
        }
    }
    assert!(left.is_empty(), "docs/glossary.tsv:\n  {}", left.join("\n  "));
}

#[test]
fn public_type_names_are_unique() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for found in workspace_names() {
        if found.kind == "type" && found.is_public {
            crates.entry(found.name).or_default().insert(found.file.display().to_string());
        }
    }
    crates
        .retain(|name, files| files.len() > 1 && !SHARED.iter().any(|(shared, _)| shared == name));
    let several: Vec<_> = crates.iter().map(|(name, files)| format!("{name}: {files:?}")).collect();
    assert!(several.is_empty(), "one word, several meanings:\n  {}", several.join("\n  "));
}

#[test]
fn the_check_sees_types_and_modules_but_not_those_of_tests() {
    let source = "pub struct A; enum B {} mod c { pub trait D {} }\n\
                  #[cfg(test)] mod tests { struct E; }";
    let mut found = Vec::new();
    collect(&syn::parse_str::<syn::File>(source).unwrap().items, Path::new("x.rs"), &mut found);
    let names: Vec<_> =
        found.iter().map(|name| (name.kind, name.name.as_str(), name.is_public)).collect();
    assert_eq!(
        names,
        [("type", "A", true), ("type", "B", false), ("mod", "c", false), ("type", "D", true)]
    );
}

#[test]
fn comment_lines_fit_100_columns() {
    let mut wide = Vec::new();
    for folder in ["crates", "bench", "testkit", "loom", "fuzz", "tests/design"] {
        for file in rust_files(&root().join(folder)) {
            let source = fs::read_to_string(&file).expect("a source file");
            for (number, line) in source.lines().enumerate() {
                let text = line.trim_start();
                // A row of a table cannot be wrapped.
                let is_prose =
                    text.starts_with("//") && !text.contains("! |") && !text.contains("/ |");
                if is_prose && line.chars().count() > 100 {
                    wide.push(format!("{}:{}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(wide.is_empty(), "comments over 100 columns:\n  {}", wide.join("\n  "));
}

#[test]
fn prose_lines_of_pages_fit_100_columns() {
    let mut wide = Vec::new();
    for file in files(&root(), "md") {
        let page = fs::read_to_string(&file).expect("a page");
        let lines = wide_prose_lines(&page).into_iter();
        wide.extend(lines.map(|number| format!("{}:{number}", file.display())));
    }
    assert!(wide.is_empty(), "prose over 100 columns:\n  {}", wide.join("\n  "));
}

#[test]
fn tables_code_and_links_may_be_wide() {
    let wide = "word ".repeat(21);
    let link = format!("([{}](there.md)),", wide.replace(' ', "-"));
    let page = format!("{wide}\n| {wide}\n```\n{wide}\n```\n    {wide}\n  {link}\n- {wide}");
    assert_eq!(wide_prose_lines(&page), [1, 8]);
    assert_eq!(wide_prose_lines(&format!("{link}\nand {link}\n{link} and")), [2, 3]);
}

/// Numbers of a page's lines of prose that are too long: tables, code, and lines of one link alone
/// cannot be wrapped.
fn wide_prose_lines(page: &str) -> Vec<usize> {
    let (mut wide, mut is_code) = (Vec::new(), false);
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim_start();
        is_code ^= text.starts_with("```");
        let cannot_wrap =
            is_code || line.starts_with("    ") || text.starts_with('|') || is_one_link(text);
        if !cannot_wrap && line.chars().count() > 100 {
            wide.push(number);
        }
    }
    wide
}

fn is_one_link(text: &str) -> bool {
    let link = text.trim_start_matches(['-', '(', ' ']);
    link.starts_with('[') && link.split_once("](").is_some_and(|(_, end)| !end.contains(' '))
}

struct Named {
    kind: &'static str,
    name: String,
    is_public: bool,
    file: PathBuf,
}

/// By kind and old name: the new one. A line of the list is `kind`, `old`, `new`, separated by
/// tabs.
fn replaced_names() -> BTreeMap<(&'static str, String), String> {
    let list = fs::read_to_string(root().join("docs/glossary.tsv")).expect("docs/glossary.tsv");
    let mut names = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let [kind, old, new] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("not three columns: {line}");
        };
        let kind = match kind {
            "type" => "type",
            "mod" => "mod",
            _ => panic!("neither type nor mod: {line}"),
        };
        names.insert((kind, old.to_owned()), new.to_owned());
    }
    assert!(names.len() > 100, "the list was cut: {} names", names.len());
    names
}

fn workspace_names() -> Vec<Named> {
    let mut found = Vec::new();
    for folder in ["crates", "bench", "testkit"] {
        for file in source_files(&root().join(folder)) {
            let source = fs::read_to_string(&file).expect("a source file");
            let items = syn::parse_file(&source).expect("the source compiles").items;
            let file = file.strip_prefix(root()).expect("below the root").to_owned();
            collect(&items, &file, &mut found);
        }
    }
    found
}

fn collect(items: &[Item], file: &Path, found: &mut Vec<Named>) {
    for item in items {
        let (kind, name, visibility, attributes) = match item {
            Item::Struct(item) => ("type", &item.ident, &item.vis, &item.attrs),
            Item::Enum(item) => ("type", &item.ident, &item.vis, &item.attrs),
            Item::Union(item) => ("type", &item.ident, &item.vis, &item.attrs),
            Item::Trait(item) => ("type", &item.ident, &item.vis, &item.attrs),
            Item::Type(item) => ("type", &item.ident, &item.vis, &item.attrs),
            Item::Mod(item) => ("mod", &item.ident, &item.vis, &item.attrs),
            _ => continue,
        };
        if is_test(attributes) {
            continue;
        }
        let is_public = matches!(visibility, Visibility::Public(_));
        found.push(Named { kind, name: name.to_string(), is_public, file: file.to_owned() });
        if let Item::Mod(module) = item
            && let Some((_, items)) = &module.content
        {
            collect(items, file, found);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            let tokens = list.tokens.to_string();
            list.path.is_ident("cfg")
                && tokens.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
        }
        Meta::Path(_) | Meta::NameValue(_) => false,
    })
}

/// Sources of libraries and binaries: no tests and examples.
fn source_files(folder: &Path) -> Vec<PathBuf> {
    let is_other = |part: std::path::Component<'_>| {
        let name = Path::new(&part).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        ["tests", "examples"].contains(&name.as_str())
    };
    let mut files = rust_files(folder);
    files.retain(|file| {
        let inside = file.strip_prefix(folder).expect("below the folder");
        !inside.components().any(is_other)
    });
    files
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

/// Files with an extension, but none in hidden folders and those of builds.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a folder's entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extension));
        } else if path.is_file() && path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

//! The floor check: inside a crate a top module uses only modules of lower floors, its own
//! children, and nothing beside it.
//!
//! `layers.rs` holds crates to their arrows; this holds modules. ARCHITECTURE.md draws the same
//! floors.
#![expect(clippy::wildcard_enum_match_arm, reason = "the enum is of syn, which adds to it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemImpl, ItemMod, ItemUse, Macro, Meta, Type, UseTree};

/// A crate's folder and its floors, the lowest first.
struct House {
    folder: &'static str,
    floors: &'static [&'static [&'static str]],
}

const HOUSES: &[House] = &[
    House {
        folder: "crates/engine",
        floors: &[
            &["sync", "time", "ids", "prefix", "drop_reason", "insertion_order"],
            &["lifetime", "flow_key", "stats", "pmtu"],
            &["selector", "error"],
            &["sa"],
            &["ecn", "fragments", "spd"],
            &["device", "sad", "flow_cache", "packet_tap"],
            &["settings", "events", "stage_watch"],
            &["snapshot", "esp"],
            &["drop_log"],
            &["bundle"],
            &["datapath"],
            &["database", "worker"],
            &["explain"],
        ],
    },
    House {
        folder: "crates/daemon",
        floors: &[
            &[
                "clock",
                "descriptor_store",
                "fallback_socket",
                "local_ports",
                "pausable_thread",
                "wording",
            ],
            &["protocol", "tun"],
            &["config"],
            &["batch"],
            &["routes"],
            &["ports"],
            &["inline"],
            &["firewall"],
            &["devices"],
            &["tunnels"],
            &["reconcile"],
            &["control"],
            &["status"],
            &["sandbox", "check"],
            &["reload"],
            &["upgrade"],
            &["gateway"],
        ],
    },
];

#[test]
fn modules_use_only_lower_floors() {
    let mut wrong = Vec::new();
    for house in HOUSES {
        wrong.extend(upward_uses(house));
    }
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md's floors:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_top_module_has_a_floor() {
    for house in HOUSES {
        let listed: BTreeSet<_> = house
            .floors
            .iter()
            .flat_map(|floor| floor.iter().map(|name| (*name).to_owned()))
            .collect();
        let declared: BTreeSet<_> = top_modules(&source_folder(house)).into_iter().collect();
        let name = house.folder;
        assert_eq!(
            listed, declared,
            "{name}: give each module a floor, in HOUSES and ARCHITECTURE.md"
        );
    }
}

#[test]
fn architecture_draws_the_same_floors() {
    let drawn = drawn_floors(&read(&workspace().join("ARCHITECTURE.md")));
    for house in HOUSES {
        let name = house.folder.trim_start_matches("crates/");
        let floors: Vec<BTreeSet<_>> =
            house.floors.iter().map(|floor| floor.iter().copied().collect()).collect();
        let drawn: Vec<BTreeSet<_>> =
            drawn[name].split('<').map(|floor| floor.split_whitespace().collect()).collect();
        assert_eq!(drawn, floors, "{name}: ARCHITECTURE.md, and HOUSES of this test");
    }
}

/// The floors of each crate as ARCHITECTURE.md has them: `engine   ids < sa < …`, in a block of its
/// own, where a line that begins with spaces continues the one before.
fn drawn_floors(page: &str) -> BTreeMap<String, String> {
    let section = page.split("\n## Floors\n").nth(1).expect("a section of floors");
    let block = section.split("```").nth(1).expect("a block with the floors");
    let mut floors: BTreeMap<String, String> = BTreeMap::new();
    let mut name = "";
    for line in block.lines().filter(|line| !line.trim().is_empty()) {
        let (first, rest) = line.split_once(' ').expect("a name and its modules");
        if !first.is_empty() {
            name = first;
        }
        floors.entry(name.to_owned()).or_default().push_str(&format!("{rest} "));
    }
    floors
}

#[test]
fn an_upward_use_is_seen_in_each_form() {
    let exports = BTreeMap::from([("Worker".to_owned(), "worker".to_owned())]);
    let modules = BTreeSet::from(["worker".to_owned(), "ids".to_owned()]);
    let names = Names { modules: &modules, exports: &exports };
    for (source, expected) in [
        ("use crate::worker::Settings;", "worker"),
        ("use crate::{ids::Spi, Worker};", "worker"),
        ("use super::worker;", "worker"),
        ("fn f() -> crate::Worker { loop {} }", "worker"),
        ("fn f() { assert!(crate::worker::is_up()); }", "worker"),
        ("mod inner { use super::super::worker::Worker; }", "worker"),
        ("#[cfg(not(test))] use crate::worker::Worker;", "worker"),
        ("use crate::*;", ROOT),
        ("use super::*;", ROOT),
        ("use crate as engine;", ROOT),
        ("use crate::{self as engine, ids::Spi};", ROOT),
    ] {
        let used = uses_of(source, &["ids".to_owned()], &names);
        assert!(used.contains(expected), "{source}: {used:?}");
    }
    let in_tests = "#[cfg(test)] mod tests { use crate::worker::Worker; }";
    assert!(uses_of(in_tests, &["ids".to_owned()], &names).is_empty());
}

/// The files that hold the order of work; all other code of the data path is in its stages.
const CONDUCTORS: &[&str] = &[".rs", "/run.rs", "/interleaved.rs", "/single.rs"];

#[test]
fn stages_are_no_methods_of_a_workers_halves() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/engine/src/datapath");
    let mut wrong = Vec::new();
    for (half, module) in [("Inbound", "inbound"), ("Outbound", "outbound")] {
        let allowed: Vec<_> =
            CONDUCTORS.iter().map(|name| folder.join(format!("{module}{name}"))).collect();
        let holders = source_files(&folder).into_iter().filter(|file| has_impl(&read(file), half));
        let (right, others): (Vec<_>, Vec<_>) = holders.partition(|file| allowed.contains(file));
        assert_eq!(right.len(), CONDUCTORS.len(), "{half} was renamed or moved: {right:?}");
        wrong.extend(others);
    }
    assert!(wrong.is_empty(), "a stage is a struct or a free function: {wrong:#?}");
}

#[test]
fn an_impl_is_seen_by_any_path_and_in_inner_modules() {
    for source in ["impl A {}", "impl super::A {}", "mod inner { impl<T> B<T> for super::A {} }"] {
        assert!(has_impl(source, "A"), "{source}");
    }
    assert!(!has_impl("impl From<A> for B {}", "A"));
}

/// Whether a file implements something for a type of this name.
fn has_impl(source: &str, name: &str) -> bool {
    struct Impls<'a>(&'a str, bool);
    impl<'ast> Visit<'ast> for Impls<'_> {
        fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
            if let Type::Path(path) = &*item.self_ty {
                self.1 |= path.path.segments.last().is_some_and(|last| last.ident == self.0);
            }
            visit::visit_item_impl(self, item);
        }
    }
    let mut impls = Impls(name, false);
    impls.visit_file(&syn::parse_file(source).expect("the source compiles"));
    impls.1
}

/// Stands for a `use` that brings in the whole crate, so that no name tells of what is used.
const ROOT: &str = "the crate's root under another name, or all of it";

/// What a path's first segment may be.
struct Names<'a> {
    modules: &'a BTreeSet<String>,
    /// Names that the crate's root re-exports, by the top module that they come from.
    exports: &'a BTreeMap<String, String>,
}

fn upward_uses(house: &House) -> Vec<String> {
    let folder = source_folder(house);
    let modules: BTreeSet<_> = top_modules(&folder).into_iter().collect();
    let exports = root_exports(&folder, &modules);
    let names = Names { modules: &modules, exports: &exports };
    let mut wrong = Vec::new();
    for file in source_files(&folder) {
        let path = module_path(&folder, &file);
        // The root re-exports; modules that are for tests alone have no floor.
        let Some(top) = path.first().filter(|top| modules.contains(*top)).cloned() else {
            continue;
        };
        for used in uses_of(&read(&file), &path, &names) {
            if used == ROOT || (used != top && floor(house, &used) >= floor(house, &top)) {
                let inside = file.strip_prefix(&folder).unwrap_or(&file).display();
                wrong.push(format!("{}: {inside}: `{top}` uses `{used}`", house.folder));
            }
        }
    }
    wrong
}

fn floor(house: &House, module: &str) -> usize {
    let at = house.floors.iter().position(|floor| floor.contains(&module));
    at.unwrap_or_else(|| panic!("{}: `{module}` has no floor", house.folder))
}

/// The top modules that a file of the module `path` uses outside its tests.
fn uses_of(source: &str, path: &[String], names: &Names<'_>) -> BTreeSet<String> {
    let file = syn::parse_file(source).expect("the source compiles");
    let mut finder = Finder { path: path.to_vec(), names, found: BTreeSet::new() };
    finder.visit_file(&file);
    finder.found
}

struct Finder<'a> {
    path: Vec<String>,
    names: &'a Names<'a>,
    found: BTreeSet<String>,
}

impl Finder<'_> {
    /// Notes the top module that a path leads to, if it is one of this crate.
    fn note(&mut self, segments: &[String]) {
        let Some(here) = self.resolve(segments) else { return };
        let Some(first) = here.first() else { return };
        if self.names.modules.contains(first) {
            self.found.insert(first.clone());
        } else if let Some(module) = self.names.exports.get(first) {
            self.found.insert(module.clone());
        }
    }

    /// Notes a `use` of all that a path leads to, or of that under another name.
    fn note_whole(&mut self, segments: &[String]) {
        if self.resolve(segments).is_some_and(|here| here.is_empty()) {
            self.found.insert(ROOT.to_owned());
        }
        self.note(segments);
    }

    /// Where a path leads from the crate's root; `None` for one that begins elsewhere.
    fn resolve(&self, segments: &[String]) -> Option<Vec<String>> {
        let mut here = self.path.clone();
        let mut rest = segments;
        match rest.first().map(String::as_str) {
            Some("crate") => {
                here.clear();
                rest = &rest[1..];
            }
            Some("self" | "super") => {
                while let Some(step @ ("self" | "super")) = rest.first().map(String::as_str) {
                    if step == "super" {
                        here.pop();
                    }
                    rest = &rest[1..];
                }
            }
            _ => return None,
        }
        here.extend(rest.iter().cloned());
        Some(here)
    }

    fn note_tree(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            // `self` behind a path is that path.
            UseTree::Rename(rename) if rename.ident == "self" && !prefix.is_empty() => {
                self.note_whole(prefix);
            }
            UseTree::Rename(rename) => self.note_whole(&with(&rename.ident)),
            UseTree::Glob(_) => self.note_whole(prefix),
            UseTree::Group(group) => {
                for item in &group.items {
                    self.note_tree(prefix, item);
                }
            }
        }
    }

    /// A macro's arguments are no syntax tree: paths in them are found by their tokens.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) => path.push(name.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == ':' => {}
                TokenTree::Group(group) => {
                    self.note(&std::mem::take(&mut path));
                    self.note_tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.note(&std::mem::take(&mut path))
                }
            }
        }
        self.note(&path);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.path.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.path.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.note(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.note_tokens(call.tokens.clone());
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            let condition = list.tokens.to_string();
            let mut words = condition.split(|letter: char| !letter.is_alphanumeric());
            list.path.is_ident("cfg")
                && words.clone().any(|word| word == "test")
                && !words.any(|word| word == "not")
        }
        Meta::Path(_) | Meta::NameValue(_) => false,
    })
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source_folder(house: &House) -> PathBuf {
    workspace().join(house.folder).join("src")
}

fn top_modules(folder: &Path) -> Vec<String> {
    let root = syn::parse_file(&read(&folder.join("lib.rs"))).expect("the source compiles");
    let modules = root.items.iter().filter_map(|item| match item {
        Item::Mod(module) if !is_test(&module.attrs) => Some(module.ident.to_string()),
        _ => None,
    });
    modules.collect()
}

fn root_exports(folder: &Path, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    fn collect(module: Option<&str>, tree: &UseTree, found: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) => {
                let first = path.ident.to_string();
                collect(Some(module.unwrap_or(&first)), &path.tree, found);
            }
            UseTree::Name(name) => {
                drop(found.insert(name.ident.to_string(), module.unwrap_or_default().to_owned()))
            }
            UseTree::Rename(rename) => {
                drop(found.insert(rename.rename.to_string(), module.unwrap_or_default().to_owned()))
            }
            UseTree::Glob(_) => {}
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| collect(module, item, found))
            }
        }
    }
    let root = syn::parse_file(&read(&folder.join("lib.rs"))).expect("the source compiles");
    let mut found = BTreeMap::new();
    for item in &root.items {
        if let Item::Use(item) = item {
            collect(None, &item.tree, &mut found);
        }
    }
    found.retain(|_, module| modules.contains(module));
    found
}

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a folder of sources").path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests" || name == "test_sa");
        if path.is_dir() && !is_test {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            files.push(path);
        }
    }
    files
}

fn module_path(folder: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(folder).expect("a file of the folder").with_extension("");
    let mut path: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    path.retain(|part| part != "mod" && part != "lib");
    path
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

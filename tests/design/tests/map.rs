//! The map check: each `path::function` of ARCHITECTURE.md leads to one function, and each file
//! that it names is one file.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ImplItemFn, ItemFn, ItemMod, Stmt};

#[test]
fn every_function_on_the_map_is_one_function() {
    let places = places(&page());
    assert!(places.len() > 50, "the map was cut: {} places", places.len());
    let wrong: Vec<_> = places.iter().filter_map(fault_of).collect();
    assert!(wrong.is_empty(), "the map of ARCHITECTURE.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_path_in_architecture_is_one_file() {
    let (page, files) = (page(), source_files());
    let mut wrong = Vec::new();
    for name in codes(&page).filter(|code| is_file_name(code)) {
        let found = files.iter().filter(|file| file.ends_with(name)).count();
        if found != 1 {
            wrong.push(format!("`{name}` is {found} files"));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn functions_are_counted_without_those_of_tests_and_getters_are_known() {
    let source = "fn a() { fn b() {} } impl A { fn a(&self) -> u8 { self.a } fn c() {} } \
                  trait T { fn d() {} } #[cfg(test)] mod tests { fn c() {} } #[test] fn c() {}";
    let found = |name| functions_in(source, name);
    assert_eq!((found("a"), found("b"), found("e")), (vec![false, true], vec![false], vec![]));
    assert_eq!((found("c"), found("d")), (vec![false], vec![false]));
}

/// A file by its path below `crates/`, and a function in it.
struct Place {
    file: String,
    function: String,
}

/// What stands in backquotes as `path.rs::function`.
fn places(page: &str) -> Vec<Place> {
    let split = codes(page).filter_map(|code| code.split_once(".rs::"));
    let place = |(file, function): (&str, &str)| Place {
        file: format!("{file}.rs"),
        function: function.to_owned(),
    };
    split.map(place).collect()
}

/// Why a reader would not find the place, or find another one too.
fn fault_of(Place { file, function }: &Place) -> Option<String> {
    let Ok(source) = fs::read_to_string(root().join("crates").join(file)) else {
        return Some(format!("no file `crates/{file}`"));
    };
    match functions_in(&source, function)[..] {
        [false] => None,
        [true] => Some(format!("`{file}::{function}` only returns a field: who decides?")),
        ref found => Some(format!("`{file}::{function}` is {} functions", found.len())),
    }
}

/// For each function of a name, but those of tests: whether it does no more than return a field.
fn functions_in(source: &str, name: &str) -> Vec<bool> {
    let file = syn::parse_file(source).expect("the source compiles");
    let mut finder = Finder { name, are_getters: Vec::new() };
    finder.visit_file(&file);
    finder.are_getters
}

struct Finder<'a> {
    name: &'a str,
    are_getters: Vec<bool>,
}

impl Finder<'_> {
    fn note(&mut self, name: &syn::Ident, body: &Block) {
        if name == self.name {
            self.are_getters.push(matches!(&body.stmts[..], [Stmt::Expr(Expr::Field(_), None)]));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_test(&function.attrs) {
            self.note(&function.sig.ident, &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_test(&function.attrs) {
            self.note(&function.sig.ident, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        function.default.iter().for_each(|body| self.note(&function.sig.ident, body));
        visit::visit_trait_item_fn(self, function);
    }
}

/// `#[test]`, or `#[cfg(test)]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg_test = || attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test");
        attribute.path().is_ident("test") || attribute.path().is_ident("cfg") && is_cfg_test()
    })
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md")
}

/// What stands in backquotes.
fn codes(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2)
}

fn is_file_name(code: &str) -> bool {
    Path::new(code).extension().is_some_and(|extension| extension == "rs")
}

fn source_files() -> Vec<PathBuf> {
    ["crates", "bench", "testkit", "tests/design"]
        .iter()
        .flat_map(|folder| rust_files(&root().join(folder)))
        .collect()
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

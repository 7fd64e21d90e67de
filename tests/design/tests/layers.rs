//! Checks that crates depend on each other only as ARCHITECTURE.md says, and that sans-IO crates
//! use no clock, thread, descriptor, random source or environment.
//!
//! A new crate has to be given its place in [`LAYERS`] before it builds in CI.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use syn::{Attribute, Item, UseTree};

/// A crate uses only crates of the layers before its own.
const LAYERS: &[&[&str]] = &[
    &[
        "uxfrm-packet",
        "uxfrm-control",
        "uxfrm-status",
        NETLINK_WIRE,
        "uxfrm-cli-grammar",
        "uxfrm-web-options",
        "uxfrm-fleet-options",
        "uxfrm-fleet",
    ],
    &["uxfrm-crypto", CLASSIFY, "uxfrm-metrics"],
    &["uxfrm-engine"],
    &["uxfrm-tunnel", "uxfrm-offload", "uxfrm-netlink"],
    &["uxfrm-xfrm", "uxfrm-link", CONTROL_CLIENT, HOST_FACTS],
    &["uxfrm-runtime", WEB, FLEET_AGENT],
    &["uxfrm"],
    &["uxfrm-daemon"],
    &["uxfrm-bench"],
    &["uxfrm-cli"],
];

/// The layers up to here are sans-IO: no clock, thread, descriptor, random source or environment.
const LAST_SANS_IO_LAYER: usize = 3;

/// Crates split off for their users alone: each public item must be used outside of them.
const SHARED: &[&str] = &[NETLINK_WIRE, CLASSIFY, CONTROL_CLIENT, HOST_FACTS];
const HOST_FACTS: &str = "uxfrm-host-facts";
const CONTROL_CLIENT: &str = "uxfrm-control-client";
const CLASSIFY: &str = "uxfrm-classify";
const NETLINK_WIRE: &str = "uxfrm-netlink-wire";

/// Beside the layers: uses packet and netlink-wire, and is used from [`RUNTIME`] on.
const IO: &str = "uxfrm-io";
const PACKET: &str = "uxfrm-packet";
const RUNTIME: &str = "uxfrm-runtime";

/// Beside the layers: uses the engine and layers before it; every crate may use it, for tests only.
const TESTKIT: &str = "uxfrm-testkit";
const ENGINE: &str = "uxfrm-engine";

/// Stands alone: a library that is preloaded into other programs. It shares [`CONTROL`] and
/// [`NETLINK_WIRE`] with the gateway. [`CLI`]'s tests have it built.
const REDIRECT: &str = "uxfrm-redirect";
const CONTROL: &str = "uxfrm-control";
const CLI: &str = "uxfrm-cli";

/// The one program with HTTP, which talks to a gateway as any client does.
const WEB: &str = "uxfrm-web";

/// The one program that talks to etcd.
const FLEET_AGENT: &str = "uxfrm-fleet-agent";

/// These tests themselves: use no crate, and none uses them.
const DESIGN: &str = "uxfrm-design";

/// What the source of a sans-IO crate may not say outside its tests.
const OUTSIDE_WORLD: &[&str] = &[
    "Instant::",
    "SystemTime",
    "net::UdpSocket",
    "net::Tcp",
    "UdpSocket::bind",
    "TcpStream::connect",
    "TcpListener::bind",
    "unix::net",
    "std::thread::",
    "thread::spawn",
    "thread::sleep",
    "std::env::",
    "env::var",
    "std::fs",
    "fs::File",
    "std::process",
    "std::os::fd",
];

/// Crates through which a sans-IO crate would reach the outside world.
const OUTSIDE_CRATES: &[&str] =
    &["libc", "nix", "rustix", "rand", "getrandom", "tokio", "mio", "netlink-sys"];

#[test]
fn every_arrow_between_crates_is_in_the_design() {
    let metadata = workspace();
    let wrong: Vec<String> =
        metadata.workspace_packages().into_iter().flat_map(wrong_arrows).collect();
    let wrong = wrong.join("\n  ");
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md, nor in LAYERS of this test:\n  {wrong}");
}

#[test]
fn architecture_draws_the_same_layers() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let ours: Vec<BTreeSet<_>> = LAYERS
        .iter()
        .map(|layer| layer.iter().map(|name| name.trim_start_matches("uxfrm-")).collect())
        .collect();
    let page = read(&page);
    assert_eq!(drawn_layers(&page), ours, "ARCHITECTURE.md, and LAYERS of this test");
}

/// The layers as ARCHITECTURE.md has them, in a block of its own: `1  packet · netlink-wire`, then
/// what is drawn beside them, behind two spaces. A line without a number continues the layer.
fn drawn_layers(page: &str) -> Vec<BTreeSet<&str>> {
    let section = page.split("\n## Crates\n").nth(1).expect("a section of crates");
    let block = section.split("```").nth(1).expect("a block with the layers");
    let mut layers: Vec<BTreeSet<&str>> = Vec::new();
    for line in block.lines().filter(|line| !line.trim().is_empty()) {
        let line = line.trim_start();
        let names = line.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim_start();
        if names.len() < line.len() {
            layers.push(BTreeSet::new());
        }
        let layer = layers.last_mut().expect("the first line has a number");
        layer.extend(names.split("  ").next().unwrap_or(names).split(" · "));
    }
    layers
}

#[test]
fn sans_io_crates_do_not_reach_the_outside_world() {
    let metadata = workspace();
    let mut found = Vec::new();
    for package in metadata.workspace_packages() {
        if layer(&package.name).is_some_and(|layer| layer <= LAST_SANS_IO_LAYER) {
            found.extend(outside_crates(package));
            found.extend(outside_words(package));
        }
    }
    assert!(
        found.is_empty(),
        "time, randomness and packets are arguments there:\n  {}",
        found.join("\n  ")
    );
}

#[test]
fn public_items_of_shared_crates_are_used_by_other_crates() {
    let metadata = workspace();
    let packages = metadata.workspace_packages();
    let mut unused = Vec::new();
    for shared in SHARED {
        let (own, others): (Vec<&Package>, Vec<&Package>) =
            packages.iter().partition(|package| package.name == *shared);
        let users = others
            .into_iter()
            .filter(|package| ![TESTKIT, DESIGN].contains(&package.name.as_str()));
        let library = shared.replace('-', "_");
        let used: BTreeSet<String> = users
            .flat_map(code_files)
            .filter(|code| words(code).any(|word| word == library))
            .flat_map(|code| words(&code).map(str::to_owned).collect::<Vec<_>>())
            .collect();
        assert!(!own.is_empty(), "{shared} is no crate of this workspace");
        let items = own.into_iter().flat_map(code_files).flat_map(|code| public_items(&code));
        unused.extend(
            items.filter(|item| !used.contains(item)).map(|item| format!("{shared}: {item}")),
        );
    }
    let unused = unused.join("\n  ");
    assert!(unused.is_empty(), "used in their crate alone, so pub(crate):\n  {unused}");
}

#[test]
fn public_items_are_found_by_kind() {
    let source = "pub const fn one() {}\npub(crate) fn two() {}\n    pub const THREE: u8 = 3;\n\
                  pub struct Four<'a>(pub u8);\npub use five::Six;\npub mod seven;\n\
                  // pub fn eight() {}\n#[cfg(test)]\nmod tests {\n    pub fn nine() {}\n}\n\
                  pub unsafe trait Ten {}\n    pub field: u8,\n";
    assert_eq!(public_items(&code(source)), ["one", "THREE", "Four", "seven", "Ten"]);
}

#[test]
fn the_check_sees_an_arrow_upwards() {
    assert!(!may_use("uxfrm-engine", IO, DependencyKind::Normal));
    assert!(!may_use("uxfrm-packet", TESTKIT, DependencyKind::Normal));
    assert!(!may_use("uxfrm-new", "uxfrm-packet", DependencyKind::Normal));
    assert!(!may_use(REDIRECT, "uxfrm-netlink", DependencyKind::Normal));
    assert!(!may_use(CLI, REDIRECT, DependencyKind::Normal));
    assert!(!may_use("uxfrm-daemon", REDIRECT, DependencyKind::Development));
    assert!(!may_use("uxfrm-netlink", "uxfrm-tunnel", DependencyKind::Normal));
    assert!(may_use("uxfrm-engine", TESTKIT, DependencyKind::Development));
    assert!(may_use(CLI, REDIRECT, DependencyKind::Development));
    assert!(may_use(REDIRECT, CONTROL, DependencyKind::Normal));
    assert!(may_use(REDIRECT, NETLINK_WIRE, DependencyKind::Normal));
    assert!(!may_use(REDIRECT, PACKET, DependencyKind::Normal));
    assert!(!may_use(NETLINK_WIRE, PACKET, DependencyKind::Normal));
    assert!(may_use(CLI, IO, DependencyKind::Normal));
}

#[test]
fn the_check_sees_a_clock_but_not_in_comments_and_tests() {
    let source = "// std::fs in a comment\nfn now() { std::time::Instant::now(); }\n\
                  #[cfg(test)]\nmod tests {\n    use std::fs;\n}\nfn file() { std::fs::read(); }\n";
    let lines: Vec<usize> = words_in(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [2, 7]);
    let grouped = "use std::{\n    fs, thread as t,\n    time::{Duration, Instant},\n};\n\
                   #[cfg(test)]\nuse std::env;\nuse core::fmt;\n";
    let paths = ["std::fs", "std::thread", "std::time::Instant"];
    assert_eq!(imports_of_the_outside_world(grouped), paths);
}

fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace that this test was built from")
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn has_a_place(name: &str) -> bool {
    layer(name).is_some() || [IO, TESTKIT, REDIRECT, DESIGN].contains(&name)
}

fn may_use(user: &str, used: &str, kind: DependencyKind) -> bool {
    match (user, used) {
        (_, TESTKIT) => kind == DependencyKind::Development && has_a_place(user),
        (CLI, REDIRECT) => kind == DependencyKind::Development,
        (REDIRECT, _) => [CONTROL, NETLINK_WIRE].contains(&used),
        (IO, _) => [PACKET, NETLINK_WIRE].contains(&used),
        (_, IO) => layer(user) >= layer(RUNTIME),
        (TESTKIT, _) => layer(used).is_some() && layer(used) <= layer(ENGINE),
        // `None`, a crate without a layer, sorts before every layer: it may use nothing and not be
        // used.
        _ => layer(used).is_some() && layer(used) < layer(user),
    }
}

fn wrong_arrows(package: &Package) -> Vec<String> {
    if !has_a_place(&package.name) {
        return vec![format!("{}: a crate without a place; see LAYERS", package.name)];
    }
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.filter(|dependency| !may_use(&package.name, &dependency.name, dependency.kind))
        .map(|dependency| format!("{} -> {}", package.name, dependency.name))
        .collect()
}

fn outside_crates(package: &Package) -> Vec<String> {
    let normal =
        package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    normal
        .filter(|dependency| OUTSIDE_CRATES.contains(&dependency.name.as_str()))
        .map(|dependency| format!("{} -> {}", package.name, dependency.name))
        .collect()
}

fn outside_words(package: &Package) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources(&source_directory(package)) {
        let source = read(&path);
        let words = words_in(&source).into_iter();
        found.extend(words.map(|(line, word)| format!("{}:{line}: {word}", path.display())));
        let imports = imports_of_the_outside_world(&source).into_iter();
        found.extend(imports.map(|import| format!("{}: {import}", path.display())));
    }
    found
}

fn source_directory(package: &Package) -> PathBuf {
    package.manifest_path.as_std_path().with_file_name("src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a source file of this workspace is readable")
}

/// The code of each source file, without comments and tests.
fn code_files(package: &Package) -> Vec<String> {
    sources(&source_directory(package)).iter().map(|path| code(&read(path))).collect()
}

fn code(source: &str) -> String {
    code_lines(source).into_iter().flat_map(|(_, line)| [line, "\n"]).collect()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Names of the items that are `pub` in some code, methods included, fields excluded.
fn public_items(code: &str) -> Vec<String> {
    const KINDS: &[&str] =
        &["fn", "struct", "enum", "union", "trait", "type", "mod", "static", "const"];
    let declared = code.lines().filter_map(|line| line.trim_start().strip_prefix("pub "));
    let name = |declaration| {
        let mut words = words(declaration).filter(|word| !word.is_empty());
        let mut kind = words.find(|word| !["unsafe", "async", "extern"].contains(word))?;
        let mut name = words.next()?;
        if kind == "const" && ["fn", "unsafe"].contains(&name) {
            (kind, name) = ("fn", words.find(|word| !["fn", "unsafe"].contains(word))?);
        }
        KINDS.contains(&kind).then(|| name.to_owned())
    };
    declared.filter_map(name).collect()
}

/// The Rust files under `root` that are not wholly tests.
fn sources(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).expect("a crate has a src directory");
    let paths = entries.map(|entry| entry.expect("a directory entry is readable").path());
    let mut found = Vec::new();
    for path in paths.filter(|path| path.file_stem().is_some_and(|stem| stem != "tests")) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Where a source says a word of [`OUTSIDE_WORLD`], by line from 1.
fn words_in(source: &str) -> Vec<(usize, &'static str)> {
    let said = |code: &str| {
        OUTSIDE_WORLD.iter().copied().filter(|word| code.contains(*word)).collect::<Vec<_>>()
    };
    let lines = code_lines(source).into_iter();
    lines.flat_map(|(line, code)| said(code).into_iter().map(move |word| (line, word))).collect()
}

/// Paths of the standard library that a sans-IO crate may not import, in whatever form.
const OUTSIDE_PATHS: &[&str] = &[
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::net::UdpSocket",
    "std::net::TcpStream",
    "std::net::TcpListener",
];

/// What a source imports of [`OUTSIDE_PATHS`] outside its tests.
fn imports_of_the_outside_world(source: &str) -> Vec<String> {
    fn collect(prefix: &str, tree: &UseTree, found: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => collect(&format!("{prefix}{}::", path.ident), &path.tree, found),
            UseTree::Name(name) => found.push(format!("{prefix}{}", name.ident)),
            UseTree::Rename(rename) => found.push(format!("{prefix}{}", rename.ident)),
            UseTree::Glob(_) => found.push(prefix.trim_end_matches(':').to_owned()),
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| collect(prefix, item, found));
            }
        }
    }
    let is_for_tests = |attribute: &Attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && condition.is_ok_and(|condition| condition == "test")
    };
    let file = syn::parse_file(source).expect("the source compiles");
    let mut found = Vec::new();
    for item in &file.items {
        if let Item::Use(item) = item
            && !item.attrs.iter().any(is_for_tests)
        {
            collect("", &item.tree, &mut found);
        }
    }
    let is_outside = |import: &String| {
        OUTSIDE_PATHS.iter().any(|path| {
            import.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
    };
    found.into_iter().map(|import| import.replace("::self", "")).filter(is_outside).collect()
}

/// The lines of a source by number from 1, without comments and `#[cfg(test)]` items.
fn code_lines(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut lines = source.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            skip_item(&mut lines, indentation(line));
            continue;
        }
        found.push((index + 1, line.split("//").next().unwrap_or(line)));
    }
    found
}

/// Skips the item behind an attribute: one statement, or up to its closing brace (rustfmt puts that
/// at the item's indentation).
fn skip_item<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, indentation_of_item: usize) {
    for (_, line) in lines {
        let closes = line.trim_start().starts_with('}') && indentation(line) == indentation_of_item;
        let one_line = line.ends_with(';') || line.ends_with('}');
        if closes || (one_line && indentation(line) == indentation_of_item) {
            return;
        }
    }
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

//! The layer check: the arrows between the workspace's crates are those of ARCHITECTURE.md and no others, and the
//! sans-IO crates have no clock, thread, descriptor, random source or environment.
//!
//! A new crate has to be given its place in [`LAYERS`] before it builds in CI.

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// A crate uses only crates of the layers before its own.
const LAYERS: &[&[&str]] = &[
    &["uxfrm-packet", "uxfrm-control", "uxfrm-words"],
    &["uxfrm-crypto"],
    &["uxfrm-engine"],
    &["uxfrm-tunnel", "uxfrm-offload", "uxfrm-netlink"],
    &["uxfrm-xfrm", "uxfrm-link"],
    &["uxfrm-runtime"],
    &["uxfrm"],
    &["uxfrm-daemon"],
    &["uxfrm-fleet", "uxfrm-bench"],
    &["uxfrm-cli"],
];

/// The layers up to here are sans-IO: no clock, thread, descriptor, random source or environment.
const LAST_SANS_IO_LAYER: usize = 3;

/// Beside the layers: uses only packet, and is used from [`RUNTIME`] on.
const IO: &str = "uxfrm-io";
const PACKET: &str = "uxfrm-packet";
const RUNTIME: &str = "uxfrm-runtime";

/// Beside the layers: uses the engine and what is before it, and is used only for tests, by every crate.
const TESTKIT: &str = "uxfrm-testkit";
const ENGINE: &str = "uxfrm-engine";

/// Stands alone: a library for other programs' processes. It and the gateway agree on [`CONTROL`]. [`CLI`]'s tests have it built to preload
/// it.
const REDIRECT: &str = "uxfrm-redirect";
const CONTROL: &str = "uxfrm-control";
const CLI: &str = "uxfrm-cli";

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
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md:\n  {}", wrong.join("\n  "));
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
    assert!(may_use(CLI, IO, DependencyKind::Normal));
}

#[test]
fn the_check_sees_a_clock_but_not_in_comments_and_tests() {
    let source = "// std::fs in a comment\nfn now() { std::time::Instant::now(); }\n\
                  #[cfg(test)]\nmod tests {\n    use std::fs;\n}\nfn file() { std::fs::read(); }\n";
    let lines: Vec<usize> = words_in(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [2, 7]);
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
    layer(name).is_some() || [IO, TESTKIT, REDIRECT].contains(&name)
}

fn may_use(user: &str, used: &str, kind: DependencyKind) -> bool {
    match (user, used) {
        (_, TESTKIT) => kind == DependencyKind::Development && has_a_place(user),
        (CLI, REDIRECT) => kind == DependencyKind::Development,
        (REDIRECT, _) => used == CONTROL,
        (IO, _) => used == PACKET,
        (_, IO) => layer(user) >= layer(RUNTIME),
        (TESTKIT, _) => layer(used).is_some() && layer(used) <= layer(ENGINE),
        // `None`, a crate without a layer, is before every layer: so it uses nothing and must not be used.
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
    let root = package.manifest_path.as_std_path().with_file_name("src");
    let mut found = Vec::new();
    for path in sources(&root) {
        let source =
            fs::read_to_string(&path).expect("a source file of this workspace is readable");
        let words = words_in(&source);
        found.extend(
            words.into_iter().map(|(line, word)| format!("{}:{line}: {word}", path.display())),
        );
    }
    found
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

/// Where a source says a word of [`OUTSIDE_WORLD`], by line from 1; comments and `#[cfg(test)]` items do not count.
fn words_in(source: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut lines = source.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            skip_item(&mut lines, indentation(line));
            continue;
        }
        let code = line.split("//").next().unwrap_or(line);
        found.extend(
            OUTSIDE_WORLD.iter().filter(|word| code.contains(*word)).map(|word| (index + 1, *word)),
        );
    }
    found
}

/// Passes over the item that follows an attribute: one statement, or as far as the brace that closes it (rustfmt puts
/// that at the item's own indentation).
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

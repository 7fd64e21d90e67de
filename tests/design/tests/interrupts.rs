//! Clients' system calls that a signal may interrupt are made where they are made again: what talks
//! to a gateway uses `control-client/src/datagrams.rs`, and no other of nix's calls on sockets.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{File, UseTree};

/// Crates that talk to a running gateway, or to the kernel for who asks.
const CLIENTS: &[&str] = &["cli", "control-client", "host-facts", "link", "web", "xfrm"];

/// Calls that wait, and end with `EINTR`.
const WAITING: &[&str] = &[
    "accept", "accept4", "connect", "poll", "ppoll", "recv", "recvfrom", "recvmsg", "send",
    "sendmsg", "sendto",
];

/// Files that make them, each with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("control-client/src/datagrams.rs", "for all others"),
    ("xfrm/src/client.rs", "below control-client; goes on after a signal by itself"),
    ("xfrm/src/client/pipeline.rs", "as its parent; never waits in `send`"),
    ("web/src/server/loopback_user.rs", "its socket does not wait"),
    ("cli/src/demo/throughput.rs", "the demo's own TCP"),
];

#[test]
fn clients_make_no_call_that_a_signal_ends() {
    let mut found = Vec::new();
    for name in CLIENTS {
        let source = crates().join(name).join("src");
        for file in rust_files(&source) {
            let shown = file.strip_prefix(crates()).expect("a crate's file").display().to_string();
            let calls = waiting_calls(&fs::read_to_string(&file).expect("a source"));
            if !calls.is_empty() && !ALLOWED.iter().any(|(allowed, _)| *allowed == shown) {
                found.push(format!("{shown}: {calls:?}"));
            }
        }
    }
    assert!(found.is_empty(), "calls that end with EINTR:\n  {}", found.join("\n  "));
}

#[test]
fn files_that_may_still_do() {
    for (file, reason) in ALLOWED {
        let text = fs::read_to_string(crates().join(file)).expect("a source");
        assert!(!waiting_calls(&text).is_empty(), "{file} ({reason}) has none any more");
    }
}

#[test]
fn the_check_sees_calls_however_they_are_named() {
    let seen = |text: &str| waiting_calls(text).join(" ");
    assert_eq!(seen("use nix::sys::socket::{self, MsgFlags, recv, send as put};"), "recv send");
    assert_eq!(seen("use nix::{errno::Errno, sys::socket::{connect}};"), "connect");
    assert_eq!(seen("fn f() { nix::sys::socket::recvmsg(1) }"), "recvmsg");
    assert_eq!(seen("use nix::sys::socket; fn f() { socket::send(1) }"), "send");
    assert_eq!(seen("use nix::poll::{poll, PollFd};"), "poll");
    assert_eq!(seen("use std::sync::mpsc::Sender; fn f() { sender.send(1); recv() }"), "");
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates")
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a crate's sources").flatten();
    let paths = entries.map(|entry| entry.path());
    let files = paths.flat_map(|path| match path.is_dir() {
        true => rust_files(&path),
        false => vec![path],
    });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The calls of nix that a source imports, or names by their module.
fn waiting_calls(text: &str) -> Vec<String> {
    let mut calls = Calls::default();
    calls.visit_file(&syn::parse_str::<File>(text).expect("Rust"));
    calls.0
}

#[derive(Default)]
struct Calls(Vec<String>);

impl Calls {
    fn note(&mut self, path: &[String]) {
        if let [.., module, call] = path
            && ["socket", "poll"].contains(&module.as_str())
            && WAITING.contains(&call.as_str())
        {
            self.0.push(call.clone());
        }
    }

    fn imports(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.imports(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.note(&with(name.ident.to_string())),
            UseTree::Rename(rename) => self.note(&with(rename.ident.to_string())),
            UseTree::Glob(_) => {}
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.imports(before, tree));
            }
        }
    }
}

impl<'a> Visit<'a> for Calls {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.imports(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.note(&names);
        visit::visit_path(self, path);
    }
}

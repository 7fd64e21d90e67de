//! `scripts/bench-gate` on figures that are made up: of callgrind there is only what it prints.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCRIPT: &str = include_str!("../../scripts/bench-gate");

/// A repository with a gate that has the paths `out` and `in`, each of a thousand instructions for each packet.
#[expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]
fn stage(name: &str, figures: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let program = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("scripts/bench-gate", SCRIPT);
    program("bench/gate.txt", figures);
    program("target/release/examples/gate", "#!/bin/sh\necho 10 out in\n");
    program("bin/cargo", "#!/bin/sh\n");
    program("bin/rustc", "#!/bin/sh\necho rustc 1.95.0\n");
    program("bin/valgrind", "#!/bin/sh\necho '==1== Collected : 10000' >&2\n");
    root
}

#[expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]
fn gate(name: &str, figures: &str) -> (Output, String) {
    let root = stage(name, figures);
    let path = format!("{}:{}", root.join("bin").display(), std::env::var("PATH").unwrap());
    let mut gate = Command::new(root.join("scripts/bench-gate"));
    let output = gate.env("PATH", path).env_remove("CARGO_TARGET_DIR").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

#[test]
fn figures_that_are_the_same_pass() {
    let (output, said) = gate("gate-same", "# By rustc 1.94.0.\nout 1000.0\nin 990.0\n");
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("+1.0 %") && !said.contains("uxfrm:"), "{said}");
}

#[test]
fn growth_fails() {
    let (output, said) = gate("gate-growth", "# By rustc 1.94.0.\nout 1000.0\nin 900.0\n");
    assert!(!output.status.success());
    assert!(said.contains("MORE THAN 2 % GROWTH") && said.contains("By rustc 1.94.0"), "{said}");
}

#[test]
fn a_path_that_is_new_fails() {
    let (output, said) = gate("gate-new", "out 1000.0\n");
    assert!(!output.status.success());
    assert!(said.contains("new: scripts/bench-gate --update"), "{said}");
}

#[test]
fn a_path_that_is_gone_fails_and_is_named() {
    let (output, said) = gate("gate-gone", "out 1000.0\nin 1000.0\nround-about 900.0\n");
    assert!(!output.status.success());
    let gone = said.lines().find(|line| line.starts_with("round-about"));
    assert!(gone.is_some_and(|line| line.contains("GONE")), "{said}");
    assert!(!said.contains("takes more instructions"), "{said}");
}

//! `scripts/bench-gate` with made-up figures and a fake valgrind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCRIPT: &str = include_str!("../../scripts/bench-gate");

/// A repository whose gate has the paths `out` and `in`, each with 1000 instructions a packet.
#[expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]
fn fake_repository(name: &str, figures: &str) -> PathBuf {
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
    let root = fake_repository(name, figures);
    let path = format!("{}:{}", root.join("bin").display(), std::env::var("PATH").unwrap());
    let mut gate = Command::new(root.join("scripts/bench-gate"));
    let output = gate.env("PATH", path).env_remove("CARGO_TARGET_DIR").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

#[test]
fn gate_passes_with_figures_within_bounds() {
    let (output, said) = gate("gate-same", "# By rustc 1.94.0.\nout 1000.0\nin 990.0\n");
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("+1.0 %") && !said.contains("uxfrm:"), "{said}");
}

#[test]
fn gate_fails_if_a_path_grows() {
    let (output, said) = gate("gate-growth", "# By rustc 1.94.0.\nout 1000.0\nin 900.0\n");
    assert!(!output.status.success());
    assert!(said.contains("MORE THAN 2 % GROWTH") && said.contains("By rustc 1.94.0"), "{said}");
}

#[test]
fn gate_fails_for_a_new_path() {
    let (output, said) = gate("gate-new", "out 1000.0\n");
    assert!(!output.status.success());
    assert!(said.contains("new: scripts/bench-gate --update"), "{said}");
}

#[test]
fn gate_fails_for_a_missing_path_and_names_it() {
    let (output, said) = gate("gate-gone", "out 1000.0\nin 1000.0\nround-about 900.0\n");
    assert!(!output.status.success());
    let gone = said.lines().find(|line| line.starts_with("round-about"));
    assert!(gone.is_some_and(|line| line.contains("GONE")), "{said}");
    assert!(!said.contains("takes more instructions"), "{said}");
}

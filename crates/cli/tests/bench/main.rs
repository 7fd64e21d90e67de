//! Short runs of benches with real traffic. They need root and `/dev/net/tun`; without them a test
//! prints `not run: REASON`, and fails with `CI=true`.

mod fou;
mod inline;

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

/// The report of a bench; `None` if it can't run.
fn report(bench: &str, options: &[&OsStr]) -> Option<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm"));
    let output = command.args(["bench", bench, "--quick", "--json", "-"]).args(options).output();
    let output = output.expect("the binary was built for this test");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {stderr}");
        eprintln!("not run: needs root: {stderr}");
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON on standard output"))
}

//! `uxfrm bench inline`, very short. Needs root and `/dev/net/tun`; without them it says `not run: REASON`, and fails where `CI=true`.

use std::process::Command;

use serde_json::Value;

#[test]
fn both_paths_carry_packets() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm"));
    let output = command.args(["bench", "inline", "--quick", "--json", "-"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {stderr}");
        return eprintln!("not run: needs root: {stderr}");
    }
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for figure in ["pps", "pps_per_core", "offered_pps"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {row}");
        }
    }
}

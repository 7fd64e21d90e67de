//! `uxfrm demo` as a user starts it. Needs root or user namespaces, and `/dev/net/tun`; without
//! them these tests say `not run: REASON`, and fail where `CI=true`.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// The demo with its own temporary directory, to see what it leaves there.
fn demo(arguments: &[&str], temporary: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm"));
    command.arg("demo").args(arguments).env("TMPDIR", temporary.path());
    command.stdin(Stdio::null());
    command
}

/// Whether the demo reported that it cannot run here; with `CI=true` that fails.
fn cannot_run_here(output: &Output) -> bool {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !stderr.contains("this needs") {
        return false;
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {stderr}");
    eprintln!("not run: {stderr}");
    true
}

fn is_empty(directory: &TempDir) -> bool {
    directory.path().read_dir().unwrap().next().is_none()
}

fn kinds(row: &Value) -> Vec<&str> {
    row["wire"].as_array().unwrap().iter().map(|seen| seen["kind"].as_str().unwrap()).collect()
}

#[test]
fn every_case_but_clear_is_esp_without_plaintext() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(&["--json", "--seconds", "1"], &temporary).output().unwrap();
    if cannot_run_here(&output) {
        return;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let wire: Vec<_> = rows
        .iter()
        .map(|row| {
            assert!(row["gbps"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["ping"]["received"].as_u64().unwrap() > 0, "{row}");
            let name = row["case"]["name"].as_str().unwrap();
            (name, kinds(row), row["plaintext_on_wire"].as_bool().unwrap())
        })
        .collect();
    let expected = [
        ("clear", vec!["icmp", "tcp"], true),
        ("gcm128-udp", vec!["esp-in-udp"], false),
        ("gcm128-esp", vec!["esp"], false),
        ("cbc128-sha1-esp", vec!["esp"], false),
    ];
    assert_eq!(wire, expected);
    assert!(is_empty(&temporary), "keys are left behind");
}

/// Starts the demo and sends SIGINT when a line begins with `moment`.
fn interrupt_at(moment: &str, arguments: &[&str]) {
    let temporary = tempfile::tempdir().unwrap();
    let mut child =
        demo(arguments, &temporary).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let progress = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut gateways, mut interrupted) = (Vec::new(), false);
    for line in progress.map_while(Result::ok) {
        gateways.extend(pids(&line));
        if !interrupted && line.trim_start().starts_with(moment) {
            kill(pid, Signal::SIGINT).unwrap();
            interrupted = true;
        }
    }
    let output = child.wait_with_output().unwrap();
    if cannot_run_here(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(is_empty(&temporary), "keys are left behind");
    for gateway in gateways {
        assert!(kill(gateway, None).is_err(), "gateway {gateway} is left behind");
    }
}

/// The numbers after `pid` in a line.
fn pids(line: &str) -> impl Iterator<Item = Pid> + '_ {
    line.split("(pid ")
        .skip(1)
        .filter_map(|rest| rest.split(')').next()?.parse().ok().map(Pid::from_raw))
}

#[test]
fn sigint_ends_the_clear_case() {
    interrupt_at("wire", &["--seconds", "3600"]);
}

#[test]
fn sigint_ends_a_protected_case_and_its_gateways() {
    interrupt_at("uxfrm run in a", &["--seconds", "1", "--only", "gcm128-udp"]);
}

//! `uxfrm bench tunnel --quick` as a user starts it: which rows there are and what the page shows.
//!
//! Needs root or user namespaces, `/dev/net/tun` and iperf3; without them this says `not run:
//! REASON`, and fails where `CI=true`.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm"));
    command.args(["bench", "tunnel", "--quick"]).args(arguments).stdin(Stdio::null());
    command
}

fn bench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Whether the bench said that it cannot run here; where `CI=true`, that fails.
fn cannot_run_here(output: &Output) -> bool {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !stderr.contains("this needs") {
        assert!(output.status.success(), "{stderr}");
        return false;
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {stderr}");
    eprintln!("not run: {stderr}");
    true
}

/// The congestion controls that are measured here: CUBIC, and the machine's own if it is another.
fn congestion_controls() -> Vec<String> {
    let used = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let chosen = Some(used.trim().to_owned()).filter(|used| used != "cubic");
    ["cubic".to_owned()].into_iter().chain(chosen).collect()
}

/// Whether a row was measured. One that was not says why, and only CUBIC may be refused: the kernel
/// allows the machine's own control in every namespace (`net/ipv4/tcp_cong.c:
/// tcp_set_default_congestion_control`).
fn is_measured(row: &Value) -> bool {
    let Some(note) = row["note"].as_str() else { return true };
    assert!(note.starts_with("not measured: ") && row["case"]["congestion"] == "cubic", "{row}");
    assert!(!is_allowed("cubic") && row.get("goal").is_none(), "{row}");
    false
}

/// Whether any namespace may use this congestion control.
fn is_allowed(control: &str) -> bool {
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    allowed.unwrap().split_whitespace().any(|name| name == control)
}

#[test]
fn rows_and_page_have_every_test_of_a_path() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tunnel.html");
    let only = "path=uxfrm-udp,frames=super,transform=gcm128,workers=2";
    let output = bench(&["--json", "-", "--html", page.to_str().unwrap(), "--only", only]);
    if cannot_run_here(&output) {
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "tunnel");
    let rows = report["rows"].as_array().unwrap();
    let tests: Vec<_> = rows
        .iter()
        .map(|row| {
            let word = |key: &str| row["case"][key].as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", word("test"), word("load"), word("congestion"))
        })
        .collect();
    let tcp = congestion_controls()
        .into_iter()
        .flat_map(|name| ["rtt tcp1", "tcp1 -", "tcp4 -"].map(|test| format!("{test} {name}")));
    let udp = ["udp64", "udp1300"]
        .into_iter()
        .flat_map(|test| ["160k", "peak", "2xpeak"].map(|load| format!("{test} {load} -")));
    let expected: Vec<_> = ["rtt idle -".to_owned()].into_iter().chain(tcp).chain(udp).collect();
    assert_eq!(tests, expected);
    for row in rows.iter().filter(|row| is_measured(row)) {
        let figure = ["gbps", "rtt_us"].iter().find_map(|name| row[name].as_f64());
        assert!(figure.unwrap() > 0.0 && row["rounds"] == 1, "{row}");
    }
    let stream = rows.iter().find(|row| row["case"]["test"] == "tcp1" && is_measured(row)).unwrap();
    assert!(stream["cpu_s_per_gb"].as_f64().unwrap() > 0.0);
    let html = fs::read_to_string(page).unwrap();
    assert!(
        html.contains("One TCP stream, Gbit/s") && html.contains("uxfrm-udp gcm128, 2 workers")
    );
    assert_eq!(html.contains("uxfrm-udp gcm128, 2 workers, cubic"), is_allowed("cubic"));
    // The CPU time of one stream has its own bars. 1300 bytes at a given rate have none, nor have
    // rows that were not measured.
    let measured: Vec<_> = rows.iter().filter(|row| is_measured(row)).collect();
    let streams = measured.iter().filter(|row| row["case"]["test"] == "tcp1").count();
    let bars = measured.len() + streams;
    assert_eq!(html.matches("<b class=\"bar").count(), bars - 1, "{html}");
}

#[test]
fn relays_carry_tcp_and_udp_and_cost_cpu_time() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("relays.html");
    for frames in ["super", "1500"] {
        let only = format!("path=relay-udp,path=relay-esp,frames={frames},test=tcp1,test=udp1300");
        let tcp = congestion_controls();
        let html = ["--html", page.to_str().unwrap()];
        let output = bench(&[&["--json", "-", "--only", &only], &html[..]].concat());
        if cannot_run_here(&output) {
            return;
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * (tcp.len() + 3), "{rows:?}");
        for (rows, path) in rows.chunks(tcp.len() + 3).zip(["relay-udp", "relay-esp"]) {
            assert!(rows.iter().all(|row| row["case"]["path"] == path), "{rows:?}");
            for (row, name) in rows.iter().zip(&tcp) {
                assert_eq!(row["case"]["congestion"], **name);
                if is_measured(row) {
                    assert!(row["gbps"].as_f64().unwrap() > 0.0, "{rows:?}");
                    assert!(row["cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{rows:?}");
                }
            }
            assert!(rows[tcp.len()]["kpps"].as_f64().unwrap() > 0.0, "{rows:?}");
            assert!(rows.iter().all(|row| row["out_of_order"].as_f64().unwrap_or(0.0) == 0.0));
        }
        let html = fs::read_to_string(&page).unwrap();
        let end = if frames == "super" { "<" } else { ", 1500-byte frames<" };
        for path in ["relay-udp", "relay-esp"] {
            let name = tcp.iter().find(|name| is_allowed(name)).unwrap();
            assert!(html.contains(&format!("<span>{path}{end}")), "{html}");
            assert!(html.contains(&format!("<span>{path}{}, {name}<", &end[..end.len() - 1])));
        }
        assert!(html.contains("CPU seconds of both gateways or relays per GB"), "{html}");
    }
}

#[test]
fn inline_and_af_xdp_gateways_have_rows() {
    let only = "path=uxfrm-inline,path=uxfrm-af_xdp,path=uxfrm-xdp,test=tcp1";
    let output = bench(&["--json", "-", "--only", only]);
    if cannot_run_here(&output) {
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let count = congestion_controls().len();
    let is_of = |row: &Value, path: &str| row["case"]["path"] == path;
    let of = |path: &str| rows.iter().filter(|row| is_of(row, path)).collect::<Vec<_>>();
    let carried =
        |row: &&Value| !is_measured(row) || row["gbps"].as_f64().is_some_and(|gbps| gbps > 0.0);
    let inline = of("uxfrm-inline");
    assert!(inline.len() == count && inline.iter().all(carried), "{rows:?}");
    // AF_XDP by default, without gathering, and always gathering.
    for (path, paths) in [("uxfrm-af_xdp", 3), ("uxfrm-xdp", 1)] {
        let xdp = of(path);
        let refused = xdp.len() == paths && xdp.iter().all(|row| row["note"] == "needs root");
        assert!(refused || xdp.len() == paths * count && xdp.iter().all(carried), "{rows:?}");
    }
}

#[test]
fn peer_has_rows_beside_the_clear_path_or_is_listed_as_not_installed() {
    let only = "path=clear,path=boringtun,frames=super,test=rtt,load=idle";
    let output = bench(&["--json", "-", "--only", only]);
    if cannot_run_here(&output) {
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [clear, peer] = &report["rows"].as_array().unwrap()[..] else { panic!("{report}") };
    assert!(clear["rtt_us"].as_f64().unwrap() > 0.0);
    assert_eq!(peer["case"]["path"], "boringtun");
    assert!(peer["note"] == "not installed" || peer["rtt_us"].as_f64() > Some(0.0), "{peer}");
}

#[test]
fn peer_that_does_not_start_is_listed_as_failed_and_other_paths_run() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("gotatun");
    fs::write(&program, "#!/bin/sh\necho 'error: cannot be configured'\nexit 3\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let only = "path=clear,path=gotatun,test=rtt,load=idle";
    let mut command = command(&["--json", "-", "--rounds", "2", "--only", only]);
    let output = command.env("PATH", path).output().unwrap();
    if cannot_run_here(&output) {
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let named: Vec<_> = rows
        .iter()
        .map(|row| (row["case"]["path"].as_str().unwrap(), row["case"]["frames"].as_str().unwrap()))
        .collect();
    let expected =
        [("clear", "super"), ("gotatun", "super"), ("clear", "1500"), ("gotatun", "1500")];
    assert_eq!(named, expected);
    for (row, (path, _)) in rows.iter().zip(expected) {
        if path == "clear" {
            assert_eq!(row["rounds"], 2, "{row}");
        } else {
            let note = row["note"].as_str().unwrap();
            assert!(note.starts_with("failed: gotatun ended with exit status: 3"), "{note}");
            assert!(note.ends_with("error: cannot be configured"), "{note}");
        }
    }
}

//! The program itself, without an etcd.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output};

fn fleet(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uxfrm-fleet")).args(words).output().expect("it was built")
}

fn refused(words: &[&str]) -> String {
    let done = fleet(words);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    String::from_utf8(done.stderr).expect("errors are text")
}

#[test]
fn errors_say_what_would_be_right() {
    let directory = tempfile::tempdir().expect("a directory of ours");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let config = at("fleet.toml");
    let why = refused(&["status", "--config", &config]);
    assert!(why.contains("fleet.toml: No such file"), "{why}");
    fs::write(&config, "fleet = \"f\"\n[etcd]\nendpoints = [\"http://127.0.0.1:1\"]\n").unwrap();
    let why = refused(&["run", "--config", &config]);
    assert!(why.contains("no [gateway]: `uxfrm fleet join NAME --address"), "{why}");
    let etcd = ["--etcd", "http://127.0.0.1:1"];
    let init = |config: &str| {
        let key = at("fleet.key");
        let words = ["init", "f", etcd[0], etcd[1], "--key-file", &key, "--config", config];
        refused(&words)
    };
    assert!(init(&config).contains("fleet.toml: it is there"));
    let why = init(&at("new.toml"));
    assert!(why.contains("etcd at http://127.0.0.1:1 does not answer"), "{why}");
    assert!(!directory.path().join("fleet.key").exists(), "no key without a fleet");
}

#[test]
fn key_stays_where_nobody_knows_whether_the_fleet_was_made() {
    let directory = tempfile::tempdir().expect("a directory of ours");
    let at = |name: &str| directory.path().join(name).display().to_string();
    // It lets connect, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let etcd = format!("http://{}", silent.local_addr().expect("its port"));
    let (config, key) = (at("fleet.toml"), at("fleet.key"));
    let why = refused(&["init", "f", "--etcd", &etcd, "--key-file", &key, "--config", &config]);
    assert!(why.contains("its key and configuration stay: `uxfrm fleet status` tells"), "{why}");
    assert!(fs::exists(&key).unwrap() && fs::exists(&config).unwrap());
}

//! The program itself: what it says as it begins.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::unistd::Uid;

/// Whoever starts it by hand has to see where it listens, and what of its walls is missing.
#[test]
fn without_rust_log_it_says_where_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm-web"));
    command.arg("--socket").arg(&path).env_remove("RUST_LOG").stderr(Stdio::piped());
    if Uid::effective().is_root() {
        command.args(["--user", "nobody"]);
    }
    let mut server = command.spawn().unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    let wanted = format!("listening at {}", path.display());
    let mut said = Vec::new();
    while let Ok(line) = receiver.recv_timeout(Duration::from_secs(60)) {
        said.push(line);
        if said.iter().any(|line| line.contains(&wanted)) {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    reader.join().unwrap();
    assert!(said.iter().any(|line| line.contains(&wanted)), "{said:?}");
}

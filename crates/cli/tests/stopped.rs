//! Ctrl-Z and `fg` while a command waits for the gateway: it goes on waiting. The kernel ends its
//! calls, as they have a time limit (`signal(7)`).

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, send,
    socket,
};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(60);
const WELCOME: u32 = 3;

#[test]
fn commands_that_were_stopped_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = listen_at(&path);
    let states = directory.path().join("states");
    fs::write(&states, "").unwrap();
    let [path, states] = [&path, &states].map(|path| path.to_str().unwrap());
    let done: &[&str] = &[r#""done""#];
    let failed: &[&str] = &[r#"{"failed":"what the gateway said"}"#];
    for (words, answers, code) in [
        (vec!["reload", "--control", path], done, 0),
        (vec!["release", "--control", path], done, 0),
        (vec!["upgrade", "--control", path], failed, 1),
        (vec!["xfrm", "-control", path, "sync", states], &[r#""ready""#, r#""done""#], 0),
        (vec!["dev", "-control", path, "del", "nic0"], &[r#""done""#], 0),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uxfrm"));
        command.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let command = command.spawn().unwrap();
        let gateway = OwnedFd::from(listener.accept().unwrap().0);
        let mut greeting = receive(&gateway);
        stop_and_continue(&command);
        greeting[8..12].copy_from_slice(&WELCOME.to_ne_bytes());
        tell(&gateway, &greeting);
        receive(&gateway);
        for answer in answers {
            stop_and_continue(&command);
            tell(&gateway, answer.as_bytes());
        }
        let ended = command.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{words:?}: {said}");
        assert!(code == 0 || said.contains("what the gateway said"), "{words:?}: {said}");
    }
}

fn listen_at(path: &Path) -> UnixListener {
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(8).unwrap()).unwrap();
    listener.into()
}

fn receive(client: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let length = recv(client.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
    assert!(length > 0, "the command has ended");
    buffer[..length].to_vec()
}

fn tell(client: &OwnedFd, datagram: &[u8]) {
    // Whether the command still listens shows by how it ends.
    let _gone = send(client.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL);
}

/// Stops a command that sleeps, and lets it go on until it sleeps again, or has ended.
fn stop_and_continue(command: &Child) {
    let pid = Pid::from_raw(command.id().cast_signed());
    let is_in = |states: &[char]| {
        let deadline = Instant::now() + PATIENCE;
        while !states.contains(&state(command.id())) {
            assert!(Instant::now() < deadline, "not {states:?}: {}", state(command.id()));
            sleep(Duration::from_millis(1));
        }
    };
    for _ in 0..3 {
        is_in(&['S', 'Z']);
        kill(pid, Signal::SIGSTOP).unwrap();
        is_in(&['T', 'Z']);
        kill(pid, Signal::SIGCONT).unwrap();
    }
    is_in(&['S', 'Z']);
}

/// As `ps` shows it: `S` sleeps, `T` is stopped, `Z` has ended.
fn state(process: u32) -> char {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

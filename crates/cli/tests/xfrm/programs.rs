//! The two programs that are compared.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::server::Server;

const UXFRM: &str = env!("CARGO_BIN_EXE_uxfrm");

/// A program's output and exit code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
}

/// `ip`, if there is one; without it these tests print `not run`, and fail with `CI=true`.
pub(crate) fn ip() -> Option<PathBuf> {
    let named = std::env::var_os("UXFRM_TEST_IP").map(PathBuf::from);
    let found = named.or_else(|| {
        ["/sbin/ip", "/usr/sbin/ip", "/bin/ip"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
    });
    if found.is_none() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: no ip");
        eprintln!("not run: no ip (Debian package iproute2)");
    }
    found
}

/// Whether that `ip` knows `dir`, `pcpu-num` and `offload packet`.
pub(crate) fn is_new(ip: &Path) -> bool {
    let output = Command::new(ip).args(["xfrm", "state", "help"]).output().unwrap();
    String::from_utf8_lossy(&output.stderr).contains("pcpu-num")
}

/// Runs `ip WORDS` with the server in the kernel's place.
pub(crate) fn run_ip(ip: &Path, server: &Server, words: &[&str], input: &str) -> Outcome {
    let mut command = Command::new(UXFRM);
    command.args(["exec", "--control"]).arg(server.path()).arg("--").arg(ip).args(words);
    let library = std::env::current_exe().unwrap().with_file_name("libuxfrm_redirect.so");
    command.env("UXFRM_REDIRECT", library);
    run(command, input)
}

/// Runs `uxfrm xfrm WORDS`.
pub(crate) fn run_ours(server: &Server, words: &[&str], input: &str) -> Outcome {
    let mut command = Command::new(UXFRM);
    command.args(["xfrm", "-control"]).arg(server.path()).args(words);
    run(command, input)
}

/// Runs `uxfrm WORDS`.
pub(crate) fn uxfrm(words: &[&str]) -> Outcome {
    let mut command = Command::new(UXFRM);
    command.args(words);
    run(command, "")
}

fn run(mut command: Command, input: &str) -> Outcome {
    command.env("TZ", "IST-5:30").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), input.to_owned());
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap(); // a program may end before it has read all
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome { out: text(stdout), err: text(stderr), code: status.code() }
}

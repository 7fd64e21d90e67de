//! `uxfrm exec` with a running gateway: which requests reach it, and which programs are refused.
//!
//! Each test has its own network namespace, so that a request that reached the kernel's XFRM would
//! be in there. Needs root and iproute2; without them these tests say `not run: REASON`, and fail
//! where `CI=true`.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use uxfrm_io::Namespace;

const UXFRM: &str = env!("CARGO_BIN_EXE_uxfrm");

/// A gateway in a namespace.
struct Gateway {
    namespace: Namespace,
    child: Child,
    directory: TempDir,
}

impl Gateway {
    fn start(config: &str) -> Option<Self> {
        let namespace = namespace()?;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.toml");
        // The namespace has no name that would distinguish its default store from others'.
        let keys = "control.enabled = true\nxfrm.sequences = \"numbers\"";
        std::fs::write(&path, format!("{keys}\n{config}")).unwrap();
        let mut command = Command::new(UXFRM);
        command.arg("run").arg("--until-stdin-ends").arg(path);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn()).unwrap().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while !said.ends_with("uxfrm: ready\n") {
            let Some(line) = lines.next() else { panic!("the gateway did not start: {said}") };
            said += &(line.unwrap() + "\n");
        }
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { namespace, child, directory })
    }

    fn exec(&self, command: &str) -> Outcome {
        exec(&self.namespace, command)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
}

fn namespace() -> Option<Namespace> {
    match Namespace::new() {
        Ok(namespace) => Some(namespace),
        Err(error) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {error}");
            eprintln!("not run: no network namespace: {error}");
            None
        }
    }
}

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libuxfrm_redirect.so")
}

/// Runs `uxfrm exec` with these words.
fn exec(namespace: &Namespace, words: &str) -> Outcome {
    let mut command = Command::new(UXFRM);
    command.arg("exec").args(words.split(' ')).env("UXFRM_REDIRECT", library());
    let output = namespace.enter(|| command.output()).unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Outcome { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

#[test]
fn exec_without_gateway_runs_nothing() {
    let Some(namespace) = namespace() else { return };
    let outcome = exec(&namespace, "-- echo reached");
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(125), ""));
    assert!(outcome.err.contains("no uxfrm runs in this network namespace"), "{outcome:?}");
    let outcome = exec(&namespace, "--control /nonexistent/socket -- echo reached");
    assert!(outcome.err.contains("no uxfrm answers at /nonexistent/socket"), "{outcome:?}");
}

#[test]
fn command_keeps_exit_code_and_other_sockets() {
    let Some(gateway) = Gateway::start("") else { return };
    assert_eq!(gateway.exec("-- false").code, Some(1));
    assert_eq!(gateway.exec("-- echo a b").out, "a b");
    assert!(gateway.exec("ip -o link show lo").out.contains("LOOPBACK"));
    let preloaded = gateway.exec("-- printenv LD_PRELOAD").out;
    assert_eq!(PathBuf::from(preloaded), library().canonicalize().unwrap());
}

#[test]
fn ip_xfrm_changes_the_gateway_and_not_the_kernel() {
    let Some(gateway) = Gateway::start("") else { return };
    let state = "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x100 reqid 1 mode tunnel enc cbc(aes) \
                 0x00112233445566778899aabbccddeeff auth hmac(sha1) 0x000102030405060708090a0b0c0d0e0f10111213";
    let policy = "src 10.1.0.0/16 dst 10.2.0.0/16 dir out";
    let template = "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 1 mode tunnel";
    let ip = |words: &str| gateway.exec(&format!("ip {words}"));
    let done = |outcome: Outcome| assert_eq!(outcome.code, Some(0), "{outcome:?}");
    done(ip(state));
    let again = ip(state);
    assert_eq!((again.code, again.err.as_str()), (Some(2), "RTNETLINK answers: File exists"));
    done(ip(&format!("xfrm policy add {policy} {template}")));
    assert_eq!(ip("xfrm state count").out, "SAD count 1");
    assert_eq!(ip("xfrm policy count").out, "SPD IN  0 OUT 1 FWD 0");
    let listed = ip("xfrm policy list").out;
    assert!(listed.starts_with("src 10.1.0.0/16 dst 10.2.0.0/16"), "{listed}");

    let kernel = || Command::new("ip").args(["xfrm", "policy", "list"]).output();
    let kernel = gateway.namespace.enter(kernel).unwrap().unwrap();
    assert!(kernel.status.success() && kernel.stdout.is_empty(), "it reached the kernel");

    done(ip(&format!("xfrm policy delete {policy}")));
    done(ip("xfrm state flush"));
    assert_eq!((ip("xfrm state list").out, ip("xfrm policy list").out), Default::default());
}

#[test]
fn control_socket_may_be_a_path() {
    let Some(gateway) = Gateway::start("control.socket = 'control'") else { return };
    let path = gateway.directory.path().join("control");
    let outcome = gateway.exec(&format!("--control {} -- ip xfrm state count", path.display()));
    assert!(!outcome.err.contains("Cannot open netlink socket"), "{outcome:?}");
    assert!(gateway.exec("-- true").err.contains("has no control socket here"));
}

#[test]
fn program_that_cannot_be_preloaded_is_refused() {
    let Some(gateway) = Gateway::start("") else { return };
    let directory = gateway.directory.path();
    let write = |name: &str, mode: u32, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let echo = std::fs::read("/bin/echo").unwrap();
    let set_id = write("set-id", 0o4755, &echo);
    // Without program headers no loader is named.
    let mut bytes = echo.clone();
    bytes[56..58].fill(0);
    let fixed = write("static", 0o755, &bytes);
    let script = write("script", 0o755, format!("#!{fixed}\n").as_bytes());
    for (program, code, reason) in [
        (set_id.as_str(), 126, "set-user-id"),
        (
            &fixed,
            126,
            "a static program takes no preload library: it would reach the kernel's XFRM",
        ),
        (&script, 126, "a static program"),
        ("/etc/hostname", 126, "/etc/hostname"),
        ("no-such-program", 127, "no program no-such-program in PATH"),
        ("./no-such-program", 127, "can't read ./no-such-program"),
    ] {
        let outcome = gateway.exec(&format!("-- {program} reached"));
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{outcome:?}");
        assert!(outcome.err.contains(reason), "{outcome:?}");
    }
}

#[test]
fn missing_or_invalid_library_stops_the_command() {
    let Some(gateway) = Gateway::start("") else { return };
    for (library, reason) in [
        ("/nonexistent.so", "no preload library at /nonexistent.so"),
        ("/etc/passwd", "would not load /etc/passwd: it would reach the kernel's XFRM"),
    ] {
        let mut command = Command::new(UXFRM);
        command.args(["exec", "--", "echo", "reached"]).env("UXFRM_REDIRECT", library);
        let output = gateway.namespace.enter(|| command.output()).unwrap().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(err.contains(reason), "{err}");
        assert!(output.stdout.is_empty() && output.status.code() == Some(125));
    }
}

/// Children without the library, as of `env -i`, do not reach XFRM.
#[test]
fn command_without_library_does_not_reach_the_kernel() {
    let Some(gateway) = Gateway::start("") else { return };
    let ip = Command::new("sh").args(["-c", "command -v ip"]).output().unwrap();
    let ip = String::from_utf8_lossy(&ip.stdout).trim().to_owned();
    let outcome = gateway.exec(&format!("-- env -i {ip} xfrm policy list"));
    assert_eq!(outcome.err, "Cannot open netlink socket: Operation not permitted");
    let outcome = gateway.exec(&format!("-- env -i {ip} -o link show lo"));
    assert!(outcome.out.contains("LOOPBACK"), "{outcome:?}");
}

/// Root and the configured user have access; others get the kernel's error.
#[test]
fn other_users_are_not_permitted() {
    let run = |config: &str| {
        let gateway = Gateway::start(config)?;
        let library = library();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["ip", "xfrm", "state", "count"]);
        // A copy of the library that this user may read.
        let copy = gateway.directory.path().join("redirect.so");
        std::fs::copy(library, &copy).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(gateway.directory.path(), mode).unwrap();
        command.env("LD_PRELOAD", copy);
        let output = gateway.namespace.enter(|| command.output()).unwrap().unwrap();
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let Some(refused) = run("") else { return };
    assert!(refused.contains("Operation not permitted"), "{refused}");
    let permitted = run("control.user = 65534").unwrap();
    assert!(!permitted.contains("not permitted"), "{permitted}");
}

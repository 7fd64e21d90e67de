//! `uxfrm xfrm` with a running gateway: effects, the kernel's errors, and line numbers of batches.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;
use uxfrm_io::Namespace;

use crate::programs::Outcome;

const UXFRM: &str = env!("CARGO_BIN_EXE_uxfrm");

struct Gateway {
    namespace: Namespace,
    child: Child,
    directory: TempDir,
}

impl Gateway {
    fn start() -> Option<Self> {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => {
                assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {error}");
                eprintln!("not run: no network namespace: {error}");
                return None;
            }
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.toml");
        // By default the next test would hold what this run protected.
        let store = directory.path().join("sequences");
        let text = format!("control.enabled = true\nxfrm.sequences = {store:?}\n");
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(UXFRM);
        command.arg("run").arg("--until-stdin-ends").arg(path);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn()).unwrap().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while lines.next().expect("the gateway starts").unwrap() != "uxfrm: ready" {}
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { namespace, child, directory })
    }

    fn spawn(&self, words: &str) -> Child {
        let mut command = Command::new(UXFRM);
        command.arg("xfrm").args(words.split(' '));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.namespace.enter(|| command.spawn()).unwrap().unwrap()
    }

    fn xfrm(&self, words: &str) -> Outcome {
        self.feed(words, "")
    }

    fn feed(&self, words: &str, input: &str) -> Outcome {
        let mut child = self.spawn(words);
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input.as_bytes()); // it may end before it has read all input
        drop(stdin);
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Outcome { out: text(stdout), err: text(stderr), code: status.code() }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn state(spi: u32) -> String {
    format!(
        "state add src 10.0.0.1 dst 10.0.0.2 proto esp spi {spi:#x} reqid 1 mode tunnel aead rfc4106(gcm(aes)) \
         0x000102030405060708090a0b0c0d0e0f10111213 128"
    )
}

const POLICY: &str = "policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 1 mode tunnel";

#[test]
fn commands_take_effect_and_errors_are_the_kernels() {
    let Some(gateway) = Gateway::start() else { return };
    let done = |words: &str| {
        let outcome = gateway.xfrm(words);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{words}");
        outcome.out
    };
    done(&state(0x100));
    done(POLICY);
    for (words, code, err) in [
        (state(0x100).as_str(), 2, "RTNETLINK answers: File exists\n"),
        ("state get dst 10.0.0.2 proto esp spi 9", 2, "RTNETLINK answers: No such process\n"),
        ("state add mode tunnel", 1, "Not enough information: ID is required\n"),
        (
            "state add dst 10.0.0.2 proto esp spi 1 enc bogus key",
            2,
            "Error: Requested CRYPT algorithm not found.\n",
        ),
    ] {
        let outcome = gateway.xfrm(words);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(code), err), "{words}");
    }
    let wrong = gateway.xfrm("state add prot esp");
    assert_eq!(wrong.code, Some(255));
    assert!(
        wrong.err.starts_with("Error: \"prot\" is unknown; expected one of: src dst proto spi")
    );
    assert_eq!(done("state count"), "\t SAD count 1\n");
    assert_eq!(done("policy count"), "\t SPD IN  0 OUT 1 FWD 0\n");
    let listed = done("state list nokeys");
    assert!(listed.contains("aead rfc4106(gcm(aes)) <<Keys hidden>> 128"), "{listed}");
    let shown = done("state get dst 10.0.0.2 proto esp spi 0x100");
    assert!(shown.contains("0x000102030405060708090a0b0c0d0e0f10111213 128"), "{shown}");
    let allocated = done("state allocspi src 10.0.0.1 dst 10.0.0.2 proto esp min 0x200 max 0x200");
    assert!(allocated.contains("spi 0x00000200"), "{allocated}");
    done("policy setdefault in block");
    assert_eq!(
        done("policy getdefault"),
        "Default policies:\n in:  block\n fwd: accept\n out: accept\n"
    );
    done("policy delete src 10.1.0.0/16 dst 10.2.0.0/16 dir out");
    done("state deleteall proto esp spi 0x100");
    done("state flush");
    assert_eq!(done("state") + &done("policy"), "");
}

#[test]
fn missing_gateway_is_reported() {
    let outcome = crate::programs::uxfrm(&["xfrm", "-control", "/nonexistent", "state"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.err.starts_with("no uxfrm answers at /nonexistent"), "{outcome:?}");
}

/// A few hundred lines are several datagrams; failed lines are reported in order with their own
/// errors.
#[test]
fn batch_reports_failed_lines_in_order() {
    let Some(gateway) = Gateway::start() else { return };
    let mut script = String::from("# comment\n\n");
    for spi in 0..500 {
        script += &format!("xfrm {}\n", state(0x1000 + spi % 499));
    }
    script += "xfrm policy \\\n add dir in dir out\nstate count\nip xfrm state flush\n";
    let path = gateway.directory.path().join("script");
    std::fs::write(&path, &script).unwrap();
    let name = path.display().to_string();

    let outcome = gateway.xfrm(&format!("-batch {name}"));
    let failed = format!("RTNETLINK answers: File exists\nCommand failed {name}:502\n");
    assert_eq!((outcome.code, outcome.err), (Some(2), failed.clone()));
    assert_eq!(gateway.xfrm("state count").out, "\t SAD count 499\n");
    gateway.xfrm("state flush");

    let outcome = gateway.feed("-force -batch -", &script);
    let duplicate = "Error: duplicate \"dir\": \"dir\" is the second value\nCommand failed -:503\n";
    assert_eq!(outcome.err, failed.replace(&name, "-") + duplicate);
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), "\t SAD count 499\n"));
    assert_eq!(gateway.xfrm("state count").out, "\t SAD count 0\n");
    let missing = gateway.xfrm("-batch /nonexistent");
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.err.starts_with("Cannot open file \"/nonexistent\" for reading: "),
        "{missing:?}"
    );
}

/// Lines after a failed one have no effect, as with iproute2, although they were already sent: a
/// script's last lines may delete what its first ones added.
#[test]
fn batch_stops_at_the_first_failed_line() {
    let Some(gateway) = Gateway::start() else { return };
    let states = |from: u32| (from..from + 300).map(|spi| format!("{}\n", state(spi)));
    let script: String = states(0x1000)
        .chain([format!("{}\n", state(0x1000))])
        .chain(states(0x3000))
        .chain(["state deleteall\n".to_owned()])
        .collect();
    let refused = "RTNETLINK answers: File exists\nCommand failed -:301\n";
    let outcome = gateway.feed("-batch -", &script);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(2), refused));
    assert_eq!(gateway.xfrm("state count").out, "\t SAD count 300\n");
    gateway.xfrm("state flush");
    let outcome = gateway.feed("-force -batch -", &script);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(2), refused));
    assert_eq!(gateway.xfrm("state count").out, "\t SAD count 0\n");
}

#[test]
fn deleteall_deletes_by_filter() {
    let Some(gateway) = Gateway::start() else { return };
    let script: String = (0..300).map(|spi| format!("{}\n", state(0x1000 + spi))).collect();
    assert_eq!(gateway.feed("-batch -", &(script + POLICY)).code, Some(0));
    assert_eq!(
        gateway.feed("-batch -", "policy add dir in src 10.0.0.0/8 ptype sub\n").code,
        Some(0)
    );
    assert_eq!(gateway.xfrm("state deleteall reqid 2").code, Some(0));
    assert_eq!(gateway.xfrm("state count").out, "\t SAD count 300\n");
    assert_eq!(gateway.xfrm("state deleteall reqid 1").code, Some(0));
    assert_eq!(gateway.xfrm("policy deleteall").code, Some(0));
    assert_eq!(gateway.xfrm("state").out + &gateway.xfrm("policy").out, "");
}

/// Monitors print events as they arrive, without keys if asked.
#[test]
fn monitor_prints_events() {
    let Some(gateway) = Gateway::start() else { return };
    let mut watching = gateway.spawn("monitor nokeys");
    let mut json = gateway.spawn("-j monitor SA policy");
    let (mut lines, mut objects) = (
        BufReader::new(watching.stdout.take().unwrap()).lines(),
        BufReader::new(json.stdout.take().unwrap()).lines(),
    );
    // Monitors listen only after the greeting, so the change is repeated until each printed one.
    let (sink, first) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        while !text.contains("Flushed state") {
            text += &(lines.next().unwrap().unwrap() + "\n");
            let _ = sink.send(());
        }
        text
    });
    let mut spi = 0x100;
    while first.recv_timeout(std::time::Duration::from_millis(100)).is_err() {
        spi += 1;
        assert_eq!(gateway.xfrm(&state(spi)).code, Some(0));
    }
    gateway.xfrm("state flush");
    let text = reader.join().unwrap();
    assert!(text.contains("src 10.0.0.1 dst 10.0.0.2\n\tproto esp spi 0x0000010"), "{text}");
    assert!(text.contains("<<Keys hidden>>") && !text.contains("0x0001020304"), "{text}");
    assert!(text.ends_with("Flushed state proto 0\n"), "{text}");
    gateway.xfrm(POLICY);
    gateway.xfrm("policy setdefault fwd block");
    let mut events = Vec::new();
    while events.last().is_none_or(|event| event != "set-default") {
        let line = objects.next().unwrap().unwrap();
        let told = line.strip_prefix("{\"event\":\"").and_then(|rest| rest.split_once('"'));
        events.push(told.unwrap_or_else(|| panic!("no event: {line}")).0.to_owned());
    }
    events.dedup();
    // The JSON monitor may have begun to listen after the first states were added.
    let last = events.iter().skip_while(|event| *event == "add-state");
    assert_eq!(last.collect::<Vec<_>>(), ["flush-state", "add-policy", "set-default"]);
    for mut child in [watching, json] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

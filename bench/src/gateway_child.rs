//! A gateway as a child process: `uxfrm run` of this executable.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, bail};
use uxfrm_daemon::upgrade::gateway_of;

/// The end of a gateway's log once it forwards.
const READY: &str = "uxfrm: ready\n";

/// A running gateway, which ends when dropped.
#[derive(Debug)]
pub(crate) struct GatewayChild(Child);

impl GatewayChild {
    /// Starts a gateway in the namespace of the calling thread and waits until it forwards.
    pub(crate) fn start(config: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["run", "--until-stdin-ends"]).arg(config);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut gateway = Self(command.spawn().context("cannot start a gateway")?);
        let stderr = gateway.0.stderr.take().context("a gateway has no stderr")?;
        let (mut reader, mut said) = (BufReader::new(stderr), String::new());
        while !said.ends_with(READY) {
            if reader.read_line(&mut said)? == 0 {
                bail!("a gateway ended at its start:\n{said}");
            }
        }
        // Drains stderr, so that a gateway that logs does not block.
        thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        Ok(gateway)
    }

    /// CPU time of all its threads: the first number of `schedstat`, in nanoseconds.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let process = gateway_of(self.0.id()).context("a gateway has no process")?;
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{process}/task")).context("a gateway has ended")? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_ascii_whitespace().next();
            nanoseconds += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for GatewayChild {
    fn drop(&mut self) {
        // It ends with its standard input. An error could not be reported here.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

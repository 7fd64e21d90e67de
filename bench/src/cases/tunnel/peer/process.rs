//! A peer's process with a `/run` of its own, so that two of one kind share no sockets or pid
//! files.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use uxfrm_io::Namespace;

use crate::pair::{self, Interrupt};

/// How long it may take to start.
const START: Duration = Duration::from_secs(10);

/// How long it may take to end.
const STOP: Duration = Duration::from_secs(5);

/// Lines of its log that are shown if it fails.
const SHOWN: usize = 20;

/// Bind-mounts its own directory on `/run` and executes the program.
const WITH_OWN_RUN: &str = "mount --bind \"$0\" /run && exec \"$@\"";

/// A running program, terminated when dropped.
#[derive(Debug)]
pub(super) struct PeerProcess {
    name: String,
    child: Child,
    directory: TempDir,
}

impl PeerProcess {
    /// A directory for one process's files; its subdirectory `run` becomes the process's `/run`.
    pub(super) fn directory() -> anyhow::Result<TempDir> {
        let directory = pair::private_directory("peer")?;
        fs::create_dir(directory.path().join("run"))?;
        Ok(directory)
    }

    /// Starts `program` with its arguments and environment, in `namespace`, with a directory from
    /// [`PeerProcess::directory`].
    pub(super) fn start(
        namespace: &Namespace,
        directory: TempDir,
        program: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let name = (*program.first().unwrap_or(&"")).to_owned();
        let log = File::create(directory.path().join("log"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", WITH_OWN_RUN]).arg(directory.path().join("run"));
        command.args(program).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.process_group(0); // Ctrl-C is for this process, which ends its peers in order
        let child =
            namespace.enter(|| command.spawn())?.with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, directory })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The path of a file that the process sees below `/run`.
    pub(super) fn run(&self, file: &str) -> PathBuf {
        self.directory.path().join("run").join(file)
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Polls `ask` until it returns something, or the process ends or takes too long.
    pub(super) fn wait_for<T>(
        &mut self,
        what: &str,
        interrupt: &Interrupt,
        mut ask: impl FnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = Instant::now() + START;
        loop {
            if let Some(found) = ask() {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failed(&format!("ended with {status}")));
            }
            if Instant::now() > end {
                return Err(self.failed(&format!("has no {what} after {} s", START.as_secs())));
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }

    /// Adds the end of its log to `error` if it ended by itself.
    pub(super) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                error.context(self.failed(&format!("ended by itself with {status}")))
            }
            Ok(None) | Err(_) => error,
        }
    }

    pub(super) fn failed(&self, how: &str) -> anyhow::Error {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        anyhow!("{} {how}; its last words:\n  {}", self.name, last.join("\n  "))
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It may have ended already; the pid is still its own until it is waited for.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let end = Instant::now() + STOP;
        while matches!(self.has_ended(), Ok(false)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        if !matches!(self.has_ended(), Ok(true)) {
            // An error could not be reported.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

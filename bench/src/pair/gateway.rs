//! A gateway: `uxfrm run` as a child process in one of the namespaces.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uxfrm_control_client::stat;
use uxfrm_daemon::upgrade::gateway_of;
use uxfrm_io::Namespace;

use super::interrupt::Interrupt;

/// The line that a gateway logs once it forwards.
const READY: &str = "uxfrm: ready";

/// Timeout of its start.
const START: Duration = Duration::from_secs(10);

/// Timeout of its end.
const STOP: Duration = Duration::from_secs(5);

/// Lines of its log that are kept for errors.
const KEPT: usize = 40;

/// A running gateway, terminated when dropped. It also ends with its standard input, which is held
/// here, if this process is killed.
#[derive(Debug)]
pub struct GatewayProcess<'a> {
    name: &'static str,
    namespace: &'a Namespace,
    child: Child,
    log: GatewayLog,
}

impl<'a> GatewayProcess<'a> {
    /// Starts this executable with `run` in `namespace` and waits until it forwards.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub fn start(
        name: &'static str,
        namespace: &'a Namespace,
        config: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["run", "--until-stdin-ends"]).arg(config);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0); // Ctrl-C is for this process, which ends its gateways in order
        let mut child = namespace
            .enter(|| command.spawn())?
            .with_context(|| format!("cannot start gateway {name}"))?;
        let stderr = child.stderr.take().ok_or_else(|| anyhow!("gateway {name} has no stderr"))?;
        let (log, ready) = GatewayLog::follow(stderr)?;
        let mut gateway = Self { name, namespace, child, log };
        gateway.wait_until_ready(&ready, interrupt)?;
        Ok(gateway)
    }

    /// The process that forwards packets.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let supervisor = self.child.id();
        gateway_of(supervisor).unwrap_or(supervisor)
    }

    /// Terminates it by SIGTERM.
    ///
    /// # Errors
    /// When it does not end in time and with success.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.terminate();
        let Some(status) = self.wait(STOP)? else {
            return Err(self.failed(&format!("goes on {} s after SIGTERM", STOP.as_secs())));
        };
        if !status.success() {
            return Err(self.failed(&format!("ended on SIGTERM with {status}")));
        }
        Ok(())
    }

    /// Adds to `error` that the gateway ended by itself, or what it dropped.
    #[must_use]
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        if let Ok(Some(status)) = self.child.try_wait() {
            return error.context(self.failed(&format!("ended by itself with {status}")));
        }
        match self.drops() {
            Ok(drops) if !drops.is_empty() => {
                error.context(format!("gateway {} counts {}", self.name, drops.join(", ")))
            }
            Ok(_) | Err(_) => error,
        }
    }

    /// The nonzero counters of `uxfrm stat --reasons`.
    fn drops(&self) -> anyhow::Result<Vec<String>> {
        Ok(nonzero(&self.namespace.enter(stat::read_counters)??.reasons_text()))
    }

    fn wait_until_ready(
        &mut self,
        ready: &Receiver<()>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + START;
        loop {
            interrupt.check()?;
            match ready.recv_timeout(Duration::from_millis(20)) {
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.failed(&format!("is not ready after {} s", START.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => match self.wait(STOP)? {
                    Some(status) => {
                        return Err(self.failed(&format!("ended at start with {status}")));
                    }
                    None => bail!("gateway {} closed its stderr", self.name),
                },
            }
        }
    }

    fn failed(&self, how: &str) -> anyhow::Error {
        anyhow!("gateway {} {how}; its last words:\n{}", self.name, self.log.text())
    }

    fn terminate(&self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It may have ended already; the pid is still its own until it is waited for.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }

    /// Waits for its end, at most for `timeout`.
    fn wait(&mut self, timeout: Duration) -> anyhow::Result<Option<std::process::ExitStatus>> {
        let end = Instant::now() + timeout;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() > end {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for GatewayProcess<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
        }
        if !matches!(self.wait(STOP), Ok(Some(_))) {
            // An error could not be reported; the namespace ends with its last process anyway.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The lines of a text like `/proc/net/xfrm_stat` that end with a nonzero number, with single
/// blanks.
fn nonzero(text: &str) -> Vec<String> {
    let words = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    words
        .filter(|line| !matches!(line.last(), None | Some(&"0")))
        .map(|line| line.join(" "))
        .collect()
}

/// The last lines of a gateway's log.
#[derive(Clone, Debug, Default)]
struct GatewayLog {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl GatewayLog {
    /// Reads `from` to its end on its own thread. The receiver gets a message at the ready line,
    /// and is disconnected at the end.
    fn follow(from: impl Read + Send + 'static) -> anyhow::Result<(Self, Receiver<()>)> {
        let log = Self::default();
        let (tell, ready) = channel();
        let writer = log.clone();
        thread::Builder::new().name("log".into()).spawn(move || writer.read(from, tell))?;
        Ok((log, ready))
    }

    fn read(&self, from: impl Read, tell: Sender<()>) {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if line.trim() == READY {
                // The receiver may be gone.
                let _ = tell.send(());
            }
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == KEPT {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }

    fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("  {line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonzero_counters_are_kept() {
        let text = "XfrmInError             \t0\nXfrmInNoPols            \t12\n\n";
        assert_eq!(nonzero(text), ["XfrmInNoPols 12"]);
    }

    #[test]
    fn log_reports_ready_line_and_keeps_last_lines() {
        let text: String = (0..50).map(|n| format!("line {n}\n")).collect();
        let (log, ready) =
            GatewayLog::follow(std::io::Cursor::new(format!("{READY}\n{text}"))).unwrap();
        assert_eq!(ready.recv(), Ok(()));
        assert!(ready.recv().is_err(), "disconnected at the end");
        let kept = log.text();
        assert_eq!(kept.lines().count(), KEPT);
        assert!(kept.starts_with("  line 10\n") && kept.ends_with("  line 49\n"));
    }
}

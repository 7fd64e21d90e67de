//! `uxfrm run`: the gateway in the foreground.

use std::io;
use std::thread;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::arguments::RunOptions;

/// Runs the gateway until SIGTERM or SIGINT, or until standard input ends where that was asked for.
pub(crate) fn execute(options: &RunOptions) -> anyhow::Result<()> {
    // The gateway reads these from a descriptor: no thread may take them, and a parent's mask is not ours.
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    signals.thread_set_mask().context("cannot set the signal mask")?;
    if options.until_stdin_ends {
        thread::Builder::new().name("stdin".into()).spawn(end_with_stdin)?;
    }
    uxfrm_daemon::gateway::run(&options.config)
}

/// Waits for the end of standard input, then asks this process to end.
fn end_with_stdin() {
    // A broken stdin has ended, too; and a signal to oneself can only fail when the process is gone.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    let _ = kill(Pid::this(), Signal::SIGTERM);
}

//! `uxfrm run`: the gateway in the foreground, in a process of its own, so that another can take its place.

use std::process::ExitCode;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use uxfrm_daemon::{gateway, upgrade};

use crate::arguments::RunOptions;

/// Runs the gateway until SIGTERM or SIGINT, or until standard input ends where that was asked for.
pub(crate) fn execute(options: &RunOptions, supervisor: Option<u32>) -> anyhow::Result<ExitCode> {
    match supervisor {
        None => upgrade::supervise(upgrade::Launch {
            config: options.config.clone(),
            until_stdin_ends: options.until_stdin_ends,
        }),
        Some(supervisor) => {
            // The gateway reads these from a descriptor: no thread may take them, and a parent's mask is not ours.
            let signals: SigSet =
                [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
            signals.thread_set_mask().context("cannot set the signal mask")?;
            gateway::run_under_supervisor(&options.config, supervisor)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

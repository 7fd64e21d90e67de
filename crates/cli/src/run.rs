//! `uxfrm run`: the gateway in the foreground, as a child process, so that another can replace it.

use std::process::ExitCode;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use uxfrm_daemon::{
    gateway::{self, ReadyLine},
    upgrade,
};

use crate::arguments::{LogFormat, RunOptions};

/// Runs the gateway until SIGTERM or SIGINT, or with `--until-stdin-ends` until standard input
/// ends.
pub(crate) fn execute(options: &RunOptions, supervisor: Option<u32>) -> anyhow::Result<ExitCode> {
    match supervisor {
        None => upgrade::supervise(upgrade::Launch {
            config: options.config.clone(),
            until_stdin_ends: options.until_stdin_ends,
            log: options.log.map(LogFormat::name),
        }),
        Some(supervisor) => {
            // The gateway reads these from a descriptor, so no thread may take them; the mask is
            // not inherited.
            let signals: SigSet =
                [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
            signals.thread_set_mask().context("cannot set the signal mask")?;
            let ready = match options.log {
                Some(LogFormat::Json) => ReadyLine::Event,
                Some(LogFormat::Text | LogFormat::Journald) | None => ReadyLine::Text,
            };
            gateway::run_under_supervisor(&options.config, supervisor, ready)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

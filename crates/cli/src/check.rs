//! `uxfrm check`: reports a configuration's errors without running it. `uxfrm guard`: refuses what
//! it would protect.

use std::io::Write as _;

use crate::arguments::{CheckOptions, GuardOptions};

/// Reads the configuration and all its batch files, and prints how packets would reach the TUN.
pub(crate) fn execute(options: &CheckOptions) -> anyhow::Result<()> {
    say(&uxfrm_daemon::gateway::check(&options.config)?)
}

/// Installs the guard and prints what it covers.
pub(crate) fn guard(options: &GuardOptions) -> anyhow::Result<()> {
    say(&uxfrm_daemon::boot::install_boot_guard(&options.config)?)
}

fn say(lines: &[String]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

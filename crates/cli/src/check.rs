//! `uxfrm check`: what `uxfrm run` would say of a configuration, without running it. `uxfrm guard`: what it would protect, refused.

use std::io::Write as _;

use crate::arguments::{CheckOptions, GuardOptions};

/// Reads the configuration and all its batch files, and says how packets would find their way into the TUN.
pub(crate) fn execute(options: &CheckOptions) -> anyhow::Result<()> {
    say(&uxfrm_daemon::gateway::check(&options.config)?)
}

/// Puts up the guard, and says what it covers.
pub(crate) fn guard(options: &GuardOptions) -> anyhow::Result<()> {
    say(&uxfrm_daemon::boot::put_up(&options.config)?)
}

fn say(lines: &[String]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

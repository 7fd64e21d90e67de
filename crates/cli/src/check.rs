//! `uxfrm check`: what `uxfrm run` would say of a configuration, without running it.

use std::io::Write as _;

use crate::arguments::CheckOptions;

/// Reads the configuration and all its batch files, and says how packets would find their way into the TUN.
pub(crate) fn execute(options: &CheckOptions) -> anyhow::Result<()> {
    let ways = uxfrm_daemon::gateway::check(&options.config)?;
    let mut out = std::io::stdout().lock();
    ways.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

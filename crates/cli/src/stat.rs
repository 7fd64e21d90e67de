//! `uxfrm stat`: the counters of the gateway that runs in this network namespace.

use std::io::Write as _;

/// Prints them in the format of `/proc/net/xfrm_stat`.
pub(crate) fn execute() -> anyhow::Result<()> {
    let text = uxfrm_daemon::stat::read()?;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

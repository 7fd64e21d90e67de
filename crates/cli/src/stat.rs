//! `uxfrm stat`: the counters of the gateway that runs in this network namespace.

use std::io::Write as _;

use uxfrm_daemon::stat::{self, Listing};

use crate::arguments::StatOptions;

/// Prints them, a line each.
pub(crate) fn execute(options: &StatOptions) -> anyhow::Result<()> {
    let listing = match options {
        StatOptions { reasons: true, .. } => Listing::Reasons,
        StatOptions { caches: true, .. } => Listing::Caches,
        StatOptions { .. } => Listing::Kernel,
    };
    let text = stat::read(listing)?;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

//! `uxfrm stat`: the counters of the gateway that runs in this network namespace.

use std::io::Write as _;

use uxfrm_control_client::stat::{self, Listing, Report};

use crate::arguments::StatOptions;

/// Prints them, a line each, and warns if the store of sequence numbers is not healthy.
pub(crate) fn execute(options: &StatOptions) -> anyhow::Result<()> {
    let listing = match options {
        StatOptions { reasons: true, .. } => Listing::Reasons,
        StatOptions { caches: true, .. } => Listing::Caches,
        StatOptions { .. } => Listing::Kernel,
    };
    let Report { counters, notices } = stat::read(listing)?;
    for notice in notices.lines() {
        // The counters matter more than a closed stderr.
        let _closed = writeln!(std::io::stderr(), "warning: {notice}");
    }
    Ok(std::io::stdout().lock().write_all(counters.as_bytes())?)
}

//! `uxfrm check`: what `uxfrm run` would say of a configuration, without running it.

use crate::arguments::CheckOptions;

/// Reads the configuration and all its batch files.
pub(crate) fn execute(options: &CheckOptions) -> anyhow::Result<()> {
    uxfrm_daemon::gateway::check(&options.config)
}

//! `uxfrm bench`: figures from the user's own machine.

use crate::arguments::BenchOptions;

/// Runs a bench by its name.
pub(crate) fn execute(options: &BenchOptions) -> anyhow::Result<()> {
    anyhow::bail!("there is no bench `{}` yet", options.name)
}

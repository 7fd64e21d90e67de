//! `uxfrm stat`: the counters of the gateway that runs in this network namespace.

/// Prints them in the format of `/proc/net/xfrm_stat`.
pub(crate) fn execute() -> anyhow::Result<()> {
    anyhow::bail!("there is no gateway to ask yet")
}

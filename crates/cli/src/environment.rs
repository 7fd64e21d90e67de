//! The network namespace and control socket of a command line.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::net::if_::if_nameindex;
use nix::sched::{CloneFlags, setns};
use uxfrm_xfrm::grammar::CliOptions;

/// The directory of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// Enters the namespace of `-netns` and returns the path of the control socket, if it has one: from
/// `-control`, or from `uxfrm exec --control` by the environment.
pub(crate) fn enter(options: &CliOptions) -> Result<Option<PathBuf>, String> {
    let join = |name: &str| -> anyhow::Result<()> {
        let namespace = File::open(Path::new(NAMESPACES).join(name))?;
        Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
    };
    if let Some(name) = &options.namespace {
        join(name).map_err(|error| format!("Cannot open network namespace \"{name}\": {error}"))?;
    }
    let configured = || {
        let path = std::env::var_os("UXFRM_CONTROL").filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    };
    Ok(options.control.clone().or_else(configured))
}

/// The names of this host's interfaces.
pub(crate) fn interfaces() -> Vec<String> {
    if_nameindex().map_or_else(
        |_| Vec::new(),
        |all| all.iter().map(|one| one.name().to_string_lossy().into_owned()).collect(),
    )
}

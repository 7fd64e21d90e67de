//! The network namespace and control socket of a command line.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::net::if_::if_nameindex;
use nix::sched::{CloneFlags, setns};
use uxfrm_xfrm::grammar::CliOptions;

use crate::exit_code::WrongUsage;

/// The directory of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// Enters the namespace of `-netns` and returns the path of the control socket, if it has one: from
/// `-control`, or from `uxfrm exec --control` by the environment.
pub(crate) fn enter(options: &CliOptions) -> Result<Option<PathBuf>, String> {
    if let Some(name) = &options.namespace {
        join(name)?;
    }
    let configured = || {
        let path = std::env::var_os("UXFRM_CONTROL").filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    };
    Ok(options.control.clone().or_else(configured))
}

/// Enters the namespace of this name, if any: the calling thread does, and those that it starts.
///
/// # Errors
/// [`WrongUsage`] when there is none of this name, or it may not be entered.
pub(crate) fn enter_namespace(name: Option<&str>) -> Result<(), WrongUsage> {
    name.map_or(Ok(()), join).map_err(WrongUsage)
}

/// In iproute2's words when it fails.
fn join(name: &str) -> Result<(), String> {
    let entered = File::open(Path::new(NAMESPACES).join(name))
        .and_then(|namespace| Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?));
    entered.map_err(|error| format!("Cannot open network namespace \"{name}\": {error}"))
}

/// The names of this host's interfaces.
pub(crate) fn interfaces() -> Vec<String> {
    if_nameindex().map_or_else(
        |_| Vec::new(),
        |all| all.iter().map(|one| one.name().to_string_lossy().into_owned()).collect(),
    )
}

//! What clients hear when the kernel or the disk does not take a change.

use std::io;

use uxfrm_engine::{ChangeSet, Direction, PolicyChange, Sa};
use uxfrm_netlink::NetlinkError;

/// The kernel refused what a policy needs.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelRefusal {
    #[error(transparent)]
    Route(#[from] uxfrm_io::rtnetlink::Error),
    #[error(transparent)]
    Guard(#[from] uxfrm_io::nftables::Error),
    #[error("the host's stack is kept from packets to its new addresses: {0:#}")]
    HostBypass(anyhow::Error),
    #[error("AF_XDP does not follow the host's addresses: {0}")]
    AfXdpDevice(io::Error),
}

impl KernelRefusal {
    pub(super) fn errno(&self) -> i32 {
        match self {
            Self::Route(error) => error.errno(),
            Self::Guard(error) => error.errno(),
            Self::HostBypass(_) => nix::libc::EIO,
            Self::AfXdpDevice(error) => error.raw_os_error().unwrap_or(nix::libc::EIO),
        }
    }

    /// What a client hears whose changes these were.
    pub(super) fn refusal(&self, changes: &ChangeSet) -> NetlinkError {
        let is_new = |change: &PolicyChange| matches!(change, PolicyChange::Added(_));
        let what = if changes.defaults || changes.policies.iter().any(is_new) {
            "does not take what the policy needs"
        } else {
            "does not let go of what the policy needed"
        };
        let text = format!("The kernel {what}: {self}");
        NetlinkError { errno: self.errno(), text: Some(text.into()), offset: None }
    }
}

/// What a client hears whose state can send nothing.
pub(super) const USED_UP: &str =
    "This key has used all its sequence numbers: the state sends nothing. Give it a new key";

pub(super) fn is_exhausted(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
        && sa.sequence().last() >= sa.config().last_number()
}

/// What clients hear whose states can't be kept; of all requests that waited for the same write.
pub(super) fn no_disk(error: &io::Error, first: &Sa) -> NetlinkError {
    let text = format!(
        "Sequence numbers can't be written down ({error}): nothing was done from the state with spi {:#x} on",
        first.id().spi.0
    );
    let errno = error.raw_os_error().unwrap_or(nix::libc::EIO);
    NetlinkError { errno, text: Some(text.into()), offset: None }
}

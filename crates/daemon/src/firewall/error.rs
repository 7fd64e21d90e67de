//! A change that the kernel did not accept, and the state that it left.

use uxfrm_io::nftables::Error;

use super::chain::PlacementError;

/// The kernel's error, and the state of the table after it.
#[derive(Debug)]
pub(super) struct ApplyError {
    pub(super) error: Error,
    pub(super) left: KernelState,
}

/// The state of the kernel's table after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelState {
    /// What was there before.
    Unchanged,
    /// Some of the change, or that is not known.
    Unknown,
}

impl ApplyError {
    /// Of a transaction before which there was this left.
    pub(super) fn of(error: Error, before: KernelState) -> Self {
        let left = if error.is_refusal() { before } else { KernelState::Unknown };
        Self { error, left }
    }

    /// What is known is put back as well, if the kernel has what it had.
    pub(super) fn then(self, put_back: impl FnOnce() -> Result<(), PlacementError>) -> Self {
        let left = match self.left {
            KernelState::Unchanged if put_back().is_ok() => KernelState::Unchanged,
            KernelState::Unchanged | KernelState::Unknown => KernelState::Unknown,
        };
        Self { left, ..self }
    }
}

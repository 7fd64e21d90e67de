//! A change that the kernel does not take.

use uxfrm_io::nftables::Error;

use super::chain::Unsorted;

/// What the kernel did not take, and what there is then.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    pub(super) left: Left,
}

/// What a refusal has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// What was there before.
    AsItWas,
    /// Some of the change, or that is not known.
    Unknown,
}

impl Refusal {
    /// Of a transaction before which there was this left.
    pub(super) fn of(error: Error, before: Left) -> Self {
        let left = if error.is_refusal() { before } else { Left::Unknown };
        Self { error, left }
    }

    /// What is known is put back as well, if the kernel has what it had.
    pub(super) fn then(self, put_back: impl FnOnce() -> Result<(), Unsorted>) -> Self {
        let left = match self.left {
            Left::AsItWas if put_back().is_ok() => Left::AsItWas,
            Left::AsItWas | Left::Unknown => Left::Unknown,
        };
        Self { left, ..self }
    }
}

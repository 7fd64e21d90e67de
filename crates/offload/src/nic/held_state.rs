//! An active SA of a device, for reports.

use uxfrm_engine::{Direction, Handle, OffloadKind, SaId};

use super::FunctionId;
use super::association::Association;
use crate::StateCounts;

/// A report of an SA on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldState {
    /// Its handle.
    pub handle: Handle,
    /// The SA.
    pub state: SaId,
    /// Kind of offload.
    pub kind: OffloadKind,
    /// Direction.
    pub direction: Direction,
    /// Its function.
    pub function: FunctionId,
    /// Index in the device's table.
    pub slot: usize,
    /// Its counts; bytes of kind *crypto* are those of whole packets.
    pub counts: StateCounts,
}

impl HeldState {
    pub(super) fn of(association: &Association) -> Self {
        let &Association { handle, kind, direction, function, slot, .. } = association;
        let (state, counts) = (association.id(), association.counts());
        Self { handle, state, kind, direction, function, slot, counts }
    }
}

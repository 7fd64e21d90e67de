//! What a device shows of a state that it holds.

use uxfrm_engine::{Direction, Handle, OffloadKind, SaId};

use super::FunctionId;
use super::association::Association;
use crate::StateCounts;

/// A state on a device, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldState {
    /// What the device calls it.
    pub handle: Handle,
    /// The state.
    pub state: SaId,
    /// Which kind of offload.
    pub kind: OffloadKind,
    /// In or out.
    pub direction: Direction,
    /// Whose it is.
    pub function: FunctionId,
    /// Its place in the device's table.
    pub slot: usize,
    /// What the device has counted; bytes of kind *crypto* are those of whole packets.
    pub counts: StateCounts,
}

impl HeldState {
    pub(super) fn of(association: &Association) -> Self {
        let &Association { handle, kind, direction, function, slot, .. } = association;
        let (state, counts) = (association.id(), association.counts());
        Self { handle, state, kind, direction, function, slot, counts }
    }
}

//! What workers read: one generation of states and policies, swapped whole.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{Acquires, Sad, Spd};

/// One generation of the databases. Immutable; a worker loads it once per batch and sees either all of a change or nothing.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// States.
    pub sad: Sad,
    /// Policies.
    pub spd: Spd,
    /// What key managers were asked for.
    pub acquires: Arc<Acquires>,
    /// Rises with every change of states and policies; what was worked out under another generation is stale.
    pub generation: u64,
}

/// Where the newest snapshot is found. Each worker keeps an [`arc_swap::Cache`] of it.
pub type Published = Arc<ArcSwap<Snapshot>>;

//! Snapshot: one generation of states and policies as workers read it, replaced as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::sad::change_log::SaChangeLog;
use crate::settings::HostView;
use crate::{AcquireView, Sad, Spd, Spi};

/// One generation of the databases. Immutable; a worker loads it once per batch and sees all of a
/// change or nothing.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// States.
    pub sad: Arc<Sad>,
    /// Policies.
    pub spd: Arc<Spd>,
    /// Pending acquires.
    pub acquires: Arc<AcquireView>,
    /// The host, as far as it differs from the workers' settings; `None` if it does not.
    pub host: Option<Arc<HostView>>,
    /// Rises with every change of states or policies.
    pub generation: u64,
    /// Rises with every change of states: a flow resolved under another number must be resolved
    /// again.
    pub sa_generation: u64,
    /// SPIs of the latest changes.
    pub(crate) state_news: SaChangeLog,
}

impl Snapshot {
    /// SPIs of the states that changed since that many changes; `None` if the log is too short.
    pub(crate) fn changed_since(&self, states: u64) -> Option<impl ExactSizeIterator<Item = Spi>> {
        self.state_news.of(states..self.sa_generation)
    }

    /// Records a change of a state.
    pub(crate) fn note_state(&mut self, spi: Spi) {
        self.state_news.note(self.sa_generation, spi);
        self.sa_generation += 1;
    }
}

/// Where workers find the newest snapshot. Each keeps an [`arc_swap::Cache`] of it.
pub type Published = Arc<ArcSwap<Snapshot>>;

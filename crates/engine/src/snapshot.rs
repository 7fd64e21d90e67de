//! What workers read: one generation of states and policies, swapped whole.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::sad::change_log::StateNews;
use crate::settings::Host;
use crate::{Acquires, Sad, Spd, Spi};

/// One generation of the databases. Immutable; a worker loads it once per batch and sees either all of a change or nothing.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// States.
    pub sad: Arc<Sad>,
    /// Policies.
    pub spd: Arc<Spd>,
    /// What key managers were asked for.
    pub acquires: Arc<Acquires>,
    /// What is known of the host; `None` when workers' settings say it.
    pub host: Option<Arc<Host>>,
    /// Rises with every change of states or policies.
    pub generation: u64,
    /// Rises with every change of states: those found for a flow under another number may be others now.
    pub states: u64,
    /// Which states the latest of these changes were about.
    pub(crate) state_news: StateNews,
}

impl Snapshot {
    /// The SPIs of states that have changed since there were so many changes; `None` when nobody knows any more.
    pub(crate) fn changed_since(&self, states: u64) -> Option<impl ExactSizeIterator<Item = Spi>> {
        self.state_news.of(states..self.states)
    }

    /// Notes a change of a state.
    pub(crate) fn note_state(&mut self, spi: Spi) {
        self.state_news.note(self.states, spi);
        self.states += 1;
    }
}

/// Where the newest snapshot is found. Each worker keeps an [`arc_swap::Cache`] of it.
pub type Published = Arc<ArcSwap<Snapshot>>;

//! What must outlive the process of the numbers that states have received, so that no packet is accepted again after a restart.
//!
//! A window that begins at 0 after a restart accepts all that was accepted before. So whoever keeps numbers across restarts promises, on
//! the disk, a *reserved edge* above which a state accepts nothing ([`ReplayWindow::reserve`](super::replay::ReplayWindow::reserve)); after a crash
//! of the machine the window begins there. Each window also notes its highest number in a cell of memory that outlives the process but not
//! the machine: after a crash of the process alone the window begins at the exact number.

use std::{
    fmt::Debug,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::Sa;
use crate::sync::AtomicU64;

/// Keeps received numbers across restarts.
pub trait ReplayStore: Debug + Send + Sync {
    /// Memory for the highest number that a state receives, which is about to receive its first; `None` where there is no room: then the
    /// window begins at its reserved edge after a crash.
    fn claim(&self, sa: &Sa) -> Option<&'static AtomicU64>;

    /// The state is gone, and nobody uses its cell any more.
    fn release(&self, cell: &'static AtomicU64);

    /// A state's numbers come near its reserved edge. Called by a worker, once until the edge has moved.
    fn wake(&self);
}

/// Who keeps received numbers, if anybody does. Part of what a state says; states of one database share it.
#[derive(Clone, Debug, Default)]
pub struct Keeper(Option<Arc<dyn ReplayStore>>);

impl Keeper {
    /// This one.
    #[must_use]
    pub fn new(store: Arc<dyn ReplayStore>) -> Self {
        Self(Some(store))
    }

    /// Whether there is one.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn wake(&self) {
        self.0.iter().for_each(|store| store.wake());
    }

    pub(super) fn claim(&self, sa: &Sa) -> Option<SharedHead> {
        let store = self.0.as_ref()?;
        let cell = store.claim(sa)?;
        Some(SharedHead { cell, store: Arc::clone(store) })
    }
}

/// A database has one for all of its states, so it tells none apart.
impl PartialEq for Keeper {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Eq for Keeper {}

impl Hash for Keeper {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_some().hash(state);
    }
}

/// The highest number received, in memory that outlives the process.
#[derive(Debug)]
pub(super) struct SharedHead {
    cell: &'static AtomicU64,
    store: Arc<dyn ReplayStore>,
}

impl SharedHead {
    pub(super) const fn number(&self) -> &'static AtomicU64 {
        self.cell
    }
}

impl Drop for SharedHead {
    fn drop(&mut self) {
        self.store.release(self.cell);
    }
}

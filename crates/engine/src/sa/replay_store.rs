//! Received sequence numbers that outlive the process, so that no packet is accepted again after a
//! restart.
//!
//! A window that begins at 0 after a restart accepts everything a second time. So an owner that
//! keeps numbers across restarts stores a *reserved edge* on disk above which an SA accepts nothing
//! ([`ReplayWindow::reserve`](super::replay::ReplayWindow::reserve)); after a crash of the machine
//! the window begins there. Each window also writes its highest number to a cell of memory that
//! outlives the process but not the machine: after a crash of the process alone the window begins
//! at the exact number.

use std::{
    fmt::Debug,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::Sa;
use crate::sync::AtomicU64;

/// Keeps received numbers across restarts.
pub trait ReplayStore: Debug + Send + Sync {
    /// Memory for the highest number of an SA that is about to receive its first; `None` if there
    /// is no room: then the window begins at its reserved edge after a crash.
    fn claim(&self, sa: &Sa) -> Option<&'static AtomicU64>;

    /// The SA is gone, and its cell is no longer used.
    fn release(&self, cell: &'static AtomicU64);

    /// An SA's numbers come near its reserved edge. Called by a worker, once until the edge has
    /// moved.
    fn wake(&self);
}

/// Handle of the [`ReplayStore`], if there is one. Part of the configuration; all SAs of a database
/// share it.
#[derive(Clone, Debug, Default)]
pub struct ReplayKeeper(Option<Arc<dyn ReplayStore>>);

impl ReplayKeeper {
    /// A handle of this store.
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

/// A database has one for all of its SAs, so it distinguishes none.
impl PartialEq for ReplayKeeper {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Eq for ReplayKeeper {}

impl Hash for ReplayKeeper {
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

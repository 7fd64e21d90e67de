//! Descriptors that outlive the process, like systemd's descriptor store: what a gateway takes over
//! from its predecessor, and what it will hand on.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// Copies of descriptors, and what they are called among those that pass.
pub(crate) type Copies = Vec<(String, OwnedFd)>;

/// Descriptors by what they are.
#[derive(Debug, Default)]
pub(crate) struct DescriptorStore {
    /// Of another process, not taken yet.
    handed: BTreeMap<String, OwnedFd>,
    /// Copies of our own.
    kept: BTreeMap<String, OwnedFd>,
}

impl DescriptorStore {
    /// What another process handed on.
    pub(crate) fn of(handed: impl IntoIterator<Item = (String, OwnedFd)>) -> Self {
        Self { handed: handed.into_iter().collect(), kept: BTreeMap::new() }
    }

    /// Takes one that another process has handed on.
    pub(crate) fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.handed.remove(name)
    }

    /// Keeps a copy of one that is in use.
    ///
    /// # Errors
    /// The kernel's: too many descriptors open.
    pub(crate) fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.kept.insert(name.to_owned(), descriptor.try_clone_to_owned()?);
        Ok(())
    }

    /// What this process will hand on.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.kept.iter().map(|(name, descriptor)| (name.as_str(), descriptor.as_fd()))
    }

    /// Closes all: what they are of goes with its last descriptor.
    pub(crate) fn close(&mut self) {
        *self = Self::default();
    }
}

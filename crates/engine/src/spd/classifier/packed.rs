//! A few policies in their order, compared one after the other.

use std::sync::Arc;

use super::ternary::{Key, Ternary, Words};
use crate::PolicyEntry;

/// Policies side by side, the first to be found first.
#[derive(Clone, Debug)]
pub(crate) struct Packed<W: Words> {
    policies: Vec<(Ternary<W>, Arc<PolicyEntry>)>,
}

impl<W: Words> Default for Packed<W> {
    fn default() -> Self {
        Self { policies: Vec::new() }
    }
}

impl<W: Words> Packed<W> {
    /// The first that fits.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Option<&Arc<PolicyEntry>> {
        self.policies.iter().find(|(ternary, _)| ternary.fits(key)).map(|(_, entry)| entry)
    }

    pub(crate) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        let at = self.policies.partition_point(|(_, other)| other.place() < entry.place());
        self.policies.insert(at, (Ternary::of(entry.policy()), Arc::clone(entry)));
    }

    /// Takes a policy out; one that is not in is no error.
    pub(crate) fn remove(&mut self, entry: &PolicyEntry) {
        if let Ok(at) =
            self.policies.binary_search_by_key(&entry.place(), |(_, other)| other.place())
        {
            self.policies.remove(at);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.policies.len()
    }

    /// In their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.policies.iter().map(|(_, entry)| entry)
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.policies.capacity() * size_of::<(Ternary<W>, Arc<PolicyEntry>)>()
    }
}

//! Changes for an owner who must act before workers see them.

use std::sync::Arc;

use crate::{PolicyEntry, Sa};

/// Changes since the last [`Database::take_changes`](super::Database::take_changes).
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// Added states. They hand out no number before some are reserved
    /// ([`Sequence::reserve`](crate::Sequence::reserve)).
    pub added: Vec<Arc<Sa>>,
    /// Removed states. Batches in flight may still use them.
    pub removed: Vec<Arc<Sa>>,
    /// Updated states, before and after.
    pub updated: Vec<UpdatedSa>,
    /// Added and removed policies, in order.
    pub policies: Vec<PolicyChange>,
    /// Whether the default actions changed.
    pub defaults: bool,
}

/// A state was updated.
#[derive(Clone, Debug)]
pub struct UpdatedSa {
    /// As it was before.
    pub before: Arc<Sa>,
    /// As it is now.
    pub after: Arc<Sa>,
}

/// A policy was added or removed; a replacement is both, the old one first.
#[derive(Clone, Debug)]
pub enum PolicyChange {
    /// Added.
    Added(Arc<PolicyEntry>),
    /// Removed.
    Removed(Arc<PolicyEntry>),
}

impl ChangeSet {
    /// Appends other changes.
    pub fn extend(&mut self, others: Self) {
        self.added.extend(others.added);
        self.removed.extend(others.removed);
        self.updated.extend(others.updated);
        self.policies.extend(others.policies);
        self.defaults |= others.defaults;
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.updated.is_empty()
            && self.policies.is_empty()
            && !self.defaults
    }
}

/// Whether changes are tracked.
#[derive(Debug, Default)]
pub(super) enum ChangeTracking {
    /// No: workers see each change at once.
    #[default]
    None,
    /// Yes: the owner publishes.
    Owner(ChangeSet),
}

impl ChangeTracking {
    pub(super) const fn is_owner(&self) -> bool {
        matches!(self, Self::Owner(_))
    }

    /// Others are about to see a state.
    pub(super) fn add_sa(&mut self, sa: &Arc<Sa>) {
        if let Self::Owner(changes) = self {
            sa.sequence().reserve(0);
            changes.added.push(Arc::clone(sa));
        }
    }

    pub(super) fn remove_sa(&mut self, sa: &Arc<Sa>) {
        if let Self::Owner(changes) = self {
            changes.removed.push(Arc::clone(sa));
        }
    }

    pub(super) fn update_sa(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        if let Self::Owner(changes) = self {
            changes.updated.push(UpdatedSa { before: Arc::clone(old), after: Arc::clone(new) });
        }
    }

    pub(super) fn add_policy(&mut self, entry: &Arc<PolicyEntry>) {
        if let Self::Owner(changes) = self {
            changes.policies.push(PolicyChange::Added(Arc::clone(entry)));
        }
    }

    pub(super) fn remove_policy(&mut self, entry: &Arc<PolicyEntry>) {
        if let Self::Owner(changes) = self {
            changes.policies.push(PolicyChange::Removed(Arc::clone(entry)));
        }
    }

    pub(super) fn set_defaults(&mut self) {
        if let Self::Owner(changes) = self {
            changes.defaults = true;
        }
    }
}

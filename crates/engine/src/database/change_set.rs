//! What has changed, for an owner who has to do something about it before workers see it.

use std::sync::Arc;

use crate::{PolicyEntry, Sa};

/// What has changed since it was last taken ([`Database::take_changes`](super::Database::take_changes)).
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// States that came. They hand out no number before some are reserved ([`Sequence::reserve`](crate::Sequence::reserve)).
    pub added: Vec<Arc<Sa>>,
    /// States that went. Batches that are under way may still use them.
    pub removed: Vec<Arc<Sa>>,
    /// States that were updated, before and after.
    pub updated: Vec<(Arc<Sa>, Arc<Sa>)>,
    /// Policies that came and went, in order.
    pub policies: Vec<PolicyChange>,
    /// Whether what happens to packets that match no policy is another.
    pub defaults: bool,
}

/// A policy came or went; one that takes another's place is both, the old one first.
#[derive(Clone, Debug)]
pub enum PolicyChange {
    /// It came.
    Added(Arc<PolicyEntry>),
    /// It went.
    Removed(Arc<PolicyEntry>),
}

impl Changes {
    /// These and then others.
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

/// Whether anybody attends to changes.
#[derive(Debug, Default)]
pub(super) enum ChangeTracking {
    /// Nobody: workers see each change at once.
    #[default]
    None,
    /// The owner, who publishes.
    Owner(Changes),
}

impl ChangeTracking {
    pub(super) const fn is_owner(&self) -> bool {
        matches!(self, Self::Owner(_))
    }

    /// A state is about to be seen by others.
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
            changes.updated.push((Arc::clone(old), Arc::clone(new)));
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

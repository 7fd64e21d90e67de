//! Puts the databases back when the kernel or the disk does not take a change.

use std::{collections::BTreeMap, sync::Arc};

use uxfrm_engine::{ChangeSet, Database, Error, PolicyChange, Sa, SaId, Transaction, UpdatedSa};

use super::Reconciler;
use crate::clock::now;

/// States of a change, of which there may be very many, by their ids, which they keep.
struct StatesById<'a>(BTreeMap<SaId, Vec<&'a Arc<Sa>>>);

impl<'a> StatesById<'a> {
    fn of(states: impl IntoIterator<Item = &'a Arc<Sa>>) -> Self {
        let mut by_id = BTreeMap::<_, Vec<_>>::new();
        for sa in states {
            by_id.entry(sa.id()).or_default().push(sa);
        }
        Self(by_id)
    }

    /// The first generation of a state that is among them.
    fn find(&self, sa: &Sa) -> Option<&'a Arc<Sa>> {
        self.0.get(&sa.id())?.iter().find(|other| other.is_same(sa)).copied()
    }
}

impl Reconciler {
    /// Undoes what several requests did, which routes and guard had followed.
    pub(super) fn undo_all(&mut self, changes: ChangeSet, database: &mut Database) {
        self.tables.defaults = self.committed_defaults;
        let undone = self.undo_whole(changes, database);
        if self.tables.follow_changes(&undone, database).is_err() {
            self.tables.schedule_route_retry();
        }
    }

    /// Puts the databases back, states that went or were updated included; some changes came to
    /// nothing in between. What that changed.
    pub(super) fn undo_whole(
        &mut self,
        mut changes: ChangeSet,
        database: &mut Database,
    ) -> ChangeSet {
        let gone = std::mem::take(&mut changes.removed);
        let came = std::mem::take(&mut changes.added);
        let updated = std::mem::take(&mut changes.updated);
        // As they were before they were updated.
        let before = StatesById::of(updated.iter().map(|updated| &updated.before));
        let as_before = |sa: &Arc<Sa>| Arc::clone(before.find(sa).unwrap_or(sa));
        let (is_new, is_gone) = (StatesById::of(&came), StatesById::of(&gone));
        let returns = gone.iter().filter(|sa| is_new.find(sa).is_none()).map(as_before);
        let returns: Vec<_> = returns.collect();
        changes.added = came.iter().filter(|sa| is_gone.find(sa).is_none()).cloned().collect();
        let mut undone = self.undo(changes, database);
        returns.iter().for_each(|sa| self.store.recall(sa));
        database.apply(now(), |change| {
            for UpdatedSa { before, .. } in updated.iter().rev() {
                // One that went as well comes back as it was then.
                let _gone = change.restore_words(before);
            }
            for sa in returns.iter().rev() {
                match change.restore_sa(sa) {
                    Ok(back) if back.is_same(sa) => {}
                    Ok(back) => self.store.watch(&back, now()),
                    Err(error) => {
                        let (destination, spi) = (sa.id().destination, sa.id().spi);
                        tracing::error!(%error, %destination, %spi, "a state can't be put back");
                    }
                }
            }
        });
        let restored = database.take_changes();
        self.count_held(&restored.policies);
        undone.extend(restored);
        undone
    }

    /// Puts the databases back, the latest change first; what that changed.
    fn undo(&mut self, changes: ChangeSet, database: &mut Database) -> ChangeSet {
        database.apply(now(), |change| {
            for policy in changes.policies.iter().rev() {
                if let Err(error) = put_back(change, policy) {
                    tracing::error!(%error, "a policy can't be put back");
                }
            }
            for sa in &changes.added {
                if let Err(error) = change.delete_sa(sa.id(), sa.config().mark) {
                    tracing::error!(%error, "a state can't be taken back");
                }
            }
            change.set_defaults(self.tables.defaults);
        });
        let undone = database.take_changes();
        self.count_held(&undone.policies);
        undone.removed.iter().for_each(|sa| self.store.withdraw(sa));
        if undone.policies.len() != changes.policies.len()
            && let Some(guard) = &mut self.tables.guard
        {
            guard.mark_out_of_sync();
        }
        undone
    }
}

fn put_back(change: &mut Transaction<'_>, policy: &PolicyChange) -> Result<(), Error> {
    match policy {
        PolicyChange::Added(entry) => change.delete_policy(&entry.key()).map(drop),
        PolicyChange::Removed(entry) => change.restore_policy(entry).map(drop),
    }
}

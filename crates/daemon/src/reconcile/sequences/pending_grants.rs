//! Numbers that states are to have once the journal is on the disk.

use std::{collections::BTreeMap, sync::Arc};

use uxfrm_engine::Sa;

use super::{reservation::NumberGrant, sa_name::SaName};

/// By the states' names, which they keep: one that ends is found among as many as come at once.
#[derive(Debug, Default)]
pub(super) struct PendingGrants(BTreeMap<SaName, Vec<(Arc<Sa>, NumberGrant)>>);

impl PendingGrants {
    pub(super) fn push(&mut self, sa: &Arc<Sa>, grant: NumberGrant) {
        self.0.entry(SaName::of(sa)).or_default().push((Arc::clone(sa), grant));
    }

    /// A state has ended, and is to have nothing more.
    pub(super) fn withdraw(&mut self, sa: &Sa) {
        if let Some(grants) = self.0.get_mut(&SaName::of(sa)) {
            grants.retain(|(pending, _)| !pending.is_same(sa));
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Those of one state in their order.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Arc<Sa>, NumberGrant)> {
        self.0.into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, Moment};
    use uxfrm_testkit::{Rng, arbitrary};

    use super::*;

    /// Else a million that are replaced at once are compared each with each.
    #[test]
    fn state_that_ends_is_compared_with_its_own_grants_alone() {
        let (mut database, mut rng) = (Database::new(Backend::Portable, 1), Rng::new(1));
        database.apply(Moment(0), |change| {
            (0..100).for_each(|_| drop(change.add_sa(arbitrary::state(&mut rng))));
        });
        let all: Vec<_> = database.current().sad.iter().cloned().collect();
        let mut pending = PendingGrants::default();
        for sa in all.iter().chain(&all) {
            pending.push(sa, NumberGrant::Sent(7));
        }
        assert!(all.len() > 9 && pending.0.len() == all.len());
        assert!(pending.0.values().all(|grants| grants.len() == 2));
        all.iter().skip(1).for_each(|sa| pending.withdraw(sa));
        let left: Vec<_> = pending.into_all().collect();
        assert!(left.len() == 2 && left.iter().all(|(sa, _)| sa.is_same(&all[0])));
    }
}

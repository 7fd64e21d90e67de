//! Which states and policies came from files. All others, as an IKE daemon's, are left alone by a
//! reload.

use std::sync::Arc;

use uxfrm_engine::{Database, DefaultActions, PolicyEntry, Sa};

/// States by insertion number and policies by age, which are never reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileOwned {
    states: Numbers,
    policies: Numbers,
    defaults: DefaultActions,
}

/// In order: a million take no more than eight megabytes.
#[derive(Clone, Debug, Default)]
struct Numbers(Arc<[u64]>);

impl FromIterator<u64> for Numbers {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut numbers: Vec<u64> = numbers.into_iter().collect();
        numbers.sort_unstable();
        Self(numbers.into())
    }
}

impl Numbers {
    fn has(&self, number: u64) -> bool {
        self.0.binary_search(&number).is_ok()
    }
}

impl FileOwned {
    /// All that is there, as in databases that only files have changed; but for held policies,
    /// which are nobody's.
    pub(crate) fn all(database: &Database) -> Self {
        let now = database.current();
        let policies = now.spd.iter().filter(|entry| !entry.is_held());
        Self {
            states: now.sad.iter().map(|sa| sa.insertion_seq()).collect(),
            policies: policies.map(|entry| entry.precedence().insertion_seq()).collect(),
            defaults: now.spd.defaults(),
        }
    }

    /// What another process knew, of databases that were made from its own.
    pub(crate) fn restored(
        states: impl Iterator<Item = u64>,
        policies: impl Iterator<Item = u64>,
        defaults: DefaultActions,
    ) -> Self {
        Self { states: states.collect(), policies: policies.collect(), defaults }
    }

    pub(crate) fn has_state(&self, sa: &Sa) -> bool {
        self.states.has(sa.insertion_seq())
    }

    pub(crate) fn has_policy(&self, entry: &PolicyEntry) -> bool {
        self.policies.has(entry.precedence().insertion_seq())
    }

    pub(crate) const fn defaults(&self) -> DefaultActions {
        self.defaults
    }
}

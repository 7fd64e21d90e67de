//! What the fleet asks of etcd: keys with revisions, transactions, leases, watches.
//!
//! It is etcd's model, so that any store with it will do. [`MemoryStore`] is one in memory, for
//! tests and simulations.

mod memory;

pub use memory::{LeaseId, MemoryStore};

/// A point in the store's history: each change is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreRevision(pub u64);

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// A sealed record.
    pub value: Vec<u8>,
    /// When it was written.
    pub revision: StoreRevision,
}

/// What must be true for a transaction to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCondition {
    /// Of this key.
    pub key: String,
    /// When it was written last; none where it is not there.
    pub written: Option<StoreRevision>,
}

/// How long what is written stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until someone deletes it.
    Forever,
    /// As long as the writer's lease.
    Leased,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// It holds this.
    Put {
        /// The key.
        key: String,
        /// A sealed record.
        value: Vec<u8>,
        /// How long.
        stay: Stay,
    },
    /// It goes.
    Delete {
        /// The key.
        key: String,
    },
}

/// All of it, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTransaction {
    /// What must be true.
    pub conditions: Vec<StoreCondition>,
    /// What is done.
    pub operations: Vec<StoreOperation>,
}

/// Some key changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Which.
    pub key: String,
    /// What it holds now; none where it went.
    pub stored: Option<Stored>,
}

impl StoreOperation {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

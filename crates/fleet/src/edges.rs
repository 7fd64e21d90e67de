//! Up to which number a gateway accepts packets, told to etcd before it does.
//!
//! No packet may be accepted twice, and a gateway that takes a child over does not know what the
//! one before accepted. So each gateway writes ahead, for each state that receives, an **edge**: it
//! accepts no number above it. Who takes over begins above the highest edge that anybody wrote for
//! the state. It costs what the peer had not yet sent up to there; so edges are near.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// Names a state, its key among it, and tells nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateDigest(pub u128);

/// The edges of all states that a gateway has, or had until another wrote its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRecord {
    edges: BTreeMap<StateDigest, u64>,
}

impl EdgeRecord {
    /// The highest number that may have been accepted for a state.
    #[must_use]
    pub fn of(&self, state: StateDigest) -> Option<u64> {
        self.edges.get(&state).copied()
    }

    /// Raises the edge of a state; whether it was below.
    pub fn raise(&mut self, state: StateDigest, edge: u64) -> bool {
        let own = self.edges.entry(state).or_default();
        let is_higher = edge > *own;
        *own = edge.max(*own);
        is_higher
    }

    /// Forgets a state, once another gateway's record has it.
    pub fn forget(&mut self, state: StateDigest) {
        self.edges.remove(&state);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (StateDigest, u64)> + '_ {
        self.edges.iter().map(|(state, edge)| (*state, *edge))
    }
}

/// Where the window of a state begins at a gateway that takes it over: above all that others may
/// have accepted.
pub fn start_of<'a>(state: StateDigest, records: impl IntoIterator<Item = &'a EdgeRecord>) -> u64 {
    records.into_iter().filter_map(|record| record.of(state)).max().unwrap_or(0)
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// As text: JSON's keys are texts, and its numbers end at 2^53 for many readers.
impl Serialize for StateDigest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StateDigest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let digest = u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        Ok(Self(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_only_rise() {
        let (state, mut record) = (StateDigest(7), EdgeRecord::default());
        assert_eq!(record.of(state), None);
        assert!(record.raise(state, 100));
        assert!(!record.raise(state, 50));
        assert_eq!(record.of(state), Some(100));
        record.forget(state);
        assert_eq!(record.of(state), None);
    }

    #[test]
    fn who_takes_over_begins_above_the_highest() {
        let state = StateDigest(u128::MAX);
        let record = |edges: &[u64]| {
            let mut record = EdgeRecord::default();
            for edge in edges {
                record.raise(state, *edge);
            }
            record
        };
        assert_eq!(start_of(state, []), 0);
        assert_eq!(start_of(state, &[record(&[5]), record(&[]), record(&[9]), record(&[3])]), 9);
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let mut record = EdgeRecord::default();
        record.raise(StateDigest(1), u64::MAX);
        record.raise(StateDigest(u128::MAX), 2);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<EdgeRecord>(&text).unwrap(), record);
    }
}

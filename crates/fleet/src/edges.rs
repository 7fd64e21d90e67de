//! Up to which number a gateway accepts packets, told to etcd before it does.
//!
//! No packet may be accepted twice, and a gateway that takes a child over does not know what the
//! one before accepted. So each gateway writes ahead, for each state that receives, an [`Edge`]: it
//! accepts no number above it. Who takes over begins above the edge of the gateway that had the
//! state last, and that one began above the one before. What the peer had not yet sent up to there
//! is lost, so there are two of them: a near one, which is moved often, and a far one for a gateway
//! without etcd. It goes beyond the near one only once most gateways of the pool know that it does,
//! and their votes say so to who takes over.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{names::GatewayName, seal::Serial};

/// Names a state, its key among it, and tells nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateDigest(pub u128);

/// Up to which numbers a gateway accepts packets of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// As long as it can tell etcd.
    pub near: u64,
    /// Without etcd, once the other gateways know. Never below the near one.
    pub far: u64,
    /// The epoch under which it was raised last: who has the highest had the state last.
    pub epoch: Serial,
}

/// Which of both a gateway may have gone up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// It always told etcd.
    Near,
    /// It was without etcd, or nobody knows.
    Far,
}

/// The edges of all states that a gateway has, or had until another wrote its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRecord {
    edges: BTreeMap<StateDigest, Edge>,
}

impl EdgeRecord {
    /// Up to where packets of a state may have been accepted.
    #[must_use]
    pub fn of(&self, state: StateDigest) -> Option<Edge> {
        self.edges.get(&state).copied()
    }

    /// Raises the edges of a state to these.
    pub fn raise(&mut self, state: StateDigest, edge: Edge) {
        let own = self.edges.entry(state).or_default();
        own.near = own.near.max(edge.near);
        own.far = own.far.max(edge.far).max(own.near);
        own.epoch = own.epoch.max(edge.epoch);
    }

    /// Forgets a state, once another gateway's record has it.
    pub fn forget(&mut self, state: StateDigest) {
        self.edges.remove(&state);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (StateDigest, Edge)> + '_ {
        self.edges.iter().map(|(state, edge)| (*state, *edge))
    }
}

/// Who had a state last, and its edge; none where nobody ever had it.
pub fn last_holder<'a>(
    state: StateDigest,
    records: impl IntoIterator<Item = (&'a GatewayName, &'a EdgeRecord)>,
) -> Option<(&'a GatewayName, Edge)> {
    let had = records.into_iter().filter_map(|(name, record)| Some((name, record.of(state)?)));
    had.max_by_key(|(_, edge)| edge.epoch)
}

impl Edge {
    /// The one that holds.
    #[must_use]
    pub const fn at(self, reach: Reach) -> u64 {
        match reach {
            Reach::Near => self.near,
            Reach::Far => self.far,
        }
    }
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
        for (near, far, now) in
            [(100, 200, (100, 200)), (50, 300, (100, 300)), (400, 0, (400, 400))]
        {
            record.raise(state, Edge { near, far, epoch: Serial(1) });
            let edge = record.of(state).unwrap();
            assert_eq!((edge.at(Reach::Near), edge.at(Reach::Far)), now);
        }
        record.forget(state);
        assert_eq!(record.of(state), None);
    }

    #[test]
    fn the_highest_epoch_had_it_last() {
        let (state, a, b) = (StateDigest(7), "a".parse().unwrap(), "b".parse().unwrap());
        let record = |near, epoch| {
            let mut record = EdgeRecord::default();
            record.raise(state, Edge { near, far: near, epoch: Serial(epoch) });
            record
        };
        let (one, other) = (record(500, 3), record(400, 4));
        let holder = last_holder(state, [(&a, &one), (&b, &other)]).unwrap();
        assert_eq!((holder.0, holder.1.near), (&b, 400));
        assert_eq!(last_holder(StateDigest(8), [(&a, &one)]), None);
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let mut record = EdgeRecord::default();
        record.raise(StateDigest(1), Edge { near: 3, far: u64::MAX, epoch: Serial(1) });
        record.raise(StateDigest(u128::MAX), Edge { near: 2, far: 2, epoch: Serial(2) });
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<EdgeRecord>(&text).unwrap(), record);
    }
}

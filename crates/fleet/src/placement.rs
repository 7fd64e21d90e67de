//! Which gateway of a pool has which child of a tunnel.
//!
//! Everybody who knows the children and the gateways finds the same answer: nobody has to write it
//! down, and a gateway that is lost is one change of one record, however many children it had.
//!
//! Each pair of child and gateway has a score: weighted rendezvous hashing. A pair is
//! blocked if both would rather be together than as they are; the placement is the one without
//! blocked pairs. So few children move where a gateway comes or goes: those that were there, and
//! those whom they displace where gateways are full. Children of one tunnel are at different
//! gateways, as long as there are enough.

mod matching;
mod score;

use crate::names::{ChildId, GatewayName};

/// A gateway that may have children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementTarget<'a> {
    /// Its name.
    pub name: &'a GatewayName,
    /// Its share, compared to others'. Without any it has no child.
    pub weight: u32,
    /// How many children it has at the most.
    pub capacity: u32,
}

/// Where each of some children is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    places: Vec<Option<usize>>,
}

impl Placement {
    /// Of children at gateways; neither may be there twice.
    #[must_use]
    pub fn of(children: &[ChildId], candidates: &[PlacementTarget<'_>]) -> Self {
        let mut matching = matching::Matching::new(children, candidates);
        matching.fill_apart();
        matching.fill_rest();
        Self { places: matching.places() }
    }

    /// The number of the gateway that has a child, by the child's number; none where all are full.
    #[must_use]
    pub fn of_child(&self, child: usize) -> Option<usize> {
        self.places.get(child).copied().flatten()
    }

    /// The same for all children.
    pub fn iter(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.places.iter().copied()
    }
}

#[cfg(test)]
mod tests;

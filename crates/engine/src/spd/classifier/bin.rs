//! The policies of one direction, kind, family and interface id.

use std::sync::Arc;

use super::Found;
use super::packed::Packed;
use super::ternary::{Key, Words};
use super::tuples::Tuples;
use crate::PolicyEntry;

/// Few policies side by side, or many in a tuple space.
#[derive(Clone, Debug)]
pub(crate) enum Bin<W: Words> {
    Few(Packed<W>),
    Many(Box<Tuples<W>>),
}

/// So many are compared one by one. A tuple space goes back to that only when it is much smaller, so that changes at the border stay cheap.
const FEW: usize = 8;
const FEW_AGAIN: usize = 4;

impl<W: Words> Default for Bin<W> {
    fn default() -> Self {
        Self::Few(Packed::default())
    }
}

impl<W: Words> Bin<W> {
    /// The first policy that fits.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Option<&Arc<PolicyEntry>> {
        match self {
            Self::Few(policies) => policies.first(key),
            Self::Many(tuples) => tuples.first(key),
        }
    }

    /// As [`Bin::first`] of each key, of which there are [`TOGETHER`](super::TOGETHER) at the most.
    pub(crate) fn first_of_each<'a>(&'a self, keys: &[Key<W>], found: &mut Found<'a>) {
        match self {
            Self::Few(policies) => found.extend(keys.iter().map(|key| policies.first(key))),
            Self::Many(tuples) => tuples.first_of_each(keys, found),
        }
    }

    pub(crate) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        match self {
            Self::Few(policies) if policies.len() < FEW => policies.insert(entry),
            Self::Few(policies) => {
                let mut tuples = Tuples::new();
                policies.iter().for_each(|entry| tuples.insert(entry));
                tuples.insert(entry);
                *self = Self::Many(Box::new(tuples));
            }
            Self::Many(tuples) => tuples.insert(entry),
        }
    }

    pub(crate) fn remove(&mut self, entry: &PolicyEntry) {
        match self {
            Self::Few(policies) => policies.remove(entry),
            Self::Many(tuples) => {
                tuples.remove(entry);
                if tuples.len() <= FEW_AGAIN {
                    let mut policies = Packed::default();
                    tuples.each(&mut |entry| policies.insert(entry));
                    *self = Self::Few(policies);
                }
            }
        }
    }

    /// Whether its policies are compared one by one.
    #[inline]
    pub(crate) const fn is_small(&self) -> bool {
        matches!(self, Self::Few(_))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(policies) => policies.len(),
            Self::Many(tuples) => tuples.len(),
        }
    }

    /// Shows each policy, in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        match self {
            Self::Few(policies) => policies.iter().for_each(visit),
            Self::Many(tuples) => tuples.each(visit),
        }
    }

    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Few(policies) => policies.memory(),
            Self::Many(tuples) => tuples.memory(),
        }
    }

    /// Tables to be looked into at the most.
    pub(crate) fn shapes(&self) -> u32 {
        match self {
            Self::Few(_) => 1,
            Self::Many(tuples) => tuples.shapes(),
        }
    }
}

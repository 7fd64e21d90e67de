//! Sequence numbers that a gateway may send with, leased in etcd.
//!
//! For each key there is one record, and it says the first number that nobody ever had. A gateway
//! takes a range from there on by a transaction, and sends with no other number. So two gateways
//! that both believe to have a child never send one number twice, whatever either of them missed:
//! the peer's window drops what the one below sends.
//!
//! An IV is a prefix of 32 bits and the lower half of the number. The record also has all prefixes
//! that were drawn for the key. A gateway that takes a key over draws one of its own, never one
//! that is there: so even a record that someone put back costs an IV only by a chance of 1 in 2³²
//! for each prefix.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::GatewayName;

/// How many prefixes a record has at the most: then the key is used up, and nothing is sent with
/// it. A prefix is drawn where a key is taken over, and for each 2³² packets.
pub const MOST_PREFIXES: usize = 4096;

/// Names a key, and tells nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyFingerprint(pub u128);

/// What of a key's numbers is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberRecord {
    /// The first that nobody ever had.
    pub next: u64,
    /// Who took the last range.
    pub holder: GatewayName,
    /// The upper halves of IVs that were ever drawn for the key, the newest last.
    pub prefixes: Vec<u32>,
}

/// A range of numbers of one gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberLease {
    /// The first number of it.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The prefix for each upper half of a number in it, beginning with that of `first`.
    pub prefixes: Vec<u32>,
}

/// A key has no numbers left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyUsedUp {
    /// All up to the last one that the state may send.
    #[error("all its sequence numbers are taken: give the tunnel new keys")]
    Numbers,
    /// It was taken over too often.
    #[error("it changed gateways too often for one key: give the tunnel new keys")]
    Prefixes,
}

impl NumberRecord {
    /// Of a key that was never used.
    #[must_use]
    pub const fn unused(holder: GatewayName) -> Self {
        Self { next: 1, holder, prefixes: Vec::new() }
    }

    /// What the record becomes, and the range, when a gateway takes `wanted` numbers or what is
    /// left of them up to `last`. Random prefixes come from `draw`.
    ///
    /// # Errors
    /// Where nothing is left.
    pub fn lease(
        &self,
        holder: &GatewayName,
        wanted: u64,
        last: u64,
        mut draw: impl FnMut() -> u32,
    ) -> Result<(Self, NumberLease), KeyUsedUp> {
        // The very last number of ESN has no next one.
        let last = last.min(u64::MAX - 1);
        if self.next > last || wanted == 0 {
            return Err(KeyUsedUp::Numbers);
        }
        let first = self.next;
        let last = first.saturating_add(wanted - 1).min(last);
        let mut prefixes = self.prefixes.clone();
        let kept = self.prefix_in_use(holder);
        let drawn = upper_half(last) - upper_half(first) + u64::from(kept.is_none());
        let own = kept.into_iter().chain((0..drawn).map(|_| fresh(&mut prefixes, &mut draw)));
        let own: Vec<_> = own.collect();
        if prefixes.len() > MOST_PREFIXES {
            return Err(KeyUsedUp::Prefixes);
        }
        let record = Self { next: last + 1, holder: holder.clone(), prefixes };
        Ok((record, NumberLease { first, last, prefixes: own }))
    }

    /// The prefix that goes on: that of the same gateway, with the same upper half.
    fn prefix_in_use(&self, holder: &GatewayName) -> Option<u32> {
        let is_begun = self.next & u64::from(u32::MAX) != 0;
        if *holder == self.holder && is_begun { self.prefixes.last().copied() } else { None }
    }
}

/// One that is not there yet, and not zero, which stands for none at gateways.
fn fresh(prefixes: &mut Vec<u32>, draw: &mut impl FnMut() -> u32) -> u32 {
    loop {
        let prefix = draw();
        if prefix != 0 && !prefixes.contains(&prefix) {
            prefixes.push(prefix);
            return prefix;
        }
    }
}

const fn upper_half(number: u64) -> u64 {
    number >> 32
}

impl NumberLease {
    /// The IV of a number.
    ///
    /// # Panics
    /// Where it is none of the range.
    #[must_use]
    pub fn iv(&self, number: u64) -> u64 {
        assert!((self.first..=self.last).contains(&number), "{number} is leased to nobody here");
        let at = usize::try_from(upper_half(number) - upper_half(self.first));
        let prefix = at.ok().and_then(|at| self.prefixes.get(at)).copied();
        // A lease has a prefix for each upper half.
        u64::from(prefix.unwrap_or_default()) << 32 | number & u64::from(u32::MAX)
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests;

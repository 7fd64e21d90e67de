//! What all gateways together are to do, as a file says it and as etcd has it.
//!
//! A file ([`DesiredFile`]) says pools and tunnels, in lines of `ip xfrm`. etcd has, for each pool,
//! an index ([`PoolIndex`]), buckets that list tunnels ([`Bucket`]), and the tunnels
//! ([`DesiredTunnel`]). Who has a pool's index and buckets knows where all its tunnels are placed;
//! it reads a tunnel only if it has a child of it. One changed tunnel makes one new tunnel, one new
//! bucket of about as many tunnels as there are buckets, and one new index.

mod file;
mod plan;
mod text;

use std::{collections::BTreeMap, hash::Hasher};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

pub use file::{DesiredFile, DesiredPool, FileError};
pub use plan::{DesiredChange, Plan, TunnelDiff, Write, plan};
pub use text::Lines;

use crate::{
    names::{ChildId, TunnelName},
    seal::Serial,
};

/// Most buckets of a pool: sixteen million tunnels, 4,096 in each.
const MOST_BUCKETS: usize = 4096;

/// What a pool is to do: its tunnels stand in buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolIndex {
    /// What each gateway of the pool has, whatever children it has: policies that block what no
    /// child protects here.
    pub lines: Lines,
    /// Which bucket holds, of each.
    pub buckets: Vec<Serial>,
}

/// Some tunnels of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// By name.
    pub tunnels: BTreeMap<TunnelName, TunnelEntry>,
}

/// A tunnel as its bucket lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelEntry {
    /// Which of its records holds.
    pub serial: Serial,
    /// How many children it has.
    pub children: u16,
    /// Of its content: what is applied again is not written again.
    pub digest: u64,
}

/// What a tunnel is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredTunnel {
    /// What each gateway has that has a child of it: its policies.
    #[serde(default)]
    pub lines: Lines,
    /// What is each child's own: its states.
    pub children: Vec<Lines>,
}

/// A pool's index and all its buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// The number of its index.
    pub serial: Serial,
    /// What all its gateways have.
    pub lines: Lines,
    /// Its buckets, with their numbers.
    pub buckets: Vec<(Serial, Bucket)>,
}

impl PoolState {
    /// All tunnels, by bucket.
    pub fn tunnels(&self) -> impl Iterator<Item = (&TunnelName, &TunnelEntry)> {
        self.buckets.iter().flat_map(|(_, bucket)| &bucket.tunnels)
    }

    /// All children of all tunnels.
    pub fn children(&self) -> impl Iterator<Item = ChildId> + '_ {
        self.tunnels().flat_map(|(tunnel, entry)| {
            (0..entry.children).map(|index| ChildId { tunnel: tunnel.clone(), index })
        })
    }

    /// One tunnel.
    #[must_use]
    pub fn tunnel(&self, name: &TunnelName) -> Option<&TunnelEntry> {
        let bucket = bucket_of(name, self.buckets.len())?;
        self.buckets[bucket].1.tunnels.get(name)
    }
}

impl DesiredTunnel {
    /// The same for the same content alone; nothing is learnt from it by who has not the fleet's
    /// key, as it stands in sealed records.
    fn digest(&self) -> u64 {
        let mut hasher = SipHasher24::new();
        for lines in std::iter::once(&self.lines).chain(&self.children) {
            let text = lines.as_str().as_bytes();
            hasher.write(&(text.len() as u64).to_be_bytes());
            hasher.write(text);
        }
        hasher.finish()
    }
}

/// The bucket of a tunnel, of so many; none where there are none.
fn bucket_of(name: &TunnelName, buckets: usize) -> Option<usize> {
    let mut hasher = SipHasher24::new();
    hasher.write(name.as_str().as_bytes());
    let count = u64::try_from(buckets).ok().filter(|count| *count > 0)?;
    usize::try_from(hasher.finish() % count).ok()
}

/// How many buckets so many tunnels are to have: about as many as tunnels in each, so that a change
/// costs the least. What there is stays while it is not far off, as each tunnel moves otherwise.
fn buckets_for(tunnels: usize, now: usize) -> usize {
    let best = tunnels.isqrt().next_power_of_two().clamp(1, MOST_BUCKETS);
    let is_near = now > 0 && best <= now * 4 && now <= best * 4;
    if is_near { now } else { best }
}

#[cfg(test)]
mod tests;

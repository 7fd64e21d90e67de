//! From what etcd has to what a file says: what changes, and what is written for it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    Bucket, DesiredFile, DesiredPool, DesiredTunnel, PoolIndex, PoolState, TunnelEntry, bucket_of,
    buckets_for,
};
use crate::{
    keyspace::{Keyspace, PoolKeyspace},
    names::{PoolName, TunnelName},
    seal::Serial,
};

/// What becomes of a tunnel or a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DesiredChange {
    /// A pool's own lines change, or it comes or goes.
    Pool(PoolName),
    /// A tunnel comes, changes or goes.
    Tunnel(PoolName, TunnelName, TunnelDiff),
}

/// What becomes of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelDiff {
    /// It comes.
    Added,
    /// It changes.
    Changed,
    /// It goes.
    Removed,
}

/// A record to be written, not sealed yet.
#[derive(PartialEq, Eq)]
pub struct Write {
    /// Its key in etcd.
    pub path: String,
    /// Its number.
    pub serial: Serial,
    /// Its text, with keys.
    pub text: Zeroizing<Vec<u8>>,
}

/// What is to be written, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What changes, for people.
    pub changes: Vec<DesiredChange>,
    /// Tunnels and buckets: they take no effect before an index names them.
    pub parts: Vec<Write>,
    /// The indices, in one transaction.
    pub indices: Vec<Write>,
    /// Keys that hold no more after it; those with a slash at the end with all below them.
    pub obsolete: Vec<String>,
}

/// What makes the desired state of `now` that of a file, as the next generation.
#[must_use]
pub fn plan(
    keyspace: &Keyspace,
    now: &BTreeMap<PoolName, PoolState>,
    wanted: &DesiredFile,
    generation: Serial,
) -> Plan {
    let mut plan = Plan::default();
    let names: BTreeSet<_> = now.keys().chain(wanted.pools.keys()).collect();
    let (no_state, no_pool) = (PoolState::default(), DesiredPool::default());
    for name in names {
        let wish = wanted.pools.get(name);
        let mut pool = PoolPlan {
            name,
            keyspace: keyspace.pool(name),
            now: now.get(name).unwrap_or(&no_state),
            wanted: wish.unwrap_or(&no_pool),
            generation,
            plan: &mut plan,
        };
        match wish {
            Some(_) => pool.change(now.contains_key(name)),
            None => pool.remove(),
        }
    }
    plan
}

/// The plan for one pool.
struct PoolPlan<'a> {
    name: &'a PoolName,
    keyspace: PoolKeyspace,
    now: &'a PoolState,
    wanted: &'a DesiredPool,
    generation: Serial,
    plan: &'a mut Plan,
}

impl PoolPlan<'_> {
    fn change(&mut self, is_there: bool) {
        if !is_there || self.now.lines != self.wanted.lines {
            self.plan.changes.push(DesiredChange::Pool(self.name.clone()));
        }
        self.note_removed();
        let count = buckets_for(self.wanted.tunnels.len(), self.now.buckets.len());
        let buckets = self.buckets(count);
        let serials = self.write_buckets(&buckets);
        let had: Vec<_> = self.now.buckets.iter().map(|(serial, _)| *serial).collect();
        if !is_there || serials != had || self.now.lines != self.wanted.lines {
            let index = PoolIndex { lines: self.wanted.lines.clone(), buckets: serials };
            let write = self.write(self.keyspace.desired(), &index);
            self.plan.indices.push(write);
        }
    }

    /// The pool's gateways have nothing to do: an empty index says so, as one that is missing would
    /// not.
    fn remove(&mut self) {
        if *self.now == (PoolState { serial: self.now.serial, ..PoolState::default() }) {
            return;
        }
        self.plan.changes.push(DesiredChange::Pool(self.name.clone()));
        self.note_removed();
        self.forget_buckets(|_| false);
        let write = self.write(self.keyspace.desired(), &PoolIndex::default());
        self.plan.indices.push(write);
    }

    fn note_removed(&mut self) {
        for (name, entry) in self.now.tunnels() {
            if !self.wanted.tunnels.contains_key(name) {
                self.note(name, TunnelDiff::Removed);
                self.plan.obsolete.push(self.keyspace.tunnel(name, entry.serial));
            }
        }
    }

    /// The wanted tunnels in buckets; those that are new or changed are written.
    fn buckets(&mut self, count: usize) -> Vec<Bucket> {
        let mut buckets = vec![Bucket::default(); count];
        for (name, tunnel) in &self.wanted.tunnels {
            let entry = self.entry(name, tunnel);
            if let Some(bucket) = bucket_of(name, count) {
                buckets[bucket].tunnels.insert(name.clone(), entry);
            }
        }
        buckets
    }

    fn entry(&mut self, name: &TunnelName, tunnel: &DesiredTunnel) -> TunnelEntry {
        let digest = tunnel.digest();
        let had = self.now.tunnel(name);
        if let Some(had) = had
            && had.digest == digest
        {
            return *had;
        }
        let change = had.map_or(TunnelDiff::Added, |_| TunnelDiff::Changed);
        self.plan.obsolete.extend(had.map(|had| self.keyspace.tunnel(name, had.serial)));
        self.note(name, change);
        let write = self.write(self.keyspace.tunnel(name, self.generation), tunnel);
        self.plan.parts.push(write);
        // A file has fewer children than that.
        let children = u16::try_from(tunnel.children.len()).unwrap_or(u16::MAX);
        TunnelEntry { serial: self.generation, children, digest }
    }

    /// Writes the buckets that differ; which hold.
    fn write_buckets(&mut self, buckets: &[Bucket]) -> Vec<Serial> {
        let same = |number: usize| {
            let (serial, had) = self.now.buckets.get(number)?;
            let is_same = self.now.buckets.len() == buckets.len() && *had == buckets[number];
            is_same.then_some(*serial)
        };
        let kept: Vec<_> = (0..buckets.len()).map(same).collect();
        for (number, bucket) in buckets.iter().enumerate() {
            if kept[number].is_none() {
                let write = self.write(self.keyspace.bucket(number, self.generation), bucket);
                self.plan.parts.push(write);
            }
        }
        self.forget_buckets(|number| kept.get(number).is_some_and(Option::is_some));
        kept.into_iter().map(|kept| kept.unwrap_or(self.generation)).collect()
    }

    fn forget_buckets(&mut self, is_kept: impl Fn(usize) -> bool) {
        for (number, (serial, _)) in self.now.buckets.iter().enumerate() {
            if !is_kept(number) {
                self.plan.obsolete.push(self.keyspace.bucket(number, *serial));
            }
        }
    }

    fn note(&mut self, tunnel: &TunnelName, change: TunnelDiff) {
        let change = DesiredChange::Tunnel(self.name.clone(), tunnel.clone(), change);
        self.plan.changes.push(change);
    }

    fn write(&self, path: String, record: &impl Serialize) -> Write {
        // Maps with names as keys, texts and numbers: JSON has a form for all of them.
        let text = Zeroizing::new(serde_json::to_vec(record).unwrap_or_default());
        Write { path, serial: self.generation, text }
    }
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("path", &self.path)
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

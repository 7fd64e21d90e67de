//! Cached resolutions of flows: one for all flows between two addresses, or one per flow where SAs
//! have narrower selectors.
//!
//! Entries are hints: the caller verifies them, and above [`MOST`] any may be evicted. Entries hold
//! weak references to policies, and those of removed policies are swept.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::bundle::Deciding;
use crate::{FlowKey, PolicyEntry};

#[derive(Debug, Default)]
pub(super) struct FlowBundles {
    table: HashTable<FlowEntry>,
    hasher: RandomState,
    /// Bucket where the next sweep continues.
    hand: usize,
}

/// Reference to a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BundleRef {
    pub(super) place: u32,
    /// Creation sequence number of the bundle.
    pub(super) created: u64,
    /// Generation of the SAs.
    pub(super) sa_generation: u64,
}

#[derive(Debug)]
struct FlowEntry {
    hash: u64,
    /// Weak references, so that no other policy gets the same address.
    policies: ArrayVec<Weak<PolicyEntry>, 2>,
    ends: FlowScope,
    /// `None` if the whole flow is the key.
    bundle_ref: Option<BundleRef>,
}

/// The part of a flow that is the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowScope {
    source: IpAddr,
    destination: IpAddr,
    /// Protocol, ports and interface, where SAs have narrower selectors.
    upper: Option<(u8, u16, u16, u32)>,
}

/// Half the capacity of a table of 2^17 buckets, so that deleted entries never make it grow.
pub(super) const MOST: usize = 7 << 13;

impl FlowBundles {
    /// The cached resolution of a flow under these policies.
    pub(super) fn find(&self, deciding: &Deciding<'_>, flow: &FlowKey) -> Option<BundleRef> {
        let ends = FlowScope::of(flow);
        let all = self.entry(deciding, &ends)?;
        all.bundle_ref.or_else(|| self.entry(deciding, &ends.with_upper(flow))?.bundle_ref)
    }

    /// Caches a resolution for all flows between the flow's addresses.
    pub(super) fn insert_for_addresses(
        &mut self,
        deciding: &Deciding<'_>,
        flow: &FlowKey,
        bundle_ref: BundleRef,
    ) {
        self.note(deciding, FlowScope::of(flow), Some(bundle_ref));
    }

    /// Caches a resolution for one flow.
    pub(super) fn insert_for_flow(
        &mut self,
        deciding: &Deciding<'_>,
        flow: &FlowKey,
        bundle_ref: BundleRef,
    ) {
        let ends = FlowScope::of(flow);
        self.note(deciding, ends, None);
        self.note(deciding, ends.with_upper(flow), Some(bundle_ref));
    }

    /// Removes entries of removed policies and of bundles that are gone, in the next `places`
    /// buckets.
    pub(super) fn sweep(&mut self, places: usize, leads: impl Fn(&BundleRef) -> bool) {
        let all = self.table.num_buckets();
        for _ in 0..places.min(all) {
            self.hand = (self.hand + 1) % all;
            let Ok(entry) = self.table.get_bucket_entry(self.hand) else { continue };
            if !entry.get().is_of_use(&leads) {
                entry.remove();
            }
        }
    }

    fn note(&mut self, deciding: &Deciding<'_>, ends: FlowScope, bundle_ref: Option<BundleRef>) {
        let hash = self.hash(deciding, &ends);
        match self.table.find_mut(hash, |entry| entry.is_of(deciding, &ends)) {
            Some(entry) => entry.bundle_ref = bundle_ref,
            None => {
                if self.table.len() >= MOST {
                    self.forget_one(hash);
                }
                let policies = deciding.iter().map(|entry| Arc::downgrade(entry)).collect();
                let entry = FlowEntry { hash, policies, ends, bundle_ref };
                self.table.insert_unique(hash, entry, |entry| entry.hash);
            }
        }
    }

    /// Evicts an entry, the first from a position given by another's hash.
    fn forget_one(&mut self, hash: u64) {
        let all = self.table.num_buckets();
        let first = (hash >> 32) as usize;
        let mut places = (0..all).map(|step| (first + step) % all);
        if let Some(place) = places.find(|place| self.table.get_bucket(*place).is_some())
            && let Ok(entry) = self.table.get_bucket_entry(place)
        {
            entry.remove();
        }
    }

    fn entry(&self, deciding: &Deciding<'_>, ends: &FlowScope) -> Option<&FlowEntry> {
        self.table.find(self.hash(deciding, ends), |entry| entry.is_of(deciding, ends))
    }

    fn hash(&self, deciding: &Deciding<'_>, ends: &FlowScope) -> u64 {
        let mut policies = [0; 2];
        for (address, entry) in policies.iter_mut().zip(deciding) {
            *address = Arc::as_ptr(entry).addr();
        }
        self.hasher.hash_one((policies, ends))
    }
}

impl FlowEntry {
    fn is_of(&self, deciding: &Deciding<'_>, ends: &FlowScope) -> bool {
        let ours = self.policies.iter().map(Weak::as_ptr);
        self.ends == *ends && ours.eq(deciding.iter().map(|entry| Arc::as_ptr(entry)))
    }

    fn is_of_use(&self, leads: &impl Fn(&BundleRef) -> bool) -> bool {
        let are_there = self.policies.iter().all(|policy| policy.strong_count() > 0);
        are_there && self.bundle_ref.as_ref().is_none_or(leads)
    }
}

impl FlowScope {
    const fn of(flow: &FlowKey) -> Self {
        let FlowKey { source, destination, .. } = *flow;
        Self { source, destination, upper: None }
    }

    const fn with_upper(self, flow: &FlowKey) -> Self {
        let FlowKey { protocol, source_port, destination_port, ifindex, .. } = *flow;
        Self { upper: Some((protocol, source_port, destination_port, ifindex)), ..self }
    }
}

#[cfg(test)]
impl FlowBundles {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

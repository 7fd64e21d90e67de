//! By which bundle flows leave, as it was found out: all between two addresses together, or each on its own where states tell them apart.
//!
//! Nothing here must be true for a flow to leave by the right one: whoever asks looks whether it still is, and with more flows than
//! [`MOST`] any of them may be forgotten. Policies that are removed are not kept by it, nor anything of them for long.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::bundle::Deciding;
use crate::{FlowKey, PolicyEntry};

#[derive(Debug, Default)]
pub(super) struct Flows {
    table: HashTable<Entry>,
    hasher: RandomState,
    /// The next bucket that is looked at.
    hand: usize,
}

/// Where a bundle was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) place: u32,
    /// Which of those that were there.
    pub(super) made: u64,
    /// The generation of states.
    pub(super) states: u64,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    /// No other policy may come to lie where one of these did.
    policies: ArrayVec<Weak<PolicyEntry>, 2>,
    ends: Ends,
    /// `None` where the whole flow has to be asked for.
    way: Option<Way>,
}

/// What of a flow counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    source: IpAddr,
    destination: IpAddr,
    /// Protocol, ports and interface, where states for some of them only tell flows apart.
    upper: Option<(u8, u16, u16, u32)>,
}

/// Half of what a table of 2^17 places takes before it must have more: those that were forgotten never make it grow.
pub(super) const MOST: usize = 7 << 13;

impl Flows {
    /// What was found out about a flow under these policies.
    pub(super) fn find(&self, deciding: &Deciding<'_>, flow: &FlowKey) -> Option<Way> {
        let ends = Ends::of(flow);
        let all = self.entry(deciding, &ends)?;
        all.way.or_else(|| self.entry(deciding, &ends.with_upper(flow))?.way)
    }

    /// Remembers the way of all flows between the addresses of one.
    pub(super) fn learn(&mut self, deciding: &Deciding<'_>, flow: &FlowKey, way: Way) {
        self.note(deciding, Ends::of(flow), Some(way));
    }

    /// Remembers that of one flow alone.
    pub(super) fn learn_one(&mut self, deciding: &Deciding<'_>, flow: &FlowKey, way: Way) {
        let ends = Ends::of(flow);
        self.note(deciding, ends, None);
        self.note(deciding, ends.with_upper(flow), Some(way));
    }

    /// Forgets what is of removed policies, or leads nowhere; looks at so many places, and goes on there the next time.
    pub(super) fn sweep(&mut self, places: usize, leads: impl Fn(&Way) -> bool) {
        let all = self.table.num_buckets();
        for _ in 0..places.min(all) {
            self.hand = (self.hand + 1) % all;
            let Ok(entry) = self.table.get_bucket_entry(self.hand) else { continue };
            if !entry.get().is_of_use(&leads) {
                entry.remove();
            }
        }
    }

    fn note(&mut self, deciding: &Deciding<'_>, ends: Ends, way: Option<Way>) {
        let hash = self.hash(deciding, &ends);
        match self.table.find_mut(hash, |entry| entry.is_of(deciding, &ends)) {
            Some(entry) => entry.way = way,
            None => {
                if self.table.len() >= MOST {
                    self.forget_one(hash);
                }
                let policies = deciding.iter().map(|entry| Arc::downgrade(entry)).collect();
                let entry = Entry { hash, policies, ends, way };
                self.table.insert_unique(hash, entry, |entry| entry.hash);
            }
        }
    }

    /// Any of them: the first from a place that depends on another's hash.
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

    fn entry(&self, deciding: &Deciding<'_>, ends: &Ends) -> Option<&Entry> {
        self.table.find(self.hash(deciding, ends), |entry| entry.is_of(deciding, ends))
    }

    fn hash(&self, deciding: &Deciding<'_>, ends: &Ends) -> u64 {
        let mut policies = [0; 2];
        for (address, entry) in policies.iter_mut().zip(deciding) {
            *address = Arc::as_ptr(entry).addr();
        }
        self.hasher.hash_one((policies, ends))
    }
}

impl Entry {
    fn is_of(&self, deciding: &Deciding<'_>, ends: &Ends) -> bool {
        let ours = self.policies.iter().map(Weak::as_ptr);
        self.ends == *ends && ours.eq(deciding.iter().map(|entry| Arc::as_ptr(entry)))
    }

    fn is_of_use(&self, leads: &impl Fn(&Way) -> bool) -> bool {
        let are_there = self.policies.iter().all(|policy| policy.strong_count() > 0);
        are_there && self.way.as_ref().is_none_or(leads)
    }
}

impl Ends {
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
impl Flows {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

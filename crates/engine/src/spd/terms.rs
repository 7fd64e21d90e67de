//! What many policies say alike, kept once: templates, limits, marks, and which bits of ports count.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::{DeviceId, IfId, Limits, Mark, Offload, Policy, PolicyFlags, Template};

/// All that a policy says but its action, its place and its traffic's addresses, protocol and ports under their masks.
#[derive(Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) templates: Box<[Template]>,
    limits: Option<Box<Limits>>,
    offload: Option<Box<Placed>>,
    pub(crate) mark: Mark,
    pub(crate) if_id: IfId,
    pub(crate) ifindex: u32,
    pub(crate) user: u32,
    /// Of source and destination.
    pub(crate) port_masks: [u16; 2],
    pub(crate) flags: PolicyFlags,
}

/// What a policy says of its device, and which that is.
#[derive(Debug, PartialEq)]
struct Placed {
    offload: Offload,
    device: Option<DeviceId>,
}

/// The terms of all policies, each once.
#[derive(Debug, Default)]
pub(crate) struct AllTerms {
    table: HashTable<Used>,
    hasher: RandomState,
}

/// Terms, and how many policies have them.
#[derive(Debug)]
struct Used {
    terms: Arc<Terms>,
    policies: u32,
}

impl Terms {
    pub(crate) fn of(policy: &Policy, device: Option<DeviceId>) -> Self {
        let placed = |offload| Box::new(Placed { offload, device });
        Self {
            templates: policy.templates.as_slice().into(),
            limits: (policy.limits != Limits::default()).then(|| Box::new(policy.limits)),
            offload: policy.offload.clone().map(placed),
            mark: policy.mark,
            if_id: policy.if_id,
            ifindex: policy.selector.ifindex,
            user: policy.selector.user,
            port_masks: [policy.selector.source_port.mask, policy.selector.destination_port.mask],
            flags: policy.flags,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits.as_deref().copied().unwrap_or_default()
    }

    pub(crate) fn offload(&self) -> Option<&Offload> {
        self.offload.as_deref().map(|placed| &placed.offload)
    }

    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.offload.as_deref()?.device
    }

    /// By what differs most often.
    fn hash(&self, hasher: &RandomState) -> u64 {
        let ends = self.templates.first().map(|one| (one.source, one.destination, one.reqid));
        let (masks, many) = (self.port_masks, self.templates.len());
        hasher.hash_one((ends, masks, many, self.mark, self.if_id, self.ifindex))
    }
}

impl AllTerms {
    /// Those of one more policy.
    pub(crate) fn share(&mut self, policy: &Policy, device: Option<DeviceId>) -> Arc<Terms> {
        let terms = Terms::of(policy, device);
        let Self { table, hasher } = self;
        let hash = terms.hash(hasher);
        if let Some(used) = table.find_mut(hash, |used| *used.terms == terms) {
            used.policies += 1;
            return Arc::clone(&used.terms);
        }
        let terms = Arc::new(terms);
        let used = Used { terms: Arc::clone(&terms), policies: 1 };
        table.insert_unique(hash, used, |used| used.terms.hash(hasher));
        terms
    }

    /// A policy with these terms is gone.
    pub(crate) fn release(&mut self, terms: &Arc<Terms>) {
        let hash = terms.hash(&self.hasher);
        if let Ok(mut used) = self.table.find_entry(hash, |used| Arc::ptr_eq(&used.terms, terms)) {
            used.get_mut().policies -= 1;
            if used.get().policies == 0 {
                used.remove();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}

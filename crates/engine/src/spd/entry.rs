//! A policy in the database: its words, its place, its counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Action, FlowKey, Moment, OffloadKind, Policy, PolicyIndex, PolicyKind, Priority};

/// A policy as it stands in the database. What every packet touches comes first, next to the reference count.
#[derive(Debug)]
#[repr(C)]
pub struct PolicyEntry {
    place: Place,
    slot: u32,
    action: Action,
    kind: PolicyKind,
    bytes: AtomicU64,
    packets: AtomicU64,
    last_used: AtomicU64,
    index: PolicyIndex,
    added: Moment,
    policy: Policy,
}

/// Where a policy stands among those of its direction and kind: offloaded ones first, then by priority, then the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    software: bool,
    priority: Priority,
    age: u64,
}

impl Place {
    /// Whether it stands behind all that devices have.
    #[must_use]
    #[inline]
    pub const fn is_software(self) -> bool {
        self.software
    }

    /// The priority in it.
    #[must_use]
    pub const fn priority(self) -> Priority {
        self.priority
    }

    /// Rises with every policy added or updated: the youngest has the highest.
    #[must_use]
    pub const fn age(self) -> u64 {
        self.age
    }
}

const NEVER: u64 = u64::MAX;

impl PolicyEntry {
    pub(crate) fn new(
        policy: Policy,
        index: PolicyIndex,
        slot: u32,
        age: u64,
        added: Moment,
    ) -> Self {
        let software =
            policy.offload.as_ref().is_none_or(|offload| offload.kind != OffloadKind::Packet);
        Self {
            place: Place { software, priority: policy.priority, age },
            action: policy.action,
            kind: policy.kind,
            policy,
            index,
            slot,
            added,
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            last_used: AtomicU64::new(NEVER),
        }
    }

    /// What it says.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether it lets packets pass. The policy says it too, but further away in memory.
    #[must_use]
    #[inline]
    pub fn action(&self) -> Action {
        self.action
    }

    /// The index it was given; the lowest three bits are the direction.
    #[must_use]
    pub fn index(&self) -> PolicyIndex {
        self.index
    }

    /// A small number that no other policy has while this one is in the database.
    #[inline]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Its place among the others; smaller is found first.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        self.place
    }

    /// When it was added.
    #[must_use]
    pub fn added(&self) -> Moment {
        self.added
    }

    /// Whether a packet is what it is for: `net/xfrm/xfrm_policy.c: xfrm_policy_match`.
    #[must_use]
    #[inline]
    pub fn matches(&self, flow: &FlowKey) -> bool {
        self.policy.mark.fits(flow.mark)
            && self.policy.if_id.0 == flow.if_id
            && self.policy.selector.matches(flow)
    }

    /// Counts packets that met it. Policies have no limits by count in the kernel, only by time.
    #[inline]
    pub fn charge(&self, packets: u32, bytes: u64, now: Moment) {
        self.packets.fetch_add(u64::from(packets), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_used.store(now.0, Ordering::Relaxed);
    }

    /// Bytes that met it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets that met it.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// When the latest packet met it.
    #[must_use]
    pub fn last_used(&self) -> Option<Moment> {
        match self.last_used.load(Ordering::Relaxed) {
            NEVER => None,
            nanos => Some(Moment(nanos)),
        }
    }

    /// Main or sub.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }
}

//! The policies that caches' entries stand for, and what this worker's packets have counted on them since the last settling.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Action, Moment, PolicyEntry, PolicyKind};

/// The policies that decide over a flow, by their place in the cache; it holds until the next [`PolicyCache::begin`](super::PolicyCache::begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerId(pub(super) u32);

/// What an answer comes to, states apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// No policy: the direction's default.
    Default,
    /// Blocked.
    Block,
    /// Allowed without templates.
    Pass,
    /// Allowed through states.
    Protect,
}

/// Marks answers that are pairs; the others are slots of policies.
const PAIR: u32 = 1 << 31;
/// One of the policies blocks.
const BLOCK: u32 = 1 << 30;
/// None blocks, and none has a template.
const PASS: u32 = 1 << 29;
const PLACE: u32 = PASS - 1;

impl AnswerId {
    /// No policy.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// What it comes to, without reading the policies.
    #[must_use]
    #[inline]
    pub const fn ruling(self) -> Ruling {
        match self {
            Self::NONE => Ruling::Default,
            Self(bits) if bits & BLOCK != 0 => Ruling::Block,
            Self(bits) if bits & PASS != 0 => Ruling::Pass,
            Self(_) => Ruling::Protect,
        }
    }
}

/// Policies by short numbers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By their slots, as far as they were met.
    met: Vec<Met>,
    /// Sub policies with the main ones behind them.
    pairs: Vec<[Arc<PolicyEntry>; 2]>,
    pair_of: HashMap<[usize; 2], u32, foldhash::fast::RandomState>,
    /// Slots with something counted.
    counted: Vec<u32>,
}

/// A policy and what is to be charged to it.
#[derive(Clone, Debug, Default)]
struct Met {
    entry: Option<Arc<PolicyEntry>>,
    packets: u32,
    bytes: u64,
}

/// Pairs of which no flow may know any more are dropped when there are so many more than policies.
const SURPLUS: usize = 4096;

impl Answers {
    /// The policies of an answer.
    #[inline]
    pub(super) fn policies(&self, id: AnswerId) -> &[Arc<PolicyEntry>] {
        match id {
            AnswerId::NONE => &[],
            AnswerId(pair) if pair & PAIR != 0 => &self.pairs[(pair & PLACE) as usize],
            AnswerId(slot) => self.met[(slot & PLACE) as usize].entry.as_slice(),
        }
    }

    /// The answer of one policy.
    #[inline]
    pub(super) fn meet(&mut self, entry: &Arc<PolicyEntry>) -> AnswerId {
        let slot = entry.slot() as usize;
        if self.met.len() <= slot {
            self.met.resize(slot + 1, Met::default());
        }
        let met = &mut self.met[slot];
        // Who knew the policy that had the slot before is stale since it went.
        if !met.entry.as_ref().is_some_and(|met| Arc::ptr_eq(met, entry)) {
            met.entry = Some(Arc::clone(entry));
        }
        AnswerId(entry.slot() | ruling([entry]))
    }

    /// The answer of a sub policy with a main one behind it.
    pub(super) fn pair(&mut self, sub: &Arc<PolicyEntry>, main: &Arc<PolicyEntry>) -> AnswerId {
        let _ = (self.meet(sub), self.meet(main));
        let pairs = &mut self.pairs;
        let addresses = [Arc::as_ptr(sub).addr(), Arc::as_ptr(main).addr()];
        let pair = self.pair_of.entry(addresses).or_insert_with(|| {
            pairs.push([Arc::clone(sub), Arc::clone(main)]);
            u32::try_from(pairs.len() - 1).unwrap_or(PLACE)
        });
        AnswerId(*pair | PAIR | ruling([sub, main]))
    }

    /// Notes packets for the policies that they met, up to the first that blocks.
    #[inline]
    pub(super) fn count(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        match id {
            AnswerId::NONE => {}
            AnswerId(pair) if pair & PAIR != 0 => {
                let [sub, main] = &self.pairs[(pair & PLACE) as usize];
                let blocked = sub.action() == Action::Block;
                let slots = [sub.slot(), main.slot()];
                for slot in &slots[..if blocked { 1 } else { 2 }] {
                    self.count_slot(*slot, packets, bytes);
                }
            }
            AnswerId(slot) => self.count_slot(slot & PLACE, packets, bytes),
        }
    }

    /// Notes packets for the first policy that they met.
    #[inline]
    pub(super) fn count_first(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        if let Some(first) = self.policies(id).first() {
            self.count_slot(first.slot(), packets, bytes);
        }
    }

    /// Charges the policies with what was noted: once each, whatever the number of packets.
    pub(super) fn settle(&mut self, now: Moment) {
        for slot in self.counted.drain(..) {
            let met = &mut self.met[slot as usize];
            let (packets, bytes) =
                (std::mem::take(&mut met.packets), std::mem::take(&mut met.bytes));
            if let Some(entry) = &met.entry {
                entry.charge(packets, bytes, now);
            }
        }
    }

    /// Drops pairs if they are many more than there are policies; true when all answers that are pairs are void.
    pub(super) fn shed(&mut self, policies: usize) -> bool {
        let many = self.pairs.len() > policies + SURPLUS;
        if many {
            self.pairs.clear();
            self.pair_of.clear();
        }
        many
    }

    pub(super) fn memory(&self) -> usize {
        self.met.capacity() * size_of::<Met>()
            + self.pairs.capacity() * size_of::<[Arc<PolicyEntry>; 2]>()
    }

    #[inline]
    fn count_slot(&mut self, slot: u32, packets: u32, bytes: u64) {
        let met = &mut self.met[slot as usize];
        if met.packets == 0 {
            self.counted.push(slot);
        }
        met.packets += packets;
        met.bytes += bytes;
    }
}

fn ruling<'a>(policies: impl IntoIterator<Item = &'a Arc<PolicyEntry>> + Clone) -> u32 {
    let blocks = |entry: &Arc<PolicyEntry>| entry.action() == Action::Block;
    let plain = |entry: &Arc<PolicyEntry>| entry.templates().is_empty();
    if policies.clone().into_iter().any(blocks) {
        BLOCK
    } else if policies.into_iter().all(plain) {
        PASS
    } else {
        0
    }
}

/// Whether a sub policy is found first, and a main one stands behind it.
#[inline]
pub(super) fn is_sub(entry: &PolicyEntry) -> bool {
    match entry.kind() {
        PolicyKind::Main => false,
        PolicyKind::Sub => true,
    }
}

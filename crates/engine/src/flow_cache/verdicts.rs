//! Maps verdict numbers of cache entries to policies, and collects this worker's policy counters
//! until they are flushed.

use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_classify::LOOKUP_BATCH;

use super::counters::policy::CounterPages;
use super::counters::valid_slots::ValidSlots;
use super::sub_main_pairs::SubMainPairs;
use crate::spd::verdict::{PAIR, PLACE, VerdictId};
use crate::{Action, Moment, PolicyEntry, PolicyKind};

/// Policies by verdict number.
#[derive(Debug, Default)]
pub(super) struct VerdictTable {
    /// By slot, as far as packets matched them.
    counters: CounterPages,
    pairs: SubMainPairs,
    /// Slots with pending counters.
    pending_slots: Vec<u32>,
    /// Pending packets, counted once per policy.
    pending_packets: usize,
    /// Time of the last flush, and of the last batch.
    flushed_at: Moment,
    latest: Moment,
    /// Slots whose stored policy is current.
    valid: ValidSlots,
    /// Policy epoch of the last release.
    released_in: u16,
}

/// Pairs are dropped when they outnumber the policies by this many.
const MAX_SURPLUS_PAIRS: usize = 4096;
/// Counters with fewer packets per policy may be flushed later, but not after this time or this
/// many packets.
const FEW_PACKETS: usize = 16;
/// In nanoseconds.
const FLUSH_AFTER: u64 = 1_000_000;
const MAX_PENDING: usize = 1 << 13;
/// Policies flushed together, with overlapping cache misses.
const FLUSH_CHUNK: usize = 64;
/// Slots scanned per release: few, so that no packet waits long.
const RELEASE_STEP: usize = 4096;

impl VerdictTable {
    /// The policies of a verdict.
    #[inline]
    pub(super) fn policies(&self, id: VerdictId) -> &[Arc<PolicyEntry>] {
        match id {
            VerdictId::NONE => &[],
            VerdictId(pair) if pair & PAIR != 0 => {
                self.pairs.find(pair & PLACE).map_or(&[], <[_; 2]>::as_slice)
            }
            VerdictId(slot) => {
                self.counters.find(slot & PLACE).map_or(&[], |counters| counters.entry.as_slice())
            }
        }
    }

    /// To be called when policies have changed: slots may be reused.
    pub(super) fn invalidate(&mut self) {
        self.flush();
        self.valid.invalidate();
    }

    /// Records that a packet matched a policy; returns its verdict.
    #[inline]
    pub(super) fn record_match(
        &mut self,
        answer: VerdictId,
        entry: &Arc<PolicyEntry>,
    ) -> VerdictId {
        if !self.valid.has(answer.slot()) {
            self.admit(answer, entry);
        }
        answer
    }

    /// Whether the policy of a verdict was matched since policies changed.
    #[inline]
    pub(super) fn is_known(&self, answer: VerdictId) -> bool {
        self.valid.has(answer.slot())
    }

    /// Whether a verdict of an older epoch, not affected by changes, can be used: not if its policy
    /// was [released](VerdictTable::release_stale), and not for pairs, which have two scopes.
    #[inline]
    pub(super) fn revalidate(&mut self, answer: VerdictId, since: u16) -> bool {
        match answer {
            VerdictId::NONE => true,
            VerdictId(pair) if pair & PAIR != 0 => false,
            VerdictId(slot) => {
                let slot = slot & PLACE;
                // Policies matched since are kept; no need to read them.
                let is_held = since >= self.released_in || self.is_held(slot);
                if is_held && !self.valid.has(slot) {
                    self.valid.mark(slot);
                }
                is_held
            }
        }
    }

    fn is_held(&self, slot: u32) -> bool {
        self.counters.find(slot).is_some_and(|counters| counters.entry.is_some())
    }

    /// [`VerdictTable::record_match`] of each. After a change most policies are new: all are
    /// prefetched first.
    #[inline(never)]
    pub(super) fn record_matches(
        &mut self,
        found: &ArrayVec<(VerdictId, &Arc<PolicyEntry>), LOOKUP_BATCH>,
    ) {
        for (answer, entry) in found {
            self.prefetch(*answer);
            uxfrm_packet::prefetch_far(*entry);
        }
        for (answer, entry) in found {
            self.record_match(*answer, entry);
        }
    }

    /// Prefetches what [`VerdictTable::count`] reads.
    #[inline]
    pub(super) fn prefetch(&self, answer: VerdictId) {
        if let Some(counters) = self.counters.find(answer.slot()) {
            uxfrm_packet::prefetch_far(counters);
        }
    }

    /// Whether all counters fit the CPU cache.
    #[inline]
    pub(super) const fn fit_near_cache(&self) -> bool {
        self.counters.fit_near_cache()
    }

    /// Verdict of a sub policy with a main one behind it.
    pub(super) fn pair(&mut self, sub: &Arc<PolicyEntry>, main: &Arc<PolicyEntry>) -> VerdictId {
        let _ = (self.record_match(sub.verdict(), sub), self.record_match(main.verdict(), main));
        let pair = self.pairs.number([sub, main], PLACE);
        VerdictId(pair | PAIR | sub.verdict().combined_with(main.verdict()))
    }

    /// Counts packets for the policies that they matched, up to the first that blocks.
    #[inline]
    pub(super) fn count(&mut self, id: VerdictId, packets: u32, bytes: u64) {
        match id {
            VerdictId::NONE => {}
            VerdictId(pair) if pair & PAIR != 0 => self.count_pair(pair & PLACE, packets, bytes),
            VerdictId(slot) => self.count_slot(slot & PLACE, packets, bytes),
        }
    }

    #[inline(never)]
    fn count_pair(&mut self, pair: u32, packets: u32, bytes: u64) {
        let Some([sub, main]) = self.pairs.find(pair) else { return };
        let blocked = sub.action() == Action::Block;
        let slots = [sub.slot(), main.slot()];
        for slot in &slots[..if blocked { 1 } else { 2 }] {
            self.count_slot(*slot, packets, bytes);
        }
    }

    /// Counts packets for the first policy that they matched.
    #[inline]
    pub(super) fn count_first(&mut self, id: VerdictId, packets: u32, bytes: u64) {
        match id {
            VerdictId::NONE => {}
            VerdictId(pair) if pair & PAIR != 0 => {
                if let Some([sub, _]) = self.pairs.find(pair & PLACE) {
                    self.count_slot(sub.slot(), packets, bytes);
                }
            }
            VerdictId(slot) => self.count_slot(slot & PLACE, packets, bytes),
        }
    }

    /// To be called after a batch: flushes counters, unless each policy has few packets and the
    /// last flush was recent; then a flush costs more than all else about policies.
    #[inline]
    pub(super) fn flush_due(&mut self, now: Moment) {
        self.latest = now;
        let many = self.pending_packets >= MAX_PENDING.min(FEW_PACKETS * self.pending_slots.len());
        if many || now.0.saturating_sub(self.flushed_at.0) >= FLUSH_AFTER {
            self.flush();
        }
    }

    /// Whether counters are pending.
    pub(super) const fn has_pending(&self) -> bool {
        self.pending_packets > 0
    }

    /// Adds pending counters to the policies, once per policy.
    #[inline(never)]
    pub(super) fn flush(&mut self) {
        (self.flushed_at, self.pending_packets) = (self.latest, 0);
        let pending_slots = std::mem::take(&mut self.pending_slots);
        for slots in pending_slots.chunks(FLUSH_CHUNK) {
            if !self.fit_near_cache() {
                self.prefetch_counts(slots);
            }
            for slot in slots {
                let Some(counters) = self.counters.find_mut(*slot) else { continue };
                let (packets, bytes) =
                    (std::mem::take(&mut counters.packets), std::mem::take(&mut counters.bytes));
                if let Some(entry) = &counters.entry {
                    entry.record_use(packets, bytes, self.latest);
                }
            }
        }
        self.pending_slots = pending_slots;
        self.pending_slots.clear();
    }

    /// Overlaps the cache misses of a flush.
    #[inline(never)]
    fn prefetch_counts(&self, slots: &[u32]) {
        let counters = || slots.iter().filter_map(|slot| self.counters.find(*slot));
        counters().for_each(uxfrm_packet::prefetch_far);
        counters()
            .filter_map(|counters| counters.entry.as_ref())
            .for_each(|entry| entry.prefetch_counts());
    }

    /// Drops all pairs if they far outnumber the policies; true if verdicts that are pairs are
    /// void.
    pub(super) fn drop_surplus_pairs(&mut self, policies: usize) -> bool {
        let many = self.pairs.len() > policies + MAX_SURPLUS_PAIRS;
        if many {
            self.pairs.clear();
        }
        many
    }

    /// To be called now and then: releases removed policies, some each time. Others that were not
    /// matched since policies last changed may be released, too, and are recorded again when
    /// matched.
    pub(super) fn release_stale(&mut self, epoch: u16) {
        self.flush();
        self.released_in = epoch;
        let Self { counters, pairs, valid, .. } = self;
        pairs.release_stale(RELEASE_STEP, |pair| {
            pair.iter().all(|one| is_current(counters, valid, one))
        });
        counters.release_stale(RELEASE_STEP, |slot| valid.has(slot));
    }

    pub(super) fn memory(&self) -> usize {
        let pending_slots = self.pending_slots.capacity() * size_of::<u32>();
        self.valid.memory() + self.counters.memory() + self.pairs.memory() + pending_slots
    }

    /// Records a policy for the first time since policies changed. Entries of the slot's former
    /// policy are stale since its removal.
    #[inline(never)]
    fn admit(&mut self, answer: VerdictId, entry: &Arc<PolicyEntry>) {
        self.valid.mark(answer.slot());
        if !holds(&self.counters, answer.slot(), entry) {
            self.counters.put(answer.slot(), entry);
        }
    }

    #[inline]
    fn count_slot(&mut self, slot: u32, packets: u32, bytes: u64) {
        let Some(counters) = self.counters.find_mut(slot) else { return };
        if counters.packets == 0 {
            self.pending_slots.push(slot);
        }
        counters.packets += packets;
        counters.bytes += bytes;
        self.pending_packets += packets as usize;
    }
}

/// Whether a slot holds this policy. The slot is passed, as the policy may not be in any CPU cache.
fn holds(counters: &CounterPages, slot: u32, entry: &Arc<PolicyEntry>) -> bool {
    let counters = counters.find(slot).and_then(|counters| counters.entry.as_ref());
    counters.is_some_and(|counters| Arc::ptr_eq(counters, entry))
}

/// Whether it was matched since policies last changed.
fn is_current(counters: &CounterPages, valid: &ValidSlots, entry: &Arc<PolicyEntry>) -> bool {
    valid.has(entry.slot()) && holds(counters, entry.slot(), entry)
}

/// Whether it is a sub policy.
#[inline]
pub(super) fn is_sub(entry: &PolicyEntry) -> bool {
    match entry.kind() {
        PolicyKind::Main => false,
        PolicyKind::Sub => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::verdict::{BLOCK, COMPACT_SLOTS, PASS};

    #[test]
    fn compact_verdict_round_trips() {
        for ruling in [0, PASS, BLOCK] {
            for slot in [0, 1, 77, COMPACT_SLOTS - 1] {
                let answer = VerdictId(ruling | slot);
                assert_eq!(VerdictId::from_compact(answer.compact()), Some(answer));
            }
            let far = VerdictId(ruling | COMPACT_SLOTS);
            assert_eq!(VerdictId::from_compact(far.compact()), None, "the policy itself is asked");
        }
    }
}

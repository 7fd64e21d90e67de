//! The policies that caches' entries stand for, and what this worker's packets have counted on them since the last settling.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::counters::policy::CounterPages;
use super::counters::valid_slots::ValidSlots;
use super::sub_main_pairs::SubMainPairs;
use crate::spd::classifier::LOOKUP_BATCH;
use crate::spd::verdict::{AnswerId, PAIR, PLACE};
use crate::{Action, Moment, PolicyEntry, PolicyKind};

/// Policies by short numbers.
#[derive(Debug, Default)]
pub(super) struct VerdictTable {
    /// By their slots, as far as they were met.
    counters: CounterPages,
    pairs: SubMainPairs,
    /// Slots with something counted.
    pending_slots: Vec<u32>,
    /// Packets in that, of each policy that they met.
    pending_packets: usize,
    /// When policies were charged last, and when something was counted last.
    flushed_at: Moment,
    latest: Moment,
    /// Slots whose policies are those that were met there.
    valid: ValidSlots,
    /// The policies' epoch in which some were let go last.
    released_in: u16,
}

/// Pairs of which no flow may know any more are dropped when there are so many more than policies.
const MAX_SURPLUS_PAIRS: usize = 4096;
/// Policies that met fewer packets each may be charged later, but not so long after the last time, and not of so many packets.
const FEW_PACKETS: usize = 16;
/// In nanoseconds.
const FLUSH_AFTER: u64 = 1_000_000;
const MAX_PENDING: usize = 1 << 13;
/// Policies that are charged together, all of them asked for before the first is waited for.
const FLUSH_CHUNK: usize = 64;
/// Slots that are gone through at once for policies that are gone: so few that no packet waits long for it.
const RELEASE_STEP: usize = 4096;

impl VerdictTable {
    /// The policies of an answer.
    #[inline]
    pub(super) fn policies(&self, id: AnswerId) -> &[Arc<PolicyEntry>] {
        match id {
            AnswerId::NONE => &[],
            AnswerId(pair) if pair & PAIR != 0 => {
                self.pairs.find(pair & PLACE).map_or(&[], <[_; 2]>::as_slice)
            }
            AnswerId(slot) => {
                self.counters.find(slot & PLACE).map_or(&[], |counters| counters.entry.as_slice())
            }
        }
    }

    /// To be called when policies have changed: a slot may be another's.
    pub(super) fn invalidate(&mut self) {
        self.flush();
        self.valid.invalidate();
    }

    /// The answer of one policy, which is `answer`.
    #[inline]
    pub(super) fn record_match(&mut self, answer: AnswerId, entry: &Arc<PolicyEntry>) -> AnswerId {
        if !self.valid.has(answer.slot()) {
            self.admit(answer, entry);
        }
        answer
    }

    /// Whether the policy of an answer was met since policies changed.
    #[inline]
    pub(super) fn is_known(&self, answer: AnswerId) -> bool {
        self.valid.has(answer.slot())
    }

    /// Whether an answer that was found in an epoch of before policies changed, which did not concern it, can be given on. Not once its policy was
    /// [let go](VerdictTable::release_stale), and not of pairs, whose policies lie in two cells.
    #[inline]
    pub(super) fn revalidate(&mut self, answer: AnswerId, since: u16) -> bool {
        match answer {
            AnswerId::NONE => true,
            AnswerId(pair) if pair & PAIR != 0 => false,
            AnswerId(slot) => {
                let slot = slot & PLACE;
                // What was met since is kept, and need not be read, which may be far away.
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

    /// As [`VerdictTable::record_match`] of each. After a change most policies are met for the first time: what is known of all is asked for before the first
    /// is waited for.
    #[inline(never)]
    pub(super) fn record_matches(
        &mut self,
        found: &ArrayVec<(AnswerId, &Arc<PolicyEntry>), LOOKUP_BATCH>,
    ) {
        for (answer, entry) in found {
            self.prefetch(*answer);
            uxfrm_packet::prefetch_far(*entry);
        }
        for (answer, entry) in found {
            self.record_match(*answer, entry);
        }
    }

    /// Fetches what [`VerdictTable::count`] will read, where that is far away.
    #[inline]
    pub(super) fn prefetch(&self, answer: AnswerId) {
        if let Some(counters) = self.counters.find(answer.slot()) {
            uxfrm_packet::prefetch_far(counters);
        }
    }

    /// Whether all that was met is near.
    #[inline]
    pub(super) const fn fit_near_cache(&self) -> bool {
        self.counters.fit_near_cache()
    }

    /// The answer of a sub policy with a main one behind it.
    pub(super) fn pair(&mut self, sub: &Arc<PolicyEntry>, main: &Arc<PolicyEntry>) -> AnswerId {
        let _ = (self.record_match(sub.answer(), sub), self.record_match(main.answer(), main));
        let pair = self.pairs.number([sub, main], PLACE);
        AnswerId(pair | PAIR | sub.answer().combined_with(main.answer()))
    }

    /// Notes packets for the policies that they met, up to the first that blocks.
    #[inline]
    pub(super) fn count(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        match id {
            AnswerId::NONE => {}
            AnswerId(pair) if pair & PAIR != 0 => self.count_pair(pair & PLACE, packets, bytes),
            AnswerId(slot) => self.count_slot(slot & PLACE, packets, bytes),
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

    /// Notes packets for the first policy that they met.
    #[inline]
    pub(super) fn count_first(&mut self, id: AnswerId, packets: u32, bytes: u64) {
        match id {
            AnswerId::NONE => {}
            AnswerId(pair) if pair & PAIR != 0 => {
                if let Some([sub, _]) = self.pairs.find(pair & PLACE) {
                    self.count_slot(sub.slot(), packets, bytes);
                }
            }
            AnswerId(slot) => self.count_slot(slot & PLACE, packets, bytes),
        }
    }

    /// To be called after a batch: charges the policies, unless each met just a few packets and they were charged not long ago. Then a charge costs more
    /// than all else that is done about them.
    #[inline]
    pub(super) fn flush_due(&mut self, now: Moment) {
        self.latest = now;
        let many = self.pending_packets >= MAX_PENDING.min(FEW_PACKETS * self.pending_slots.len());
        if many || now.0.saturating_sub(self.flushed_at.0) >= FLUSH_AFTER {
            self.flush();
        }
    }

    /// Whether policies are to be charged with anything.
    pub(super) const fn has_pending(&self) -> bool {
        self.pending_packets > 0
    }

    /// Charges the policies with what was noted: once each, whatever the number of packets.
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
                    entry.charge(packets, bytes, self.latest);
                }
            }
        }
        self.pending_slots = pending_slots;
        self.pending_slots.clear();
    }

    /// A charge waits for its policy's line, and the next one for it.
    #[inline(never)]
    fn prefetch_counts(&self, slots: &[u32]) {
        let counters = || slots.iter().filter_map(|slot| self.counters.find(*slot));
        counters().for_each(uxfrm_packet::prefetch_far);
        counters()
            .filter_map(|counters| counters.entry.as_ref())
            .for_each(|entry| entry.prefetch_counts());
    }

    /// Drops pairs if they are many more than there are policies; true when all answers that are pairs are void.
    pub(super) fn drop_surplus_pairs(&mut self, policies: usize) -> bool {
        let many = self.pairs.len() > policies + MAX_SURPLUS_PAIRS;
        if many {
            self.pairs.clear();
        }
        many
    }

    /// To be called now and then: lets go of policies that are gone, some each time. All that were not met since policies last changed may be; others
    /// that have to go for that are met again.
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

    /// Meets a policy for the first time since policies changed. Who knew the one that had its slot before is stale since that went.
    #[inline(never)]
    fn admit(&mut self, answer: AnswerId, entry: &Arc<PolicyEntry>) {
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

/// Whether a policy is the one that was met in its slot. The slot is said, as a policy may lie where no cache of the processor has it.
fn holds(counters: &CounterPages, slot: u32, entry: &Arc<PolicyEntry>) -> bool {
    let counters = counters.find(slot).and_then(|counters| counters.entry.as_ref());
    counters.is_some_and(|counters| Arc::ptr_eq(counters, entry))
}

/// Whether it was met since policies last changed.
fn is_current(counters: &CounterPages, valid: &ValidSlots, entry: &Arc<PolicyEntry>) -> bool {
    valid.has(entry.slot()) && holds(counters, entry.slot(), entry)
}

/// Whether a sub policy is found first, and a main one stands behind it.
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
    fn a_brief_answer_is_the_same_answer() {
        for ruling in [0, PASS, BLOCK] {
            for slot in [0, 1, 77, COMPACT_SLOTS - 1] {
                let answer = AnswerId(ruling | slot);
                assert_eq!(AnswerId::from_compact(answer.compact()), Some(answer));
            }
            let far = AnswerId(ruling | COMPACT_SLOTS);
            assert_eq!(AnswerId::from_compact(far.compact()), None, "the policy itself is asked");
        }
    }
}

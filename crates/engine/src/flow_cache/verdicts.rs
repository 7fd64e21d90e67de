//! The policies that caches' entries stand for, and what this worker's packets have counted on them since the last settling.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::counters::policy::Pages;
use super::counters::valid_slots::Roll;
use super::sub_main_pairs::Pairs;
use crate::spd::classifier::TOGETHER;
use crate::spd::verdict::{AnswerId, PAIR, PLACE};
use crate::{Action, Moment, PolicyEntry, PolicyKind};

/// Policies by short numbers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By their slots, as far as they were met.
    met: Pages,
    pairs: Pairs,
    /// Slots with something counted.
    counted: Vec<u32>,
    /// Packets in that, of each policy that they met.
    noted: usize,
    /// When policies were charged last, and when something was counted last.
    charged: Moment,
    latest: Moment,
    /// Slots whose policies are those that were met there.
    known: Roll,
    /// The policies' epoch in which some were let go last.
    let_go_in: u16,
}

/// Pairs of which no flow may know any more are dropped when there are so many more than policies.
const SURPLUS: usize = 4096;
/// Policies that met fewer packets each may be charged later, but not so long after the last time, and not of so many packets.
const FEW: usize = 16;
/// In nanoseconds.
const SOON: u64 = 1_000_000;
const MOST: usize = 1 << 13;
/// Policies that are charged together, all of them asked for before the first is waited for.
const PIECE: usize = 64;
/// Slots that are gone through at once for policies that are gone: so few that no packet waits long for it.
const STEP: usize = 4096;

impl Answers {
    /// The policies of an answer.
    #[inline]
    pub(super) fn policies(&self, id: AnswerId) -> &[Arc<PolicyEntry>] {
        match id {
            AnswerId::NONE => &[],
            AnswerId(pair) if pair & PAIR != 0 => {
                self.pairs.find(pair & PLACE).map_or(&[], <[_; 2]>::as_slice)
            }
            AnswerId(slot) => self.met.find(slot & PLACE).map_or(&[], |met| met.entry.as_slice()),
        }
    }

    /// To be called when policies have changed: a slot may be another's.
    pub(super) fn begin_anew(&mut self) {
        self.charge();
        self.known.begin_anew();
    }

    /// The answer of one policy, which is `answer`.
    #[inline]
    pub(super) fn meet(&mut self, answer: AnswerId, entry: &Arc<PolicyEntry>) -> AnswerId {
        if !self.known.has(answer.slot()) {
            self.introduce(answer, entry);
        }
        answer
    }

    /// Whether the policy of an answer was met since policies changed.
    #[inline]
    pub(super) fn has_met(&self, answer: AnswerId) -> bool {
        self.known.has(answer.slot())
    }

    /// Whether an answer that was found in an epoch of before policies changed, which did not concern it, can be given on. Not once its policy was
    /// [let go](Answers::let_go), and not of pairs, whose policies lie in two cells.
    #[inline]
    pub(super) fn meet_again(&mut self, answer: AnswerId, since: u16) -> bool {
        match answer {
            AnswerId::NONE => true,
            AnswerId(pair) if pair & PAIR != 0 => false,
            AnswerId(slot) => {
                let slot = slot & PLACE;
                // What was met since is kept, and need not be read, which may be far away.
                let is_here = since >= self.let_go_in || self.is_here(slot);
                if is_here && !self.known.has(slot) {
                    self.known.mark(slot);
                }
                is_here
            }
        }
    }

    fn is_here(&self, slot: u32) -> bool {
        self.met.find(slot).is_some_and(|met| met.entry.is_some())
    }

    /// As [`Answers::meet`] of each. After a change most policies are met for the first time: what is known of all is asked for before the first
    /// is waited for.
    #[inline(never)]
    pub(super) fn meet_each(&mut self, found: &ArrayVec<(AnswerId, &Arc<PolicyEntry>), TOGETHER>) {
        for (answer, entry) in found {
            self.prefetch(*answer);
            uxfrm_packet::prefetch_far(*entry);
        }
        for (answer, entry) in found {
            self.meet(*answer, entry);
        }
    }

    /// Fetches what [`Answers::count`] will read, where that is far away.
    #[inline]
    pub(super) fn prefetch(&self, answer: AnswerId) {
        if let Some(met) = self.met.find(answer.slot()) {
            uxfrm_packet::prefetch_far(met);
        }
    }

    /// Whether all that was met is near.
    #[inline]
    pub(super) const fn are_near(&self) -> bool {
        self.met.are_near()
    }

    /// The answer of a sub policy with a main one behind it.
    pub(super) fn pair(&mut self, sub: &Arc<PolicyEntry>, main: &Arc<PolicyEntry>) -> AnswerId {
        let _ = (self.meet(sub.answer(), sub), self.meet(main.answer(), main));
        let pair = self.pairs.number([sub, main], PLACE);
        AnswerId(pair | PAIR | sub.answer().then(main.answer()))
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
    pub(super) fn settle(&mut self, now: Moment) {
        self.latest = now;
        let many = self.noted >= MOST.min(FEW * self.counted.len());
        if many || now.0.saturating_sub(self.charged.0) >= SOON {
            self.charge();
        }
    }

    /// Whether policies are to be charged with anything.
    pub(super) const fn owe(&self) -> bool {
        self.noted > 0
    }

    /// Charges the policies with what was noted: once each, whatever the number of packets.
    #[inline(never)]
    pub(super) fn charge(&mut self) {
        (self.charged, self.noted) = (self.latest, 0);
        let counted = std::mem::take(&mut self.counted);
        for slots in counted.chunks(PIECE) {
            if !self.are_near() {
                self.prefetch_counts(slots);
            }
            for slot in slots {
                let Some(met) = self.met.find_mut(*slot) else { continue };
                let (packets, bytes) =
                    (std::mem::take(&mut met.packets), std::mem::take(&mut met.bytes));
                if let Some(entry) = &met.entry {
                    entry.charge(packets, bytes, self.latest);
                }
            }
        }
        self.counted = counted;
        self.counted.clear();
    }

    /// A charge waits for its policy's line, and the next one for it.
    #[inline(never)]
    fn prefetch_counts(&self, slots: &[u32]) {
        let met = || slots.iter().filter_map(|slot| self.met.find(*slot));
        met().for_each(uxfrm_packet::prefetch_far);
        met().filter_map(|met| met.entry.as_ref()).for_each(|entry| entry.prefetch_counts());
    }

    /// Drops pairs if they are many more than there are policies; true when all answers that are pairs are void.
    pub(super) fn shed(&mut self, policies: usize) -> bool {
        let many = self.pairs.len() > policies + SURPLUS;
        if many {
            self.pairs.clear();
        }
        many
    }

    /// To be called now and then: lets go of policies that are gone, some each time. All that were not met since policies last changed may be; others
    /// that have to go for that are met again.
    pub(super) fn let_go(&mut self, epoch: u16) {
        self.charge();
        self.let_go_in = epoch;
        let Self { met, pairs, known, .. } = self;
        pairs.let_go(STEP, |pair| pair.iter().all(|one| is_met(met, known, one)));
        met.let_go(STEP, |slot| known.has(slot));
    }

    pub(super) fn memory(&self) -> usize {
        let counted = self.counted.capacity() * size_of::<u32>();
        self.known.memory() + self.met.memory() + self.pairs.memory() + counted
    }

    /// Meets a policy for the first time since policies changed. Who knew the one that had its slot before is stale since that went.
    #[inline(never)]
    fn introduce(&mut self, answer: AnswerId, entry: &Arc<PolicyEntry>) {
        self.known.mark(answer.slot());
        if !is_in(&self.met, answer.slot(), entry) {
            self.met.put(answer.slot(), entry);
        }
    }

    #[inline]
    fn count_slot(&mut self, slot: u32, packets: u32, bytes: u64) {
        let Some(met) = self.met.find_mut(slot) else { return };
        if met.packets == 0 {
            self.counted.push(slot);
        }
        met.packets += packets;
        met.bytes += bytes;
        self.noted += packets as usize;
    }
}

/// Whether a policy is the one that was met in its slot. The slot is said, as a policy may lie where no cache of the processor has it.
fn is_in(met: &Pages, slot: u32, entry: &Arc<PolicyEntry>) -> bool {
    let met = met.find(slot).and_then(|met| met.entry.as_ref());
    met.is_some_and(|met| Arc::ptr_eq(met, entry))
}

/// Whether it was met since policies last changed.
fn is_met(met: &Pages, known: &Roll, entry: &Arc<PolicyEntry>) -> bool {
    known.has(entry.slot()) && is_in(met, entry.slot(), entry)
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
    use crate::spd::verdict::{BLOCK, BRIEF_SLOTS, PASS};

    #[test]
    fn a_brief_answer_is_the_same_answer() {
        for ruling in [0, PASS, BLOCK] {
            for slot in [0, 1, 77, BRIEF_SLOTS - 1] {
                let answer = AnswerId(ruling | slot);
                assert_eq!(AnswerId::of_brief(answer.brief()), Some(answer));
            }
            let far = AnswerId(ruling | BRIEF_SLOTS);
            assert_eq!(AnswerId::of_brief(far.brief()), None, "the policy itself is asked");
        }
    }
}

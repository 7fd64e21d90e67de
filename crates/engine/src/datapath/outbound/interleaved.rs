//! Outbound fast path for interleaved flows: each packet needs one SA with an IPv4 tunnel and
//! nothing else. It is checked against one cache line, the [`TxRecord`](crate::bundle::TxRecord) of
//! its bundle, and encapsulated in place. Each SA is charged once per batch.
//!
//! At the first packet that does not qualify, this one and a few behind it take the slow path;
//! packets are not reordered.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_packet::{Ipv4FlowKey, PacketBuf};

use super::number::SeqSupply;
use super::pre_parsed::is_untouched;
use super::seal_jobs::{CHUNK, SealJobs};
use super::{DATA_AHEAD, META_AHEAD, Outbound, PolicyDecider, TxBatch, ip_id, narrow};
use crate::bundle::{BundleCache, SeqGrant};
use crate::datapath::back_off::BackOff;
use crate::datapath::context::BatchContext;
use crate::esp::headers::SeqAndId;
use crate::flow_cache::{CachedVerdict, FlowProbe};
use crate::{PolicyOutcome, Stage, StageWatch, VerdictId};

/// Fewer packets do not pay: the crypto library needs many per call.
const MIN_PACKETS: usize = 16;
/// Packets that take the slow path when one does not qualify.
pub(super) const SLOW_STEP: usize = 4;
/// Slow-path packets tolerated before the fast path is abandoned for this batch.
const MISS_ALLOWANCE: usize = MIN_PACKETS + SLOW_STEP;
/// Batches with longer runs per flow, on average, take the path for runs.
const MAX_MEAN_RUN: usize = 4;
/// Packets that are prefetched and looked up together.
const GROUP: usize = 64;

/// Scratch and statistics of this fast path.
#[derive(Debug, Default)]
pub(super) struct TxInterleaved {
    /// Whether the latest batches had interleaved flows.
    is_expected_next: bool,
    assignments: Vec<TxAssignment>,
    shares: Vec<SaShare>,
    /// By tally index.
    slots: Vec<TallySlots>,
    /// Packets whose verdict differs from that of their SA's share, with their bytes.
    other_policies: Vec<(VerdictId, u32)>,
    /// Flows looked up in this attempt, and in the whole batch.
    flows: usize,
    runs: usize,
    /// Back-off after a batch in which most packets missed.
    back_off: BackOff,
}

/// Index of a tally's share in this batch, and of its pending count.
#[derive(Clone, Copy, Debug, Default)]
struct TallySlots {
    share: u32,
    pending_slot: u32,
}

/// Result of a fast-path attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FastPathResult {
    /// Packets encapsulated.
    pub(super) in_place: usize,
    /// Packets that qualified but were too few.
    pub(super) too_few: usize,
}

/// Whether bundles and SAs fit into the CPU cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locality {
    /// They do.
    InCache,
    /// They do not: they are prefetched.
    InMemory,
}

/// The bundle by which a packet leaves, and the share that gives its sequence number.
#[derive(Clone, Copy, Debug)]
struct TxAssignment {
    bundle: u32,
    share: u32,
}

/// What one SA has to carry in this attempt, and the numbers taken for it.
#[derive(Clone, Copy, Debug)]
struct SaShare {
    tally: u32,
    bundle: u32,
    answer: VerdictId,
    /// Packets and bytes, and how many of them have the verdict `answer`.
    packets: u32,
    bytes: u64,
    matched: u32,
    matched_bytes: u64,
    grant: SeqGrant,
}

/// A packet that qualifies by its headers, with the verdict of its flow if it is looked up already.
#[derive(Clone, Copy, Debug)]
struct FlowCandidate {
    probe: FlowProbe,
    len: usize,
    known: Option<CachedVerdict>,
}

/// A packet whose flow has a cached bundle.
#[derive(Clone, Copy, Debug)]
struct ResolvedFlow {
    answer: VerdictId,
    bundle: u32,
    len: usize,
}

impl TxInterleaved {
    /// Whether this path is tried first.
    #[inline(always)]
    pub(super) fn is_expected(&mut self) -> bool {
        self.is_expected_next && self.back_off.is_over()
    }

    /// Records how many runs a batch on the other path had.
    #[inline(always)]
    pub(super) fn observe_runs(&mut self, packets: usize, runs: usize) {
        self.is_expected_next = is_enough(packets) && runs * MAX_MEAN_RUN > packets;
    }

    /// Records how many packets took this path and how many another one.
    pub(super) fn observe_result(&mut self, in_place: usize, other_policies: usize) {
        if in_place < other_policies {
            self.back_off.begin();
        }
        self.is_expected_next = std::mem::take(&mut self.runs) * MAX_MEAN_RUN > in_place;
    }

    fn begin(&mut self, tallies: usize) {
        self.assignments.clear();
        self.shares.clear();
        self.other_policies.clear();
        self.flows = 0;
        if self.slots.len() < tallies {
            self.slots.resize(tallies, TallySlots::default());
        }
    }

    /// Adds a packet to the share of an SA and returns the share's index. The first packet checks
    /// that the SA is usable.
    #[inline(always)]
    fn add_to_share(
        &mut self,
        tally: u32,
        found: &ResolvedFlow,
        works: impl Fn() -> bool,
    ) -> Option<u32> {
        let TallySlots { share: place, .. } = self.slots.get_mut(tally as usize)?;
        if self.shares.get(*place as usize).is_none_or(|share| share.tally != tally) {
            if !works() {
                return None;
            }
            *place = narrow(self.shares.len());
            self.shares.push(SaShare::new(tally, found));
        }
        let share = &mut self.shares[*place as usize];
        share.packets += 1;
        share.bytes += found.len as u64;
        if share.answer == found.answer {
            share.matched += 1;
            share.matched_bytes += found.len as u64;
        } else {
            self.other_policies.push((found.answer, narrow(found.len)));
        }
        Some(*place)
    }
}

impl Locality {
    #[inline(always)]
    fn of(cache: &BundleCache) -> Self {
        if cache.exceeds_cache() { Self::InMemory } else { Self::InCache }
    }
}

impl SaShare {
    #[inline(always)]
    fn new(tally: u32, found: &ResolvedFlow) -> Self {
        let ResolvedFlow { answer, bundle, .. } = *found;
        let grant = SeqGrant::NOTHING;
        Self { tally, bundle, answer, packets: 0, bytes: 0, matched: 0, matched_bytes: 0, grant }
    }
}

impl Outbound {
    /// Stages 1 to 10 for the first packets of `rest`, up to the first that does not qualify. Does
    /// nothing if they are too few.
    #[inline(never)]
    pub(super) fn send_interleaved(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) -> FastPathResult {
        self.interleaved.begin(self.tx.cache.tallies());
        self.assign_bundles(rest.as_slice());
        watch.stage_done(Stage::LookUp);
        let assigned = self.interleaved.assignments.len();
        if !is_enough(assigned) {
            return FastPathResult { in_place: 0, too_few: assigned };
        }
        self.flush_items(ctx, watch);
        self.in_place.extend(rest.take(assigned));
        self.count_interleaved(ctx);
        watch.stage_done(Stage::Frame);
        let supply = self.take_interleaved(ctx);
        self.tx.numbering.supply = supply;
        watch.stage_done(Stage::Number);
        match supply {
            SeqSupply::Enough => self.seal_interleaved(ctx, watch),
            SeqSupply::Short => self.seal_interleaved_slow(ctx, watch),
        }
        FastPathResult { in_place: assigned, too_few: 0 }
    }

    /// Stages 2 to 5: assigns bundles to the first packets, up to one that does not qualify.
    #[inline(never)]
    fn assign_bundles(&mut self, packets: &[PacketBuf]) {
        packets.iter().take(META_AHEAD).for_each(PacketBuf::prefetch);
        packets.iter().take(DATA_AHEAD).for_each(PacketBuf::prefetch_bytes);
        let locality = Locality::of(&self.tx.cache);
        // Filled in place: to return them by value would copy them.
        let (mut candidates, mut found) = (ArrayVec::new(), ArrayVec::new());
        let mut first = 0;
        while first < packets.len() {
            let packets = &packets[first..];
            self.parse_candidates(packets, locality, &mut candidates);
            if locality == Locality::InMemory {
                self.resolve_primary(&mut candidates);
            }
            self.resolve_flows(&candidates, &mut found);
            if locality == Locality::InMemory {
                self.prefetch_records(&found);
            }
            let assigned = found
                .iter()
                .zip(packets)
                .take_while(|(found, packet)| self.assignment(found, packet));
            let assigned = assigned.count();
            first += assigned;
            if assigned < GROUP {
                break;
            }
        }
    }

    /// Parses the first packets, up to one that does not qualify.
    #[inline(always)]
    fn parse_candidates(
        &mut self,
        packets: &[PacketBuf],
        locality: Locality,
        candidates: &mut ArrayVec<FlowCandidate, GROUP>,
    ) {
        candidates.clear();
        for (at, packet) in packets.iter().take(GROUP).enumerate() {
            packets.get(at + META_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + DATA_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let words = Ipv4FlowKey::of(packet.bytes()).filter(|_| is_untouched(packet));
            let Some(words) = words else { break };
            let probe = self.decider.policies.probe(&words, packet);
            if locality == Locality::InMemory {
                self.decider.policies.prefetch_primary(&probe);
            }
            candidates.push(FlowCandidate { probe, len: words.len, known: None });
        }
    }

    /// Probes the primary slots of the flow cache; prefetches bundles of hits and overflow slots of
    /// misses.
    #[inline(always)]
    fn resolve_primary(&self, candidates: &mut [FlowCandidate]) {
        for FlowCandidate { probe, known, .. } in candidates {
            *known = self.decider.policies.probe_primary(probe);
            match known {
                Some(known) => self.prefetch_bundle(*known),
                None => self.decider.policies.prefetch_overflow(probe),
            }
        }
    }

    /// Prefetches what a flow leaves by and is counted in.
    #[inline(always)]
    fn prefetch_bundle(&self, known: CachedVerdict) {
        known.bundle().inspect(|bundle| self.tx.cache.prefetch_record(*bundle));
        self.decider.policies.prefetch_counters(known.verdict);
    }

    /// Looks up the flows, up to the first without a cached bundle.
    #[inline(always)]
    fn resolve_flows(
        &mut self,
        candidates: &[FlowCandidate],
        all: &mut ArrayVec<ResolvedFlow, GROUP>,
    ) {
        all.clear();
        let mut before = None;
        for FlowCandidate { probe, len, known } in candidates {
            // Consecutive packets of one flow are looked up once.
            let found = match (before, all.last()) {
                (Some(before), Some(latest)) if before == probe => {
                    ResolvedFlow { len: *len, ..*latest }
                }
                _ => {
                    let known = known.or_else(|| self.decider.policies.probe_primary(probe));
                    let known = known.or_else(|| self.decider.policies.probe_overflow(probe));
                    let Some(known) = known else { break };
                    let Some(bundle) = known.bundle() else { break };
                    debug_assert_eq!(
                        known.verdict.outcome(),
                        PolicyOutcome::Protect,
                        "by its bundle"
                    );
                    self.interleaved.flows += 1;
                    ResolvedFlow { answer: known.verdict, bundle, len: *len }
                }
            };
            before = Some(probe);
            all.push(found);
        }
    }

    /// Prefetches what the packets' SAs need, level by level.
    #[inline(always)]
    fn prefetch_records(&self, found: &[ResolvedFlow]) {
        let records = || found.iter().filter_map(|found| self.tx.cache.tx_record(found.bundle));
        records().for_each(|record| {
            record.sa.fetch_to_send();
            record.key.prefetch_head();
        });
        records().for_each(|record| record.sa.fetch_usage());
    }

    #[inline(always)]
    fn assignment(&mut self, found: &ResolvedFlow, packet: &PacketBuf) -> bool {
        let record =
            self.tx.cache.tx_record(found.bundle).filter(|record| record.takes(packet, found.len));
        let share = record.and_then(|record| {
            self.interleaved.add_to_share(record.tally, found, || record.works())
        });
        let assignment = share.map(|share| TxAssignment { bundle: found.bundle, share });
        self.interleaved.assignments.extend(assignment);
        assignment.is_some()
    }

    /// Stage 1: counts.
    #[inline(never)]
    fn count_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { interleaved, decider: PolicyDecider { policies, .. }, in_place, .. } = self;
        interleaved.runs += interleaved.flows;
        let bytes = in_place.iter().map(|packet| packet.len() as u64).sum();
        ctx.traffic.count_received(in_place.len() as u64, bytes);
        policies.count_probe_hits(&ctx.snapshot.spd, interleaved.flows);
        for share in &interleaved.shares {
            policies.count(share.answer, share.matched, share.matched_bytes);
        }
        for (answer, bytes) in interleaved.other_policies.drain(..) {
            policies.count(answer, 1, bytes.into());
        }
    }

    /// Stage 6.
    #[inline(never)]
    fn take_interleaved(&mut self, ctx: &mut BatchContext<'_>) -> SeqSupply {
        let Self { interleaved, tx: TxBatch { cache, .. }, deferred, .. } = self;
        let TxInterleaved { assignments, shares, slots, .. } = interleaved;
        prefetch_keys(cache, assignments, 0);
        let mut seq_supply = SeqSupply::Enough;
        for share in shares {
            // Both exist, as they did when the packet was assigned.
            let Some(record) = cache.tx_record(share.bundle) else { continue };
            let Some(TallySlots { pending_slot, .. }) = slots.get_mut(share.tally as usize) else {
                continue;
            };
            share.grant = if deferred.add(pending_slot, &record.sa, share.packets, share.bytes) {
                SeqGrant::take_uncharged(&record.sa, share.packets)
            } else {
                SeqGrant::of(&record.sa, share.packets, share.bytes, ctx)
            };
            if share.grant.left < share.packets {
                seq_supply = SeqSupply::Short;
            }
        }
        seq_supply
    }

    /// Stages 7 to 10.
    #[inline(always)]
    fn seal_interleaved(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        self.encapsulate_interleaved(ctx);
        watch.stage_done(Stage::Seal);
        self.send_in_place(ctx);
        watch.stage_done(Stage::Transmit);
    }

    /// Stages 7 and 8.
    #[inline(never)]
    fn encapsulate_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { interleaved, tx, in_place, failed, .. } = self;
        let TxBatch { cache, ident, .. } = tx;
        let TxInterleaved { assignments, shares, .. } = interleaved;
        let mut jobs = SealJobs::new(ctx.crypter, failed);
        for (place, (packet, assignment)) in in_place.iter_mut().zip(&*assignments).enumerate() {
            if place % CHUNK == 0 {
                prefetch_keys(cache, assignments, place + CHUNK);
            }
            let grant = &mut shares[assignment.share as usize].grant;
            *ident = ident.wrapping_add(1);
            let seq_id = SeqAndId { sequence: grant.allocate(1), id: ip_id(*ident) };
            let record = cache.tx_record(assignment.bundle);
            match record.and_then(|record| Some((record, record.wrap(packet, seq_id)?))) {
                Some((record, (len, esp))) => {
                    ctx.traffic.sent_bytes += len as u64;
                    jobs.push(place, &record.key, record.seq_high_and_iv(seq_id.sequence), esp);
                }
                None => jobs.failed.push(place),
            }
        }
        jobs.run();
    }

    /// Without enough numbers each packet becomes an item.
    #[cold]
    fn seal_interleaved_slow(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        for share in &self.interleaved.shares {
            self.tx
                .cache
                .tally(share.tally)
                .into_iter()
                .for_each(|tally| tally.grant = share.grant);
        }
        let mut packets = std::mem::take(&mut self.in_place);
        let assignments = std::mem::take(&mut self.interleaved.assignments);
        for (packet, assignment) in packets.drain(..).zip(&assignments) {
            self.push_reserved(packet, assignment.bundle, ctx);
        }
        (self.in_place, self.interleaved.assignments) = (packets, assignments);
        self.send_slow(ctx);
        watch.stage_done(Stage::Transmit);
    }
}

/// Whether this path pays for so many packets.
#[inline(always)]
const fn is_enough(packets: usize) -> bool {
    packets >= MIN_PACKETS
}

/// Whether to try this path for the next packets, given how many of the batch took it, took
/// another, and are left.
#[inline(always)]
pub(super) const fn is_worthwhile(in_place: usize, other_policies: usize, left: usize) -> bool {
    in_place + MISS_ALLOWANCE > other_policies && is_enough(left)
}

/// Prefetches the keys of the packets from `first` on; the records are in the cache already.
#[inline(always)]
fn prefetch_keys(cache: &BundleCache, assignments: &[TxAssignment], first: usize) {
    if cache.exceeds_cache() {
        let assignments = assignments.iter().skip(first).take(CHUNK);
        assignments
            .filter_map(|assignment| cache.tx_record(assignment.bundle))
            .for_each(|record| record.key.prefetch());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_miss_never_ends_fast_path() {
        for before in 0..MIN_PACKETS {
            assert!(
                is_worthwhile(0, before + SLOW_STEP, 64),
                "too few went together before it: {before}"
            );
        }
        assert!(is_worthwhile(64, SLOW_STEP, 64), "many did");
        assert!(
            !is_worthwhile(0, MIN_PACKETS + SLOW_STEP, 64),
            "several were otherwise, and none went together"
        );
        assert!(!is_worthwhile(64, SLOW_STEP, MIN_PACKETS - 1), "too few are left");
    }
}

//! Outbound data path: from the host to the network.
//!
//! # The map
//! A batch passes through these stages; comments in the code name them by number.
//!
//! 1. **Receive**: count, complete checksums that the host left partial, plan the segmentation of
//!    super-packets. Where a policy selects by port or uses transport mode,
//!    [reassemble](slow::defragment) what the host has fragmented.
//! 2. **Flow key**: addresses, protocol, ports, mark and interface id of the whole batch, before
//!    anything else.
//! 3. **Look up** policies and bundles for the whole batch, once per super-packet.
//! 4. **Verdict**: pass, drop, or a bundle: a chain of SAs, innermost first, from the worker's
//!    caches. A packet without a required SA waits in the acquire queue; released packets go before
//!    the batch.
//! 5. **PMTU**: a packet that is too big and may not be fragmented is answered by an ICMP error.
//!    All others get a frame in which they are encapsulated without being moved again;
//!    super-packets are segmented straight into their frames.
//!
//! Then for each layer of the bundle, innermost first:
//!
//! 6. **Number**: charge each SA and reserve a block of sequence numbers, once per batch.
//! 7. **Wrap**: write headers, padding and trailer.
//! 8. **Seal**: encrypt and authenticate the whole batch.
//! 9. **Finish**: write the UDP checksum over IPv6, which covers sealed bytes.
//!
//! At last:
//!
//! 10. **Transmit**: single packets, segment bursts, or fragments of what exceeds the MTU.
//!
//! Fast paths: [runs](run) of packets that use one SA and nothing else are encapsulated in place,
//! without a [`TxItem`]; packets of [interleaved flows](interleaved) likewise, if their flows are
//! cached.
//!
//! Work of an offload device is left out here, and the packet is [handed over](slow::device): after
//! stage 5 to a device that does all, after 7 to one that encrypts.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid` and
//! `net/xfrm/xfrm_output.c: xfrm_output_one`.

mod interleaved;
mod number;
mod pre_parsed;
mod run;
mod seal_jobs;
mod single;
pub(crate) mod slow;
mod transmit;

use std::vec::Drain;

use uxfrm_packet::{Batch, IpPacket, PacketBuf, ParseError, SegmentPlan, Segments, checksum};

use crate::bundle::{BundleCache, first_query};
use crate::datapath::context::{BatchCtx, TrafficCounters};
use crate::flow_cache::CachedVerdict;
use crate::fragments::reassembly::Reassembly;
use crate::pmtu::{self, IcmpRateLimit};
use crate::sa::deferred_counters::DeferredCounters;
use crate::{
    Direction, DropReason, FlowKey, PolicyCache, PolicyOutcome, Settings, Snapshot, Stage,
    StageWatch, VerdictId,
};
use interleaved::{FastPathResult, TxInterleaved};
use pre_parsed::{PacketSummary, PreParsed};
use slow::acquire_queue::{AcquireQueue, Queued};
use slow::device::Sealer;
use slow::item::TxItem;
use slow::verdict::Verdict;

pub use slow::acquire_queue::WaitingPacket;

/// Outbound half of a worker: scratch buffers, caches and counters.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) traffic: TrafficCounters,
    items: Vec<TxItem>,
    /// Packets that are encapsulated in place.
    in_place: Vec<PacketBuf>,
    interleaved: TxInterleaved,
    /// The most layers that an item of this batch needs.
    max_layers: usize,
    pub(crate) policies: PolicyCache,
    cache: BundleCache,
    parsed: PreParsed,
    deferred: DeferredCounters,
    /// SAs used by the current encapsulation layer, as indexes of their tallies.
    touched: Vec<u32>,
    seq_supply: SeqSupply,
    /// Packets not yet counted for their policies.
    policy_tally: Option<PolicyTally>,
    /// The latest bundle that was found usable in this batch.
    usable_bundle: Option<u32>,
    /// Items in which the crypto library refused a packet.
    failed: Vec<usize>,
    /// Some item needs stage 9.
    needs_finish: bool,
    icmp_limit: IcmpRateLimit,
    queued: AcquireQueue,
    /// Datagrams that the host has fragmented.
    reassembly: Reassembly,
    /// Scratch: fragments of one reassembled datagram.
    refragmented: Batch,
    /// Next identification of outer headers and fragments.
    ident: u32,
}

/// How many packets ahead a packet's metadata and its first bytes are prefetched.
const META_AHEAD: usize = 8;
const DATA_AHEAD: usize = 4;

/// Packets with one verdict that are not yet counted for its policies.
#[derive(Debug)]
struct PolicyTally {
    answer: VerdictId,
    packets: u32,
    bytes: u64,
}

/// Whether every SA could reserve enough sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeqSupply {
    /// All of them: numbers are assigned while headers are written.
    Enough,
    /// Some could not: numbers were assigned to the items beforehand.
    Short,
}

impl Outbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            traffic: TrafficCounters::default(),
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            in_place: Vec::with_capacity(uxfrm_packet::BATCH),
            interleaved: TxInterleaved::default(),
            max_layers: 0,
            policies: PolicyCache::new(settings.cache.outbound, settings.seed),
            cache: BundleCache::default(),
            parsed: PreParsed::default(),
            deferred: DeferredCounters::default(),
            touched: Vec::new(),
            seq_supply: SeqSupply::Enough,
            policy_tally: None,
            usable_bundle: None,
            failed: Vec::new(),
            needs_finish: false,
            icmp_limit: IcmpRateLimit::new(),
            queued: AcquireQueue::new(settings.acquire_queue),
            reassembly: Reassembly::default(),
            refragmented: Batch::default(),
            ident: fold_seed(settings.seed),
        }
    }

    /// Invalidates bundles of flows after SAs changed, and releases some bundles of removed SAs.
    #[inline]
    fn refresh_bundles(&mut self, snapshot: &Snapshot) {
        if self.cache.begin(snapshot) {
            self.policies.invalidate_bundles();
            // Another generation of an SA may have tighter limits.
            self.deferred.flush();
        }
    }

    /// Flushes the deferred counters of policies and SAs.
    pub(crate) fn flush_deferred(&mut self) {
        self.policies.flush();
        self.deferred.flush();
    }

    /// Whether any counter is deferred.
    pub(crate) fn has_deferred(&self) -> bool {
        self.policies.has_pending() || self.deferred.has_pending()
    }

    /// Releases bundles of removed SAs, and some references to removed policies.
    pub(crate) fn release_stale(&mut self, snapshot: &Snapshot) {
        self.policies.release_stale(&snapshot.spd);
        self.refresh_bundles(snapshot);
        self.cache.release_stale(snapshot);
    }

    /// Packets in the acquire queue plus incomplete datagrams.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.queued.len() + self.reassembly.datagrams()
    }

    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchCtx<'_>,
        watch: &mut impl StageWatch,
    ) {
        self.policies.begin_batch(&ctx.snapshot.spd);
        self.refresh_bundles(ctx.snapshot);
        self.usable_bundle = None;
        self.resume(ctx);
        self.expire_fragments(ctx);
        match batch.take_single() {
            Some(packet) => self.receive_single(packet, ctx, watch),
            None => self.receive_batch(batch, ctx, watch),
        }
        self.flush_policy_tally();
        self.policies.flush_due(ctx.now);
        self.deferred.flush_due(ctx.now);
        watch.stage_done(Stage::Frame);
        self.flush_items(ctx, watch);
    }

    /// Stages 6 to 10 for all items.
    #[inline(never)]
    fn send_items(&mut self, ctx: &mut BatchCtx<'_>, watch: &mut impl StageWatch) {
        for depth in 0..std::mem::take(&mut self.max_layers) {
            self.reserve_numbers(depth, ctx);
            watch.stage_done(Stage::Number);
            self.seal(depth, ctx);
            watch.stage_done(Stage::Seal);
            self.finish(depth);
            watch.stage_done(Stage::Finish);
        }
        self.transmit(ctx);
        watch.stage_done(Stage::Transmit);
    }

    /// Stages 2 to 5 for a whole batch; on the fast path all later stages too.
    #[inline(never)]
    fn receive_batch(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchCtx<'_>,
        watch: &mut impl StageWatch,
    ) {
        if self.interleaved.is_expected() {
            return self.receive_interleaved(batch, ctx, watch);
        }
        let packets = batch.len();
        self.receive_in_runs(&mut batch.drain(), usize::MAX, ctx, watch);
        self.interleaved.observe_runs(packets, self.parsed.runs.len());
    }

    /// Like [`Self::receive_batch`], for a batch with interleaved flows.
    #[inline(never)]
    fn receive_interleaved(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchCtx<'_>,
        watch: &mut impl StageWatch,
    ) {
        let mut rest = batch.drain();
        let (mut in_place, mut others) = (0, 0);
        while !rest.as_slice().is_empty() {
            // A slow-path packet among many others does not end the fast path, wherever in the
            // batch it is.
            let most = if interleaved::is_worthwhile(in_place, others, rest.len()) {
                let FastPathResult { in_place: sent, too_few } =
                    self.send_interleaved(&mut rest, ctx, watch);
                in_place += sent;
                too_few + interleaved::SLOW_STEP
            } else {
                usize::MAX
            };
            others += rest.len().min(most);
            self.receive_in_runs(&mut rest, most, ctx, watch);
        }
        self.interleaved.observe_result(in_place, others);
    }

    /// Stages 2 to 5 for the next packets; on the fast path all later stages too.
    #[inline(never)]
    fn receive_in_runs(
        &mut self,
        packets: &mut Drain<'_, PacketBuf>,
        most: usize,
        ctx: &mut BatchCtx<'_>,
        watch: &mut impl StageWatch,
    ) {
        let all = packets.as_slice();
        let count = all.len().min(most);
        if count == 0 {
            return;
        }
        self.parse_and_look_up(&all[..count], ctx, watch);
        let mut run = 0;
        while run < self.parsed.runs.len() {
            if self.may_run_now(run, ctx) {
                self.flush_items(ctx, watch);
                run += self.send_runs(run, packets, ctx, watch);
            }
            if run < self.parsed.runs.len() {
                self.receive_run_slow(run, packets, ctx);
                run += 1;
            }
        }
    }

    /// [`Self::send_items`] if there are any.
    #[inline(always)]
    fn flush_items(&mut self, ctx: &mut BatchCtx<'_>, watch: &mut impl StageWatch) {
        if !self.items.is_empty() {
            self.send_items(ctx, watch);
        }
    }

    /// Stages 1, 4 and 5 of a run on the slow path.
    #[inline(never)]
    fn receive_run_slow(
        &mut self,
        run: usize,
        packets: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchCtx<'_>,
    ) {
        let known = self.parsed.known[run];
        for packet in packets.take(self.parsed.runs[run].packets as usize) {
            let summary = PacketSummary::with_flow(&packet);
            self.receive_packet(packet, summary.as_ref(), known, ctx);
        }
    }

    /// Stages 2 and 3.
    fn parse_and_look_up(
        &mut self,
        packets: &[PacketBuf],
        ctx: &BatchCtx<'_>,
        watch: &mut impl StageWatch,
    ) {
        self.parsed.clear();
        for (place, packet) in packets.iter().enumerate() {
            packets.get(place + META_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(place + DATA_AHEAD).inspect(|packet| packet.prefetch_bytes());
            self.parsed.push(packet);
        }
        watch.stage_done(Stage::Parse);
        let PreParsed { flows, known, .. } = &mut self.parsed;
        self.policies.lookup_cached_batch(&ctx.snapshot.spd, Direction::Out, flows, &[], known);
        if ctx.snapshot.sad.exceeds_cpu_cache() {
            self.prefetch_sas(ctx);
        }
        if self.cache.exceeds_cache() {
            // Consecutive packets often have the same bundle.
            let runs = self.parsed.known.chunk_by(|a, b| a.bundle() == b.bundle());
            self.cache.fetch(runs.filter_map(|run| run[0].bundle()));
        }
        watch.stage_done(Stage::LookUp);
    }

    /// Prefetches the SAs of all flows without a cached bundle.
    #[inline(never)]
    fn prefetch_sas(&self, ctx: &BatchCtx<'_>) {
        let PreParsed { flows, known, .. } = &self.parsed;
        let mut latest: Option<&FlowKey> = None;
        let queries = flows.iter().zip(known).filter_map(|(flow, known)| {
            // Consecutive packets are often of one flow.
            let asks =
                known.verdict.outcome() == PolicyOutcome::Protect && known.bundle().is_none();
            if !asks || latest.replace(flow) == Some(flow) {
                return None;
            }
            let entry = self.policies.policies(known.verdict).first()?;
            first_query(entry, flow, ctx.settings)
        });
        ctx.snapshot.sad.prefetch_outbound(queries);
    }

    /// Stage 1 of one packet on the slow path.
    fn receive_packet(
        &mut self,
        mut packet: PacketBuf,
        summary: Option<&(PacketSummary, FlowKey)>,
        known: CachedVerdict,
        ctx: &mut BatchCtx<'_>,
    ) {
        if packet.segments != Segments::One {
            return self.receive_super_packet(packet, summary, known, ctx);
        }
        self.traffic.received += 1;
        self.traffic.received_bytes += packet.len() as u64;
        let Some((summary, flow)) = summary.filter(|_| checksum::complete(&mut packet).is_ok())
        else {
            return self.discard(packet, 1, DropReason::OutMalformed, ctx);
        };
        packet.trim(summary.total_len as usize);
        if summary.fragment && ctx.snapshot.spd.needs_whole_datagrams(Direction::Out) {
            return self.defragment(packet, ctx);
        }
        self.tally_policy(known.verdict, 1, packet.len() as u64);
        match self.decide(flow, known, ctx) {
            Verdict::Bundle(bundle) => {
                self.enter_bundle(packet, None, (summary, flow), bundle, ctx)
            }
            Verdict::Pass if summary.options && Self::routes_around_policy(&packet, flow, ctx) => {
                self.discard(packet, 1, DropReason::OutUnprotected, ctx);
            }
            Verdict::Pass => self.pass(packet, None, ctx),
            Verdict::Drop(reason) => self.discard(packet, 1, reason, ctx),
            Verdict::Wait => self.queue_packet(Queued::new(packet, 1), flow, ctx),
        }
    }

    /// Counts packets for the policies of a verdict, consecutive ones together.
    #[inline(always)]
    fn tally_policy(&mut self, answer: VerdictId, packets: u32, bytes: u64) {
        match &mut self.policy_tally {
            Some(policy_tally) if policy_tally.answer == answer => {
                policy_tally.packets += packets;
                policy_tally.bytes += bytes;
            }
            Some(_) | None => {
                self.flush_policy_tally();
                self.policy_tally = Some(PolicyTally { answer, packets, bytes });
            }
        }
    }

    #[inline(always)]
    fn flush_policy_tally(&mut self) {
        if let Some(PolicyTally { answer, packets, bytes }) = self.policy_tally.take() {
            self.policies.count(answer, packets, bytes);
        }
    }

    /// Stage 1 of a super-packet, whose segments get their checksums when they are cut.
    fn receive_super_packet(
        &mut self,
        mut packet: PacketBuf,
        summary: Option<&(PacketSummary, FlowKey)>,
        known: CachedVerdict,
        ctx: &mut BatchCtx<'_>,
    ) {
        let plan = segment_plan(&packet);
        let count = plan.as_ref().ok().and_then(Option::as_ref).map_or(1, SegmentPlan::count);
        self.traffic.received += count as u64;
        self.traffic.received_bytes += packet.len() as u64;
        let (Ok(plan), Some((summary, flow))) = (plan, summary) else {
            return self.discard(packet, count, DropReason::OutMalformed, ctx);
        };
        packet.trim(summary.total_len as usize);
        let packets = u32::try_from(count).unwrap_or(u32::MAX);
        self.policies.count(known.verdict, packets, packet.len() as u64);
        match self.decide(flow, known, ctx) {
            Verdict::Pass if summary.options && Self::routes_around_policy(&packet, flow, ctx) => {
                self.discard(packet, count, DropReason::OutUnprotected, ctx);
            }
            Verdict::Pass => self.pass(packet, plan.as_ref(), ctx),
            Verdict::Drop(reason) => self.discard(packet, count, reason, ctx),
            Verdict::Bundle(bundle) => {
                self.enter_bundle(packet, plan.as_ref(), (summary, flow), bundle, ctx)
            }
            Verdict::Wait => self.queue_packet(Queued::new(packet, count), flow, ctx),
        }
    }

    /// Stage 5.
    #[inline(always)]
    fn enter_bundle(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        (summary, flow): (&PacketSummary, &FlowKey),
        place: u32,
        ctx: &mut BatchCtx<'_>,
    ) {
        let bundle = self.cache.bundle(place);
        if let Some(device) = bundle.device {
            if let Some(handover) = bundle.plain_handover
                && plan.is_none()
                && !(summary.fragment | summary.options)
                && packet.len() <= bundle.inner_mtu
            {
                return self.hand_over(packet, 1, handover, ctx);
            }
            return self.enter_device(packet, plan, summary, place, (device, ctx));
        }
        let mut inner = summary.inner;
        if bundle.uses_flow_ports {
            inner.source_port = flow.source_port(&ctx.settings.source_ports);
        }
        // Transport mode needs whole datagrams (RFC 4303 §3.1.1). A fragment gets here only if the
        // policy is newer than the check in `receive_packet`.
        if summary.fragment && bundle.is_transport() {
            let count = plan.map_or(1, SegmentPlan::count);
            return self.discard(packet, count, DropReason::OutModeMismatch, ctx);
        }
        let len = plan.map_or(packet.len(), |plan| plan.len(0));
        let limit = bundle.limit(inner.version);
        if len <= limit || !inner.dont_fragment {
            return self.place(packet, plan, inner, (place, Sealer::Engine), ctx);
        }
        self.reject_too_big(packet, plan, limit, ctx);
    }

    /// Drops a packet and tells its sender the MTU, if the rate limit allows.
    #[cold]
    fn reject_too_big(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        limit: usize,
        ctx: &mut BatchCtx<'_>,
    ) {
        if self.icmp_limit.take(ctx.now)
            && let Ok(ip) = IpPacket::parse(packet.bytes())
            && let Some(answer) = pmtu::too_big(&packet, &ip, limit, ctx.pool)
        {
            self.traffic.originated += 1;
            ctx.out.host.push(answer);
        }
        let count = plan.map_or(1, SegmentPlan::count);
        self.discard(packet, count, DropReason::OutTooBig, ctx);
    }

    fn discard(
        &mut self,
        packet: PacketBuf,
        count: usize,
        reason: DropReason,
        ctx: &mut BatchCtx<'_>,
    ) {
        ctx.count_drop(&mut self.traffic, count as u64, reason);
        ctx.pool.give(packet);
    }
}

/// Parses a packet: its segmentation plan and its IP header.
fn parse_packet(packet: &PacketBuf) -> Result<(Option<SegmentPlan>, IpPacket), ParseError> {
    let plan = match packet.segments {
        Segments::Burst { .. } => None,
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => segment_plan(packet)?,
    };
    Ok((plan, IpPacket::parse(packet.bytes())?))
}

/// How a super-packet is segmented; `None` for a single packet.
fn segment_plan(packet: &PacketBuf) -> Result<Option<SegmentPlan>, ParseError> {
    match packet.segments {
        Segments::One => Ok(None),
        Segments::Tcp { .. } | Segments::Udp { .. } => SegmentPlan::new(packet).map(Some),
        // Hosts deliver packets and super-packets, never segment bursts.
        Segments::Burst { .. } => Err(ParseError::NotSuper),
    }
}

/// A length or offset within a buffer.
#[inline(always)]
fn narrow(bytes: usize) -> u32 {
    debug_assert!(u32::try_from(bytes).is_ok());
    #[expect(clippy::cast_possible_truncation, reason = "a buffer is below 4 GiB")]
    let narrow = bytes as u32;
    narrow
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold_seed(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "IPv4's identification has 16 bits")]
fn ip_id(ident: u32) -> u16 {
    ident as u16
}

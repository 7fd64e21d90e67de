//! Outbound data path: from the host to the network.
//!
//! # The map
//! A batch passes through these stages; comments in the code name them by number.
//!
//! 1. **Receive**: count, complete checksums that the host left partial, plan the segmentation of
//!    super-packets. Where a policy selects by port or uses transport mode,
//!    [reassemble](slow::defragment) what the host has fragmented; of plain ICMP in any case, as
//!    [errors are judged by what they quote](slow::icmp_quote).
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
//! 6. **Number**: charge each SA and take a block of sequence numbers, once per batch.
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
mod tx_batch;

use std::vec::Drain;

use uxfrm_packet::{Batch, IpPacket, PacketBuf, ParseError, SegmentPlan, Segments, checksum, mss};

use crate::bundle::first_query;
use crate::datapath::context::BatchContext;
use crate::flow_cache::CachedVerdict;
use crate::sa::deferred_counters::DeferredCounters;
use crate::{
    Direction, DropReason, FlowKey, MssClamp, PolicyCache, PolicyOutcome, Settings, Snapshot, Spi,
    Stage, StageWatch,
};
use interleaved::{FastPathResult, TxInterleaved};
use number::take_numbers;
use pre_parsed::{PacketSummary, PreParsed};
use slow::acquire_queue::AcquireQueue;
use slow::defragment::Defragmenter;
use slow::frame::Framer;
use slow::icmp_quote::{is_piece_of_quote, may_quote, quotes_protected};
use slow::item::TxItem;
use slow::plain::pass;
use slow::plain_loop::PlainLoops;
use slow::routing_header::routes_around_policy;
use slow::seal::ItemSealer;
use slow::verdict::{PolicyDecider, TxAction};
use transmit::transmit;
use tx_batch::TxBatch;

pub use slow::acquire_queue::WaitingPacket;

/// Outbound half of a worker: the stages, with their scratch buffers, caches and counters.
#[derive(Debug)]
pub(crate) struct Outbound {
    tx: TxBatch,
    parsed: PreParsed,
    decider: PolicyDecider,
    queued: AcquireQueue,
    defragmenter: Defragmenter,
    framer: Framer,
    loops: PlainLoops,
    sealer: ItemSealer,
    /// Packets that are encapsulated in place, and indexes of those that were not sealed.
    in_place: Vec<PacketBuf>,
    failed: Vec<usize>,
    interleaved: TxInterleaved,
    deferred: DeferredCounters,
}

/// How many packets ahead a packet's metadata and its first bytes are prefetched.
const META_AHEAD: usize = 8;
const DATA_AHEAD: usize = 4;

impl Outbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            tx: TxBatch::new(settings.seed),
            parsed: PreParsed::default(),
            decider: PolicyDecider::new(settings),
            queued: AcquireQueue::new(settings.acquire_queue),
            defragmenter: Defragmenter::default(),
            framer: Framer::new(),
            loops: PlainLoops::new(settings),
            sealer: ItemSealer::default(),
            in_place: Vec::with_capacity(uxfrm_packet::BATCH),
            failed: Vec::new(),
            interleaved: TxInterleaved::default(),
            deferred: DeferredCounters::default(),
        }
    }

    pub(crate) fn policies(&self) -> &PolicyCache {
        &self.decider.policies
    }

    /// Invalidates bundles of flows after SAs changed, and releases some bundles of removed SAs.
    #[inline]
    fn refresh_bundles(&mut self, snapshot: &Snapshot) {
        if self.tx.cache.begin(snapshot) {
            self.decider.policies.invalidate_bundles();
            // Another generation of an SA may have tighter limits.
            self.deferred.flush();
        }
    }

    /// Flushes the deferred counters of policies and SAs.
    pub(crate) fn flush_deferred(&mut self) {
        self.decider.policies.flush();
        self.deferred.flush();
    }

    /// Whether any counter is deferred.
    pub(crate) fn has_deferred(&self) -> bool {
        self.decider.policies.has_pending() || self.deferred.has_pending()
    }

    /// Releases bundles of removed SAs, and some references to removed policies.
    pub(crate) fn release_stale(&mut self, snapshot: &Snapshot) {
        self.decider.policies.release_stale(&snapshot.spd);
        self.refresh_bundles(snapshot);
        self.tx.cache.release_stale(snapshot);
    }

    /// Packets in the acquire queue plus incomplete datagrams.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.queued.len() + self.defragmenter.datagrams()
    }

    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        self.decider.policies.begin_batch(&ctx.snapshot.spd);
        self.refresh_bundles(ctx.snapshot);
        self.decider.begin_batch();
        if self.queued.is_due(ctx) {
            self.release_waiting(ctx);
        }
        self.defragmenter.expire(ctx);
        match batch.take_single() {
            Some(packet) => self.receive_single(packet, ctx, watch),
            None => self.receive_batch(batch, ctx, watch),
        }
        self.decider.flush_tally();
        self.decider.policies.flush_due(ctx.now);
        self.deferred.flush_due(ctx.now);
        watch.stage_done(Stage::Frame);
        self.flush_items(ctx, watch);
    }

    /// Stages 6 to 10 for all items.
    #[inline(never)]
    fn send_items(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        let Self { tx, sealer, .. } = self;
        for depth in 0..std::mem::take(&mut tx.max_layers) {
            take_numbers(depth, tx, ctx);
            watch.stage_done(Stage::Number);
            sealer.seal(depth, tx, ctx);
            watch.stage_done(Stage::Seal);
            sealer.finish(depth, tx);
            watch.stage_done(Stage::Finish);
        }
        transmit(tx, ctx);
        watch.stage_done(Stage::Transmit);
    }

    /// Stages 2 to 5 for a whole batch; on the fast path all later stages too.
    #[inline(never)]
    fn receive_batch(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchContext<'_>,
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
        ctx: &mut BatchContext<'_>,
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
        ctx: &mut BatchContext<'_>,
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
    fn flush_items(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        if !self.tx.items.is_empty() {
            self.send_items(ctx, watch);
        }
    }

    /// Stages 1, 4 and 5 of a run on the slow path.
    #[inline(never)]
    fn receive_run_slow(
        &mut self,
        run: usize,
        packets: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
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
        ctx: &BatchContext<'_>,
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
        let policies = &mut self.decider.policies;
        policies.lookup_cached_batch(&ctx.snapshot.spd, Direction::Out, flows, &[], known);
        if ctx.snapshot.sad.exceeds_cpu_cache() {
            self.prefetch_sas(ctx);
        }
        if self.tx.cache.exceeds_cache() {
            // Consecutive packets often have the same bundle.
            let runs = self.parsed.known.chunk_by(|a, b| a.bundle() == b.bundle());
            self.tx.cache.fetch(runs.filter_map(|run| run[0].bundle()));
        }
        watch.stage_done(Stage::LookUp);
    }

    /// Prefetches the SAs of all flows without a cached bundle.
    #[inline(never)]
    fn prefetch_sas(&self, ctx: &BatchContext<'_>) {
        let PreParsed { flows, known, .. } = &self.parsed;
        let mut latest: Option<&FlowKey> = None;
        let queries = flows.iter().zip(known).filter_map(|(flow, known)| {
            // Consecutive packets are often of one flow.
            let asks =
                known.verdict.outcome() == PolicyOutcome::Protect && known.bundle().is_none();
            if !asks || latest.replace(flow) == Some(flow) {
                return None;
            }
            let entry = self.policies().policies(known.verdict).first()?;
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
        ctx: &mut BatchContext<'_>,
    ) {
        if packet.segments != Segments::One {
            return self.receive_super_packet(packet, summary, known, ctx);
        }
        ctx.traffic.count_received(1, packet.len() as u64);
        let Some((summary, flow)) = summary.filter(|_| checksum::complete(&mut packet).is_ok())
        else {
            return ctx.discard(packet, 1, DropReason::OutMalformed);
        };
        packet.trim(summary.total_len as usize);
        if summary.fragment && self.needs_whole_datagram(flow, known, ctx) {
            return self.receive_piece(packet, ctx);
        }
        self.decider.tally_policy(known.verdict, 1, packet.len() as u64);
        let action = self.decider.decide(flow, known, &mut self.tx.cache, ctx);
        self.apply_action(action, WaitingPacket::new(packet, 1), None, (summary, flow), ctx);
    }

    /// Whether a fragment is judged by its datagram: as policies ask, or as a plain piece of an
    /// ICMP error, which only the whole tells.
    #[cold]
    fn needs_whole_datagram(
        &mut self,
        flow: &FlowKey,
        known: CachedVerdict,
        ctx: &mut BatchContext<'_>,
    ) -> bool {
        if ctx.snapshot.spd.needs_whole_datagrams(Direction::Out) {
            return true;
        }
        let decider = &mut self.decider;
        is_piece_of_quote(flow, ctx)
            && matches!(decider.decide(flow, known, &mut self.tx.cache, ctx), TxAction::Pass)
    }

    /// Stages 1 to 5 of a fragment that only its whole datagram can be judged by.
    #[cold]
    fn receive_piece(&mut self, packet: PacketBuf, ctx: &mut BatchContext<'_>) {
        if let Some((whole, longest)) = self.defragmenter.add(packet, ctx) {
            self.receive_reassembled(whole, longest, ctx);
        }
    }

    /// Stage 1 of a super-packet, whose segments get their checksums when they are cut.
    fn receive_super_packet(
        &mut self,
        mut packet: PacketBuf,
        summary: Option<&(PacketSummary, FlowKey)>,
        known: CachedVerdict,
        ctx: &mut BatchContext<'_>,
    ) {
        let plan = segment_plan(&packet);
        let count = plan.as_ref().ok().and_then(Option::as_ref).map_or(1, SegmentPlan::count);
        ctx.traffic.count_received(count as u64, packet.len() as u64);
        let Some((summary, flow)) = summary else {
            return ctx.discard(packet, count, DropReason::OutMalformed);
        };
        let Ok(plan) = plan else { return ctx.discard(packet, count, DropReason::OutSuper) };
        packet.trim(summary.total_len as usize);
        let packets = u32::try_from(count).unwrap_or(u32::MAX);
        self.decider.policies.count(known.verdict, packets, packet.len() as u64);
        let action = self.decider.decide(flow, known, &mut self.tx.cache, ctx);
        let packet = WaitingPacket::new(packet, count);
        self.apply_action(action, packet, plan.as_ref(), (summary, flow), ctx);
    }

    /// Stages 2 to 5 of a reassembled datagram. It may be fragmented again, into fragments no
    /// longer than `longest`.
    #[cold]
    fn receive_reassembled(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        ctx: &mut BatchContext<'_>,
    ) {
        let Some((summary, flow)) = PacketSummary::with_flow(&packet) else {
            return ctx.discard(packet, 1, DropReason::OutMalformed);
        };
        // A fragment inside a fragment is refused, as in `net/ipv6/reassembly.c: ipv6_frag_rcv`.
        if summary.fragment {
            return ctx.discard(packet, 1, DropReason::OutFragment);
        }
        let Self { decider, tx, .. } = self;
        let spd = &ctx.snapshot.spd;
        let known = decider.policies.lookup_cached(spd, Direction::Out, &flow, Spi(0));
        decider.tally_policy(known.verdict, 1, packet.len() as u64);
        let action = decider.decide(&flow, known, &mut tx.cache, ctx);
        let packet = WaitingPacket::cut(packet, longest);
        self.apply_action(action, packet, None, (&summary, &flow), ctx);
    }

    /// Releases packets whose SAs have come and drops expired ones.
    #[inline(never)]
    fn release_waiting(&mut self, ctx: &mut BatchContext<'_>) {
        for (wanted, queue) in self.queued.take() {
            self.queued.requeue(wanted, &queue, ctx.now);
            for waiting in queue.packets {
                self.retry(waiting, ctx);
            }
        }
        self.queued.end_retries();
    }

    /// Retries a queued packet. It was counted when it came, for its policies too.
    fn retry(&mut self, mut waiting: WaitingPacket, ctx: &mut BatchContext<'_>) {
        ctx.traffic.held -= waiting.count as u64;
        let packet = &waiting.packet;
        let Ok((plan, ip)) = parse_packet(packet) else {
            let WaitingPacket { packet, count, .. } = waiting;
            return ctx.discard(packet, count, DropReason::OutMalformed);
        };
        let flow = FlowKey::of(packet, &ip, packet.bytes());
        let action = match self.decider.look_up_again(&flow, &mut self.tx.cache, ctx) {
            // The policy was removed or changed meanwhile. A packet that was to be protected never
            // leaves in plaintext (`xfrm_policy_kill`).
            TxAction::Pass => TxAction::Drop(DropReason::OutPolicyGone),
            other @ (TxAction::Drop(_) | TxAction::Bundle(_) | TxAction::Wait) => other,
        };
        let summary = PacketSummary::of(&ip);
        if let (TxAction::Bundle(place), MssClamp::On) = (&action, ctx.settings.clamp_mss) {
            // Before it waited its states were not there, and what fits was not known.
            self.clamp_mss(&mut waiting.packet, *place);
        }
        self.apply_action(action, waiting, plan.as_ref(), (&summary, &flow), ctx);
    }

    #[cold]
    fn clamp_mss(&self, packet: &mut PacketBuf, place: u32) {
        let bundle = self.tx.cache.bundle(place);
        if let Some(ip) = mss::parse_syn(packet).filter(|_| !bundle.layers.is_empty()) {
            mss::lower(packet, &ip, mss::fitting(ip.version, bundle.inner_mtu));
        }
    }

    /// Stage 5, or the acquire queue.
    #[inline(always)]
    fn apply_action(
        &mut self,
        action: TxAction,
        waiting: WaitingPacket,
        plan: Option<&SegmentPlan>,
        (summary, flow): (&PacketSummary, &FlowKey),
        ctx: &mut BatchContext<'_>,
    ) {
        let Self { tx, framer, loops, queued, .. } = self;
        let WaitingPacket { mut packet, count, longest_fragment } = waiting;
        match (action, longest_fragment) {
            (TxAction::Bundle(place), None) => {
                framer.enter_bundle(packet, plan, (summary, flow), place, tx, ctx);
            }
            (TxAction::Bundle(place), Some(longest)) => {
                framer.enter_reassembled(packet, longest, (*summary, flow), place, tx, ctx);
            }
            (TxAction::Pass, _) if summary.options && routes_around_policy(&packet, flow, ctx) => {
                ctx.discard(packet, count, DropReason::OutUnprotected);
            }
            (TxAction::Pass, _) if may_quote(flow) && quotes_protected(&packet, flow, ctx) => {
                ctx.discard(packet, count, DropReason::OutQuotesProtected);
            }
            (TxAction::Pass, _) if !loops.lets_leave(&mut packet, ctx.now) => {
                ctx.discard(packet, count, DropReason::OutLoop);
            }
            (TxAction::Pass, None) => pass(packet, plan, framer, tx, ctx),
            (TxAction::Pass, Some(longest)) => {
                framer.pass_fragmented(packet, longest, &summary.inner, tx, ctx);
            }
            (TxAction::Drop(reason), _) => ctx.discard(packet, count, reason),
            (TxAction::Wait, _) => {
                let waiting = WaitingPacket { packet, count, longest_fragment };
                queued.queue_packet(waiting, flow, &tx.cache.missing, ctx);
            }
        }
    }

    /// Copies of all queued packets, in order for each SA.
    pub(crate) fn copy_queued(&self) -> Vec<WaitingPacket> {
        self.queued.copy_packets()
    }

    /// Takes over packets that waited with another worker, which had counted them.
    pub(crate) fn adopt_waiting(
        &mut self,
        waiting: Vec<WaitingPacket>,
        ctx: &mut BatchContext<'_>,
    ) {
        self.decider.policies.begin_batch(&ctx.snapshot.spd);
        self.refresh_bundles(ctx.snapshot);
        for packet in waiting {
            let count = packet.count as u64;
            ctx.traffic.count_received(count, packet.packet.len() as u64);
            ctx.traffic.held += count;
            self.retry(packet, ctx);
        }
        self.run(&mut Batch::new(), ctx, &mut ());
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

#[expect(clippy::cast_possible_truncation, reason = "IPv4's identification has 16 bits")]
fn ip_id(ident: u32) -> u16 {
    ident as u16
}

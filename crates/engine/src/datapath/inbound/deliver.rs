//! Stages 8 to 10: policy check and delivery to the host, coalesced where the host takes
//! super-packets.

use std::sync::Arc;

use uxfrm_packet::{
    Batch, Checksum, Coalescer, PacketBuf, Pool, Protocol, Segments, SizeClass, SliceMeta,
};

use super::slow::icmp_flow::icmp_inner_flow;
use super::slow::policy_check::{PlainPacket, SecPath, check};
use super::{Fate, PolicyLookups, RxBatch, RxItem};
use crate::datapath::context::BatchContext;
use crate::datapath::look_up_step::look_up_step;
use crate::{
    Action, DropReason, Family, HostPort, PolicyCache, PolicyEntry, PolicyOutcome, Selector,
    Settings, Stage, StageWatch, UdpSuper, VerdictId,
};

/// Stages 8 to 10.
#[derive(Debug)]
pub(super) struct HostDelivery {
    pub(super) policies: PolicyCache,
    verified: VerifiedRun,
    pub(super) coalescer: Coalescer,
}

/// Uncounted packets that passed under one verdict.
#[derive(Clone, Copy, Debug, Default)]
struct VerifiedRun {
    /// Look-up and SA of the latest packet.
    by: Option<(u32, u32)>,
    answer: Option<VerdictId>,
    packets: u32,
    bytes: u64,
}

impl HostDelivery {
    pub(super) fn new(settings: &Settings) -> Self {
        let policies = PolicyCache::new(settings.cache.inbound, !settings.seed);
        Self { policies, verified: VerifiedRun::default(), coalescer: Coalescer::new() }
    }

    /// Stages 8 to 10.
    pub(super) fn deliver(
        &mut self,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        look_up(&mut self.policies, &mut rx.lookups, ctx);
        watch.stage_done(Stage::LookUp);
        for (direction, known) in rx.lookups.directions.iter().zip(&rx.lookups.known) {
            watch.note(|| look_up_step(&self.policies, *direction, known.verdict));
        }
        self.deliver_checked(rx, ctx);
    }

    /// Stages 8 to 10 for packets whose policies are looked up.
    pub(super) fn deliver_checked(&mut self, rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
        let mut rest = 0..rx.items.len();
        while let Some(place) = rest.next() {
            match rx.items[place].fate {
                Fate::Gone => {}
                // ESP after the last round: nested too deeply.
                Fate::New | Fate::Encrypted => rx.drop(place, DropReason::InTooDeep, ctx),
                Fate::Plain(lookup) => match self.check(place, lookup, rx, ctx) {
                    Ok(()) => self.deliver_item(place, lookup as usize, rx, ctx),
                    Err(reason) => self.drop_checked(place, lookup, reason, rx, ctx),
                },
            }
            if !rest.is_empty() {
                rest.start = self.deliver_same_flow(rest.start, rx, ctx);
            }
        }
        self.count_verified(ctx);
        rx.lookups.clear();
        rx.items.clear();
        while let Some(left) = rx.buffers.pop() {
            left.into_iter().for_each(|buffer| ctx.pool.give(buffer));
        }
    }

    /// Stage 8 of one packet. A packet that passes is counted as sent.
    #[inline(always)]
    fn check(
        &mut self,
        place: usize,
        lookup: u32,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Result<(), DropReason> {
        let item = &rx.items[place];
        let bytes = u64::from(item.len);
        let passes = match *item.path.as_slice() {
            [only] => {
                self.verified.by == Some((lookup, only)) || self.sa_satisfies(only, lookup, rx, ctx)
            }
            _ => false,
        };
        if !passes {
            check_sec_path(place, lookup as usize, &mut self.policies, rx, ctx)?;
            ctx.traffic.count_sent(1, bytes);
            return Ok(());
        }
        self.verified.packets += 1;
        self.verified.bytes += bytes;
        Ok(())
    }

    /// Drops a packet that the check refused.
    #[cold]
    fn drop_checked(
        &self,
        place: usize,
        lookup: u32,
        reason: DropReason,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let policies = self.policies.policies(rx.lookups.known[lookup as usize].verdict);
        let blocks = |entry: &&Arc<PolicyEntry>| entry.action() == Action::Block;
        let deciding = policies.iter().find(blocks).or_else(|| policies.first());
        rx.drop_by_policy(place, deciding.map(|entry| &**entry), reason, ctx);
    }

    /// Whether packets of a flow that came by one SA alone are known to pass; starts to count them.
    #[inline]
    fn sa_satisfies(
        &mut self,
        only: u32,
        lookup: u32,
        rx: &RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> bool {
        let (entry, known) = (&rx.rx_cache[only as usize], rx.lookups.known[lookup as usize]);
        let answer = known.verdict;
        if !entry.lets_pass(known) {
            return false;
        }
        if self.verified.answer != Some(answer) {
            self.count_verified(ctx);
            self.verified.answer = Some(answer);
        }
        self.verified.by = Some((lookup, only));
        true
    }

    /// Counts the run of packets that passed under one verdict.
    #[inline]
    fn count_verified(&mut self, ctx: &mut BatchContext<'_>) {
        let VerifiedRun { answer, packets, bytes, .. } = std::mem::take(&mut self.verified);
        ctx.traffic.count_sent(packets.into(), bytes);
        if let Some(answer) = answer {
            self.policies.count_first(answer, packets, bytes);
        }
    }

    /// Delivers packets that pass like the latest one, one per buffer, from `start` on. Returns the
    /// index of the first that does not.
    #[inline(never)]
    fn deliver_same_flow(
        &mut self,
        start: usize,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> usize {
        let RxBatch { items, buffers, metadata, .. } = rx;
        let Some((lookup, only)) = self.verified.by else { return start };
        if !metadata.is_empty() || ctx.settings.host != HostPort::Packets {
            return start;
        }
        let (mut packets, mut bytes) = (0, 0);
        for item in &items[start..] {
            if item.fate != Fate::Plain(lookup) || !matches!(*item.path, [by] if by == only) {
                break;
            }
            let slot = &mut buffers[item.buffer as usize];
            let Some(packet) = slot.take_if(|buffer| !is_burst(buffer)) else { break };
            ctx.out.host.push(item.released_packet(packet));
            packets += 1;
            bytes += u64::from(item.len);
        }
        self.verified.packets += packets;
        self.verified.bytes += bytes;
        start + packets as usize
    }

    #[inline(always)]
    fn deliver_item(
        &mut self,
        place: usize,
        lookup: usize,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let item = &rx.items[place];
        let Some(buffer) = &rx.buffers[item.buffer as usize] else { return };
        if is_burst(buffer) || ctx.settings.host != HostPort::Packets {
            return self.deliver_coalesced(place, lookup, rx, ctx);
        }
        if let Some(packet) = take_packet(place, rx) {
            ctx.out.host.push(packet);
        }
    }

    /// A packet of a segment burst, or one that may be coalesced.
    fn deliver_coalesced(
        &mut self,
        place: usize,
        lookup: usize,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let item = &rx.items[place];
        let protocol = Protocol(rx.lookups.flows[lookup].protocol);
        let may_coalesce = may_coalesce(ctx.settings.host, protocol);
        let Some(buffer) = &rx.buffers[item.buffer as usize] else { return };
        if is_burst(buffer) {
            let notes =
                SliceMeta { mark: item.mark, if_id: buffer.if_id, checksum: item.checksum() };
            let bytes = item.bytes(buffer);
            if may_coalesce {
                self.coalescer.offer_slice(bytes, notes, ctx.pool, &mut ctx.out.host);
            } else {
                push_single(bytes, notes, ctx.pool, &mut ctx.out.host);
            }
            return;
        }
        let Some(packet) = take_packet(place, rx) else { return };
        if may_coalesce {
            self.coalescer.offer(packet, ctx.pool, &mut ctx.out.host);
        } else {
            ctx.out.host.push(packet);
        }
    }
}

/// Stage 8: looks up the policies of all plain packets together.
fn look_up(policies: &mut PolicyCache, lookups: &mut PolicyLookups, ctx: &BatchContext<'_>) {
    let PolicyLookups { flows, spis, directions, known, .. } = lookups;
    let spd = &ctx.snapshot.spd;
    if let ([flow], [spi], [direction]) = (&**flows, &**spis, &**directions) {
        return known.push(policies.lookup_cached(spd, *direction, flow, *spi));
    }
    let mut from = 0;
    for run in directions.chunk_by(|a, b| a == b) {
        let these = from..from + run.len();
        let (flows, spis) = (&flows[these.clone()], &spis[these.clone()]);
        policies.lookup_cached_batch(spd, run[0], flows, spis, known);
        from = these.end;
    }
}

/// Checks whatever SAs a packet came by. A result that depends on the flow alone is cached for the
/// flow, one that depends on the SA alone for the SA.
#[inline(never)]
fn check_sec_path(
    place: usize,
    lookup: usize,
    policies: &mut PolicyCache,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<(), DropReason> {
    let item = &rx.items[place];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InUnexpected);
    };
    let bytes = item.bytes(buffer);
    let path: SecPath<'_> =
        item.path.iter().map(|entry| &*rx.rx_cache[*entry as usize].sa).collect();
    let (flow, direction) = (rx.lookups.flows[lookup], rx.lookups.directions[lookup]);
    let answer = rx.lookups.known[lookup].verdict;
    // A verdict is for one address family.
    let family = Selector::any(Family::of(flow.source));
    let any_flow = path.iter().all(|sa| sa.config().selector.is_none_or(|own| own == family));
    let reported = icmp_inner_flow(bytes, &flow);
    let bytes = bytes.len();
    let packet = PlainPacket { direction, flow, reported, path, bytes, answer };
    check(ctx.snapshot, policies, &packet, ctx.now)?;
    drop(packet);
    let [only] = *item.path.as_slice() else { return Ok(()) };
    if answer.outcome() == PolicyOutcome::Default {
        return Ok(());
    }
    let entry = &mut rx.rx_cache[only as usize];
    if any_flow {
        entry.passes = Some(answer);
    }
    if reported.is_none() {
        policies.set_inbound_pass(direction, &flow, answer, &entry.sa);
    }
    Ok(())
}

/// The item's buffer, reduced to the packet. Not for segment bursts.
#[inline(always)]
fn take_packet(place: usize, rx: &mut RxBatch) -> Option<PacketBuf> {
    let RxBatch { items, buffers, metadata, .. } = rx;
    let item = &mut items[place];
    let slot = &mut buffers[item.buffer as usize];
    if !metadata.is_empty() {
        metadata.believe_checksum(item, slot.as_ref());
    }
    slot.take().map(|packet| item.released_packet(packet))
}

impl RxItem {
    #[inline(always)]
    const fn checksum(&self) -> Checksum {
        if self.checksum_verified { Checksum::Verified } else { Checksum::AsIs }
    }

    /// The buffer, reduced to the packet.
    #[inline(always)]
    pub(super) fn released_packet(&self, mut packet: PacketBuf) -> PacketBuf {
        packet.frame(self.start as usize, self.len as usize);
        packet.segments = Segments::One;
        packet.udp = None;
        (packet.mark, packet.checksum) = (self.mark, self.checksum());
        packet
    }
}

/// Whether packets of a protocol may be coalesced.
pub(super) fn may_coalesce(host: HostPort, protocol: Protocol) -> bool {
    match host {
        HostPort::Packets => false,
        HostPort::SuperPackets { udp: UdpSuper::Taken } => true,
        HostPort::SuperPackets { udp: UdpSuper::Refused } => protocol != Protocol::UDP,
    }
}

#[inline(always)]
pub(super) fn is_burst(buffer: &PacketBuf) -> bool {
    matches!(buffer.segments, Segments::Burst { .. })
}

fn push_single(bytes: &[u8], notes: SliceMeta, pool: &mut Pool, host: &mut Batch) {
    let mut packet = copy(bytes, pool);
    (packet.mark, packet.if_id, packet.checksum) = (notes.mark, notes.if_id, notes.checksum);
    host.push(packet);
}

/// Copies a packet into its own buffer.
pub(super) fn copy(bytes: &[u8], pool: &mut Pool) -> PacketBuf {
    let mut copy = pool.take(SizeClass::holding(bytes.len()));
    match copy.append(bytes.len()) {
        Some(room) => room.copy_from_slice(bytes),
        None => copy = PacketBuf::from_slice(bytes),
    }
    copy
}

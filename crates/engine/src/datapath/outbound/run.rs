//! Outbound fast path for runs of packets that use one SA and nothing else: they are encapsulated
//! in place, with one check per run. All other packets become [items](super::TxItem).

use std::iter::Zip;
use std::ops::{Range, RangeFrom};
use std::slice::IterMut;
use std::vec::Drain;

use uxfrm_crypto::Iv;
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{PacketBuf, Version};

use super::number::{SeqSupply, distribute};
use super::pre_parsed::FlowRun;
use super::seal_jobs::{self, SealJobs};
use super::transmit::transmit;
use super::{Outbound, PacketSummary, TxBatch, TxItem, ip_id};
use crate::bundle::Bundle;
use crate::datapath::context::BatchContext;
use crate::esp::encap::{EncapLayer, InnerInfo, UdpTemplate};
use crate::esp::encap_layout::{Encapsulated, TunnelHeaders};
use crate::esp::headers::{self, Ipv4HeaderTail, SeqAndId};
use crate::flow_cache::CachedVerdict;
use crate::{DropReason, PolicyOutcome, Stage, StageWatch};

/// Runs of so many packets are worth sending the queued items first, to keep the order.
const MIN_PACKETS: u32 = 16;

impl Outbound {
    /// Whether the runs from `first` on may go now: no items are queued, or the runs are long
    /// enough to send the items first.
    pub(super) fn may_run_now(&mut self, first: usize, ctx: &BatchContext<'_>) -> bool {
        if self.tx.items.is_empty() {
            return true;
        }
        let encap_only = self.parsed.runs[first..].iter().take_while(|run| run.encap_only);
        let mut packets = 0;
        let many = encap_only.map(|run| run.packets).any(|more| {
            packets += more;
            packets >= MIN_PACKETS
        });
        many && self.bundle_of_run(first, ctx).is_some()
    }

    /// Stages 1 to 10 for the runs from `first` on that qualify; returns how many. No items may be
    /// queued.
    pub(super) fn send_runs(
        &mut self,
        first: usize,
        packets: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) -> usize {
        debug_assert!(self.tx.items.is_empty() && self.in_place.is_empty());
        let mut end = first;
        while end < self.parsed.runs.len()
            && let Some(place) = self.bundle_of_run(end, ctx)
        {
            self.request_run(end, place, ctx);
            end += 1;
        }
        if end > first {
            self.seal_runs_in_place(first..end, packets, ctx, watch);
        }
        end - first
    }

    #[inline(always)]
    fn bundle_of_run(&mut self, run: usize, ctx: &BatchContext<'_>) -> Option<u32> {
        let (run, known) = (self.parsed.runs[run], *self.parsed.known.get(run)?);
        self.fast_bundle(&run, known, ctx)
    }

    /// The bundle by which a run can take this path.
    #[inline(always)]
    pub(super) fn fast_bundle(
        &mut self,
        run: &FlowRun,
        known: CachedVerdict,
        ctx: &BatchContext<'_>,
    ) -> Option<u32> {
        if known.verdict.outcome() != PolicyOutcome::Protect {
            return None;
        }
        let Self { decider, tx: TxBatch { cache, .. }, .. } = self;
        let place = known.bundle().filter(|place| decider.is_usable(*place, cache, ctx.now))?;
        cache.bundle(place).takes(run).then_some(place)
    }

    /// Counts a run's packets and requests numbers for them.
    #[inline(always)]
    fn request_run(&mut self, run: usize, place: u32, ctx: &mut BatchContext<'_>) {
        let version = self.parsed.flows[run].version();
        let (run, known) = (self.parsed.runs[run], self.parsed.known[run]);
        self.count_run(&run, known, ctx);
        let TxBatch { cache, numbering, .. } = &mut self.tx;
        if let Some((tally, layer)) = cache.tally_of(place, 0) {
            let clear_len = layer.clear_len_for(version) * run.packets as usize;
            numbering.request(tally, run.packets, (run.bytes - clear_len) as u64);
        }
    }

    /// Counts a run's packets.
    #[inline(always)]
    pub(super) fn count_run(
        &mut self,
        run: &FlowRun,
        known: CachedVerdict,
        ctx: &mut BatchContext<'_>,
    ) {
        ctx.traffic.count_received(run.packets.into(), run.received as u64);
        self.decider.tally_policy(known.verdict, run.packets, run.bytes as u64);
    }

    /// Stages 6 to 10.
    fn seal_runs_in_place(
        &mut self,
        runs: Range<usize>,
        packets: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let count = self.parsed.runs[runs.clone()].iter().map(|run| run.packets as usize).sum();
        self.in_place.extend(packets.take(count));
        watch.stage_done(Stage::Frame);
        self.tx.numbering.take_all(&mut self.tx.cache, ctx);
        watch.stage_done(Stage::Number);
        if self.tx.numbering.supply == SeqSupply::Short {
            return self.send_run_slow(runs, ctx, watch);
        }
        self.seal_runs(runs, ctx);
        watch.stage_done(Stage::Seal);
        self.send_in_place(ctx);
        watch.stage_done(Stage::Transmit);
    }

    /// Without enough numbers each packet becomes an item.
    #[cold]
    fn send_run_slow(
        &mut self,
        runs: Range<usize>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let mut packets = std::mem::take(&mut self.in_place);
        let mut rest = packets.drain(..);
        for run in runs {
            let Some(place) = self.parsed.known[run].bundle() else { continue };
            for packet in rest.by_ref().take(self.parsed.runs[run].packets as usize) {
                self.push_reserved(packet, place, ctx);
            }
        }
        drop(rest);
        self.in_place = packets;
        self.send_slow(ctx);
        watch.stage_done(Stage::Transmit);
    }

    /// Stages 6 to 10 for items of one layer whose SAs are charged already.
    #[cold]
    pub(super) fn send_slow(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { tx, sealer, .. } = self;
        distribute(0, tx, ctx);
        sealer.seal(0, tx, ctx);
        sealer.finish(0, tx);
        transmit(tx, ctx);
    }

    /// Adds an item for a packet whose SA is charged already.
    pub(super) fn push_reserved(
        &mut self,
        mut packet: PacketBuf,
        place: u32,
        ctx: &mut BatchContext<'_>,
    ) {
        let bundle = self.tx.cache.bundle(place);
        let frame = PacketSummary::with_flow(&packet).and_then(|(summary, _)| {
            let len = summary.total_len as usize;
            Some((bundle.frame(len, &summary.inner)?, summary.inner, len))
        });
        match frame {
            Some((frame, inner, len)) => {
                packet.reframe(frame.prefix, frame.total);
                self.tx.items.push(TxItem::new(packet, place, frame, inner, len));
            }
            // The packet was parsed before and has room.
            None => ctx.discard(packet, 1, DropReason::OutNoRoom),
        }
    }

    /// Stages 7 to 9.
    fn seal_runs(&mut self, runs: Range<usize>, ctx: &mut BatchContext<'_>) {
        let Self { parsed, in_place, failed, tx, .. } = self;
        let TxBatch { cache, ident, .. } = tx;
        let is_far = cache.exceeds_cache();
        let (bundles, tallies) = cache.parts();
        let mut jobs = SealJobs::new(ctx.crypter, failed);
        let (mut packets, mut item) = (in_place.as_mut_slice(), 0);
        let mut fetched = runs.start;
        for run in runs {
            if is_far && run == fetched {
                fetched = parsed.runs.len().min(run + seal_jobs::CHUNK);
                prefetch_keys(bundles, &parsed.known[run..fetched]);
            }
            let version = parsed.flows[run].version();
            let count = parsed.runs[run].packets;
            // `in_place` has as many packets as the runs count.
            let (these, rest) = std::mem::take(&mut packets).split_at_mut(count as usize);
            let from = item;
            (packets, item) = (rest, item + these.len());
            let layer = only_layer(bundles, parsed.known[run]);
            let Some((layer, tally)) =
                layer.and_then(|layer| Some((layer, tallies[layer.tally as usize].as_mut()?)))
            else {
                // Runs without both are not let in.
                jobs.failed.extend(from..item);
                continue;
            };
            let number = tally.grant.allocate(count);
            let seal = RunSealer { layer, version, ident, ivs: None, jobs: &mut jobs };
            ctx.traffic.sent_bytes += if layer.needs_finish_of(version) {
                seal.all_and_finish(these, from, number)
            } else {
                seal.all(these, from, number)
            } as u64;
        }
        jobs.run();
    }

    /// Stage 10.
    pub(super) fn send_in_place(&mut self, ctx: &mut BatchContext<'_>) {
        if !self.failed.is_empty() {
            self.drop_failed(ctx);
        }
        ctx.traffic.sent += self.in_place.len() as u64;
        ctx.out.wire.append(&mut self.in_place);
    }

    /// Drops the packets that were not sealed.
    #[cold]
    fn drop_failed(&mut self, ctx: &mut BatchContext<'_>) {
        let mut failed = std::mem::take(&mut self.failed);
        // Failures come from two stages, unsorted. Removed back to front, so that indexes stay
        // valid.
        failed.sort_unstable_by_key(|item| std::cmp::Reverse(*item));
        failed.dedup();
        for item in failed {
            let packet = self.in_place.remove(item);
            ctx.discard_unsealed(packet);
        }
    }
}

/// Parameters of a run's encapsulation, and the job list.
struct RunSealer<'s, 'p, 'c> {
    layer: &'p EncapLayer,
    /// Of the inner packets.
    version: Version,
    ident: &'s mut u32,
    /// XOR mask from sequence number to IV counter, if one mask serves the whole run.
    ivs: Option<u64>,
    jobs: &'s mut SealJobs<'p, 'c>,
}

/// Packets with their index in `in_place` and their sequence number.
type SeqPackets<'p> = Zip<Zip<IterMut<'p, PacketBuf>, RangeFrom<usize>>, RangeFrom<u64>>;

/// Bytes sealed before they are read again: half of the L1 data cache.
const CACHE_BUDGET: usize = 24 << 10;
/// The crypto library processes so many packets per burst; fewer are slower.
const BURST: usize = 16;

// One function per header kind, so that each loop is compiled on its own.
impl<'p> RunSealer<'_, 'p, '_> {
    /// Encapsulates packets; `item` and `number` are the index and sequence number of the first.
    /// Returns the bytes that leave.
    #[inline(always)]
    fn all(mut self, packets: &'p mut [PacketBuf], item: usize, number: u64) -> usize {
        self.ivs = self.layer.iv_prefix.over(number, packets.len());
        let packets = packets.iter_mut().zip(item..).zip(number..);
        match (self.layer.tunnel_headers(), self.version) {
            (Some(TunnelHeaders::V4(end, sum, None)), Version::V4) => {
                self.all_v4_in_v4(packets, end, sum)
            }
            (Some(TunnelHeaders::V6(template, None)), Version::V6) => {
                self.all_v6_in_v6(packets, template)
            }
            (Some(TunnelHeaders::V4(end, sum, Some(udp))), Version::V4) => {
                self.all_v4_in_udp(packets, (end, sum, udp))
            }
            (Some(TunnelHeaders::V6(template, Some(udp))), Version::V6) => {
                self.all_v6_in_udp(packets, template, udp)
            }
            (Some(headers), _) => self.all_in_tunnel(packets, headers),
            (None, _) => self.all_in_transport(packets),
        }
    }

    /// Like [`Self::all`], for a layer whose packets need [`headers::finish`] after sealing.
    #[inline(never)]
    fn all_and_finish(self, packets: &mut [PacketBuf], item: usize, number: u64) -> usize {
        let Self { layer, version, ident, ivs: _, jobs: others } = self;
        let after = layer.after(&InnerInfo::plain(version));
        let pseudo = headers::pseudo_header(layer);
        let len = packets.first().map_or(1, |packet| packet.len().max(1));
        let piece = (CACHE_BUDGET / len / BURST * BURST).clamp(BURST, seal_jobs::CHUNK);
        let starts = (item..).step_by(piece).zip((number..).step_by(piece));
        let pieces = packets.chunks_mut(piece).zip(starts);
        let mut sent = 0;
        for (piece, (item, number)) in pieces {
            {
                let mut jobs = others.flush_and_reborrow();
                let seal =
                    RunSealer { layer, version, ident: &mut *ident, ivs: None, jobs: &mut jobs };
                sent += seal.all(piece, item, number);
                jobs.run();
            }
            match pseudo {
                Some(pseudo) => piece.iter_mut().for_each(|packet| {
                    headers::fill_checksum(packet.bytes_mut(), ipv6::HEADER_LEN, pseudo);
                }),
                None => piece.iter_mut().for_each(|packet| {
                    headers::finish(packet.bytes_mut(), layer, &after);
                }),
            }
        }
        sent
    }

    #[inline(always)]
    fn each(
        self,
        packets: SeqPackets<'p>,
        wrap: impl Fn(&'p mut PacketBuf, SeqAndId) -> Option<Encapsulated<'p>>,
    ) -> usize {
        let (layer, key, ivs) = (self.layer, self.layer.sa.key(), self.ivs);
        let (mut sent, mut ident) = (0, *self.ident);
        for ((packet, item), sequence) in packets {
            ident = ident.wrapping_add(1);
            match wrap(packet, SeqAndId { sequence, id: ip_id(ident) }) {
                Some((len, esp)) => {
                    sent += len;
                    let iv =
                        ivs.map_or_else(|| layer.sa.iv_counter(sequence), |ivs| sequence ^ ivs);
                    let counted = (layer.high(sequence), Iv::Counter(iv));
                    self.jobs.push(item, key, counted, esp);
                }
                None => self.jobs.failed.push(item),
            }
        }
        *self.ident = ident;
        sent
    }

    #[inline(never)]
    fn all_v4_in_v4(self, packets: SeqPackets<'p>, end: &Ipv4HeaderTail, sum: Sum) -> usize {
        let (layer, headers) = (self.layer, TunnelHeaders::V4(end, sum, None));
        self.each(packets, |packet, seq_id| {
            layer.encapsulate_tunnel(headers, packet, Version::V4, seq_id)
        })
    }

    #[inline(never)]
    fn all_v4_in_udp(
        self,
        packets: SeqPackets<'p>,
        (end, sum, udp): (&Ipv4HeaderTail, Sum, &UdpTemplate),
    ) -> usize {
        let (layer, headers) = (self.layer, TunnelHeaders::V4(end, sum, Some(udp)));
        self.each(packets, |packet, seq_id| {
            layer.encapsulate_tunnel(headers, packet, Version::V4, seq_id)
        })
    }

    #[inline(never)]
    fn all_v6_in_v6(self, packets: SeqPackets<'p>, template: &Ipv6Header) -> usize {
        let (layer, headers) = (self.layer, TunnelHeaders::V6(template, None));
        self.each(packets, |packet, seq_id| {
            layer.encapsulate_tunnel(headers, packet, Version::V6, seq_id)
        })
    }

    #[inline(never)]
    fn all_v6_in_udp(
        self,
        packets: SeqPackets<'p>,
        template: &Ipv6Header,
        udp: &UdpTemplate,
    ) -> usize {
        let (layer, headers) = (self.layer, TunnelHeaders::V6(template, Some(udp)));
        self.each(packets, |packet, seq_id| {
            layer.encapsulate_tunnel(headers, packet, Version::V6, seq_id)
        })
    }

    #[inline(never)]
    fn all_in_tunnel(self, packets: SeqPackets<'p>, headers: TunnelHeaders<'_>) -> usize {
        let (layer, version) = (self.layer, self.version);
        self.each(packets, |packet, seq_id| {
            layer.encapsulate_tunnel(headers, packet, version, seq_id)
        })
    }

    #[inline(never)]
    fn all_in_transport(self, packets: SeqPackets<'p>) -> usize {
        let layer = self.layer;
        match self.version {
            Version::V4 => self.each(packets, |packet, seq_id| {
                layer.encapsulate_transport(packet, Version::V4, seq_id)
            }),
            Version::V6 => self.each(packets, |packet, seq_id| {
                layer.encapsulate_transport(packet, Version::V6, seq_id)
            }),
        }
    }
}

fn only_layer(bundles: &[Bundle], known: CachedVerdict) -> Option<&EncapLayer> {
    bundles[known.bundle()? as usize].layers.first()
}

/// Prefetches the keys of the next packets.
fn prefetch_keys(bundles: &[Bundle], known: &[CachedVerdict]) {
    let layers = || known.iter().filter_map(|known| only_layer(bundles, *known));
    layers().for_each(|layer| layer.sa.fetch_key_head());
    layers().for_each(|layer| layer.sa.fetch_keys());
}

impl Bundle {
    /// Whether all packets of a run need nothing but this bundle's one SA.
    #[inline(always)]
    fn takes(&self, run: &FlowRun) -> bool {
        self.fast_room.is_some_and(|room| {
            run.encap_only
                && run.longest <= self.inner_mtu
                && run.headroom >= room.before
                && run.tailroom >= room.behind
        })
    }
}

//! Outbound fast path for a batch of one packet, as on a quiet link: without the lists that only
//! batches need.

use uxfrm_crypto::{SealJob, SealStatus};
use uxfrm_packet::{PacketBuf, Version};

use super::number::SeqSupply;
use super::pre_parsed::{FlowRun, UNREADABLE};
use super::{Outbound, PacketSummary, TxBatch, ip_id};
use crate::bundle::SeqGrant;
use crate::datapath::context::BatchContext;
use crate::esp::encap::InnerInfo;
use crate::esp::headers::{self, SeqAndId};
use crate::flow_cache::CachedVerdict;
use crate::{BundleOrigin, DatapathKind, Direction, Spi, Stage, StageWatch, TraceStep};

impl Outbound {
    /// Stages 2 to 5 for a single packet; on the fast path all later stages too.
    #[inline(always)]
    pub(super) fn receive_single(
        &mut self,
        packet: PacketBuf,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let summary = PacketSummary::with_flow(&packet);
        watch.stage_done(Stage::Parse);
        let flow = summary.as_ref().map_or(&UNREADABLE, |(_, flow)| flow);
        let (policies, spd) = (&mut self.decider.policies, &ctx.snapshot.spd);
        let known = policies.lookup_cached(spd, Direction::Out, flow, Spi(0));
        if self.tx.cache.exceeds_cache() {
            self.tx.cache.fetch(known.bundle().into_iter());
        }
        watch.stage_done(Stage::LookUp);
        watch.note(|| self.decider.look_up_step(known));
        let run = FlowRun::single(&packet, summary.as_ref());
        match self.fast_bundle(&run, known, ctx).filter(|_| self.tx.items.is_empty()) {
            Some(place) => {
                watch.note(|| TraceStep::Path(DatapathKind::Fast));
                watch.note(|| self.tx.cache.bundle(place).step(BundleOrigin::Cached));
                self.send_single_fast(packet, &run, (known, place), flow.version(), ctx);
            }
            None => {
                watch.note(|| TraceStep::Path(DatapathKind::Slow));
                self.receive_packet(packet, summary.as_ref(), known, ctx);
                self.note_slow_bundle(known, watch);
            }
        }
    }

    /// Notes the bundle that the slow path has found, if there is one.
    #[inline(always)]
    fn note_slow_bundle(&self, known: CachedVerdict, watch: &mut impl StageWatch) {
        let Some(item) = self.tx.items.last() else { return };
        watch.note(|| {
            let origin = match known.bundle() {
                Some(place) if place == item.bundle => BundleOrigin::Cached,
                Some(_) | None => BundleOrigin::Resolved,
            };
            self.tx.cache.bundle(item.bundle).step(origin)
        });
    }

    /// Stages 6 to 10 for a single packet.
    #[inline(always)]
    fn send_single_fast(
        &mut self,
        mut packet: PacketBuf,
        run: &FlowRun,
        (known, place): (CachedVerdict, u32),
        version: Version,
        ctx: &mut BatchContext<'_>,
    ) {
        self.count_run(run, known, ctx);
        self.take_single(run, place, version, ctx);
        if self.tx.numbering.supply == SeqSupply::Short {
            self.push_reserved(packet, place, ctx);
            return self.send_slow(ctx);
        }
        match self.seal_single(&mut packet, place, version, ctx) {
            Some(()) => {
                ctx.traffic.count_sent(1, packet.len() as u64);
                ctx.out.wire.push(packet);
            }
            None => ctx.discard_unsealed(packet),
        }
    }

    /// Stage 6. Counting on counters that all workers share costs as much as writing a header, so
    /// it is deferred if the SA allows that.
    #[inline(always)]
    fn take_single(
        &mut self,
        run: &FlowRun,
        place: u32,
        version: Version,
        ctx: &mut BatchContext<'_>,
    ) {
        let Self { deferred, tx: TxBatch { cache, numbering, .. }, .. } = self;
        numbering.supply = SeqSupply::Enough;
        let Some((tally, layer)) = cache.tally_of(place, 0) else { return };
        let bytes = (run.bytes - layer.clear_len_for(version)) as u64;
        tally.grant = if deferred.add(&mut tally.pending_slot, &tally.sa, 1, bytes) {
            SeqGrant::take_uncharged(&tally.sa, 1)
        } else {
            SeqGrant::of(&tally.sa, 1, bytes, ctx)
        };
        if tally.grant.left == 0 {
            numbering.supply = SeqSupply::Short;
        }
    }

    /// Stages 7 to 9; `None` if the packet was not sealed.
    #[inline(always)]
    fn seal_single(
        &mut self,
        packet: &mut PacketBuf,
        place: u32,
        version: Version,
        ctx: &mut BatchContext<'_>,
    ) -> Option<()> {
        let TxBatch { cache, ident, .. } = &mut self.tx;
        let (bundles, tallies) = cache.parts();
        let layer = bundles[place as usize].layers.first()?;
        let tally = tallies[layer.tally as usize].as_mut()?;
        *ident = ident.wrapping_add(1);
        let seq_id = SeqAndId { sequence: tally.grant.allocate(1), id: ip_id(*ident) };
        let (_, esp) = layer.encapsulate_fast(packet, version, seq_id)?;
        let (high, iv) = layer.seq_high_and_iv(seq_id.sequence);
        let mut job = SealJob::in_place(layer.sa.key(), high, iv, esp);
        ctx.crypter.seal(std::slice::from_mut(&mut job));
        if job.status != SealStatus::Sealed {
            return None;
        }
        if layer.needs_finish() {
            headers::finish(packet.bytes_mut(), layer, &layer.after(&InnerInfo::plain(version)));
        }
        Some(())
    }
}

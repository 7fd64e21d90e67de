//! Inbound fast path for a batch of one packet that matches its SA's templates: without the lists
//! that only batches need. Otherwise it continues on the slow path.

use uxfrm_crypto::{OpenJob, OpenStatus};
use uxfrm_packet::{Batch, PacketBuf};

use super::deliver::is_burst;
use super::inner_template::{InnerPacket, InnerTemplate};
use super::outer_template::SaMatcher;
use super::rx_cache::RxEntry;
use super::{Fate, Inbound, RxItem, SealedEsp};
use crate::datapath::account::charge_one;
use crate::datapath::context::BatchContext;
use crate::datapath::look_up_step::look_up_step;
use crate::{DatapathKind, DropReason, HostPort, Mode, Stage, StageWatch, TraceStep};

impl Inbound {
    /// Stages 1 to 10 for the only packet of a batch. Returns false, with nothing done, if it does
    /// not match.
    #[inline(always)]
    pub(super) fn run_single(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) -> bool {
        let [packet] = batch.as_slice() else { return false };
        self.rx.rx_cache.begin(ctx.snapshot);
        let Some(sealed) = self.match_single(packet) else { return false };
        let Some(packet) = batch.take_single() else { return false };
        ctx.traffic.count_received(1, packet.len() as u64);
        watch.stage_done(Stage::Peel);
        watch.note(|| TraceStep::Path(DatapathKind::Fast));
        watch.note(|| self.rx.state_step(&sealed));
        self.continue_single(packet, sealed, ctx, watch);
        self.rx.finish();
        true
    }

    /// Stages 2 to 4; marks the SA as seen in this batch.
    #[inline(always)]
    fn match_single(&mut self, packet: &PacketBuf) -> Option<SealedEsp> {
        if is_burst(packet) || !self.rx.metadata.is_empty() {
            return None;
        }
        let item = RxItem::new(0, 0, packet.len(), packet.mark);
        let latest = SaMatcher::of(&self.rx.rx_cache, self.rx.rx_cache.latest()?)?;
        let known = latest.or_earlier(&item, packet, &self.rx.rx_cache)?;
        let sealed = known.match_item(0, &item, packet)?;
        self.rx.rx_cache.receives(sealed.entry).then_some(sealed)
    }

    /// Stages 5 to 10.
    #[inline(always)]
    fn continue_single(
        &mut self,
        mut packet: PacketBuf,
        sealed: SealedEsp,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        self.rx.rx_cache.note_latest(Some(sealed.entry));
        let status = self.open_single(&mut packet, &sealed, ctx);
        watch.stage_done(Stage::Open);
        watch.note(|| TraceStep::Opened(status));
        let inner_packet = match status {
            OpenStatus::Authentic => self.inner_packet(&packet, &sealed),
            OpenStatus::Forged | OpenStatus::TooShort | OpenStatus::Pending => None,
        };
        let Some(inner_packet) = inner_packet else {
            return self.accept_slow(packet, sealed, status, ctx, watch);
        };
        let accepted = self.accept_single(&sealed, &inner_packet, ctx);
        watch.stage_done(Stage::Accept);
        match accepted {
            Ok(()) => self.deliver_single(packet, sealed.entry, &inner_packet, ctx, watch),
            Err(reason) => {
                let sa = &self.rx.rx_cache[sealed.entry as usize].sa;
                ctx.discard_of_sa(packet, sa, reason);
            }
        }
    }

    /// Stage 5.
    #[inline(always)]
    fn open_single(
        &self,
        packet: &mut PacketBuf,
        sealed: &SealedEsp,
        ctx: &mut BatchContext<'_>,
    ) -> OpenStatus {
        let state = &self.rx.rx_cache[sealed.entry as usize];
        let places = sealed.at as usize..(sealed.at + sealed.len) as usize;
        let Some(esp) = packet.bytes_mut().get_mut(places) else { return OpenStatus::TooShort };
        let mut job = OpenJob::in_place(state.sa.key(), state.high_of(sealed.number), esp);
        ctx.crypter.open(std::slice::from_mut(&mut job));
        job.status
    }

    /// Stage 7; `None` if the packet does not match the inner template.
    #[inline(always)]
    fn inner_packet(&self, packet: &PacketBuf, sealed: &SealedEsp) -> Option<InnerPacket> {
        let framing = &self.rx.rx_cache[sealed.entry as usize].framing;
        let inner = self.rx.rx_cache.templates(sealed.entry)?.inner.as_ref()?;
        let lies = (sealed.at, sealed.len, sealed.tos);
        inner
            .inner_packet(framing, lies, packet.mark, packet)
            .filter(|_| framing.mode == Mode::Tunnel)
    }

    /// Stage 6, then charges the SA.
    #[inline(always)]
    fn accept_single(
        &mut self,
        sealed: &SealedEsp,
        inner_packet: &InnerPacket,
        ctx: &mut BatchContext<'_>,
    ) -> Result<(), DropReason> {
        let RxEntry { sa, pending_slot, .. } = &mut self.rx.rx_cache[sealed.entry as usize];
        let accepted = sa.replay().accept(sealed.number);
        accepted.inspect_err(|reason| sa.count_failure(*reason))?;
        if self.deferred.add(pending_slot, sa, 1, inner_packet.carried.into()) {
            return Ok(());
        }
        let passes = charge_one(sa, inner_packet.carried.into(), ctx);
        passes.then_some(()).ok_or(DropReason::InStateExpired)
    }

    /// Stages 8 to 10.
    #[inline(always)]
    fn deliver_single(
        &mut self,
        packet: PacketBuf,
        entry: u32,
        inner_packet: &InnerPacket,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let state = &self.rx.rx_cache[entry as usize];
        let templates =
            self.rx.rx_cache.templates(entry).and_then(|templates| templates.inner.as_ref());
        let Some(InnerTemplate { flow, direction, .. }) = templates else {
            return ctx.discard(packet, 1, DropReason::InUnexpected);
        };
        let (spd, spi) = (&ctx.snapshot.spd, state.framing.spi);
        let known = self.delivery.policies.lookup_cached(spd, *direction, flow, spi);
        watch.stage_done(Stage::LookUp);
        watch.note(|| look_up_step(&self.delivery.policies, *direction, known.verdict));
        let mut item =
            RxItem::new(0, inner_packet.at as usize, inner_packet.len as usize, inner_packet.mark);
        if ctx.settings.host == HostPort::Packets && state.lets_pass(known) {
            self.delivery.policies.count_first(known.verdict, 1, inner_packet.len.into());
            ctx.traffic.count_sent(1, inner_packet.len.into());
            return ctx.out.host.push(item.released_packet(packet));
        }
        item.path.push(entry);
        item.fate = Fate::Plain(self.rx.lookups.push(*flow, spi, *direction));
        self.rx.lookups.known.push(known);
        self.rx.items.push(item);
        self.rx.buffers.push(Some(packet));
        self.delivery.deliver_checked(&mut self.rx, ctx);
    }

    /// Stages 6 to 10 for an opened packet that does not match inside.
    #[inline(never)]
    fn accept_slow(
        &mut self,
        packet: PacketBuf,
        sealed: SealedEsp,
        status: OpenStatus,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let item = RxItem::new(0, 0, packet.len(), packet.mark);
        self.rx.items.push(RxItem { fate: Fate::Encrypted, ..item });
        self.rx.buffers.push(Some(packet));
        self.rx.sealed.push(sealed);
        self.opener.statuses.clear();
        self.opener.statuses.push(status);
        self.continue_opened(ctx, watch);
    }

    /// Stages 6 to 10 for opened items.
    pub(super) fn continue_opened(
        &mut self,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let more = self.opener.accept(&mut self.rx, ctx);
        watch.stage_done(Stage::Accept);
        if more {
            self.decapsulate_layers(ctx, watch);
        }
        self.delivery.deliver(&mut self.rx, ctx, watch);
    }
}

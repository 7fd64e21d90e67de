//! Inbound fast path for packets of many SAs, each with an [`RxRecord`] that it matches: they are
//! opened and framed in place, and each SA is charged once.
//!
//! From the first packet that does not match, all take the slow path; packets are not reordered.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_crypto::{OpenJob, OpenStatus};
use uxfrm_packet::{PacketBuf, Protocol, Version};

use super::deliver::{HostDelivery, is_burst, may_coalesce};
use super::inner_template::{InnerPacket, InnerTemplate};
use super::outer_template::MatchedEsp;
use super::run::MIN_PACKETS;
use super::rx_record::RxRecord;
use super::slow::parse_outer;
use super::{DATA_AHEAD, Inbound, META_AHEAD, PIECE, RxBatch, narrow};
use crate::datapath::account::{LimitCheck, charge};
use crate::datapath::back_off::BackOff;
use crate::datapath::context::BatchContext;
use crate::{DropReason, HostPort, Stage, StageWatch, VerdictId};

/// Scratch of this fast path; lists are parallel to `packets`.
#[derive(Debug)]
pub(super) struct RxInterleaved {
    packets: Vec<PacketBuf>,
    /// Packets that are opened together.
    matches: Vec<RxMatch>,
    /// Packets opened and accepted, with the index of their SA's tally.
    inner_packets: Vec<(InnerPacket, u32)>,
    tallies: Vec<RxSaTally>,
    /// Back-off after a batch in which most packets missed.
    back_off: BackOff,
}

/// A matched packet: its SA, its tally, and its ESP bounds.
#[derive(Clone, Copy, Debug)]
struct RxMatch {
    entry: u32,
    tally: u32,
    matched: MatchedEsp,
}

/// What one SA carried, and what of it passes.
#[derive(Clone, Copy, Debug)]
struct RxSaTally {
    entry: u32,
    answer: VerdictId,
    version: Version,
    limit_check: LimitCheck,
    packets: u32,
    carried: u64,
    bytes: u64,
}

impl RxInterleaved {
    pub(super) fn new() -> Self {
        Self {
            packets: Vec::with_capacity(uxfrm_packet::BATCH),
            matches: Vec::with_capacity(PIECE),
            inner_packets: Vec::with_capacity(uxfrm_packet::BATCH),
            tallies: Vec::with_capacity(uxfrm_packet::BATCH),
            back_off: BackOff::default(),
        }
    }
}

impl Inbound {
    /// Stages 1 to 10 for the first packets of `rest` that match. Returns false, with nothing done,
    /// if they are too few.
    #[inline(never)]
    pub(super) fn run_interleaved(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) -> bool {
        if rest.len() < MIN_PACKETS
            || !self.rx.metadata.is_empty()
            || !self.interleaved.back_off.is_over()
        {
            return false;
        }
        self.rx.rx_cache.begin(ctx.snapshot);
        self.interleaved.tallies.clear();
        self.interleaved.inner_packets.clear();
        let mut matched = self.match_interleaved(rest.as_slice(), ctx);
        let worth = matched >= MIN_PACKETS;
        let mut all = true;
        while worth && all && matched > 0 {
            self.interleaved.packets.extend(rest.take(matched));
            watch.stage_done(Stage::Peel);
            self.open_interleaved(ctx);
            watch.stage_done(Stage::Open);
            all = self.accept_interleaved();
            watch.stage_done(Stage::Accept);
            matched = if all { self.match_interleaved(rest.as_slice(), ctx) } else { 0 };
        }
        if worth {
            self.deliver_interleaved(ctx, watch);
        }
        self.rx.finish();
        worth
    }

    /// Charges the SAs and delivers what their limits allow. Opened packets that were not accepted
    /// take the slow path.
    fn deliver_interleaved(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        let is_all = self.leave_interleaved();
        if !self.charge_interleaved(ctx) {
            self.drop_interleaved(ctx);
        }
        watch.stage_done(Stage::Accept);
        self.send_interleaved(ctx);
        watch.stage_done(Stage::Deliver);
        if !is_all {
            self.continue_opened(ctx, watch);
        }
    }

    /// Stages 2 to 4 for the first packets, up to one that does not match. Returns how many.
    #[inline(never)]
    fn match_interleaved(&mut self, packets: &[PacketBuf], ctx: &BatchContext<'_>) -> usize {
        self.interleaved.matches.clear();
        let packets = &packets[..packets.len().min(PIECE)];
        packets.iter().take(META_AHEAD).for_each(PacketBuf::prefetch);
        if self.rx.rx_cache.exceeds_cache() {
            self.prefetch_interleaved(packets);
        }
        for (at, packet) in packets.iter().enumerate() {
            packets.get(at + META_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + DATA_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let Some(matched) = self.match_record(packet, ctx) else { break };
            self.interleaved.matches.push(matched);
        }
        self.interleaved.matches.len()
    }

    #[inline(always)]
    fn match_record(&mut self, packet: &PacketBuf, ctx: &BatchContext<'_>) -> Option<RxMatch> {
        if is_burst(packet) {
            return None;
        }
        let entry = self.rx.rx_cache.with_spi(parse_outer::peek_esp_header(packet)?.0)?;
        if !self.rx.rx_cache.has_record(entry) {
            self.promote_to_record(entry, ctx)?;
        }
        let record = self.rx.rx_cache.record_mut(entry)?;
        let matched = record.match_packet(packet.bytes(), packet.mark, packet.udp.as_ref())?;
        let tally = tally(&mut self.interleaved.tallies, entry, record)?;
        Some(RxMatch { entry, tally, matched })
    }

    /// Prefetches what the packets' SAs need, level by level.
    #[inline(never)]
    fn prefetch_interleaved(&self, packets: &[PacketBuf]) {
        let Self { rx: RxBatch { rx_cache, .. }, delivery: HostDelivery { policies, .. }, .. } =
            self;
        let mut headers: ArrayVec<(u32, u32), PIECE> = ArrayVec::new();
        for (at, packet) in packets.iter().enumerate() {
            packets.get(at + META_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + DATA_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let Some((spi, low)) = parse_outer::peek_esp_header(packet) else { continue };
            rx_cache.prefetch_spi(spi);
            headers.push((spi, low));
        }
        let mut places: ArrayVec<(u32, u32), PIECE> = ArrayVec::new();
        for &(spi, low) in &headers {
            let Some(place) = rx_cache.with_spi(spi) else { continue };
            rx_cache.prefetch_record(place);
            places.push((place, low));
        }
        let mut records: ArrayVec<(&RxRecord, u32), PIECE> = ArrayVec::new();
        for &(place, low) in &places {
            let Some(record) = rx_cache.record(place) else { continue };
            record.sa.fetch_active();
            record.key.prefetch_head();
            policies.prefetch_counters(record.answer);
            records.push((record, low));
        }
        records.iter().for_each(|(record, _)| record.sa.fetch_live());
        records.iter().for_each(|(record, low)| {
            record.sa.fetch_window(*low);
            record.key.prefetch();
        });
    }

    /// Creates or refreshes an SA's record, if its templates and verdict are known.
    #[cold]
    fn promote_to_record(&mut self, place: u32, ctx: &BatchContext<'_>) -> Option<()> {
        if self.rx.rx_cache.revalidate_record(place) {
            return Some(());
        }
        self.rx.rx_cache.revalidate(place);
        let entry = &self.rx.rx_cache[place as usize];
        let templates = self.rx.rx_cache.templates(place)?;
        let InnerTemplate { flow, direction, .. } = templates.inner.as_ref()?;
        let spi = entry.framing.spi;
        let known = self.delivery.policies.lookup_cached(&ctx.snapshot.spd, *direction, flow, spi);
        if !entry.lets_pass(known) {
            return None;
        }
        if self.rx.rx_cache.refresh_record(place, known.verdict) {
            return Some(());
        }
        let record = RxRecord::of(
            &self.rx.rx_cache[place as usize],
            self.rx.rx_cache.templates(place)?,
            known.verdict,
        )?;
        self.rx.rx_cache.store_record(place, record);
        Some(())
    }

    /// Stage 5; fills the statuses.
    #[inline(never)]
    fn open_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { interleaved, rx: RxBatch { rx_cache, .. }, opener, .. } = self;
        let RxInterleaved { packets, matches, .. } = interleaved;
        let mut jobs: ArrayVec<OpenJob<'_>, PIECE> = ArrayVec::new();
        let (first, mut received) = (packets.len() - matches.len(), 0);
        for (packet, matched) in packets[first..].iter_mut().zip(&*matches) {
            received += packet.len();
            let MatchedEsp { at, len, number, .. } = matched.matched;
            // The bounds were checked, and the record exists, when it matched.
            let places = at as usize..(at + len) as usize;
            let Some(esp) = packet.bytes_mut().get_mut(places) else { break };
            let Some(record) = rx_cache.record(matched.entry) else { break };
            jobs.push(OpenJob::in_place(&record.key, record.high_of(number), esp));
        }
        ctx.traffic.count_received(matches.len() as u64, received as u64);
        ctx.crypter.open(&mut jobs);
        opener.statuses.clear();
        opener.statuses.extend(jobs.iter().map(|job| job.status));
    }

    /// Stages 7 and 6, up to the first packet that is forged, does not match inside, or was
    /// received before. Returns whether all passed.
    #[inline(never)]
    fn accept_interleaved(&mut self) -> bool {
        let Self { interleaved, rx: RxBatch { rx_cache, .. }, opener, .. } = self;
        let RxInterleaved { packets, matches, inner_packets, tallies, .. } = interleaved;
        let (first, before) = (packets.len() - matches.len(), inner_packets.len());
        let opened = packets[first..].iter().zip(&*matches).zip(&opener.statuses);
        for ((packet, RxMatch { entry: place, tally, matched }), status) in opened {
            let Some(record) = rx_cache.record(*place) else { break };
            let inner_packet = record.inner_packet(matched, packet);
            let Some(inner_packet) = inner_packet.filter(|_| *status == OpenStatus::Authentic)
            else {
                break;
            };
            if record.sa.replay().accept(matched.number).is_err() {
                break;
            }
            tallies[*tally as usize].add(&inner_packet);
            inner_packets.push((inner_packet, *tally));
        }
        inner_packets.len() - before == matches.len()
    }

    /// Turns opened packets that were not accepted into items. Returns whether there were none.
    #[inline(never)]
    fn leave_interleaved(&mut self) -> bool {
        let RxInterleaved { packets, matches, inner_packets, back_off, .. } = &mut self.interleaved;
        let left = packets.len() - inner_packets.len();
        if left == 0 {
            return true;
        }
        if inner_packets.len() < left {
            back_off.begin();
        }
        let accepted = matches.len() - left;
        self.opener.statuses.drain(..accepted);
        let left = packets.drain(inner_packets.len()..).zip(&matches[accepted..]);
        for (packet, RxMatch { entry, matched, .. }) in left {
            self.rx.rx_cache.mark_seen(*entry);
            self.rx.push_opened(packet, *entry, matched);
        }
        false
    }

    /// Charges each SA. Returns whether all packets are within the limits.
    #[inline(never)]
    fn charge_interleaved(&mut self, ctx: &mut BatchContext<'_>) -> bool {
        let Self { interleaved, rx: RxBatch { rx_cache, .. }, deferred, .. } = self;
        let mut all_pass = true;
        for tally in interleaved.tallies.iter_mut().filter(|tally| tally.packets > 0) {
            let Some(RxRecord { sa, pending_slot, .. }) = rx_cache.record_mut(tally.entry) else {
                continue;
            };
            if deferred.add(pending_slot, sa, tally.packets, tally.carried) {
                continue;
            }
            tally.limit_check = charge(sa, tally.packets, tally.carried, ctx);
            all_pass &= tally.limit_check == LimitCheck::Pass;
        }
        all_pass
    }

    /// Drops the packets that exceed their SA's limits.
    #[cold]
    fn drop_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let packets = std::mem::take(&mut self.interleaved.packets);
        let inner_packets = std::mem::take(&mut self.interleaved.inner_packets);
        for (packet, (inner_packet, place)) in packets.into_iter().zip(inner_packets) {
            let tally = &mut self.interleaved.tallies[place as usize];
            let sa = &self.rx.rx_cache[tally.entry as usize].sa;
            if tally.limit_check.lets_pass(sa, inner_packet.carried, ctx) {
                self.interleaved.packets.push(packet);
                self.interleaved.inner_packets.push((inner_packet, place));
            } else {
                tally.remove(&inner_packet);
                ctx.discard_of_sa(packet, sa, DropReason::InStateExpired);
            }
        }
    }

    /// Stage 8 by the record's verdict; stages 9 and 10.
    #[inline(never)]
    fn send_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { interleaved, delivery: HostDelivery { policies, .. }, .. } = self;
        let RxInterleaved { packets, inner_packets, tallies, .. } = interleaved;
        for (packet, (inner_packet, _)) in packets.iter_mut().zip(&*inner_packets) {
            inner_packet.frame(packet);
        }
        for tally in tallies.iter().filter(|tally| tally.packets > 0) {
            policies.count_revalidated(tally.version);
            policies.count_first(tally.answer, tally.packets, tally.bytes);
            ctx.traffic.sent_bytes += tally.bytes;
        }
        ctx.traffic.sent += packets.len() as u64;
        if ctx.settings.host == HostPort::Packets {
            return ctx.out.host.append(packets);
        }
        self.coalesce_interleaved(ctx);
    }

    /// Stage 9.
    #[inline(never)]
    fn coalesce_interleaved(&mut self, ctx: &mut BatchContext<'_>) {
        let Self { interleaved, rx: RxBatch { rx_cache, .. }, delivery, .. } = self;
        let RxInterleaved { packets, inner_packets, tallies, .. } = interleaved;
        for (packet, (_, tally)) in packets.drain(..).zip(&*inner_packets) {
            let record = rx_cache.record(tallies[*tally as usize].entry);
            let protocol = Protocol(record.map_or(0, |record| record.protocol));
            if may_coalesce(ctx.settings.host, protocol) {
                delivery.coalescer.offer(packet, ctx.pool, &mut ctx.out.host);
            } else {
                ctx.out.host.push(packet);
            }
        }
    }
}

/// Tally of a record's SA; the first packet of a batch opens it if the SA receives.
#[inline(always)]
fn tally(tallies: &mut Vec<RxSaTally>, entry: u32, record: &mut RxRecord) -> Option<u32> {
    if tallies.get(record.tally as usize).is_none_or(|tally| tally.entry != entry) {
        record.sa.receives().ok()?;
        record.tally = narrow(tallies.len());
        tallies.push(RxSaTally::of(entry, record));
    }
    Some(record.tally)
}

impl RxSaTally {
    /// An empty tally.
    #[inline(always)]
    fn of(entry: u32, record: &RxRecord) -> Self {
        Self {
            entry,
            answer: record.answer,
            version: record.version(),
            limit_check: LimitCheck::Pass,
            packets: 0,
            carried: 0,
            bytes: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, inner_packet: &InnerPacket) {
        self.packets += 1;
        self.carried += u64::from(inner_packet.carried);
        self.bytes += u64::from(inner_packet.len);
    }

    fn remove(&mut self, inner_packet: &InnerPacket) {
        self.packets -= 1;
        self.carried -= u64::from(inner_packet.carried);
        self.bytes -= u64::from(inner_packet.len);
    }
}

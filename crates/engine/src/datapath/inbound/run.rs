//! Inbound fast path for runs of packets of the latest SA that match its templates and pass its
//! policies: they are opened and framed in place, with one check per run.
//!
//! From the first packet that does not match, all take the slow path; packets are not reordered.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_crypto::{OpenJob, OpenStatus};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments};

use super::deliver::{is_burst, may_coalesce};
use super::inner_template::{InnerPacket, InnerTemplate};
use super::outer_template::{MatchedEsp, SaMatcher};
use super::rx_cache::RxCache;
use super::{DATA_AHEAD, Inbound, META_AHEAD, PIECE, RxBatch, narrow};
use crate::datapath::account::LimitCheck;
use crate::datapath::back_off::BackOff;
use crate::datapath::context::BatchContext;
use crate::{DropReason, Mode, Stage, StageWatch, VerdictId};

/// Fewer packets do not pay: the crypto library needs many per call.
pub(super) const MIN_PACKETS: usize = 16;

/// Scratch of this fast path; lists are parallel to `packets`.
#[derive(Debug)]
pub(super) struct RxRun {
    packets: Vec<PacketBuf>,
    matches: Vec<MatchedEsp>,
    /// Packets opened and accepted.
    inner_packets: Vec<InnerPacket>,
    /// Back-off after a batch in which most packets missed.
    back_off: BackOff,
}

impl Inbound {
    /// Stages 1 to 10 for the first packets of `rest` that match the latest SA. Returns false, with
    /// nothing done, if they are too few.
    #[inline]
    pub(super) fn run_same_sa(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) -> bool {
        if rest.len() < MIN_PACKETS || !self.rx.metadata.is_empty() || !self.run.back_off.is_over()
        {
            return false;
        }
        self.rx.rx_cache.begin(ctx.snapshot);
        let latest = self.rx.rx_cache.resume();
        let run = latest.filter(|entry| self.match_run(*entry, rest.as_slice()) >= MIN_PACKETS);
        let answer = run.and_then(|entry| Some((entry, self.verified_answer(entry, ctx)?)));
        if let Some((entry, answer)) = answer {
            self.run.packets.extend(rest.take(self.run.matches.len()));
            self.process_run(entry, answer, ctx, watch);
        }
        self.rx.finish();
        answer.is_some()
    }

    /// Stages 2 to 4 for the first packets, up to one that does not match. Returns how many.
    #[inline(never)]
    fn match_run(&mut self, entry: u32, packets: &[PacketBuf]) -> usize {
        let matches = &mut self.run.matches;
        matches.clear();
        let rx_cache = &self.rx.rx_cache;
        let Some(known) =
            SaMatcher::of(rx_cache, entry).filter(|_| inner(rx_cache, entry).is_some())
        else {
            return 0;
        };
        packets.iter().take(META_AHEAD).for_each(PacketBuf::prefetch);
        for (at, packet) in packets.iter().take(PIECE).enumerate() {
            packets.get(at + META_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + DATA_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let matched = known.match_packet(packet.bytes(), packet.mark, packet.udp.as_ref());
            let Some(matched) = matched.filter(|_| !is_burst(packet)) else { break };
            matches.push(matched);
        }
        matches.len()
    }

    /// Stage 8: the verdict under which packets of the SA's inner template pass; `None` if unknown.
    #[inline]
    fn verified_answer(&mut self, entry: u32, ctx: &BatchContext<'_>) -> Option<VerdictId> {
        let rx_cache = &self.rx.rx_cache;
        let state = &rx_cache[entry as usize];
        let InnerTemplate { flow, direction, .. } = inner(rx_cache, entry)?;
        let known = self.delivery.policies.lookup_cached(
            &ctx.snapshot.spd,
            *direction,
            flow,
            state.framing.spi,
        );
        state.lets_pass(known).then_some(known.verdict)
    }

    /// Stages 5 to 10.
    #[inline(always)]
    fn process_run(
        &mut self,
        entry: u32,
        answer: VerdictId,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        ctx.traffic.received += self.run.matches.len() as u64;
        watch.stage_done(Stage::Peel);
        self.open_run(entry, ctx);
        watch.stage_done(Stage::Open);
        self.strip_run(entry);
        self.accept_run(entry);
        let all_pass = self.charge_run(entry, ctx);
        watch.stage_done(Stage::Accept);
        let is_all = self.run.inner_packets.len() == self.run.matches.len();
        if !is_all {
            self.leave_to_slow_path(entry);
        }
        if !all_pass {
            self.drop_over_limit(entry, ctx);
        }
        // Without packets the policy was not used.
        if !self.run.inner_packets.is_empty() {
            self.deliver_run(entry, answer, ctx);
        }
        watch.stage_done(Stage::Deliver);
        if !is_all {
            self.continue_opened(ctx, watch);
        }
    }

    /// Stage 5; fills the statuses.
    #[inline(never)]
    fn open_run(&mut self, entry: u32, ctx: &mut BatchContext<'_>) {
        let Self { run, rx: RxBatch { rx_cache, .. }, opener, .. } = self;
        let state = &rx_cache[entry as usize];
        let key = state.sa.key();
        let mut jobs: ArrayVec<OpenJob<'_>, PIECE> = ArrayVec::new();
        let mut received = 0;
        for (packet, matched) in run.packets.iter_mut().zip(&run.matches) {
            received += packet.len();
            // The bounds were checked when it matched.
            let Some((_, esp)) = packet.bytes_mut().split_at_mut_checked(matched.at as usize)
            else {
                break;
            };
            let Some((esp, _)) = esp.split_at_mut_checked(matched.len as usize) else { break };
            jobs.push(OpenJob::in_place(key, state.high_of(matched.number), esp));
        }
        ctx.traffic.received_bytes += received as u64;
        ctx.crypter.open(&mut jobs);
        opener.statuses.clear();
        opener.statuses.extend(jobs.iter().map(|job| job.status));
    }

    /// Stage 7, up to the first packet that is forged or does not match inside.
    #[inline(never)]
    fn strip_run(&mut self, entry: u32) {
        let RxRun { packets, matches, inner_packets, .. } = &mut self.run;
        inner_packets.clear();
        let rx_cache = &self.rx.rx_cache;
        let Some(inner) = inner(rx_cache, entry) else { return };
        let framing = rx_cache[entry as usize].framing;
        let opened = packets.iter().zip(matches).zip(&self.opener.statuses);
        for ((packet, MatchedEsp { at, len, tos, .. }), status) in opened {
            if *status != OpenStatus::Authentic {
                break;
            }
            let Some(inner_packet) =
                inner.inner_packet(&framing, (*at, *len, *tos), packet.mark, packet)
            else {
                break;
            };
            inner_packets.push(inner_packet);
        }
    }

    /// Stage 6, up to the first packet that was received before.
    #[inline(never)]
    fn accept_run(&mut self, entry: u32) {
        let window = self.rx.rx_cache[entry as usize].sa.replay();
        let RxRun { matches, inner_packets, .. } = &mut self.run;
        let (matches, mut accepted) = (&matches[..inner_packets.len()], 0);
        while let [first, ..] = &matches[accepted..] {
            let numbers = matches[accepted..].iter().map(|matched| matched.number);
            accepted += match window.accept_some(numbers) {
                0 if window.accept(first.number).is_err() => break,
                0 => 1,
                taken => taken,
            };
        }
        inner_packets.truncate(accepted);
    }

    /// Charges the SA. Returns whether all packets are within its limits.
    #[inline(always)]
    fn charge_run(&mut self, entry: u32, ctx: &mut BatchContext<'_>) -> bool {
        let inner_packets = &self.run.inner_packets;
        let state = &mut self.rx.rx_cache[entry as usize];
        state.packets = narrow(inner_packets.len());
        state.bytes =
            inner_packets.iter().map(|inner_packet| u64::from(inner_packet.carried)).sum();
        inner_packets.is_empty() || state.charge(ctx) == LimitCheck::Pass
    }

    /// Turns opened packets that were not accepted into items.
    #[inline(never)]
    fn leave_to_slow_path(&mut self, entry: u32) {
        let RxRun { packets, matches, inner_packets, back_off } = &mut self.run;
        let accepted = inner_packets.len();
        if accepted < matches.len() / 2 {
            back_off.begin();
        }
        self.opener.statuses.drain(..accepted);
        for (packet, matched) in packets.drain(accepted..).zip(&matches[accepted..]) {
            self.rx.push_opened(packet, entry, matched);
        }
    }

    /// Drops the packets that exceed the SA's limits.
    #[cold]
    fn drop_over_limit(&mut self, entry: u32, ctx: &mut BatchContext<'_>) {
        let packets = std::mem::take(&mut self.run.packets);
        let inner_packets = std::mem::take(&mut self.run.inner_packets);
        for (packet, inner_packet) in packets.into_iter().zip(inner_packets) {
            if self.rx.rx_cache[entry as usize].may_pass(inner_packet.carried, ctx) {
                self.run.packets.push(packet);
                self.run.inner_packets.push(inner_packet);
            } else {
                let sa = &self.rx.rx_cache[entry as usize].sa;
                ctx.discard_of_sa(packet, sa, DropReason::InStateExpired);
            }
        }
    }

    /// Stages 9 and 10.
    #[inline(never)]
    fn deliver_run(&mut self, entry: u32, answer: VerdictId, ctx: &mut BatchContext<'_>) {
        let RxRun { packets, inner_packets, .. } = &mut self.run;
        let mut bytes = 0;
        for (packet, inner_packet) in packets.iter_mut().zip(&*inner_packets) {
            bytes += u64::from(inner_packet.len);
            inner_packet.frame(packet);
        }
        self.delivery.policies.count_first(answer, narrow(inner_packets.len()), bytes);
        ctx.traffic.count_sent(inner_packets.len() as u64, bytes);
        // Runs are let in only with an inner template.
        let protocol = inner(&self.rx.rx_cache, entry).map_or(0, |inner| inner.flow.protocol);
        if !may_coalesce(ctx.settings.host, Protocol(protocol)) {
            return ctx.out.host.append(packets);
        }
        for packet in packets.drain(..) {
            self.delivery.coalescer.offer(packet, ctx.pool, &mut ctx.out.host);
        }
    }
}

/// Inner template of a tunnel.
#[inline(always)]
fn inner(states: &RxCache, entry: u32) -> Option<&InnerTemplate> {
    let templates = states.templates(entry)?.inner.as_ref();
    templates.filter(|_| states[entry as usize].framing.mode == Mode::Tunnel)
}

impl RxRun {
    pub(super) fn new() -> Self {
        Self {
            packets: Vec::with_capacity(PIECE),
            matches: Vec::with_capacity(PIECE),
            inner_packets: Vec::with_capacity(PIECE),
            back_off: BackOff::default(),
        }
    }
}

impl InnerPacket {
    /// Reduces the buffer to the packet.
    #[inline(always)]
    pub(super) fn frame(&self, packet: &mut PacketBuf) {
        packet.frame(self.at as usize, self.len as usize);
        (packet.segments, packet.udp, packet.mark) = (Segments::One, None, self.mark);
        packet.checksum = Checksum::AsIs;
    }
}

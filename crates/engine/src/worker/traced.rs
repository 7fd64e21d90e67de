//! Batches of which single packets are traced.
//!
//! A traced packet goes through the engine alone, between those before and behind it, so the order
//! stays. What it met is told by the stages themselves ([`StageWatch::note`]), by the drop log, and
//! by what came out.

use std::sync::Arc;

use uxfrm_packet::{Batch, PacketBuf, Pool, SegmentPlan, Segments};

use super::Worker;
use crate::datapath::context::Output;
use crate::packet_tap::{
    CacheAnswer, PacketHeaders, PacketTrace, PacketWay, ShowSite, ShownPacket, TracePort,
    TraceStep, Watchers, whole_packet,
};
use crate::{CacheStats, Moment, PolicyCache, Stage, StageWatch};

/// Collects what the stages tell of one packet.
#[derive(Debug, Default)]
struct Recorder(Vec<TraceStep>);

impl StageWatch for Recorder {
    fn stage_done(&mut self, _: Stage) {}

    fn note(&mut self, step: impl FnOnce() -> TraceStep) {
        self.0.push(step());
    }
}

/// What there was before a packet.
struct Before {
    wire: usize,
    host: usize,
    offloaded: usize,
    held: u64,
    cache: CacheStats,
}

impl Worker {
    /// [`Worker::outbound`], for a worker that is [watched](Worker::is_watched): traces the packets
    /// that somebody asked for.
    #[cold]
    pub fn outbound_traced(
        &mut self,
        batch: &mut Batch,
        port: TracePort,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        self.traced((PacketWay::Out, port), batch, now, pool, out);
    }

    /// [`Worker::inbound`], for a worker that is [watched](Worker::is_watched): traces the packets
    /// that somebody asked for.
    #[cold]
    pub fn inbound_traced(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        self.traced((PacketWay::In, TracePort::Wire), batch, now, pool, out);
    }

    fn traced(
        &mut self,
        (way, port): (PacketWay, TracePort),
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        let watchers = self.drops.tap().watchers();
        let mut others = Batch::new();
        // Packets that waited for states leave first, so that none is taken for a traced one.
        if !watchers.traces.is_empty() {
            self.untraced(way, &mut others, now, pool, out);
        }
        for packet in batch.drain() {
            if !self.wants(&watchers, way, &packet, now) {
                others.push(packet);
                continue;
            }
            if !others.is_empty() {
                self.untraced(way, &mut others, now, pool, out);
            }
            let trace = self.trace((way, port), packet, now, pool, out);
            watchers.traces.iter().for_each(|feed| feed.offer(&trace));
        }
        if !others.is_empty() || watchers.traces.is_empty() {
            self.untraced(way, &mut others, now, pool, out);
        }
    }

    fn untraced(
        &mut self,
        way: PacketWay,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        match way {
            PacketWay::Out => self.outbound(batch, now, pool, out),
            PacketWay::In => self.inbound(batch, now, pool, out),
        }
    }

    /// Whether somebody wants this packet traced.
    fn wants(
        &self,
        watchers: &Arc<Watchers>,
        way: PacketWay,
        packet: &PacketBuf,
        now: Moment,
    ) -> bool {
        if watchers.traces.is_empty() {
            return false;
        }
        let headers = self.headers(way, packet, now);
        watchers.traces.iter().any(|feed| feed.wants(way, &headers, now))
    }

    fn headers(&self, way: PacketWay, packet: &PacketBuf, now: Moment) -> PacketHeaders {
        let shown = ShownPacket::of(packet);
        let ShowSite { ports, .. } = self.show_site(now);
        PacketHeaders::of(&whole_packet(&shown, way), ports).with_mark_of(&shown)
    }

    /// Sends one packet through the engine, and tells what it met.
    fn trace(
        &mut self,
        (way, port): (PacketWay, TracePort),
        packet: PacketBuf,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) -> PacketTrace {
        let shown = ShownPacket::of(&packet);
        let whole = whole_packet(&shown, way);
        let trace = PacketTrace {
            at: now,
            worker: self.settings.cpu.0,
            way,
            port,
            headers: self.headers(way, &packet, now),
            len: whole.len(),
            packets: packets_in(&packet),
            bytes: whole.iter().copied().take(crate::TRACED_BYTES).collect(),
            steps: Vec::new(),
        };
        drop(whole);
        let before = self.before(way, out);
        let mut recorder = Recorder::default();
        let mut batch: Batch = [packet].into_iter().collect();
        self.drops.begin_trace();
        match way {
            PacketWay::Out => self.outbound_watched(&mut batch, now, pool, out, &mut recorder),
            PacketWay::In => self.inbound_watched(&mut batch, now, pool, out, &mut recorder),
        }
        let mut steps = recorder.0;
        self.add_cache_answer(way, &before, &mut steps);
        self.add_outcome(way, &before, out, now, &mut steps);
        PacketTrace { steps, ..trace }
    }

    fn before(&self, way: PacketWay, out: &Output) -> Before {
        Before {
            wire: out.wire.len(),
            host: out.host.len(),
            offloaded: out.offloaded.len(),
            held: self.held(way),
            cache: self.cache(way).stats(),
        }
    }

    /// Packets that wait.
    fn held(&self, way: PacketWay) -> u64 {
        match way {
            PacketWay::Out => self.outbound.waiting() as u64,
            PacketWay::In => self.inward.held,
        }
    }

    fn cache(&self, way: PacketWay) -> &PolicyCache {
        match way {
            PacketWay::Out => self.outbound.policies(),
            PacketWay::In => self.inbound.policies(),
        }
    }

    /// Tells how the flow cache answered the first look-up.
    fn add_cache_answer(&self, way: PacketWay, before: &Before, steps: &mut [TraceStep]) {
        let (was, is) = (before.cache, self.cache(way).stats());
        let answer = if is.hits > was.hits {
            CacheAnswer::Hit
        } else if is.stale > was.stale {
            CacheAnswer::Stale
        } else if is.misses > was.misses {
            CacheAnswer::Miss
        } else {
            CacheAnswer::Bypassed
        };
        let cache = steps.iter_mut().find_map(|step| match step {
            TraceStep::LookUp { cache, .. } => Some(cache),
            TraceStep::Path(_)
            | TraceStep::Bundle { .. }
            | TraceStep::State { .. }
            | TraceStep::Opened(_)
            | TraceStep::Sent { .. }
            | TraceStep::HandedOver(_)
            | TraceStep::Delivered { .. }
            | TraceStep::Answered
            | TraceStep::Waits
            | TraceStep::Dropped(_) => None,
        });
        cache.into_iter().for_each(|cache| *cache = Some(answer));
    }

    /// Tells what became of the packet.
    fn add_outcome(
        &mut self,
        way: PacketWay,
        before: &Before,
        out: &Output,
        now: Moment,
        steps: &mut Vec<TraceStep>,
    ) {
        for packet in &out.wire.as_slice()[before.wire..] {
            let shown = ShownPacket::of(packet);
            let headers = self.headers(PacketWay::Out, packet, now);
            let len = whole_packet(&shown, PacketWay::Out).len();
            steps.push(TraceStep::Sent { headers, len, packets: packets_in(packet) });
        }
        for offloaded in &out.offloaded[before.offloaded..] {
            steps.push(TraceStep::HandedOver(offloaded.handover.device));
        }
        for packet in &out.host.as_slice()[before.host..] {
            steps.push(match way {
                PacketWay::Out => TraceStep::Answered,
                PacketWay::In => {
                    let flow = self.headers(PacketWay::In, packet, now).flow;
                    TraceStep::Delivered { flow, len: packet.len() }
                }
            });
        }
        steps.extend(self.drops.end_trace().into_iter().map(TraceStep::Dropped));
        if self.held(way) > before.held {
            steps.push(TraceStep::Waits);
        }
    }
}

/// Packets in a buffer.
fn packets_in(packet: &PacketBuf) -> u64 {
    match packet.segments {
        Segments::One => 1,
        Segments::Burst { stride } => packet.len().div_ceil(usize::from(stride.max(1))) as u64,
        Segments::Tcp { .. } | Segments::Udp { .. } => {
            SegmentPlan::new(packet).map_or(1, |plan| plan.count() as u64)
        }
    }
}

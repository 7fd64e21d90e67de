//! Frames: room for each packet and all its headers. Single packets are framed in place, segments
//! side by side in new buffers.

use uxfrm_packet::{PacketBuf, Pool, SegmentPlan, Segments, SizeClass};

use super::device::Sealer;
use crate::DropReason;
use crate::bundle::{Bundle, FrameLayout};
use crate::datapath::context::BatchContext;
use crate::datapath::outbound::{TxBatch, TxItem, narrow};
use crate::drop_log::DropSite;
use crate::esp::encap::{InnerInfo, OuterForm};

/// Datagrams per burst (`UDP_MAX_SEGMENTS` of kernels before 6.9).
const MAX_DATAGRAMS: usize = 64;
/// Bytes per burst: below 65,535 less IPv6 and UDP headers.
const MAX_BURST_BYTES: usize = 65_000;

/// Segments of a plan that share a buffer.
pub(crate) struct SegmentRange {
    from: usize,
    count: usize,
    frame: FrameLayout,
    /// Bytes of the last frame.
    last: usize,
}

/// Frames a packet, or each segment of a super-packet.
#[inline(always)]
pub(crate) fn frame_packet(
    packet: PacketBuf,
    plan: Option<&SegmentPlan>,
    inner: InnerInfo,
    (place, sealer): (u32, Sealer),
    tx: &mut TxBatch,
    ctx: &mut BatchContext<'_>,
) {
    let bundle = tx.cache.bundle(place);
    let len = plan.map_or(packet.len(), |plan| plan.len(0));
    let Some(frame) = bundle.frame(len, &inner) else {
        let count = plan.map_or(1, SegmentPlan::count);
        return ctx.discard_of(packet, count, DropReason::OutNoRoom, bundle.subject());
    };
    tx.max_layers = tx.max_layers.max(bundle.layers.len());
    match plan {
        None => match reframe_for(packet, frame, ctx.pool) {
            Ok(packet) => {
                tx.push_item(TxItem { sealer, ..TxItem::new(packet, place, frame, inner, len) });
            }
            Err(packet) => ctx.discard(packet, 1, DropReason::OutNoRoom),
        },
        Some(plan) => {
            let first = tx.items.len();
            segment(packet, plan, frame, (inner, place), tx, ctx);
            tx.items[first..].iter_mut().for_each(|item| item.sealer = sealer);
        }
    }
}

/// Segments a super-packet straight into its frames.
fn segment(
    packet: PacketBuf,
    plan: &SegmentPlan,
    frame: FrameLayout,
    (inner, place): (InnerInfo, u32),
    tx: &mut TxBatch,
    ctx: &mut BatchContext<'_>,
) {
    let first = tx.items.len();
    for cut in tx.cache.bundle(place).segment_ranges(plan, frame, &inner) {
        let count = u32::try_from(cut.count).unwrap_or(u32::MAX);
        let last_len = narrow(plan.len(cut.from + cut.count - 1));
        match cut.write(plan, &packet, ctx.pool) {
            Some(burst) => {
                // The last range may be one segment, shorter than the others.
                let item = TxItem::new(burst, place, frame, inner, plan.len(cut.from));
                tx.items.push(TxItem { count, last_len, ..item });
            }
            None => ctx.note_drop(count.into(), DropReason::OutNoRoom, &DropSite::of(&packet)),
        }
    }
    ctx.pool.give(packet);
    tx.request_from(first);
}

/// A super-packet that leaves in plaintext, in segments.
pub(crate) fn pass_segments(packet: PacketBuf, plan: &SegmentPlan, ctx: &mut BatchContext<'_>) {
    let frame = FrameLayout { prefix: 0, total: plan.len(0) };
    for cut in segment_ranges(plan, frame, MAX_BURST_BYTES / frame.total, |len| len) {
        let Some(mut burst) = cut.write(plan, &packet, ctx.pool) else {
            ctx.note_drop(cut.count as u64, DropReason::OutNoRoom, &DropSite::of(&packet));
            continue;
        };
        burst.segments = burst_of(cut.count, frame.total);
        ctx.traffic.count_sent(cut.count as u64, burst.len() as u64);
        ctx.out.wire.push(burst);
    }
    ctx.pool.give(packet);
}

impl Bundle {
    fn segment_ranges(
        &self,
        plan: &SegmentPlan,
        frame: FrameLayout,
        inner: &InnerInfo,
    ) -> impl Iterator<Item = SegmentRange> {
        let by_size = MAX_BURST_BYTES / frame.total;
        let most = match self.layers.last().map(|layer| layer.outside) {
            Some(OuterForm::SocketPayload) => by_size.min(MAX_DATAGRAMS),
            Some(OuterForm::Packet) | None => by_size,
        };
        // A shorter segment needs no longer frame than the first.
        segment_ranges(plan, frame, most, move |len| {
            self.frame(len, inner).map_or(frame.total, |last| last.total)
        })
    }
}

impl TxItem {
    /// One packet of `len` bytes in its frame.
    #[inline(always)]
    pub(crate) fn new(
        packet: PacketBuf,
        bundle: u32,
        frame: FrameLayout,
        inner: InnerInfo,
        len: usize,
    ) -> Self {
        Self {
            packet,
            sequence: 0,
            bundle,
            count: 1,
            at: narrow(frame.prefix),
            len: narrow(len),
            last_len: narrow(len),
            stride: narrow(frame.total),
            inner,
            sealer: Sealer::Engine,
        }
    }
}

/// Splits a plan into ranges of `most` segments; `total` gives the frame length of a segment.
fn segment_ranges(
    plan: &SegmentPlan,
    frame: FrameLayout,
    most: usize,
    total: impl Fn(usize) -> usize,
) -> impl Iterator<Item = SegmentRange> {
    let most = most.max(1);
    (0..plan.count()).step_by(most).map(move |from| {
        let count = most.min(plan.count() - from);
        SegmentRange { from, count, frame, last: total(plan.len(from + count - 1)) }
    })
}

impl SegmentRange {
    /// One segment.
    pub(crate) const fn one(k: usize, frame: FrameLayout) -> Self {
        Self { from: k, count: 1, frame, last: frame.total }
    }

    /// Writes the segments into a new buffer, each with its headroom.
    pub(crate) fn write(
        &self,
        plan: &SegmentPlan,
        source: &PacketBuf,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        let FrameLayout { prefix, total: stride } = self.frame;
        let total = stride * (self.count - 1) + self.last;
        let mut burst = pool.take(SizeClass::holding(total));
        (burst.mark, burst.if_id) = (source.mark, source.if_id);
        let written = burst.append(total).and_then(|room| {
            room.chunks_mut(stride).enumerate().try_for_each(|(k, frame)| {
                plan.write(self.from + k, source.bytes(), &mut frame[prefix..]).map(|_| ())
            })
        });
        if written.is_none() {
            pool.give(burst);
            return None;
        }
        Some(burst)
    }
}

/// Segmentation metadata of a buffer with `count` frames.
pub(crate) fn burst_of(count: usize, stride: usize) -> Segments {
    match u16::try_from(stride) {
        Ok(stride) if count > 1 => Segments::Burst { stride },
        Ok(_) | Err(_) => Segments::One,
    }
}

/// Reframes a packet in place if it has room, otherwise in a larger buffer; returns it if that
/// fails.
#[inline(always)]
fn reframe_for(
    mut packet: PacketBuf,
    frame: FrameLayout,
    pool: &mut Pool,
) -> Result<PacketBuf, PacketBuf> {
    if !packet.has_room(frame.prefix, frame.total) {
        return move_to_larger(packet, frame, pool);
    }
    packet.reframe(frame.prefix, frame.total);
    Ok(packet)
}

/// Copies a packet into the middle of a larger buffer.
#[cold]
fn move_to_larger(
    packet: PacketBuf,
    frame: FrameLayout,
    pool: &mut Pool,
) -> Result<PacketBuf, PacketBuf> {
    let mut larger = pool.take(SizeClass::Super);
    larger.inherit(&packet);
    let Some(room) = larger.append(frame.total) else {
        pool.give(larger);
        return Err(packet);
    };
    room[frame.prefix..frame.prefix + packet.len()].copy_from_slice(packet.bytes());
    pool.give(packet);
    Ok(larger)
}

//! Packets whose SA is offloaded: how they are handed over ([`crate::device::contract`] has the
//! contract).
//!
//! Mirrors `net/xfrm/xfrm_device.c: xfrm_dev_offload_ok` and `net/xfrm/xfrm_output.c: xfrm_output`:
//! crypto offload falls back to software where the device would not take a packet, packet offload
//! never does.

use uxfrm_packet::{Checksum, PacketBuf, SegmentPlan};

use super::segment::{SegmentRange, burst_of};
use crate::bundle::{Bundle, FrameLayout};
use crate::datapath::context::BatchContext;
use crate::datapath::outbound::{TxBatch, TxItem, ip_id, narrow};
use crate::drop_log::DropSite;
use crate::esp::encap::{EncapLayer, InnerInfo};
use crate::esp::headers::{self, SeqAndId};
use crate::{Attachment, DropReason, OffloadOrder, OffloadTask, OffloadedPacket, Segmentation};

/// Who seals the outermost layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealer {
    /// The crypto library.
    Engine,
    /// The bundle's device.
    Device,
    /// The bundle's device, which also segments and writes headers: the item is still a
    /// super-packet.
    SegmentingDevice,
}

/// Stage 5 of a super-packet with crypto offload that the device segments: numbered and charged by
/// segment.
pub(crate) fn enter_unsegmented(
    packet: PacketBuf,
    plan: &SegmentPlan,
    inner: InnerInfo,
    place: u32,
    tx: &mut TxBatch,
) {
    let count = plan.count();
    tx.max_layers = tx.max_layers.max(1);
    let frame = FrameLayout { prefix: 0, total: packet.len() };
    let item = TxItem::new(packet, place, frame, inner, plan.len(0));
    tx.push_item(TxItem {
        count: u32::try_from(count).unwrap_or(u32::MAX),
        last_len: narrow(plan.len(count - 1)),
        sealer: Sealer::SegmentingDevice,
        ..item
    });
}

/// Stage 5 of a plain packet with packet offload; a super-packet is handed over whole if the device
/// segments.
pub(crate) fn hand_over_plain(
    packet: PacketBuf,
    plan: Option<&SegmentPlan>,
    device: Attachment,
    ctx: &mut BatchContext<'_>,
) {
    let order = device.over(OffloadTask::Protect);
    match plan {
        Some(plan) if device.segmentation == Segmentation::Engine => {
            for k in 0..plan.count() {
                let frame = FrameLayout { prefix: 0, total: plan.len(k) };
                match SegmentRange::one(k, frame).write(plan, &packet, ctx.pool) {
                    Some(piece) => hand_over(piece, 1, order, ctx),
                    None => ctx.note_drop(1, DropReason::OutNoRoom, &DropSite::of(&packet)),
                }
            }
            ctx.pool.give(packet);
        }
        Some(_) | None => {
            let count = plan.map_or(1, SegmentPlan::count);
            hand_over(packet, count as u64, order, ctx);
        }
    }
}

/// Stage 10 of an item that lacks its outermost encryption, and the headers too if the device
/// segments.
pub(crate) fn hand_over_sealed(item: TxItem, device: Attachment, ctx: &mut BatchContext<'_>) {
    let (sequence, count) = (item.sequence, item.count);
    let mut packet = item.packet;
    let task = if item.sealer == Sealer::SegmentingDevice {
        OffloadTask::Segment { sequence, count }
    } else {
        packet.checksum = Checksum::AsIs;
        packet.segments = burst_of(count as usize, item.stride as usize);
        OffloadTask::Encrypt { sequence }
    };
    hand_over(packet, count.into(), device.over(task), ctx);
}

#[inline(always)]
pub(crate) fn hand_over(
    packet: PacketBuf,
    count: u64,
    handover: OffloadOrder,
    ctx: &mut BatchContext<'_>,
) {
    ctx.traffic.count_sent(count, packet.len() as u64);
    ctx.out.offloaded.push(OffloadedPacket { packet, handover });
}

impl TxItem {
    /// Stage 7 without encryption; nothing if the device writes headers. `ident` counts outer
    /// headers.
    #[inline(never)]
    pub(crate) fn wrap_for_device(&mut self, layer: &EncapLayer, ident: &mut u32) {
        if self.sealer == Sealer::SegmentingDevice {
            return;
        }
        let inner = self.inner;
        let after = layer.after(&inner);
        self.inner = after;
        self.at -= narrow(layer.headroom());
        let around = (&inner, &after);
        let (at, first) = (self.at as usize, self.sequence);
        if self.count == 1 {
            *ident = ident.wrapping_add(1);
            let seq_id = SeqAndId { sequence: first, id: ip_id(*ident) };
            let (room, len) = (&mut self.packet.bytes_mut()[at..], self.len as usize);
            self.len = narrow(headers::wrap(room, len, layer, around, seq_id).end);
            self.last_len = self.len;
            return;
        }
        let (mut len, mut last_len) = (0, 0);
        for (k, (frame, plain)) in (0..).zip(self.frames()) {
            *ident = ident.wrapping_add(1);
            let seq_id = SeqAndId { sequence: first + k, id: ip_id(*ident) };
            last_len = headers::wrap(&mut frame[at..], plain, layer, around, seq_id).end;
            len = if k == 0 { last_len } else { len };
        }
        (self.len, self.last_len) = (narrow(len), narrow(last_len));
    }
}

impl Bundle {
    /// A packet's mark with the output marks of the bundle's SAs.
    pub(crate) fn mark(&self, mark: u32) -> u32 {
        self.layers.iter().fold(mark, |mark, layer| layer.output_mark.applied_to(mark))
    }
}

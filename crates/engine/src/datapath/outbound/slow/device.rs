//! Packets whose SA is offloaded: how they are handed over ([`crate::device::contract`] has the
//! contract).
//!
//! Mirrors `net/xfrm/xfrm_device.c: xfrm_dev_offload_ok` and `net/xfrm/xfrm_output.c: xfrm_output`:
//! crypto offload falls back to software where the device would not take a packet, packet offload
//! never does.

use uxfrm_packet::{Checksum, PacketBuf, SegmentPlan};

use super::segment::{SegmentRange, burst_of};
use crate::bundle::{Bundle, FrameLayout};
use crate::datapath::context::BatchCtx;
use crate::datapath::outbound::{Outbound, PacketSummary, TxItem};
use crate::esp::encap::{EncapLayer, InnerInfo};
use crate::esp::headers::{self, SeqAndId};
use crate::{
    Attachment, DropReason, OffloadKind, OffloadOrder, OffloadTask, OffloadedPacket, Segmentation,
};

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

impl Outbound {
    /// Stage 5 of a packet for a device.
    #[inline(never)]
    pub(in crate::datapath::outbound) fn enter_device(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        summary: &PacketSummary,
        place: u32,
        (device, ctx): (Attachment, &mut BatchCtx<'_>),
    ) {
        // The device does not fragment encapsulated packets that exceed the MTU.
        let most = self.cache.bundle(place).inner_mtu;
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= most;
        if !fits | summary.fragment | summary.options {
            return self.enter_unfit(packet, plan, summary, place, (device, ctx));
        }
        if device.kind == OffloadKind::Packet {
            return self.hand_over_plain(packet, plan, place, (device, ctx));
        }
        let cuts = device.segmentation == Segmentation::Device;
        match plan.filter(|_| cuts && self.is_single(place)) {
            Some(plan) => self.enter_unsegmented(packet, plan, summary.inner, place),
            None => self.place(packet, plan, summary.inner, (place, Sealer::Device), ctx),
        }
    }

    /// Stage 5 of a packet that the device would not take.
    #[cold]
    fn enter_unfit(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        summary: &PacketSummary,
        place: u32,
        (device, ctx): (Attachment, &mut BatchCtx<'_>),
    ) {
        let bundle = self.cache.bundle(place);
        let limit = bundle.limit(summary.inner.version);
        let count = plan.map_or(1, SegmentPlan::count);
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= limit;
        if summary.fragment && bundle.is_transport() {
            return self.discard(packet, count, DropReason::OutModeMismatch, ctx);
        }
        if !fits && summary.inner.dont_fragment {
            return self.reject_too_big(packet, plan, limit, ctx);
        }
        match device.kind {
            OffloadKind::Packet => {
                self.discard(packet, count, DropReason::OutDeviceUnfit, ctx);
            }
            OffloadKind::Crypto => {
                self.place(packet, plan, summary.inner, (place, Sealer::Engine), ctx);
            }
        }
    }

    /// Whether the bundle has one SA. Inner layers must be written before the device can segment.
    fn is_single(&self, place: u32) -> bool {
        self.cache.bundle(place).layers.len() == 1
    }

    /// A super-packet with crypto offload that the device segments: numbered and charged by
    /// segment.
    fn enter_unsegmented(
        &mut self,
        packet: PacketBuf,
        plan: &SegmentPlan,
        inner: InnerInfo,
        place: u32,
    ) {
        let count = plan.count();
        self.max_layers = self.max_layers.max(1);
        let frame = FrameLayout { prefix: 0, total: packet.len() };
        let item = TxItem::new(packet, place, frame, inner, plan.len(0));
        self.push_item(TxItem {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            last_len: crate::datapath::outbound::narrow(plan.len(count - 1)),
            sealer: Sealer::SegmentingDevice,
            ..item
        });
    }

    /// A plain packet with packet offload; a super-packet is handed over whole if the device
    /// segments.
    fn hand_over_plain(
        &mut self,
        mut packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        place: u32,
        (device, ctx): (Attachment, &mut BatchCtx<'_>),
    ) {
        let mark = self.cache.bundle(place).mark(packet.mark);
        packet.mark = mark;
        match plan {
            Some(plan) if device.segmentation == Segmentation::Engine => {
                for k in 0..plan.count() {
                    let frame = FrameLayout { prefix: 0, total: plan.len(k) };
                    match SegmentRange::one(k, frame).write(plan, &packet, ctx.pool) {
                        Some(piece) => {
                            self.hand_over(piece, 1, device.over(OffloadTask::Protect), ctx)
                        }
                        None => ctx.count_drop(&mut self.traffic, 1, DropReason::OutNoRoom),
                    }
                }
                ctx.pool.give(packet);
            }
            Some(plan) => {
                self.hand_over(packet, plan.count() as u64, device.over(OffloadTask::Protect), ctx);
            }
            None => self.hand_over(packet, 1, device.over(OffloadTask::Protect), ctx),
        }
    }

    /// Stage 10 of an item that lacks its outermost encryption, and the headers too if the device
    /// segments.
    pub(crate) fn hand_over_sealed(
        &mut self,
        item: TxItem,
        device: Attachment,
        ctx: &mut BatchCtx<'_>,
    ) {
        let (sequence, count) = (item.sequence, item.count);
        let mut packet = item.packet;
        let task = if item.sealer == Sealer::SegmentingDevice {
            OffloadTask::Segment { sequence, count }
        } else {
            packet.checksum = Checksum::AsIs;
            packet.segments = burst_of(count as usize, item.stride as usize);
            OffloadTask::Encrypt { sequence }
        };
        let over = device.over(task);
        self.hand_over(packet, count.into(), over, ctx);
    }

    #[inline(always)]
    pub(crate) fn hand_over(
        &mut self,
        packet: PacketBuf,
        count: u64,
        handover: OffloadOrder,
        ctx: &mut BatchCtx<'_>,
    ) {
        self.traffic.sent += count;
        self.traffic.sent_bytes += packet.len() as u64;
        ctx.out.offloaded.push(OffloadedPacket { packet, handover });
    }
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
        self.at -= crate::datapath::outbound::narrow(layer.headroom());
        let around = (&inner, &after);
        let (at, first) = (self.at as usize, self.sequence);
        if self.count == 1 {
            *ident = ident.wrapping_add(1);
            let seq_id = SeqAndId { sequence: first, id: crate::datapath::outbound::ip_id(*ident) };
            let (room, len) = (&mut self.packet.bytes_mut()[at..], self.len as usize);
            self.len = crate::datapath::outbound::narrow(
                headers::wrap(room, len, layer, around, seq_id).end,
            );
            self.last_len = self.len;
            return;
        }
        let (mut len, mut last_len) = (0, 0);
        for (k, (frame, plain)) in (0..).zip(self.frames()) {
            *ident = ident.wrapping_add(1);
            let seq_id =
                SeqAndId { sequence: first + k, id: crate::datapath::outbound::ip_id(*ident) };
            last_len = headers::wrap(&mut frame[at..], plain, layer, around, seq_id).end;
            len = if k == 0 { last_len } else { len };
        }
        (self.len, self.last_len) =
            (crate::datapath::outbound::narrow(len), crate::datapath::outbound::narrow(last_len));
    }
}

impl Bundle {
    /// A packet's mark with the output marks of the bundle's SAs.
    pub(crate) fn mark(&self, mark: u32) -> u32 {
        self.layers.iter().fold(mark, |mark, layer| layer.output_mark.applied_to(mark))
    }
}

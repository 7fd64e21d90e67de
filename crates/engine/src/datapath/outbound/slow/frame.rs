//! Stage 5: path MTU, and the way into a bundle.

use uxfrm_packet::{Batch, IpPacket, PacketBuf, SegmentPlan, Version};

use super::device::{Sealer, enter_unsegmented, hand_over, hand_over_plain};
use super::segment::frame_packet;
use crate::datapath::context::BatchContext;
use crate::datapath::outbound::{PacketSummary, TxBatch};
use crate::drop_log::DropSite;
use crate::esp::encap::InnerInfo;
use crate::fragments::split::fragment;
use crate::pmtu::{self, IcmpRateLimit};
use crate::{Attachment, DropReason, DropSubject, FlowKey, OffloadKind, Segmentation};

/// Stage 5.
#[derive(Debug)]
pub(crate) struct Framer {
    icmp_limit: IcmpRateLimit,
    /// Scratch: fragments of one reassembled datagram.
    fragments: Batch,
}

impl Framer {
    pub(crate) fn new() -> Self {
        Self { icmp_limit: IcmpRateLimit::new(), fragments: Batch::default() }
    }

    /// Stage 5.
    #[inline(always)]
    pub(in crate::datapath::outbound) fn enter_bundle(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        (summary, flow): (&PacketSummary, &FlowKey),
        place: u32,
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let bundle = tx.cache.bundle(place);
        if let Some(device) = bundle.device {
            if let Some(handover) = bundle.plain_handover
                && plan.is_none()
                && !(summary.fragment | summary.options)
                && packet.len() <= bundle.inner_mtu
            {
                return hand_over(packet, 1, handover, ctx);
            }
            return self.enter_device(packet, plan, summary, (place, device), tx, ctx);
        }
        let mut inner = summary.inner;
        if bundle.uses_flow_ports {
            inner.source_port = flow.source_port(&ctx.settings.source_ports);
        }
        // Transport mode needs whole datagrams (RFC 4303 §3.1.1). A fragment gets here only if the
        // policy is newer than the check in `receive_packet`.
        if summary.fragment && bundle.is_transport() {
            let count = plan.map_or(1, SegmentPlan::count);
            let known = bundle.subject();
            return ctx.discard_of(packet, count, DropReason::OutModeMismatch, known);
        }
        let len = plan.map_or(packet.len(), |plan| plan.len(0));
        let limit = bundle.limit(inner.version);
        if len <= limit || !inner.dont_fragment {
            return frame_packet(packet, plan, inner, (place, Sealer::Engine), tx, ctx);
        }
        let known = bundle.subject();
        self.reject_too_big(packet, plan, limit, known, ctx);
    }

    /// Stage 5 of a packet for a device.
    #[inline(never)]
    fn enter_device(
        &mut self,
        mut packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        summary: &PacketSummary,
        (place, device): (u32, Attachment),
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let bundle = tx.cache.bundle(place);
        // The device does not fragment encapsulated packets that exceed the MTU.
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= bundle.inner_mtu;
        if !fits | summary.fragment | summary.options {
            return self.enter_unfit(packet, plan, summary, (place, device), tx, ctx);
        }
        if device.kind == OffloadKind::Packet {
            packet.mark = bundle.mark(packet.mark);
            return hand_over_plain(packet, plan, device, ctx);
        }
        // Inner layers must be written before the device can segment.
        let cuts = device.segmentation == Segmentation::Device && bundle.layers.len() == 1;
        match plan.filter(|_| cuts) {
            Some(plan) => enter_unsegmented(packet, plan, summary.inner, place, tx),
            None => frame_packet(packet, plan, summary.inner, (place, Sealer::Device), tx, ctx),
        }
    }

    /// Stage 5 of a packet that the device would not take.
    #[cold]
    fn enter_unfit(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        summary: &PacketSummary,
        (place, device): (u32, Attachment),
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let bundle = tx.cache.bundle(place);
        let limit = bundle.limit(summary.inner.version);
        let count = plan.map_or(1, SegmentPlan::count);
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= limit;
        if summary.fragment && bundle.is_transport() {
            let known = bundle.subject();
            return ctx.discard_of(packet, count, DropReason::OutModeMismatch, known);
        }
        if !fits && summary.inner.dont_fragment {
            let known = bundle.subject();
            return self.reject_too_big(packet, plan, limit, known, ctx);
        }
        match device.kind {
            OffloadKind::Packet => {
                ctx.discard_of(packet, count, DropReason::OutDeviceUnfit, bundle.subject());
            }
            OffloadKind::Crypto => {
                frame_packet(packet, plan, summary.inner, (place, Sealer::Engine), tx, ctx);
            }
        }
    }

    /// Drops a packet and tells its sender the MTU, if the rate limit allows.
    #[cold]
    pub(crate) fn reject_too_big(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        limit: usize,
        known: DropSubject,
        ctx: &mut BatchContext<'_>,
    ) {
        if self.icmp_limit.take(ctx.now)
            && let Ok(ip) = IpPacket::parse(packet.bytes())
            && let Some(answer) = pmtu::too_big(&packet, &ip, limit, ctx.pool)
        {
            ctx.traffic.originated += 1;
            ctx.out.host.push(answer);
        }
        let count = plan.map_or(1, SegmentPlan::count);
        ctx.discard_of(packet, count, DropReason::OutTooBig, known);
    }

    /// Stage 5 of a reassembled datagram. It is encapsulated whole and fragmented outside ESP.
    /// Exception: IPv6 in a tunnel, which routers behind the tunnel may not fragment, leaves in
    /// fragments (`net/ipv6/xfrm6_output.c: __xfrm6_output`) no longer than `longest`.
    pub(in crate::datapath::outbound) fn enter_reassembled(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        (mut summary, flow): (PacketSummary, &FlowKey),
        place: u32,
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let (bundle, version) = (tx.cache.bundle(place), summary.inner.version);
        let in_pieces = version == Version::V6 && !bundle.is_transport();
        if !in_pieces || packet.len() <= longest {
            summary.inner.dont_fragment = false;
            return self.enter_bundle(packet, None, (&summary, flow), place, tx, ctx);
        }
        let mtu = longest.min(bundle.limit(version));
        let mut fragments = self.refragment(packet, mtu, &summary.inner, tx, ctx);
        // The datagram was counted once already.
        ctx.traffic.received += (fragments.len() as u64).saturating_sub(1);
        for piece in fragments.drain() {
            match PacketSummary::with_flow(&piece) {
                Some((summary, _)) => {
                    self.enter_bundle(piece, None, (&summary, flow), place, tx, ctx)
                }
                None => ctx.discard(piece, 1, DropReason::OutMalformed),
            }
        }
        self.fragments = fragments;
    }

    /// No policy applies to a reassembled datagram: it leaves in fragments as it came. Its sender
    /// may know that the path takes no longer ones (`frag_max_size` in the kernel).
    pub(crate) fn pass_fragmented(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        inner: &InnerInfo,
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) {
        let (len, mtu) = (packet.len() as u64, longest.min(ctx.settings.plain_limit()));
        if packet.len() <= mtu {
            ctx.traffic.count_sent(1, len);
            return ctx.out.wire.push(packet);
        }
        let mut fragments = self.refragment(packet, mtu, inner, tx, ctx);
        if !fragments.is_empty() {
            ctx.traffic.count_sent(1, len);
        }
        fragments.drain().for_each(|piece| ctx.out.wire.push(piece));
        self.fragments = fragments;
    }

    /// Fragments of a datagram; none if it has no payload, which counts as a drop.
    fn refragment(
        &mut self,
        packet: PacketBuf,
        mtu: usize,
        inner: &InnerInfo,
        tx: &mut TxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Batch {
        let mut fragments = std::mem::take(&mut self.fragments);
        let plan = tx.fragment_plan(inner, mtu);
        fragment(packet.bytes(), &plan, packet.mark, ctx.pool, &mut fragments);
        if fragments.is_empty() {
            ctx.note_drop(1, DropReason::OutMalformed, &DropSite::of(&packet));
        }
        ctx.pool.give(packet);
        fragments
    }
}

//! Stage 1 for fragments from the host: datagrams are reassembled before the policy look-up, where
//! some policy needs whole datagrams to match or to protect.
//!
//! The host fragments before the TUN, whereas the kernel's XFRM sees the whole datagram
//! (`net/ipv4/ip_output.c: ip_finish_output` runs after `xfrm4_output`). Only the first fragment
//! has ports, so the others would miss every policy that selects by port, and leave in plaintext.

use uxfrm_packet::{Batch, IpPacket, PacketBuf, Version};

use super::acquire_queue::Queued;
use super::verdict::Verdict;
use crate::datapath::context::BatchCtx;
use crate::datapath::outbound::{Outbound, PacketSummary};
use crate::esp::encap::InnerInfo;
use crate::fragments::origin::FragmentOrigin;
use crate::fragments::reassembly::Reassembled;
use crate::fragments::split::{FragmentPlan, fragment};
use crate::{Direction, DropReason, FlowKey, Spi};

impl Outbound {
    /// Queues a fragment; the last missing one completes the datagram.
    #[cold]
    pub(crate) fn defragment(&mut self, packet: PacketBuf, ctx: &mut BatchCtx<'_>) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, 1, DropReason::OutMalformed, ctx);
        };
        let before = self.reassembly.held();
        let (outcome, evicted) =
            self.reassembly.add(packet, &ip, &FragmentOrigin::default(), ctx.now, ctx.pool);
        self.traffic.held = self.traffic.held + self.reassembly.held() - before;
        let mut refused = evicted;
        match outcome {
            Reassembled::Held => {}
            Reassembled::Refused => refused += 1,
            Reassembled::Aborted { pieces } => refused += pieces,
            Reassembled::Whole { packet, pieces, longest, spans_rekey: _ } => {
                self.traffic.absorbed += pieces - 1;
                self.receive_reassembled(packet, longest, ctx);
            }
        }
        ctx.count_drop(&mut self.traffic, refused, DropReason::OutFragment);
    }

    /// Drops incomplete datagrams after the time-out.
    #[inline]
    pub(crate) fn expire_fragments(&mut self, ctx: &mut BatchCtx<'_>) {
        let late = self.reassembly.expire(ctx.now, ctx.pool);
        if late > 0 {
            self.traffic.held -= late;
            ctx.count_drop(&mut self.traffic, late, DropReason::OutFragment);
        }
    }

    /// Stages 2 to 5 of a reassembled datagram. It may be fragmented again, into fragments no
    /// longer than `longest`.
    fn receive_reassembled(&mut self, packet: PacketBuf, longest: usize, ctx: &mut BatchCtx<'_>) {
        let Some((summary, flow)) = PacketSummary::with_flow(&packet) else {
            return self.discard(packet, 1, DropReason::OutMalformed, ctx);
        };
        // A fragment inside a fragment is refused, as in `net/ipv6/reassembly.c: ipv6_frag_rcv`.
        if summary.fragment {
            return self.discard(packet, 1, DropReason::OutFragment, ctx);
        }
        let known = self.policies.lookup_cached(&ctx.snapshot.spd, Direction::Out, &flow, Spi(0));
        self.tally_policy(known.verdict, 1, packet.len() as u64);
        match self.decide(&flow, known, ctx) {
            Verdict::Bundle(place) => {
                self.enter_reassembled(packet, longest, (summary, &flow), place, ctx)
            }
            Verdict::Pass if summary.options && Self::routes_around_policy(&packet, &flow, ctx) => {
                self.discard(packet, 1, DropReason::OutUnprotected, ctx);
            }
            Verdict::Pass => self.pass_fragmented(packet, longest, &summary.inner, ctx),
            Verdict::Drop(reason) => self.discard(packet, 1, reason, ctx),
            Verdict::Wait => self.queue_packet(Queued::cut(packet, longest), &flow, ctx),
        }
    }

    /// Stage 5. The datagram is encapsulated whole and fragmented outside ESP. Exception: IPv6 in a
    /// tunnel, which routers behind the tunnel may not fragment, leaves in fragments
    /// (`net/ipv6/xfrm6_output.c: __xfrm6_output`).
    pub(in crate::datapath::outbound) fn enter_reassembled(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        (mut summary, flow): (PacketSummary, &FlowKey),
        place: u32,
        ctx: &mut BatchCtx<'_>,
    ) {
        let (bundle, version) = (self.cache.bundle(place), summary.inner.version);
        let in_pieces = version == Version::V6 && !bundle.is_transport();
        if !in_pieces || packet.len() <= longest {
            summary.inner.dont_fragment = false;
            return self.enter_bundle(packet, None, (&summary, flow), place, ctx);
        }
        let mtu = longest.min(bundle.limit(version));
        let mut fragments = self.refragment(packet, mtu, &summary.inner, ctx);
        // The datagram was counted once already.
        self.traffic.received += (fragments.len() as u64).saturating_sub(1);
        for piece in fragments.drain() {
            match PacketSummary::with_flow(&piece) {
                Some((summary, _)) => self.enter_bundle(piece, None, (&summary, flow), place, ctx),
                None => self.discard(piece, 1, DropReason::OutMalformed, ctx),
            }
        }
        self.refragmented = fragments;
    }

    /// No policy applies: the datagram leaves in fragments as it came. Its sender may know that the
    /// path takes no longer ones (`frag_max_size` in the kernel).
    pub(crate) fn pass_fragmented(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        inner: &InnerInfo,
        ctx: &mut BatchCtx<'_>,
    ) {
        let mtu = longest.min(ctx.settings.plain_limit());
        if packet.len() <= mtu {
            return self.pass(packet, None, ctx);
        }
        let len = packet.len() as u64;
        let mut fragments = self.refragment(packet, mtu, inner, ctx);
        if !fragments.is_empty() {
            self.traffic.sent += 1;
            self.traffic.sent_bytes += len;
        }
        fragments.drain().for_each(|piece| ctx.out.wire.push(piece));
        self.refragmented = fragments;
    }

    /// Fragments of a datagram; none if it has no payload, which counts as a drop.
    fn refragment(
        &mut self,
        packet: PacketBuf,
        mtu: usize,
        inner: &InnerInfo,
        ctx: &mut BatchCtx<'_>,
    ) -> Batch {
        let mut fragments = std::mem::take(&mut self.refragmented);
        self.ident = self.ident.wrapping_add(1);
        let (place, next_header_at) = (inner.esp_offset(), inner.next_header_at());
        let plan =
            FragmentPlan { version: inner.version, place, next_header_at, mtu, ident: self.ident };
        fragment(packet.bytes(), &plan, packet.mark, ctx.pool, &mut fragments);
        if fragments.is_empty() {
            ctx.count_drop(&mut self.traffic, 1, DropReason::OutMalformed);
        }
        ctx.pool.give(packet);
        fragments
    }
}

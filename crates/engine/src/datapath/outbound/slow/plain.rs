//! Stage 5 of packets that leave in plaintext: segmented or fragmented, as the network needs it.

use uxfrm_packet::{IpPacket, PacketBuf, SegmentPlan};

use super::frame::Framer;
use super::segment::{SegmentRange, pass_segments};
use crate::bundle::FrameLayout;
use crate::datapath::context::BatchContext;
use crate::datapath::outbound::TxBatch;
use crate::drop_log::DropSite;
use crate::esp::encap::InnerInfo;
use crate::{DropReason, DropSubject};

/// A packet that leaves in plaintext; a super-packet is segmented all the same.
pub(crate) fn pass(
    packet: PacketBuf,
    plan: Option<&SegmentPlan>,
    framer: &mut Framer,
    tx: &mut TxBatch,
    ctx: &mut BatchContext<'_>,
) {
    let longest = plan.map_or(packet.len(), |plan| plan.len(0));
    if longest > ctx.settings.plain_limit() {
        return pass_too_big(packet, plan, framer, tx, ctx);
    }
    match plan {
        Some(plan) => pass_segments(packet, plan, ctx),
        None => {
            ctx.traffic.count_sent(1, packet.len() as u64);
            ctx.out.wire.push(packet);
        }
    }
}

/// A plain packet above the network's MTU: its sender is told, or it is fragmented
/// (`net/ipv4/ip_output.c: ip_fragment`).
#[cold]
fn pass_too_big(
    packet: PacketBuf,
    plan: Option<&SegmentPlan>,
    framer: &mut Framer,
    tx: &mut TxBatch,
    ctx: &mut BatchContext<'_>,
) {
    let limit = ctx.settings.plain_limit();
    let Ok(ip) = IpPacket::parse(packet.bytes()) else {
        let count = plan.map_or(1, SegmentPlan::count);
        return ctx.discard(packet, count, DropReason::OutMalformed);
    };
    let inner = InnerInfo::of(&ip);
    match plan {
        _ if ip.dont_fragment => {
            framer.reject_too_big(packet, plan, limit, DropSubject::NOBODY, ctx)
        }
        None => framer.pass_fragmented(packet, limit, &inner, tx, ctx),
        Some(plan) => {
            for k in 0..plan.count() {
                let frame = FrameLayout { prefix: 0, total: plan.len(k) };
                match SegmentRange::one(k, frame).write(plan, &packet, ctx.pool) {
                    Some(segment) => framer.pass_fragmented(segment, limit, &inner, tx, ctx),
                    None => ctx.note_drop(1, DropReason::OutNoRoom, &DropSite::of(&packet)),
                }
            }
            ctx.pool.give(packet);
        }
    }
}

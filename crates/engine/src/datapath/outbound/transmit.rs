//! Stage 10: packets leave in the form that the wire port wants.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Segments, UdpPath, Version, ipv4, ipv6, udp};

use super::slow::device::{Sealer, hand_over_sealed};
use super::slow::segment::burst_of;
use super::{TxBatch, TxItem};
use crate::Mark;
use crate::bundle::Bundle;
use crate::datapath::context::BatchContext;
use crate::esp::encap::{EncapLayer, EncapMode, InnerInfo, OuterForm};
use crate::fragments::split::fragment;

/// Stage 10.
#[inline(always)]
pub(super) fn transmit(tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
    let mut items = std::mem::take(&mut tx.items);
    // Consecutive items often have the same bundle.
    let mut latest: Option<(u32, Option<Mark>, u32)> = None;
    for item in items.drain(..) {
        let (mark, mtu) = match latest {
            Some((bundle, mark, mtu)) if bundle == item.bundle => (mark, mtu),
            Some(_) | None => {
                let bundle = tx.cache.bundle(item.bundle);
                let (mark, mtu) = (bundle.single_mark(), bundle.mtu.into());
                latest = Some((item.bundle, mark, mtu));
                (mark, mtu)
            }
        };
        match mark {
            Some(mark) if item.is_single() && item.stride <= mtu => {
                send_unsegmented(item.packet, mark, ctx);
            }
            Some(_) | None if item.count == 0 => ctx.pool.give(item.packet),
            Some(_) | None => send(item, tx, ctx),
        }
    }
    tx.items = items;
}

/// A whole packet within the MTU.
#[inline(always)]
fn send_unsegmented(mut packet: PacketBuf, mark: Mark, ctx: &mut BatchContext<'_>) {
    packet.mark = mark.applied_to(packet.mark);
    packet.checksum = Checksum::AsIs;
    packet.segments = Segments::One;
    ctx.traffic.count_sent(1, packet.len() as u64);
    ctx.out.wire.push(packet);
}

#[inline(never)]
fn send(mut item: TxItem, tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
    let bundle = tx.cache.bundle(item.bundle);
    // No layer: the packet is still plain.
    let Some(last) = bundle.layers.last() else { return ctx.pool.give(item.packet) };
    for layer in &bundle.layers {
        item.packet.mark = layer.output_mark.applied_to(item.packet.mark);
    }
    if let (Sealer::Device | Sealer::SegmentingDevice, Some(device)) = (item.sealer, bundle.device)
    {
        return hand_over_sealed(item, device, ctx);
    }
    item.packet.checksum = Checksum::AsIs;
    item.packet.segments = burst_of(item.count as usize, item.stride as usize);
    ctx.traffic.sent += u64::from(item.count);
    let (inner, mtu) = (item.inner, bundle.mtu);
    let packet = match last.outside {
        OuterForm::SocketPayload => payload(item, last, mtu),
        OuterForm::Packet => {
            // Only the last frame may be shorter than the stride.
            if item.stride <= u32::from(mtu) {
                ctx.traffic.sent_bytes += item.packet.len() as u64;
                return ctx.out.wire.push(item.packet);
            }
            item.packet
        }
    };
    ctx.traffic.sent_bytes += packet.len() as u64;
    if packet.udp.is_some() || segment_len(&packet) <= mtu.into() {
        return ctx.out.wire.push(packet);
    }
    send_fragmented(packet, &inner, mtu, tx, ctx);
}

/// Fragments packets that exceed the MTU and whose senders may not be told.
fn send_fragmented(
    packet: PacketBuf,
    inner: &InnerInfo,
    mtu: u16,
    tx: &mut TxBatch,
    ctx: &mut BatchContext<'_>,
) {
    for whole in packet.bytes().chunks(segment_len(&packet)) {
        let plan = tx.fragment_plan(inner, mtu.into());
        fragment(whole, &plan, packet.mark, ctx.pool, &mut ctx.out.wire);
    }
    ctx.pool.give(packet);
}

impl Bundle {
    /// The output mark, if the bundle has one SA and whole packets leave; otherwise `None`.
    fn single_mark(&self) -> Option<Mark> {
        match &*self.layers {
            [only] if only.outside == OuterForm::Packet => Some(only.output_mark),
            _ => None,
        }
    }
}

impl TxItem {
    #[inline(always)]
    fn is_single(&self) -> bool {
        self.count == 1 && self.sealer == Sealer::Engine
    }
}

fn segment_len(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::Burst { stride } => stride.into(),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
    }
}

/// Placeholder for addresses that are not needed.
const UNKNOWN: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// UDP payload for a socket: removes the IP header, which transport mode still has. A packet that
/// exceeds the MTU but was let in, as its sender may not be told (RFC 8200 §5), is fragmented by
/// the kernel.
#[inline(never)]
fn payload(mut item: TxItem, layer: &EncapLayer, mtu: u16) -> PacketBuf {
    let ends = match layer.wrap {
        // Transport mode keeps the packet's own addresses.
        EncapMode::Transport => {
            IpPacket::parse(item.packet.bytes()).map_or(UNKNOWN, |ip| (ip.source, ip.destination))
        }
        EncapMode::Tunnel(_) => UNKNOWN,
    };
    let clear_len = layer.clear_len(&item.inner);
    if item.count > 1 && clear_len > 0 {
        remove_headers(&mut item, clear_len);
    } else {
        item.packet.pull(clear_len);
    }
    let datagram =
        item.stride as usize - clear_len + udp::HEADER_LEN + header_len(item.inner.version);
    item.packet.udp = layer.udp_path(&item.inner, ends).map(|path| UdpPath {
        dont_fragment: path.dont_fragment && datagram <= mtu.into(),
        ..path
    });
    item.packet
}

/// Bytes of the header that the kernel writes.
const fn header_len(version: Version) -> usize {
    match version {
        Version::V4 => ipv4::HEADER_LEN,
        Version::V6 => ipv6::HEADER_LEN,
    }
}

/// Removes the first `clear_len` bytes of every frame.
fn remove_headers(item: &mut TxItem, clear_len: usize) {
    let (stride, len) = (item.stride as usize, item.packet.len());
    let bytes = item.packet.bytes_mut();
    let mut end = 0;
    for start in (0..len).step_by(stride) {
        let frame = (start + stride).min(len);
        bytes.copy_within(start + clear_len..frame, end);
        end += frame - start - clear_len;
    }
    item.packet.trim(end);
    item.packet.segments = burst_of(item.count as usize, stride - clear_len);
}

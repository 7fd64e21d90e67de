//! Splits buffers of several packets, and makes room around a packet.

use uxfrm_packet::{PacketBuf, Pool, SegmentPlan, Segments, SizeClass};

/// Number of packets in a buffer, or to be segmented into.
pub(super) fn count(packet: &PacketBuf) -> u64 {
    let packets = match packet.segments {
        Segments::One => 1,
        Segments::Burst { stride } => packet.len().div_ceil(usize::from(stride).max(1)).max(1),
        Segments::Tcp { .. } | Segments::Udp { .. } => {
            SegmentPlan::new(packet).map_or(1, |plan| plan.count())
        }
    };
    packets as u64
}

/// Bytes between frames in a buffer.
pub(super) fn stride(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::Burst { stride } if stride > 0 => stride.into(),
        Segments::Burst { .. } | Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
            packet.len().max(1)
        }
    }
}

/// Segment `k` of a super-packet in its own buffer; `None` if it cannot be written.
pub(super) fn cut(
    plan: &SegmentPlan,
    k: usize,
    source: &PacketBuf,
    pool: &mut Pool,
) -> Option<PacketBuf> {
    let len = plan.len(k);
    let mut segment = pool.take(SizeClass::holding(len));
    (segment.mark, segment.if_id) = (source.mark, source.if_id);
    let room = segment.append(len);
    match room.and_then(|room| plan.write(k, source.bytes(), room)) {
        Some(_) => Some(segment),
        None => {
            pool.give(segment);
            None
        }
    }
}

/// The packet with `before` bytes in front and `behind` bytes after it: in place if there is room,
/// else in a larger buffer; gives it back if that fails too.
pub(super) fn with_room(
    mut packet: PacketBuf,
    before: usize,
    behind: usize,
    pool: &mut Pool,
) -> Result<PacketBuf, PacketBuf> {
    if packet.headroom() >= before && packet.tailroom() >= behind {
        packet.push(before);
        packet.append(behind);
        return Ok(packet);
    }
    let mut larger = pool.take(SizeClass::Super);
    larger.inherit(&packet);
    let Some(room) = larger.append(before + packet.len() + behind) else {
        pool.give(larger);
        return Err(packet);
    };
    room[before..before + packet.len()].copy_from_slice(packet.bytes());
    pool.give(packet);
    Ok(larger)
}

/// The packets of a burst, each in its own buffer; other packets unchanged.
pub(super) fn split_burst(
    packet: PacketBuf,
    pool: &mut Pool,
) -> impl Iterator<Item = PacketBuf> + use<> {
    let (whole, parts) = match packet.segments {
        Segments::Burst { .. } => (None, take_apart(packet, pool)),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => (Some(packet), Vec::new()),
    };
    whole.into_iter().chain(parts)
}

fn take_apart(burst: PacketBuf, pool: &mut Pool) -> Vec<PacketBuf> {
    let mut parts = Vec::new();
    for bytes in burst.bytes().chunks(stride(&burst)) {
        let mut own = pool.take(SizeClass::holding(bytes.len()));
        own.inherit(&burst);
        own.segments = Segments::One;
        // Both buffer classes hold parts of their own buffers.
        if let Some(room) = own.append(bytes.len()) {
            room.copy_from_slice(bytes);
        }
        parts.push(own);
    }
    pool.give(burst);
    parts
}

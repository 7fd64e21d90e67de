//! Stage 7: from the opened ESP packet to the IP packet, the inner one in tunnel mode, the restored
//! one in transport mode.

use std::net::IpAddr;

use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, SizeClass, UdpPath, Version};
use zerocopy::IntoBytes;

use super::parse_outer;
use crate::datapath::context::BatchContext;
use crate::datapath::inbound::rx_cache::{EspFraming, RxTally};
use crate::datapath::inbound::{Fate, RxBatch, SealedEsp, narrow};
use crate::esp::decap::{self, EspPayload, OuterHeader};
use crate::{DropReason, Event, Mode};

/// Whether a next header is an IP packet in tunnel mode.
pub(crate) const fn is_ip(next_header: Protocol) -> bool {
    matches!(next_header, Protocol::IPIP | Protocol::IPV6)
}

/// Stage 7: removes ESP and outer headers, and counts what the SA carried.
#[inline(never)]
pub(in crate::datapath::inbound) fn strip(
    packet: &mut SealedEsp,
    tally: &mut RxTally,
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let framing = &tally.framing;
    let buffer = rx.buffers[packet.buffer as usize].as_ref().ok_or(DropReason::InRunt)?;
    // The crypto library refused packets shorter than this.
    let (at, end) = (packet.at + framing.header_iv_len, packet.at + packet.len - framing.icv);
    let text = buffer.bytes().get(at as usize..end as usize).ok_or(DropReason::InRunt)?;
    let stripped = decap::strip(text)?;
    if framing.mode == Mode::Tunnel && !is_ip(stripped.next_header) {
        return Err(DropReason::InModeMismatch);
    }
    let len = narrow(stripped.len);
    packet.carried = Some(len);
    tally.packets += 1;
    tally.bytes += u64::from(len);
    match framing.mode {
        Mode::Tunnel => {
            let item = &mut rx.items[packet.item as usize];
            (item.start, item.len) = (at, len);
            item.mark = framing.output_mark.applied_to(item.mark);
            item.path.push(packet.entry);
            let inner = (buffer, &text[..stripped.len]);
            let announced = stripped.next_header;
            let (lookups, state) = (&mut rx.lookups, (&mut rx.rx_cache, packet.entry));
            match decap::check_tunnelled_ipv4(inner.1, announced, packet.tos, framing.flags) {
                Some(ip) => Ok(lookups.queue_inner(item, &ip, inner, state, ctx.settings)),
                None => decap_tunnel_v6(packet, announced, framing, rx, ctx),
            }
        }
        Mode::Transport => decap_transport(packet, at as usize, stripped, framing, rx, ctx),
        Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
            Err(DropReason::InModeMismatch)
        }
    }
}

/// Raises mapping events for accepted packets with a new UDP source.
#[cold]
pub(in crate::datapath::inbound) fn report_nat_remaps(
    sealed: &[SealedEsp],
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) {
    for (item, from) in rx.nat_remaps.drain(..) {
        let verified = |packet: &&SealedEsp| packet.item == item && packet.carried.is_some();
        if let Some(packet) = sealed.iter().find(verified) {
            let state = rx.rx_cache[packet.entry as usize].sa.id();
            ctx.push_event(Event::Mapping { state, from });
        }
    }
}

/// Inner packet of a tunnel that is not IPv4 without options: plain, unless it may contain more
/// ESP. TFC padding is beyond its own length.
#[inline(never)]
fn decap_tunnel_v6(
    packet: &SealedEsp,
    announced: Protocol,
    framing: &EspFraming,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let item = &mut rx.items[packet.item as usize];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InInnerMalformed);
    };
    let inner = (buffer, item.bytes(buffer));
    match decap::check_tunnelled_ipv6(inner.1, announced, packet.tos, framing.flags) {
        Some(ip) => {
            let state = (&mut rx.rx_cache, packet.entry);
            Ok(rx.lookups.queue_inner(item, &ip, inner, state, ctx.settings))
        }
        None => decap_tunnel_slow(packet, announced, framing, rx, ctx),
    }
}

/// Like [`decap_tunnel_v6`], with a full parse.
#[inline(never)]
fn decap_tunnel_slow(
    packet: &SealedEsp,
    announced: Protocol,
    framing: &EspFraming,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let item = &mut rx.items[packet.item as usize];
    let Some(buffer) = &mut rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InInnerMalformed);
    };
    let bytes = item.bytes_mut(buffer);
    let ip = decap::check_tunnelled(bytes, announced, packet.tos, framing.flags)?;
    if ip.version == Version::V4 && !parse_outer::checksum_is_right(bytes) {
        return Err(DropReason::InInnerChecksum);
    }
    let inner = (&*buffer, item.bytes(buffer));
    let state = (&mut rx.rx_cache, packet.entry);
    Ok(rx.lookups.queue_inner(item, &ip, inner, state, ctx.settings))
}

#[inline(never)]
fn decap_transport(
    packet: &SealedEsp,
    text_at: usize,
    stripped: EspPayload,
    framing: &EspFraming,
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) -> Result<Fate, DropReason> {
    match packet.params.outer_hdr {
        Some(outer_hdr) => restore_header(packet, outer_hdr, text_at, stripped, rx)?,
        None => rebuild_packet(packet, text_at, stripped, rx, ctx)?,
    }
    if packet.params.in_udp {
        rewrite_checksum(packet, rx)?;
    }
    let item = &mut rx.items[packet.item as usize];
    item.mark = framing.output_mark.applied_to(item.mark);
    item.path.push(packet.entry);
    let Some(buffer) = &rx.buffers[item.buffer as usize] else { return Ok(Fate::New) };
    let inner = (buffer, item.bytes(buffer));
    let (lookups, state) = (&mut rx.lookups, (&mut rx.rx_cache, packet.entry));
    let templates = state.0.templates_mut(packet.entry);
    if let Some((lookup, len)) =
        templates.and_then(|templates| templates.lookup(item.mark, framing.spi, inner, lookups))
    {
        item.len = narrow(len);
        return Ok(Fate::Plain(lookup));
    }
    match IpPacket::parse_fixed(inner.1) {
        // Its header checksum was just written.
        Some(ip) => Ok(lookups.queue_inner(item, &ip, inner, state, ctx.settings)),
        None => classify_restored(packet, rx, ctx),
    }
}

/// A packet restored from transport mode that is not IPv4 without options: plain, unless it may
/// contain more ESP.
#[inline(never)]
fn classify_restored(
    packet: &SealedEsp,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let item = &mut rx.items[packet.item as usize];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else { return Ok(Fate::New) };
    let inner = (buffer, item.bytes(buffer));
    if let Some(ip) = IpPacket::parse_fixed_v6(inner.1) {
        let state = (&mut rx.rx_cache, packet.entry);
        return Ok(rx.lookups.queue_inner(item, &ip, inner, state, ctx.settings));
    }
    IpPacket::parse(inner.1).map_err(|_| DropReason::InInnerMalformed)?;
    Ok(Fate::New)
}

/// A NAT may have changed the addresses of ESP in UDP.
#[inline(never)]
fn rewrite_checksum(packet: &SealedEsp, rx: &mut RxBatch) -> Result<(), DropReason> {
    let item = &mut rx.items[packet.item as usize];
    let Some(buffer) = &mut rx.buffers[item.buffer as usize] else { return Ok(()) };
    let bytes = item.bytes_mut(buffer);
    let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InInnerMalformed)?;
    if decap::rewrite_checksum(bytes, &ip) {
        item.checksum_verified = true;
    }
    Ok(())
}

/// Moves the packet's own header to its payload.
fn restore_header(
    packet: &SealedEsp,
    outer_hdr: OuterHeader,
    text_at: usize,
    stripped: EspPayload,
    rx: &mut RxBatch,
) -> Result<(), DropReason> {
    let item = &mut rx.items[packet.item as usize];
    let Some(buffer) = &mut rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InInnerMalformed);
    };
    let old = item.start as usize;
    let until = text_at + stripped.len;
    let new = decap::restore(&mut buffer.bytes_mut()[old..until], outer_hdr, stripped);
    (item.start, item.len) = (narrow(old + new), narrow(until - old - new));
    Ok(())
}

/// Writes a new header, in a new buffer, for a packet from a socket.
fn rebuild_packet(
    packet: &SealedEsp,
    text_at: usize,
    stripped: EspPayload,
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) -> Result<(), DropReason> {
    let item = &rx.items[packet.item as usize];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InInnerMalformed);
    };
    // Only packets from a socket have no header.
    let Some(path) = buffer.udp else { return Err(DropReason::InInnerMalformed) };
    let payload = &buffer.bytes()[text_at..text_at + stripped.len];
    let mut whole = ctx.pool.take(SizeClass::holding(payload.len() + 40));
    (whole.mark, whole.if_id) = (buffer.mark, buffer.if_id);
    write_rebuilt(&mut whole, &path, stripped.next_header, payload)?;
    rx.move_to_new_buffer(packet.item as usize, whole);
    Ok(())
}

fn write_rebuilt(
    whole: &mut PacketBuf,
    path: &UdpPath,
    protocol: Protocol,
    payload: &[u8],
) -> Result<(), DropReason> {
    let malformed = |_| DropReason::InInnerMalformed;
    let mut write = |header: &[u8]| {
        let bytes =
            whole.append(header.len() + payload.len()).ok_or(DropReason::InInnerMalformed)?;
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..].copy_from_slice(payload);
        Ok(())
    };
    match (path.remote.ip(), path.local.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = u16::try_from(payload.len() + 20).map_err(malformed)?;
            let mut header = Ipv4Header::new(source, destination, protocol, len);
            header.tos = path.tos;
            // The sender's identification and DF are lost. The packet has arrived, so DF does no
            // harm, and it declares the identification meaningless (RFC 6864 §4.1).
            header.flags_fragment = ipv4::DONT_FRAGMENT.into();
            header.fill_checksum();
            write(header.as_bytes())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let len = u16::try_from(payload.len()).map_err(malformed)?;
            let mut header = Ipv6Header::new(source, destination, protocol, len);
            header.set_traffic_class(path.tos);
            write(header.as_bytes())
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            Err(DropReason::InInnerMalformed)
        }
    }
}

//! Writes headers, padding and trailer around one packet, in the room reserved for them.

use std::ops::Range;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Protocol, Version, esp, ipv4};
use zerocopy::{FromBytes, IntoBytes};

use super::encap::{
    EncapLayer, EncapMode, InnerInfo, OuterForm, TunnelHeader, UdpTemplate, ip_in_ip,
};
use super::encap_layout::TunnelHeaders;
use crate::Spi;

/// The values that differ from packet to packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeqAndId {
    /// Sequence number, all 64 bits.
    pub(crate) sequence: u64,
    /// Identification of an outer IPv4 header without DF.
    pub(crate) id: u16,
}

/// Writes one layer around the packet of `len` bytes at offset [`EncapLayer::headroom`] of `room`,
/// except for encryption and the UDP checksum over IPv6. Returns the range to seal: from the SPI to
/// the end of the ICV, which ends the packet.
///
/// The pair of properties is that of the packet and that [after](EncapLayer::after) this layer.
/// Behind the packet there must be room for the rest of [`EncapLayer::sealed_len`], as in a frame
/// for the whole bundle.
#[inline(always)]
pub(crate) fn wrap(
    room: &mut [u8],
    len: usize,
    layer: &EncapLayer,
    (inner, after): (&InnerInfo, &InnerInfo),
    seq_id: SeqAndId,
) -> Range<usize> {
    let (at, clear_len) = (layer.headroom(), layer.clear_len(inner));
    let esp_at = at + clear_len - layer.esp_header_len();
    let next_header = match layer.wrap {
        EncapMode::Transport => Protocol(room[at + inner.next_header_at()]),
        EncapMode::Tunnel(_) => ip_in_ip(inner.version),
    };
    let end = write_trailer(room, at + clear_len, len - clear_len, layer, next_header);
    let packet = &mut room[..end];
    if clear_len > 0 {
        move_header(packet, at..at + clear_len, 0);
    }
    write_esp_header(&mut packet[esp_at..], layer, seq_id);
    match layer.outside {
        OuterForm::Packet => write_outside(packet, layer, (inner, after), esp_at, seq_id),
        OuterForm::SocketPayload => {
            let marker = layer.marker();
            packet[esp_at - marker.len()..esp_at].copy_from_slice(marker);
        }
    }
    esp_at..end
}

/// Writes the UDP checksum, which IPv6 requires and which covers sealed bytes. Does nothing without
/// UDP or over IPv4.
pub(crate) fn finish(packet: &mut [u8], layer: &EncapLayer, after: &InnerInfo) {
    if !layer.needs_finish() || after.version == Version::V4 {
        return;
    }
    let at = after.esp_offset();
    let pseudo = Sum::of(&packet[ipv6::ADDRESSES]).plus_u16(Protocol::UDP.0.into());
    fill_checksum(packet, at, pseudo);
}

/// Constant part of the pseudo-header sum for a layer's UDP datagrams over IPv6; `None` for other
/// layers.
pub(crate) fn pseudo_header(layer: &EncapLayer) -> Option<Sum> {
    match layer.tunnel_headers() {
        Some(TunnelHeaders::V6(template, Some(_))) => {
            let addresses = Sum::of(&template.as_bytes()[ipv6::ADDRESSES]);
            Some(addresses.plus_u16(Protocol::UDP.0.into()))
        }
        Some(TunnelHeaders::V4(..) | TunnelHeaders::V6(_, None) | TunnelHeaders::Socket(_))
        | None => None,
    }
}

/// Writes the checksum of the datagram from offset `at` to the end of the packet; `pseudo` is its
/// pseudo-header sum without the length.
#[inline]
pub(crate) fn fill_checksum(packet: &mut [u8], at: usize, pseudo: Sum) {
    let Some(datagram) = packet.get_mut(at..) else { return };
    let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
    let checksum = pseudo.plus_u32(len).plus_bytes(datagram).nonzero_checksum();
    if let Some(field) = datagram.get_mut(6..8) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The longest padding (RFC 4303 §2.4) of one wide store.
pub(super) const PADDING: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Writes TFC padding, padding 1, 2, 3 …, its length and next header. Returns the end of the ICV
/// behind them.
#[inline(always)]
fn write_trailer(
    slot: &mut [u8],
    text: usize,
    len: usize,
    layer: &EncapLayer,
    inner: Protocol,
) -> usize {
    let padded = layer.padded(len);
    let padding = layer.padding(padded);
    if padded > len {
        slot[text + len..text + padded].fill(0);
    }
    let behind = &mut slot[text + padded..];
    // Excess padding is overwritten by trailer and ICV, or by the next layer.
    match behind.first_chunk_mut() {
        // An integer, lest the compiler turn both branches into one call.
        Some(wide) => *wide = u128::from_ne_bytes(PADDING).to_ne_bytes(),
        None => write_padding(&mut behind[..padding]),
    }
    let trailer = [low_byte(padding), inner.0];
    behind[padding..padding + esp::TRAILER_LEN].copy_from_slice(&trailer);
    text + padded + padding + esp::TRAILER_LEN + layer.icv_len()
}

/// For when there is no room for a wide store.
#[cold]
fn write_padding(slot: &mut [u8]) {
    slot.copy_from_slice(&PADDING[..slot.len()]);
}

/// Moves the packet's own header in transport mode; mostly one without options.
#[inline(always)]
pub(crate) fn move_header(packet: &mut [u8], header: Range<usize>, to: usize) {
    // By words, lest the compiler emit one call for all lengths.
    fn by<const WORDS: usize>(packet: &mut [u8], from: usize, to: usize) -> bool {
        let header = packet[from..].as_chunks().0.first_chunk::<WORDS>();
        let Some(words) = header.map(|header| header.map(u32::from_ne_bytes)) else { return false };
        let Some(place) = packet[to..].as_chunks_mut().0.first_chunk_mut::<WORDS>() else {
            return false;
        };
        *place = words.map(u32::to_ne_bytes);
        true
    }
    let moved = match header.len() {
        ipv4::HEADER_LEN => by::<{ ipv4::HEADER_LEN / 4 }>(packet, header.start, to),
        ipv6::HEADER_LEN => by::<{ ipv6::HEADER_LEN / 4 }>(packet, header.start, to),
        _ => false,
    };
    if !moved {
        packet.copy_within(header, to);
    }
}

#[inline(always)]
fn write_esp_header(slot: &mut [u8], layer: &EncapLayer, seq_id: SeqAndId) {
    slot[..esp::HEADER_LEN].copy_from_slice(&esp_header(layer.layout.spi, seq_id));
}

/// SPI and sequence number in one word.
#[inline(always)]
pub(super) fn esp_header(spi: Spi, seq_id: SeqAndId) -> [u8; esp::HEADER_LEN] {
    (u64::from(spi.0) << 32 | u64::from(low_word(seq_id.sequence))).to_be_bytes()
}

/// Writes IP and UDP headers of a whole packet whose ESP begins at `esp_at`.
#[inline(always)]
fn write_outside(
    packet: &mut [u8],
    layer: &EncapLayer,
    (inner, after): (&InnerInfo, &InnerInfo),
    esp_at: usize,
    seq_id: SeqAndId,
) {
    match &layer.wrap {
        EncapMode::Transport => {
            let protocol = if layer.udp.is_some() { Protocol::UDP } else { Protocol::ESP };
            renew_header(packet, inner.version, inner.next_header_at(), protocol);
        }
        EncapMode::Tunnel(outer) => write_outer(packet, outer, after, seq_id),
    }
    if let Some(shape) = &layer.udp {
        let at = esp_at - usize::from(shape.marker_len) - udp::HEADER_LEN;
        let (before, esp) = packet.split_at_mut(esp_at);
        let port = shape.uses_flow_ports.then_some(after.source_port);
        write_udp(&mut before[at..], shape, esp.len(), port);
    }
}

/// Writes UDP and its marker before `esp_len` bytes of ESP, with another source port if given.
#[inline(always)]
pub(super) fn write_udp(room: &mut [u8], shape: &UdpTemplate, esp_len: usize, port: Option<u16>) {
    let length = low_half(room.len() + esp_len);
    let header = UdpHeader { length: length.into(), ..shape.header };
    let header = UdpHeader { source: port.map_or(header.source, Into::into), ..header };
    room[..udp::HEADER_LEN].copy_from_slice(header.as_bytes());
    if shape.marker_len > 0 {
        room[udp::HEADER_LEN..].copy_from_slice(shape.kind.properties().marker);
    }
}

/// Updates length and protocol in the packet's own header.
#[inline]
pub(crate) fn renew_header(
    packet: &mut [u8],
    version: Version,
    next_header_at: usize,
    protocol: Protocol,
) {
    match version {
        Version::V4 => {
            // The header was parsed on receipt; it is complete.
            let _ = ipv4::set_len_and_protocol(packet, protocol);
        }
        Version::V6 => {
            packet[next_header_at] = protocol.0;
            let len = low_half(packet.len() - ipv6::HEADER_LEN);
            packet[4..6].copy_from_slice(&len.to_be_bytes());
        }
    }
}

#[inline(always)]
fn write_outer(packet: &mut [u8], outer: &TunnelHeader, after: &InnerInfo, seq_id: SeqAndId) {
    match outer {
        TunnelHeader::V4(template, sum) => {
            let len = low_half(packet.len());
            // The frame has room for its header.
            let Some(header) = packet.first_chunk_mut() else { return };
            let Some(end) = end_of(template) else { return };
            *header = outer_v4((end, *sum), after, len, seq_id.id);
        }
        TunnelHeader::V6(template) => {
            let len = low_half(packet.len() - ipv6::HEADER_LEN);
            let Some(header) = packet.first_chunk_mut() else { return };
            *header = outer_v6(template, after, len);
        }
    }
}

/// The constant part of a tunnel's IPv4 header after version and length: from TTL on, with checksum
/// 0.
pub(crate) type Ipv4HeaderTail = [u8; 12];

/// Constant part of a complete header.
#[inline(always)]
pub(crate) fn end_of(template: &Ipv4Header) -> Option<&Ipv4HeaderTail> {
    template.as_bytes().last_chunk()
}

/// Checksum of all constant fields of a header, for callers that have no room to store it.
#[inline(always)]
pub(crate) fn sum_of(end: &Ipv4HeaderTail) -> Sum {
    let (words, _) = end.as_chunks::<4>();
    let version = u32::from(ipv4::WITHOUT_OPTIONS) << 24;
    words
        .iter()
        .fold(Sum::ZERO.plus_u32(version), |sum, word| sum.plus_u32(u32::from_be_bytes(*word)))
}

/// Assembles the header in words, each written once; the checksum builds on the sum of the constant
/// fields.
#[inline(always)]
pub(crate) fn outer_v4(
    (end, sum): (&Ipv4HeaderTail, Sum),
    after: &InnerInfo,
    len: u16,
    id: u16,
) -> [u8; ipv4::HEADER_LEN] {
    let first = u32::from(after.tos) << 16 | u32::from(len);
    let second =
        if after.dont_fragment { u32::from(ipv4::DONT_FRAGMENT) } else { u32::from(id) << 16 };
    let checksum = sum.plus_u32(first).plus_u32(second).checksum();
    let words = u64::from(first | 0x45 << 24) << 32 | u64::from(second);
    let mut header = [0; ipv4::HEADER_LEN];
    header[..8].copy_from_slice(&words.to_be_bytes());
    header[8..].copy_from_slice(end);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

#[inline(always)]
pub(crate) fn outer_v6(
    template: &Ipv6Header,
    after: &InnerInfo,
    len: u16,
) -> [u8; ipv6::HEADER_LEN] {
    let mut header: [u8; ipv6::HEADER_LEN] = zerocopy::transmute!(*template);
    let first = 6 << 28 | u32::from(after.tos) << 20 | after.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header
}

/// Sets the TOS byte of an inner packet after decapsulation.
pub(crate) fn set_tos(packet: &mut [u8], version: Version, tos: u8) {
    match version {
        Version::V4 => {
            packet[1] = tos;
            // Parsed already: the header is complete.
            let _ = ipv4::fill_checksum(packet);
        }
        Version::V6 => {
            if let Ok((header, _)) = Ipv6Header::mut_from_prefix(packet) {
                header.set_traffic_class(tos);
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "padding is below the alignment, 16 at the most"
)]
pub(super) fn low_byte(padding: usize) -> u8 {
    padding as u8
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what the packet carries")]
fn low_word(sequence: u64) -> u32 {
    sequence as u32
}

/// A packet's length; longer frames than 65,535 bytes are refused before they are built.
pub(super) fn low_half(len: usize) -> u16 {
    debug_assert!(len <= usize::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "Frame::of keeps packets below 64 KiB")]
    let narrow = len as u16;
    narrow
}

//! Headers, padding and trailer around one packet, in the room that was kept for them.

use std::ops::Range;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Protocol, Version, esp, ipv4};
use zerocopy::{FromBytes, IntoBytes};

use super::encap::{Inside, Layer, Outer, Outside, UdpShape, Wrap, ip_in_ip};
use super::encap_layout::Headers;
use crate::Spi;

/// What is different in each packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The sequence number, all 64 bits.
    pub(crate) sequence: u64,
    /// Identification of an outer IPv4 header without DF.
    pub(crate) id: u16,
}

/// Puts one layer around the packet of `len` bytes that lies [`Layer::front`] bytes into `room`, but for the encryption and UDP's checksum over
/// IPv6. Says what is to be sealed: from SPI to the end of the ICV, with which the packet ends.
///
/// What is inside is what the layer is put around, and what the next layer sees ([`Layer::after`]). The room must have the rest of [`Layer::sealed_len`] behind the packet, as the frame that was made for the whole bundle has.
#[inline(always)]
pub(crate) fn wrap(
    room: &mut [u8],
    len: usize,
    layer: &Layer,
    (inside, after): (&Inside, &Inside),
    stamp: Stamp,
) -> Range<usize> {
    let (at, kept) = (layer.front(), layer.kept(inside));
    let esp_at = at + kept - layer.lead();
    let inner = match layer.wrap {
        Wrap::Transport => Protocol(room[at + inside.next_header_at()]),
        Wrap::Tunnel(_) => ip_in_ip(inside.version),
    };
    let end = write_trailer(room, at + kept, len - kept, layer, inner);
    let packet = &mut room[..end];
    if kept > 0 {
        move_header(packet, at..at + kept, 0);
    }
    write_esp_header(&mut packet[esp_at..], layer, stamp);
    match layer.outside {
        Outside::Packet => write_outside(packet, layer, (inside, after), esp_at, stamp),
        Outside::SocketPayload if layer.marker() > 0 => {
            packet[esp_at - layer.marker()..esp_at].fill(0);
        }
        Outside::SocketPayload => {}
    }
    esp_at..end
}

/// Fills in UDP's checksum, which IPv6 wants and which covers the sealed bytes; without UDP or over IPv4 does nothing.
pub(crate) fn finish(packet: &mut [u8], layer: &Layer, after: &Inside) {
    if !layer.needs_finish() || after.version == Version::V4 {
        return;
    }
    let at = after.esp_offset();
    let pseudo = Sum::of(&packet[ipv6::ADDRESSES]).plus_u16(Protocol::UDP.0.into());
    fill_checksum(packet, at, pseudo);
}

/// What is the same in the pseudo-header of all UDP datagrams that a layer puts into packets of IPv6: where it is a tunnel that does.
pub(crate) fn pseudo_header(layer: &Layer) -> Option<Sum> {
    match layer.tunnel_headers() {
        Some(Headers::V6(template, Some(_))) => {
            let addresses = Sum::of(&template.as_bytes()[ipv6::ADDRESSES]);
            Some(addresses.plus_u16(Protocol::UDP.0.into()))
        }
        Some(Headers::V4(..) | Headers::V6(_, None) | Headers::Socket) | None => None,
    }
}

/// Fills in the checksum of the datagram that begins at a place and takes the rest of a packet; `pseudo` is of its pseudo-header but for the length.
#[inline]
pub(crate) fn fill_checksum(packet: &mut [u8], at: usize, pseudo: Sum) {
    let Some(datagram) = packet.get_mut(at..) else { return };
    let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
    let checksum = pseudo.plus_u32(len).plus_bytes(datagram).nonzero_checksum();
    if let Some(field) = datagram.get_mut(6..8) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// As much padding as there can be (RFC 4303 §2.4), for one wide store.
pub(super) const PADDING: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// TFC padding, padding 1, 2, 3 …, its length, next header; returns where the ICV behind them ends.
#[inline(always)]
fn write_trailer(
    slot: &mut [u8],
    text: usize,
    len: usize,
    layer: &Layer,
    inner: Protocol,
) -> usize {
    let padded = layer.padded(len);
    let padding = layer.padding(padded);
    if padded > len {
        slot[text + len..text + padded].fill(0);
    }
    let behind = &mut slot[text + padded..];
    // What is too much lies where trailer and ICV come, or the next layer's.
    match behind.first_chunk_mut() {
        // A number, lest the compiler make one call of both.
        Some(wide) => *wide = u128::from_ne_bytes(PADDING).to_ne_bytes(),
        None => write_padding(&mut behind[..padding]),
    }
    let trailer = [low_byte(padding), inner.0];
    behind[padding..padding + esp::TRAILER_LEN].copy_from_slice(&trailer);
    text + padded + padding + esp::TRAILER_LEN + layer.icv()
}

/// Where there is no room for a wide store.
#[cold]
fn write_padding(slot: &mut [u8]) {
    slot.copy_from_slice(&PADDING[..slot.len()]);
}

/// Moves a packet's own header, as transport mode does; mostly one without options.
#[inline(always)]
pub(crate) fn move_header(packet: &mut [u8], header: Range<usize>, to: usize) {
    // By words, lest the compiler make one call of all lengths.
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
fn write_esp_header(slot: &mut [u8], layer: &Layer, stamp: Stamp) {
    slot[..esp::HEADER_LEN].copy_from_slice(&esp_header(layer.seam.spi, stamp));
}

/// SPI and sequence number, in one word.
#[inline(always)]
pub(super) fn esp_header(spi: Spi, stamp: Stamp) -> [u8; esp::HEADER_LEN] {
    (u64::from(spi.0) << 32 | u64::from(low_word(stamp.sequence))).to_be_bytes()
}

/// The IP and UDP headers of the whole packet, in which ESP begins at `esp_at`.
#[inline(always)]
fn write_outside(
    packet: &mut [u8],
    layer: &Layer,
    (inside, after): (&Inside, &Inside),
    esp_at: usize,
    stamp: Stamp,
) {
    match &layer.wrap {
        Wrap::Transport => {
            let protocol = if layer.udp.is_some() { Protocol::UDP } else { Protocol::ESP };
            renew_header(packet, inside.version, inside.next_header_at(), protocol);
        }
        Wrap::Tunnel(outer) => write_outer(packet, outer, after, stamp),
    }
    if let Some(shape) = &layer.udp {
        let at = esp_at - usize::from(shape.marker) - udp::HEADER_LEN;
        let (before, esp) = packet.split_at_mut(esp_at);
        let port = shape.spreads.then_some(after.source_port);
        write_udp(&mut before[at..], shape, esp.len(), port);
    }
}

/// UDP and its marker, before so many bytes of ESP; with another source port if need be.
#[inline(always)]
pub(super) fn write_udp(room: &mut [u8], shape: &UdpShape, esp_len: usize, port: Option<u16>) {
    let length = low_half(room.len() + esp_len);
    let header = UdpHeader { length: length.into(), ..shape.header };
    let header = UdpHeader { source: port.map_or(header.source, Into::into), ..header };
    room[..udp::HEADER_LEN].copy_from_slice(header.as_bytes());
    if shape.marker > 0 {
        room[udp::HEADER_LEN..].fill(0);
    }
}

/// Gives a packet's own header the length that the packet has now, and another protocol.
#[inline]
pub(crate) fn renew_header(
    packet: &mut [u8],
    version: Version,
    next_header_at: usize,
    protocol: Protocol,
) {
    match version {
        Version::V4 => {
            // The header was parsed when the packet came in; it is all there.
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
fn write_outer(packet: &mut [u8], outer: &Outer, after: &Inside, stamp: Stamp) {
    match outer {
        Outer::V4(template, sum) => {
            let len = low_half(packet.len());
            // The frame has room for the header that it was made for.
            let Some(header) = packet.first_chunk_mut() else { return };
            let Some(end) = end_of(template) else { return };
            *header = outer_v4((end, *sum), after, len, stamp.id);
        }
        Outer::V6(template) => {
            let len = low_half(packet.len() - ipv6::HEADER_LEN);
            let Some(header) = packet.first_chunk_mut() else { return };
            *header = outer_v6(template, after, len);
        }
    }
}

/// What of a tunnel's header is the same in all packets but version and length: from TTL on, the checksum still 0.
pub(crate) type HeaderEnd = [u8; 12];

/// That of a header, all of which there is.
#[inline(always)]
pub(crate) fn end_of(template: &Ipv4Header) -> Option<&HeaderEnd> {
    template.as_bytes().last_chunk()
}

/// The sum of all that does not change in a header with this end. For who has no room to keep it.
#[inline(always)]
pub(crate) fn sum_of(end: &HeaderEnd) -> Sum {
    let (words, _) = end.as_chunks::<4>();
    let version = u32::from(ipv4::WITHOUT_OPTIONS) << 24;
    words
        .iter()
        .fold(Sum::ZERO.plus_u32(version), |sum, word| sum.plus_u32(u32::from_be_bytes(*word)))
}

/// The header in words, each of them written once; the checksum from the sum of all that does not change.
#[inline(always)]
pub(crate) fn outer_v4(
    (end, sum): (&HeaderEnd, Sum),
    after: &Inside,
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
pub(crate) fn outer_v6(template: &Ipv6Header, after: &Inside, len: u16) -> [u8; ipv6::HEADER_LEN] {
    let mut header: [u8; ipv6::HEADER_LEN] = zerocopy::transmute!(*template);
    let first = 6 << 28 | u32::from(after.tos) << 20 | after.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header
}

/// Changes the TOS byte of a plain packet, as decapsulation asks for it.
pub(crate) fn set_tos(packet: &mut [u8], version: Version, tos: u8) {
    match version {
        Version::V4 => {
            packet[1] = tos;
            // Parsed already: the header is as long as it says.
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

/// A packet's length; frames longer than 65,535 bytes are refused before they are made.
pub(super) fn low_half(len: usize) -> u16 {
    debug_assert!(len <= usize::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "Frame::of keeps packets below 64 KiB")]
    let narrow = len as u16;
    narrow
}

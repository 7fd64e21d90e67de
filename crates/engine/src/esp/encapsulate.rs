//! Headers, padding and trailer around one packet, in the room that was kept for them.

use std::ops::Range;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::esp::EspHeader;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{IpPacket, Protocol, Version, esp, ipv4, udp};
use zerocopy::{FromBytes, IntoBytes};

use super::layer::{Inside, Layer, Outer, Outside, Wrap, ip_in_ip};

/// What is different in each packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The sequence number, all 64 bits.
    pub(crate) sequence: u64,
    /// Identification of an outer IPv4 header without DF.
    pub(crate) id: u16,
}

/// Where things are after [`wrap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrapped {
    /// The first byte of the packet that now is.
    pub(crate) at: usize,
    /// From SPI to the end of the ICV: what is to be sealed.
    pub(crate) esp: Range<usize>,
}

/// Puts one layer around the packet `slot[at..at + len]`: everything but the encryption and UDP's checksum over IPv6.
///
/// The slot must have [`Layer::front`] bytes before the packet and the rest of [`Layer::sealed_len`] behind it, as the frame that was
/// made for the whole bundle has.
pub(crate) fn wrap(
    slot: &mut [u8],
    at: usize,
    len: usize,
    layer: &Layer,
    inside: &Inside,
    stamp: Stamp,
) -> Wrapped {
    let kept = layer.kept(inside);
    let start = at - layer.front();
    let esp_at = at + kept - layer.lead;
    let inner = match layer.wrap {
        Wrap::Transport => Protocol(slot[at + inside.next_header_at]),
        Wrap::Tunnel(_) => ip_in_ip(inside.version),
    };
    let end = write_trailer(slot, at + kept, len - kept, layer, inner);
    if kept > 0 {
        slot.copy_within(at..at + kept, start);
    }
    write_esp_header(&mut slot[esp_at..], layer, stamp);
    if layer.outside == Outside::Packet {
        write_outside(&mut slot[start..end], layer, inside, esp_at - start, stamp);
    } else {
        slot[esp_at - layer.marker()..esp_at].fill(0);
    }
    Wrapped { at: start, esp: esp_at..end }
}

/// Fills in UDP's checksum, which IPv6 wants and which covers the sealed bytes; without UDP or over IPv4 does nothing.
pub(crate) fn finish(packet: &mut [u8], layer: &Layer, after: &Inside) {
    if layer.udp.is_none() || layer.outside != Outside::Packet || after.version == Version::V4 {
        return;
    }
    let Ok(ip) = IpPacket::parse(packet) else { return };
    let datagram = &mut packet[after.esp_offset..];
    let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
    let pseudo = Sum::of_pseudo(ip.source, ip.destination, Protocol::UDP, len);
    let checksum = pseudo.plus_bytes(datagram).nonzero_checksum();
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
}

/// TFC padding, padding 1, 2, 3 …, its length, next header; returns where the ICV behind them ends.
fn write_trailer(
    slot: &mut [u8],
    text: usize,
    len: usize,
    layer: &Layer,
    inner: Protocol,
) -> usize {
    let padded = layer.padded(len);
    let padding = layer.padding(padded);
    slot[text + len..text + padded].fill(0);
    let trailer = &mut slot[text + padded..text + padded + padding + esp::TRAILER_LEN];
    for (byte, number) in trailer[..padding].iter_mut().zip(1..=u8::MAX) {
        *byte = number;
    }
    trailer[padding] = low_byte(padding);
    trailer[padding + 1] = inner.0;
    text + padded + padding + esp::TRAILER_LEN + layer.icv
}

fn write_esp_header(slot: &mut [u8], layer: &Layer, stamp: Stamp) {
    let header =
        EspHeader { spi: layer.sa.id().spi.0.into(), sequence: low_word(stamp.sequence).into() };
    slot[..esp::HEADER_LEN].copy_from_slice(header.as_bytes());
}

/// The IP and UDP headers of the whole packet, in which ESP begins at `esp_at`.
fn write_outside(packet: &mut [u8], layer: &Layer, inside: &Inside, esp_at: usize, stamp: Stamp) {
    let protocol = if layer.udp.is_some() { Protocol::UDP } else { Protocol::ESP };
    match &layer.wrap {
        Wrap::Transport => renew_header(packet, inside.version, inside.next_header_at, protocol),
        Wrap::Tunnel(outer) => write_outer(packet, outer, layer, inside, protocol, stamp),
    }
    if let Some(shape) = &layer.udp {
        let at = esp_at - shape.marker - udp::HEADER_LEN;
        let mut header = shape.header;
        header.length = low_half(packet.len() - at).into();
        packet[at..at + udp::HEADER_LEN].copy_from_slice(header.as_bytes());
        packet[at + udp::HEADER_LEN..esp_at].fill(0);
    }
}

/// Gives a packet's own header the length that the packet has now, and another protocol.
pub(crate) fn renew_header(
    packet: &mut [u8],
    version: Version,
    next_header_at: usize,
    protocol: Protocol,
) {
    packet[next_header_at] = protocol.0;
    match version {
        Version::V4 => {
            let len = low_half(packet.len());
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            // The header was parsed when the packet came in; it is as long as it says.
            let _ = ipv4::fill_checksum(packet);
        }
        Version::V6 => {
            let len = low_half(packet.len() - ipv6::HEADER_LEN);
            packet[4..6].copy_from_slice(&len.to_be_bytes());
        }
    }
}

fn write_outer(
    packet: &mut [u8],
    outer: &Outer,
    layer: &Layer,
    inside: &Inside,
    protocol: Protocol,
    stamp: Stamp,
) {
    let tos = layer.tos.outer(inside.tos);
    match outer {
        Outer::V4(template) => {
            let mut header = *template;
            header.tos = tos;
            header.total_len = low_half(packet.len()).into();
            header.protocol = protocol;
            if layer.dont_fragment(inside) {
                header.flags_fragment = ipv4::DONT_FRAGMENT.into();
            } else {
                header.id = stamp.id.into();
            }
            header.fill_checksum();
            packet[..ipv4::HEADER_LEN].copy_from_slice(header.as_bytes());
        }
        Outer::V6(template) => {
            let mut header = *template;
            header.set_traffic_class(tos);
            header.set_flow_label(inside.flow_label);
            header.payload_len = low_half(packet.len() - ipv6::HEADER_LEN).into();
            header.next_header = protocol;
            packet[..ipv6::HEADER_LEN].copy_from_slice(header.as_bytes());
        }
    }
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
fn low_byte(padding: usize) -> u8 {
    padding as u8
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what the packet carries")]
fn low_word(sequence: u64) -> u32 {
    sequence as u32
}

/// A packet's length; frames longer than 65,535 bytes are refused before they are made.
fn low_half(len: usize) -> u16 {
    debug_assert!(len <= usize::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "Frame::of keeps packets below 64 KiB")]
    let narrow = len as u16;
    narrow
}

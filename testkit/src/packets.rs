//! Builders of whole IP packets with valid lengths and checksums.

use std::net::{IpAddr, SocketAddr};

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments};

/// An IP packet with any upper layer, without DF in IPv4.
///
/// # Panics
/// When the families differ or the packet would be too long.
#[must_use]
pub fn ip(source: IpAddr, destination: IpAddr, protocol: Protocol, upper: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + upper.len());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = u16::try_from(20 + upper.len()).expect("below 64 KiB");
            packet.extend([0x45, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([0, 1, 0, 0, 64, protocol.0, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let checksum = Sum::of(&packet).checksum();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(u16::try_from(upper.len()).expect("below 64 KiB").to_be_bytes());
            packet.extend([protocol.0, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => panic!("one family"),
    }
    packet.extend(upper);
    packet
}

/// A UDP datagram between endpoints like `"10.0.0.1:7"` or `"[fd00::1]:7"`.
///
/// # Panics
/// If an endpoint is malformed.
#[must_use]
pub fn udp(source: &str, destination: &str, payload: &[u8]) -> PacketBuf {
    PacketBuf::from_slice(&udp_bytes(source, destination, payload))
}

/// As [`udp`], as bytes.
///
/// # Panics
/// As [`udp`].
#[must_use]
pub fn udp_bytes(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = ends(source, destination);
    let len = u16::try_from(8 + payload.len()).expect("below 64 KiB");
    let mut upper = Vec::with_capacity(8 + payload.len());
    upper.extend(source.port().to_be_bytes());
    upper.extend(destination.port().to_be_bytes());
    upper.extend(len.to_be_bytes());
    upper.extend([0, 0]);
    upper.extend(payload);
    let sum = Sum::of_pseudo(source.ip(), destination.ip(), Protocol::UDP, len.into());
    let checksum = sum.plus_bytes(&upper).nonzero_checksum();
    upper[6..8].copy_from_slice(&checksum.to_be_bytes());
    ip(source.ip(), destination.ip(), Protocol::UDP, &upper)
}

/// A TCP segment with ACK set.
///
/// # Panics
/// As [`udp`].
#[must_use]
pub fn tcp(source: &str, destination: &str, sequence: u32, payload: &[u8]) -> PacketBuf {
    let (source, destination) = ends(source, destination);
    let mut upper = tcp_header(source, destination, sequence);
    upper.extend(payload);
    let len = u32::try_from(upper.len()).expect("below 64 KiB");
    let sum = Sum::of_pseudo(source.ip(), destination.ip(), Protocol::TCP, len);
    let checksum = sum.plus_bytes(&upper).checksum();
    upper[16..18].copy_from_slice(&checksum.to_be_bytes());
    PacketBuf::from_slice(&ip(source.ip(), destination.ip(), Protocol::TCP, &upper))
}

/// A TCP super-packet as a TUN hands it over, with a partial checksum.
///
/// # Panics
/// As [`udp`].
#[must_use]
pub fn tcp_super(source: &str, destination: &str, payload: &[u8], mss: u16) -> PacketBuf {
    let (source, destination) = ends(source, destination);
    let mut upper = tcp_header(source, destination, 1000);
    upper.extend(payload);
    let len = u32::try_from(upper.len()).expect("below 64 KiB");
    let pseudo = Sum::of_pseudo(source.ip(), destination.ip(), Protocol::TCP, len).fold();
    upper[16..18].copy_from_slice(&pseudo.to_be_bytes());
    let mut packet =
        PacketBuf::from_slice(&ip(source.ip(), destination.ip(), Protocol::TCP, &upper));
    let start = if source.is_ipv4() { 20 } else { 40 };
    packet.segments = Segments::Tcp { mss };
    packet.checksum = Checksum::Partial { start, offset: 16 };
    packet
}

/// An ICMP or ICMPv6 echo request.
///
/// # Panics
/// When the families differ.
#[must_use]
pub fn echo(source: IpAddr, destination: IpAddr, payload: &[u8]) -> PacketBuf {
    let (protocol, kind) =
        if source.is_ipv4() { (Protocol::ICMP, 8) } else { (Protocol::ICMPV6, 128) };
    let mut upper = vec![kind, 0, 0, 0, 0, 1, 0, 1];
    upper.extend(payload);
    let sum = if source.is_ipv4() {
        Sum::of(&upper)
    } else {
        let len = u32::try_from(upper.len()).expect("below 64 KiB");
        Sum::of_pseudo(source, destination, protocol, len).plus_bytes(&upper)
    };
    upper[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    PacketBuf::from_slice(&ip(source, destination, protocol, &upper))
}

/// The same IPv4 packet with DF set.
///
/// # Panics
/// When it is no IPv4 packet.
#[must_use]
pub fn dont_fragment(mut packet: PacketBuf) -> PacketBuf {
    packet.bytes_mut()[6] |= 0x40;
    uxfrm_packet::ipv4::fill_checksum(packet.bytes_mut()).expect("an IPv4 packet");
    packet
}

/// The same IPv4 packet with another TOS byte.
///
/// # Panics
/// When it is no IPv4 packet.
#[must_use]
pub fn with_tos(mut packet: PacketBuf, tos: u8) -> PacketBuf {
    packet.bytes_mut()[1] = tos;
    uxfrm_packet::ipv4::fill_checksum(packet.bytes_mut()).expect("an IPv4 packet");
    packet
}

/// Fragments of a packet, `size` payload bytes each; `size` must be a multiple of 8.
///
/// # Panics
/// When it is no IPv4 packet without options and no IPv6 packet without extension headers.
#[must_use]
pub fn fragments(packet: &[u8], size: usize) -> Vec<PacketBuf> {
    let is_v4 = packet[0] >> 4 == 4;
    let (head, body) = packet.split_at(if is_v4 { 20 } else { 40 });
    let pieces = body.chunks(size).enumerate().map(|(number, piece)| {
        let more = (number + 1) * size < body.len();
        let offset = u16::try_from(number * size).expect("below 64 KiB");
        let bytes = if is_v4 {
            fragment_v4(head, piece, (offset / 8) | (u16::from(more) << 13))
        } else {
            fragment_v6(head, piece, offset | u16::from(more))
        };
        PacketBuf::from_slice(&bytes)
    });
    pieces.collect()
}

fn fragment_v4(head: &[u8], piece: &[u8], flags_offset: u16) -> Vec<u8> {
    let mut bytes = [head, piece].concat();
    let len = u16::try_from(bytes.len()).expect("below 64 KiB");
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    bytes[6..8].copy_from_slice(&flags_offset.to_be_bytes());
    uxfrm_packet::ipv4::fill_checksum(&mut bytes).expect("an IPv4 packet");
    bytes
}

fn fragment_v6(head: &[u8], piece: &[u8], offset_more: u16) -> Vec<u8> {
    let [high, low] = offset_more.to_be_bytes();
    let header = [head[6], 0, high, low, 0, 0, 0, 7];
    let mut bytes = [head, &header, piece].concat();
    let len = u16::try_from(bytes.len() - 40).expect("below 64 KiB");
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes[6] = Protocol::FRAGMENT.0;
    bytes
}

fn ends(source: &str, destination: &str) -> (SocketAddr, SocketAddr) {
    let read = |end: &str| end.parse().expect("address and port");
    (read(source), read(destination))
}

fn tcp_header(source: SocketAddr, destination: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(20);
    header.extend(source.port().to_be_bytes());
    header.extend(destination.port().to_be_bytes());
    header.extend(sequence.to_be_bytes());
    header.extend([0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    header
}

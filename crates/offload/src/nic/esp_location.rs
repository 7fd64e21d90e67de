//! Locates ESP in a received packet, and extracts the fields for rules and hash.

use std::net::IpAddr;
use std::ops::Range;

use uxfrm_engine::{Mode, Spi, UdpEncapKind};
use uxfrm_packet::esp::{Esp, HEADER_LEN};
use uxfrm_packet::{FlowPorts, IpPacket, Protocol, Version, ipv4, udp};

use super::association::Association;
use crate::steering::tuple::Tuple;

/// ESP in a received packet.
#[derive(Debug)]
pub(super) struct EspLocation {
    pub(super) destination: IpAddr,
    pub(super) spi: Spi,
    pub(super) sequence: u32,
    /// From SPI to the end of the ICV.
    pub(super) esp: Range<usize>,
    encap: Option<UdpEncapKind>,
}

impl EspLocation {
    /// Locates ESP as devices do: a whole packet without options, with a correct header checksum,
    /// perhaps in UDP.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let ip = IpPacket::parse(packet).ok()?;
        if ip.is_fragment() || ip.has_options || !header_is_right(&ip, packet) {
            return None;
        }
        let (at, encap) = match ip.protocol {
            Protocol::ESP => (ip.header_len, None),
            Protocol::UDP => udp_inside(ip.upper(packet), ip.header_len)?,
            Protocol(_) => return None,
        };
        let esp = Esp::parse(packet.get(at..ip.total_len)?).ok()?;
        Some(Self {
            destination: ip.destination,
            spi: Spi(esp.header.spi.get()),
            sequence: esp.header.sequence.get(),
            esp: at..ip.total_len,
            encap,
        })
    }

    /// Whether encapsulation and port match the SA's.
    pub(super) fn is_of(&self, association: &Association) -> bool {
        association.sa.config().encap.map(|encap| encap.kind) == self.encap
    }
}

fn header_is_right(ip: &IpPacket, packet: &[u8]) -> bool {
    match ip.version {
        Version::V4 => ipv4::Ipv4::parse(packet).is_ok_and(|packet| packet.checksum_is_right()),
        Version::V6 => true,
    }
}

/// ESP in UDP by its marker; the SA's encapsulation decides whether it is.
fn udp_inside(datagram: &[u8], header_len: usize) -> Option<(usize, Option<UdpEncapKind>)> {
    let kind = UdpEncapKind::of_payload(datagram.get(udp::HEADER_LEN..)?)?;
    Some((header_len + udp::HEADER_LEN + kind.properties().marker.len(), Some(kind)))
}

/// The tuple of a packet without ESP, or with encrypted ESP.
pub(super) fn plain_tuple(packet: &[u8]) -> Option<Tuple> {
    let ip = IpPacket::parse(packet).ok()?;
    let ports = FlowPorts::of(&ip, packet);
    Some(Tuple {
        source: ip.source,
        destination: ip.destination,
        protocol: ip.protocol.0,
        source_port: ports.source,
        destination_port: ports.destination,
        spi: None,
        vlan: None,
        flex: None,
    })
}

/// The tuple of a packet whose ESP was decrypted in place.
pub(super) fn inside_of(
    packet: &[u8],
    esp: &Range<usize>,
    association: &Association,
) -> Option<Tuple> {
    let transform = association.sa.transform();
    let from = esp.start + HEADER_LEN + transform.iv_len();
    let text = packet.get(from..esp.end.checked_sub(transform.icv_len())?)?;
    if association.sa.config().mode == Mode::Tunnel {
        return plain_tuple(text);
    }
    let outer = plain_tuple(packet)?;
    let protocol = *text.last()?;
    let ports = match text {
        [a, b, c, d, ..] if matches!(protocol, 6 | 17 | 132) => {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        _ => (0, 0),
    };
    Some(Tuple { protocol, source_port: ports.0, destination_port: ports.1, ..outer })
}

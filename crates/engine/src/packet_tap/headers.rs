//! Packets as they are on the wire, and what their headers say.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::esp::Esp;
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{IpPacket, Protocol, UdpPath};

use super::ShownPacket;
use crate::{FlowKey, Spi, UdpEncapKind};

/// Which way a packet goes through the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketWay {
    /// Towards the network.
    Out,
    /// From the network.
    In,
}

/// UDP ports of encapsulated ESP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncapPorts<'a>(pub(crate) &'a [u16]);

/// What a packet's headers say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketHeaders {
    /// The outermost IP header and ports; `None` if the bytes are no IP packet.
    pub flow: Option<FlowKey>,
    /// ESP, if it is an ESP packet.
    pub esp: Option<EspStart>,
}

/// The beginning of an ESP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspStart {
    /// Its SPI.
    pub spi: Spi,
    /// Its sequence number, the lower 32 bits.
    pub sequence: u32,
}

impl PacketHeaders {
    /// Reads a whole IP packet. ESP in UDP is looked for at `ports`.
    pub(crate) fn of(bytes: &[u8], ports: EncapPorts<'_>) -> Self {
        let Ok(ip) = IpPacket::parse(bytes) else { return Self::default() };
        let flow = FlowKey::of_bytes(&ip, bytes);
        let is_encap =
            [flow.source_port, flow.destination_port].iter().any(|port| ports.0.contains(port));
        let esp = match ip.protocol {
            _ if ip.is_fragment() => None,
            Protocol::ESP => EspStart::of(ip.upper(bytes)),
            Protocol::UDP if is_encap => {
                UdpDatagram::parse(ip.upper(bytes)).ok().and_then(|udp| esp_in(udp.payload))
            }
            Protocol(_) => None,
        };
        Self { flow: Some(flow), esp }
    }

    /// The same with what the buffer says beside its bytes.
    pub(crate) fn with_mark_of(self, packet: &ShownPacket<'_>) -> Self {
        let (mark, if_id) = (packet.mark, packet.if_id);
        Self { flow: self.flow.map(|flow| FlowKey { mark, if_id, ..flow }), ..self }
    }
}

impl EspStart {
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = Esp::parse(bytes).ok()?.header;
        Some(Self { spi: Spi(header.spi.get()), sequence: header.sequence.get() })
    }
}

fn esp_in(payload: &[u8]) -> Option<EspStart> {
    let marker = UdpEncapKind::of_payload(payload)?.properties().marker.len();
    EspStart::of(payload.get(marker..)?)
}

/// The packet as it is on the wire: what goes through a UDP socket gets the headers that the kernel
/// writes or has removed, as far as they are known (TTL 64, no identification).
pub(crate) fn whole_packet<'a>(packet: &ShownPacket<'a>, way: PacketWay) -> Cow<'a, [u8]> {
    match packet.udp {
        Some(path) => Cow::Owned(datagram(packet.bytes, &path, way)),
        None => Cow::Borrowed(packet.bytes),
    }
}

fn datagram(payload: &[u8], path: &UdpPath, way: PacketWay) -> Vec<u8> {
    let (from, to) = match way {
        PacketWay::Out => (path.local, path.remote),
        PacketWay::In => (path.remote, path.local),
    };
    let udp = udp_header(from, to, payload);
    let len = udp.len() + payload.len();
    let mut bytes = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = u16::try_from(20 + len).unwrap_or(u16::MAX).to_be_bytes();
            let flags = if path.dont_fragment { 0x40 } else { 0 };
            let mut header = vec![0x45, path.tos, total[0], total[1], 0, 0, flags, 0, 64, 17, 0, 0];
            header.extend(source.octets());
            header.extend(destination.octets());
            let checksum = Sum::of(&header).checksum().to_be_bytes();
            header[10..12].copy_from_slice(&checksum);
            header
        }
        (from, to) => {
            let len = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
            let mut header =
                vec![0x60 | path.tos >> 4, path.tos << 4, 0, 0, len[0], len[1], 17, 64];
            header.extend(v6(from));
            header.extend(v6(to));
            header
        }
    };
    bytes.extend(udp);
    bytes.extend(payload);
    bytes
}

/// A UDP header; over IPv6 with its checksum.
fn udp_header(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> [u8; 8] {
    let len = 8 + payload.len();
    let [a, b] = from.port().to_be_bytes();
    let [c, d] = to.port().to_be_bytes();
    let [e, f] = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let header = [a, b, c, d, e, f, 0, 0];
    if from.is_ipv4() && to.is_ipv4() {
        return header;
    }
    let pseudo_len = u32::try_from(len).unwrap_or(u32::MAX);
    let pseudo = Sum::of_pseudo(from.ip(), to.ip(), Protocol::UDP, pseudo_len);
    let [g, h] = pseudo.plus_bytes(&header).plus_bytes(payload).nonzero_checksum().to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

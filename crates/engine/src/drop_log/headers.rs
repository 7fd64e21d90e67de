//! Reads the headers of a dropped packet, as far as they can be read.

use uxfrm_packet::esp::Esp;
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{IpPacket, Protocol, UdpPath};

use super::record::EspEnds;
use super::site::{EspAround, SeenPacket};
use crate::{DropReason, FlowKey, Settings, Spi, UdpEncapKind};

/// What the headers say: ESP, or a plain flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Headers {
    pub(super) esp: Option<EspHeaders>,
    pub(super) flow: Option<FlowKey>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EspHeaders {
    pub(super) ends: EspEnds,
    pub(super) sequence: u32,
}

impl Headers {
    pub(super) fn of(packet: &SeenPacket<'_>, reason: DropReason, settings: &Settings) -> Self {
        let headers = match packet.udp {
            Some(path) => Self::of_payload(packet.bytes, &path),
            None => {
                // ESP from elsewhere that goes out is a plain packet like any other.
                let may_be_esp = !reason.is_outbound() || packet.wrapping == EspAround::Sealed;
                let ports = may_be_esp.then_some(settings.encap_ports.as_slice());
                Self::of_ip(packet.bytes, ports).unwrap_or_default()
            }
        };
        let (mark, if_id) = (packet.mark, packet.if_id);
        Self { flow: headers.flow.map(|flow| FlowKey { mark, if_id, ..flow }), ..headers }
    }

    /// Headers of a datagram that a socket received.
    fn of_payload(bytes: &[u8], path: &UdpPath) -> Self {
        let (from, to) = (path.remote, path.local);
        let outer = FlowKey {
            protocol: Protocol::UDP.0,
            source_port: from.port(),
            destination_port: to.port(),
            ..FlowKey::between(from.ip(), to.ip())
        };
        match esp_in(bytes) {
            Some(esp) => Self { esp: Some(esp.between(&outer)), flow: None },
            None => Self { esp: None, flow: Some(outer) },
        }
    }

    /// Headers of an IP packet. ESP is looked for if `ports` of UDP encapsulation are given.
    fn of_ip(bytes: &[u8], ports: Option<&[u16]>) -> Option<Self> {
        let ip = IpPacket::parse(bytes).ok()?;
        let flow = FlowKey::of_bytes(&ip, bytes);
        let esp = ports.filter(|_| !ip.is_fragment()).and_then(|ports| match ip.protocol {
            Protocol::ESP => EspStart::of(ip.upper(bytes)).map(|esp| esp.between(&flow)),
            Protocol::UDP
                if [flow.source_port, flow.destination_port]
                    .iter()
                    .any(|port| ports.contains(port)) =>
            {
                let datagram = UdpDatagram::parse(ip.upper(bytes)).ok()?;
                esp_in(datagram.payload).map(|esp| esp.between(&flow))
            }
            Protocol(_) => None,
        });
        Some(Self { flow: Some(flow).filter(|_| esp.is_none()), esp })
    }
}

struct EspStart {
    spi: Spi,
    sequence: u32,
}

/// ESP in the payload of a datagram.
fn esp_in(payload: &[u8]) -> Option<EspStart> {
    let marker = UdpEncapKind::of_payload(payload)?.properties().marker.len();
    EspStart::of(payload.get(marker..)?)
}

impl EspStart {
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = Esp::parse(bytes).ok()?.header;
        Some(Self { spi: Spi(header.spi.get()), sequence: header.sequence.get() })
    }

    fn between(self, outer: &FlowKey) -> EspHeaders {
        let in_udp = outer.protocol == Protocol::UDP.0;
        let ports = in_udp.then_some((outer.source_port, outer.destination_port));
        let (source, destination) = (outer.source, outer.destination);
        let ends = EspEnds { source, destination, spi: self.spi, ports };
        EspHeaders { ends, sequence: self.sequence }
    }
}

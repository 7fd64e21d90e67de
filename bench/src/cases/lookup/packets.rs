//! Packets as bytes: look-ups begin with parsing.

use std::net::IpAddr;

use uxfrm_engine::FlowKey;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{IpPacket, Protocol};
use zerocopy::IntoBytes;

/// The beginning of a packet: the IP header, and 8 bytes with the ports or their like.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct PacketHead {
    bytes: [u8; 56],
    len: u8,
}

impl PacketHead {
    /// The packet of a flow.
    pub(super) fn of(flow: &FlowKey) -> Self {
        const UPPER: u16 = 8;
        let [source, destination] = [flow.source_port, flow.destination_port].map(u16::to_be_bytes);
        let mut upper = [0; UPPER as usize];
        match flow.protocol {
            1 | 58 => upper[..2].copy_from_slice(&[source[1], destination[1]]),
            47 => {
                upper[0] = 0x20; // the key is present
                upper[4..6].copy_from_slice(&source);
                upper[6..].copy_from_slice(&destination);
            }
            _ => {
                upper[..2].copy_from_slice(&source);
                upper[2..4].copy_from_slice(&destination);
            }
        }
        let protocol = Protocol(flow.protocol);
        let mut head = Self { bytes: [0; 56], len: 0 };
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut ip = Ipv4Header::new(source, destination, protocol, 20 + UPPER);
                ip.fill_checksum();
                head.put(ip.as_bytes(), &upper);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                head.put(Ipv6Header::new(source, destination, protocol, UPPER).as_bytes(), &upper);
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
        head
    }

    /// Parses it and appends its flow, as a worker does.
    #[inline(always)]
    pub(super) fn parse(&self, flows: &mut Vec<FlowKey>) {
        let bytes = &self.bytes[..self.len.into()];
        let _ = IpPacket::parse_then(bytes, |ip| flows.push(FlowKey::of_bytes(&ip, bytes)));
    }

    /// Changes the source port, and so the flow.
    pub(super) fn set_source_port(&mut self, port: u16) {
        let at = if self.bytes[0] >> 4 == 4 { 20 } else { 40 };
        self.bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }

    fn put(&mut self, ip: &[u8], upper: &[u8]) {
        let len = ip.len() + upper.len();
        self.bytes[..ip.len()].copy_from_slice(ip);
        self.bytes[ip.len()..len].copy_from_slice(upper);
        self.len = u8::try_from(len).unwrap_or(0);
    }
}

//! What of a packet decides which policy it meets.

use std::net::IpAddr;

use uxfrm_packet::{FlowPorts, IpPacket, PacketBuf};

/// The policy key of a packet (`struct flowi` of the kernel, as `net/xfrm/xfrm_policy.c: decode_session4/6` fill it in).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family.
    pub destination: IpAddr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Source port, ICMP type, Mobility Header type, upper half of the GRE key; 0 without one and in fragments.
    pub source_port: u16,
    /// Destination port, ICMP code, lower half of the GRE key; 0 without one and in fragments.
    pub destination_port: u16,
    /// Packet mark.
    pub mark: u32,
    /// XFRM interface id; 0 without one.
    pub if_id: u32,
    /// Interface that it is to leave by, or came in by; 0 unknown.
    pub ifindex: u32,
}

impl FlowKey {
    /// What only the addresses are known of.
    pub(crate) const fn between(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            protocol: 0,
            source_port: 0,
            destination_port: 0,
            mark: 0,
            if_id: 0,
            ifindex: 0,
        }
    }

    /// The key of a packet; `ip` was parsed from `bytes`, which are of `packet`.
    #[must_use]
    #[inline]
    pub fn of(packet: &PacketBuf, ip: &IpPacket, bytes: &[u8]) -> Self {
        let ports = FlowPorts::of(ip, bytes);
        Self {
            source: ip.source,
            destination: ip.destination,
            protocol: ip.protocol.0,
            source_port: ports.source,
            destination_port: ports.destination,
            mark: packet.mark,
            if_id: packet.if_id,
            ifindex: 0,
        }
    }
}

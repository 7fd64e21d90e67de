//! Limits the nesting of tunnels, and keeps a packet from entering the tunnel that it came from.
//!
//! The kernel detects routes of a tunnel into itself (`net/ipv4/ip_tunnel.c: ip_tunnel_xmit` counts
//! `collisions`), and limits its recursion (`IP_TUNNEL_RECURSION_LIMIT`). Here routes are the
//! host's, and each pass through a tunnel is a packet of its own, so the headers decide.

use std::net::IpAddr;

use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{IpPacket, Protocol, ethernet::EtherType, gre::Gre};
use zerocopy::FromBytes;

use crate::config::TunnelConfig;
use crate::{DropReason, Tunnel};

/// Most tunnels around one packet: the kernel's recursion limit.
pub const MAX_NESTING: usize = 5;

/// Refuses a packet that came out of `tunnel` itself, or out of too many others.
///
/// UDP to other ports than the tunnel's own is not inspected.
pub(crate) fn check(tunnel: &Tunnel, ip: &IpPacket, bytes: &[u8]) -> Result<(), DropReason> {
    let config = tunnel.config();
    let (mut ip, mut bytes) = (*ip, bytes);
    for _ in 0..MAX_NESTING {
        let Some(layer) = EncapLayer::of(&ip, ip.upper(bytes), config) else { return Ok(()) };
        if is_own(&ip, &layer, config) {
            return Err(DropReason::OutRecursion);
        }
        // A fragment's payload is incomplete; unreadable packets cannot be counted.
        let Ok(inner) = IpPacket::parse(layer.inner) else { return Ok(()) };
        (ip, bytes) = (inner, layer.inner);
    }
    Err(DropReason::OutTooDeep)
}

/// One tunnel around a packet.
struct EncapLayer<'a> {
    in_udp: bool,
    protocol: Protocol,
    inner: &'a [u8],
}

impl<'a> EncapLayer<'a> {
    fn of(ip: &IpPacket, upper: &'a [u8], config: &TunnelConfig) -> Option<Self> {
        let (protocol, payload) = match ip.protocol {
            Protocol::UDP => in_udp(upper, config)?,
            other => (other, upper),
        };
        let inner = match protocol {
            Protocol::IPIP | Protocol::IPV6 => payload,
            Protocol::GRE => {
                let gre = Gre::parse(payload).ok()?;
                let is_ip = [EtherType::IPV4, EtherType::IPV6].contains(&gre.header.protocol);
                is_ip.then_some(gre.payload)?
            }
            Protocol(_) => return None,
        };
        Some(Self { in_udp: ip.protocol == Protocol::UDP, protocol, inner })
    }
}

/// Payload of a datagram to the tunnel's destination port.
fn in_udp<'a>(upper: &'a [u8], config: &TunnelConfig) -> Option<(Protocol, &'a [u8])> {
    let encap = config.udp?;
    let (header, payload) = UdpHeader::ref_from_prefix(upper).ok()?;
    debug_assert_eq!(size_of_val(header), udp::HEADER_LEN);
    if header.destination.get() != encap.destination_port.get() {
        return None;
    }
    let direct = if config.kind.is_gre() { Protocol::GRE } else { Protocol::IPIP };
    let framing = encap.framing.parse(payload).ok()?;
    Some((framing.protocol.unwrap_or(direct), payload.get(framing.len..)?))
}

fn is_own(ip: &IpPacket, layer: &EncapLayer<'_>, config: &TunnelConfig) -> bool {
    let from_us = config.local.is_unspecified() || ip.source == config.local;
    let is_gre = layer.protocol == Protocol::GRE;
    from_us
        && is_remote(ip.destination, config)
        && layer.in_udp == config.udp.is_some()
        && is_gre == config.kind.is_gre()
}

/// A tunnel without remote address has no fixed destination to compare.
fn is_remote(destination: IpAddr, config: &TunnelConfig) -> bool {
    !config.remote.is_unspecified() && destination == config.remote
}

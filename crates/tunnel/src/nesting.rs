//! How many tunnels are around a packet already, and whether one of them is the tunnel that it is to enter.
//!
//! The kernel sees that a tunnel's route leads into the tunnel itself (`net/ipv4/ip_tunnel.c: ip_tunnel_xmit` counts
//! `collisions`), and limits the depth of its own recursion (`IP_TUNNEL_RECURSION_LIMIT`). Here routes are the host's, and each pass through
//! a tunnel is a packet of its own, so the headers have to tell.

use std::net::IpAddr;

use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{IpPacket, Protocol, ethernet::EtherType, gre::Gre};
use zerocopy::FromBytes;

use crate::config::{Config, Framing};
use crate::gue::Gue;
use crate::{DropReason, Tunnel};

/// Tunnels around one packet at the most: as deep as the kernel's recursion.
pub const MAX_NESTING: usize = 5;

/// Refuses a packet that came out of `tunnel` itself, or out of too many others.
///
/// What is in UDP to other ports than the tunnel's own is not looked into.
pub(crate) fn check(tunnel: &Tunnel, ip: &IpPacket, bytes: &[u8]) -> Result<(), DropReason> {
    let config = tunnel.config();
    let (mut ip, mut bytes) = (*ip, bytes);
    for _ in 0..MAX_NESTING {
        let Some(layer) = Layer::of(&ip, ip.upper(bytes), config) else { return Ok(()) };
        if is_own(&ip, &layer, config) {
            return Err(DropReason::OutRecursion);
        }
        // A fragment's inside is cut short; what can't be read can't be counted.
        let Ok(inner) = IpPacket::parse(layer.inner) else { return Ok(()) };
        (ip, bytes) = (inner, layer.inner);
    }
    Err(DropReason::OutTooDeep)
}

/// One tunnel around a packet.
struct Layer<'a> {
    in_udp: bool,
    protocol: Protocol,
    inner: &'a [u8],
}

impl<'a> Layer<'a> {
    fn of(ip: &IpPacket, upper: &'a [u8], config: &Config) -> Option<Self> {
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

/// What is in a datagram to the port that the tunnel sends to.
fn in_udp<'a>(upper: &'a [u8], config: &Config) -> Option<(Protocol, &'a [u8])> {
    let encap = config.udp?;
    let (header, payload) = UdpHeader::ref_from_prefix(upper).ok()?;
    debug_assert_eq!(size_of_val(header), udp::HEADER_LEN);
    if header.destination.get() != encap.destination_port.get() {
        return None;
    }
    match encap.framing {
        Framing::Fou if config.kind.is_gre() => Some((Protocol::GRE, payload)),
        Framing::Fou => Some((Protocol::IPIP, payload)),
        Framing::Gue => {
            let gue = Gue::parse(payload).ok()?;
            Some((gue.protocol, payload.get(gue.header_len..)?))
        }
    }
}

fn is_own(ip: &IpPacket, layer: &Layer<'_>, config: &Config) -> bool {
    let from_us = config.local.is_unspecified() || ip.source == config.local;
    let is_gre = layer.protocol == Protocol::GRE;
    from_us
        && is_remote(ip.destination, config)
        && layer.in_udp == config.udp.is_some()
        && is_gre == config.kind.is_gre()
}

/// A tunnel without remote address sends to wherever its packets say; none of them is known by its destination.
fn is_remote(destination: IpAddr, config: &Config) -> bool {
    !config.remote.is_unspecified() && destination == config.remote
}

//! Decapsulation: `net/ipv4/ip_tunnel.c: ip_tunnel_rcv`, `net/ipv4/gre_demux.c: gre_parse_header`,
//! `net/ipv6/sit.c: ipip6_rcv`, `net/ipv6/ip6_tunnel.c: __ip6_tnl_rcv`.
//!
//! 1 strip UDP → 2 GRE header → 3 tunnel by kind, addresses and key → 4 GRE checksum and sequence →
//! 5 inner packet → 6 embedded addresses (6to4, 6rd) → 7 inner checksum from the outer one → 8 ECN.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::ethernet::EtherType;
use uxfrm_packet::gre::Gre;
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, Version};

use crate::config::{GreField, TunnelKind};
use crate::tunnels::kinds;
use crate::udp_decap::{KnownSum, UdpDecapsulated, minus};
use crate::{Arrival, DecapPorts, DropReason, Tunnel, Tunnels, decapsulate_udp, ecn};

/// An inner packet within an outer one.
#[derive(Clone, Debug)]
pub struct Decapsulated<'t> {
    /// The tunnel that it came out of.
    pub tunnel: &'t Arc<Tunnel>,
    /// Its range in the outer packet.
    pub span: Range<usize>,
    /// State of its transport checksum; offsets from its own first byte.
    pub checksum: Checksum,
}

/// Content of a received packet.
#[derive(Clone, Debug)]
pub enum Decapsulation<'t> {
    /// A tunnel's packet: the buffer holds the inner packet.
    Tunnel(&'t Arc<Tunnel>),
    /// A protocol without tunnels: the buffer holds a whole IP packet without UDP and GUE.
    Other(Protocol),
}

impl Tunnels {
    /// Strips UDP and tunnel headers from a received packet, whole or from a UDP socket.
    ///
    /// # Errors
    /// All variants of [`DropReason`] named `In…`. The buffer then holds the outer packet or a part
    /// of it.
    pub fn receive(
        &self,
        packet: &mut PacketBuf,
        device: u32,
        ports: &DecapPorts,
    ) -> Result<Decapsulation<'_>, DropReason> {
        let arrival = Arrival::of(packet, device);
        // 1
        let mut decapped = decapsulate_udp(packet.bytes_mut(), arrival, ports)?;
        if kinds(decapped.protocol, version_of(decapped.source)).is_empty() {
            decapped.fill(packet.bytes_mut());
            return decapped.restore(packet).map(Decapsulation::Other);
        }
        let Decapsulated { tunnel, span, checksum } =
            self.decapsulate(packet.bytes_mut(), &decapped)?;
        packet.trim(span.end);
        packet.pull(span.start);
        packet.udp = None;
        packet.checksum = checksum;
        Ok(Decapsulation::Tunnel(tunnel))
    }

    /// Steps 2 to 8: finds the tunnel and the inner packet in `bytes`, the packet that UDP was
    /// stripped from. Only ECN bits change.
    ///
    /// # Errors
    /// [`DropReason::InUnclaimed`] for a protocol without tunnels, and the variants named `InGre…`,
    /// `InNoTunnel`, `InInnerMalformed`, `InWrongVersion`, `InEcn`, `InSpoofed`.
    pub fn decapsulate(
        &self,
        bytes: &mut [u8],
        decapped: &UdpDecapsulated,
    ) -> Result<Decapsulated<'_>, DropReason> {
        let UdpDecapsulated { source, destination, protocol, .. } = *decapped;
        let kinds = kinds(protocol, version_of(source));
        if kinds.is_empty() {
            return Err(DropReason::InUnclaimed);
        }
        // 2
        let payload = &bytes[decapped.span.clone()];
        let (inner_version, gre, header_len) = inside(protocol, payload)?;
        let key = gre.as_ref().and_then(|gre| gre.fields.key);
        // 3
        let mut found = kinds.iter().filter_map(|kind| self.of(*kind, source, destination, key));
        let tunnel = found.next().ok_or(DropReason::InNoTunnel)?;
        // 4
        if let Some(gre) = &gre {
            check_gre(tunnel, gre, payload, decapped.known)?;
        }
        // 5
        if !tunnel.config().carries.takes(inner_version) {
            return Err(DropReason::InWrongVersion);
        }
        let known = decapped.known.without(&payload[..header_len]);
        let start = decapped.span.start + header_len;
        let inner = &mut bytes[start..decapped.span.end];
        let ip = IpPacket::parse(inner).map_err(|_| DropReason::InInnerMalformed)?;
        if ip.version != inner_version {
            return Err(DropReason::InInnerMalformed);
        }
        // 6
        if is_spoofed(tunnel, decapped, &ip) {
            return Err(DropReason::InSpoofed);
        }
        // 7, 8
        let checksum = inner_checksum(known, start, &ip, inner);
        apply_ecn(decapped.tos, &ip, inner)?;
        Ok(Decapsulated { tunnel, span: start..start + ip.total_len, checksum })
    }
}

pub(crate) fn version_of(address: IpAddr) -> Version {
    if address.is_ipv4() { Version::V4 } else { Version::V6 }
}

/// The inner packet's version, its GRE header, and its offset.
fn inside(
    protocol: Protocol,
    payload: &[u8],
) -> Result<(Version, Option<Gre<'_>>, usize), DropReason> {
    match protocol {
        Protocol::IPIP => return Ok((Version::V4, None, 0)),
        Protocol::IPV6 => return Ok((Version::V6, None, 0)),
        Protocol(_) => {}
    }
    let gre = Gre::parse(payload).map_err(|_| DropReason::InGreMalformed)?;
    let len = gre.fields.header_len();
    let (version, more) = match gre.header.protocol {
        EtherType::IPV4 => (Version::V4, 0),
        EtherType::IPV6 => (Version::V6, 0),
        EtherType::WCCP => (Version::V4, redirect_header(&payload[len..])?),
        EtherType(_) => return Err(DropReason::InGreProtocol),
    };
    Ok((version, Some(gre), len + more))
}

/// Length of WCCPv2's redirect header before the IPv4 packet; WCCPv1 has none
/// (`net/ipv4/gre_demux.c: gre_parse_header`).
fn redirect_header(behind: &[u8]) -> Result<usize, DropReason> {
    match behind {
        [first, ..] if first >> 4 == 4 => Ok(0),
        [_, _, _, _, ..] => Ok(4),
        _ => Err(DropReason::InInnerMalformed),
    }
}

fn check_gre(
    tunnel: &Tunnel,
    gre: &Gre<'_>,
    payload: &[u8],
    known: KnownSum,
) -> Result<(), DropReason> {
    let input = tunnel.config().input;
    let summed = gre.fields.checksum.is_some();
    if summed != (input.checksum == GreField::With) || summed && !is_right(gre, payload, known) {
        return Err(DropReason::InGreChecksum);
    }
    match (input.sequence, gre.fields.sequence) {
        (GreField::Without, _) => Ok(()),
        (GreField::With, Some(number)) if tunnel.accepts_sequence(number) => Ok(()),
        (GreField::With, _) => Err(DropReason::InGreSequence),
    }
}

/// Whether GRE's checksum is correct. GRO has verified each packet's and keeps the first one's:
/// such packets have an open inner checksum.
fn is_right(gre: &Gre<'_>, payload: &[u8], known: KnownSum) -> bool {
    let is_joined = || {
        let open =
            IpPacket::parse(gre.payload).map(|ip| checksum::verify_if_cheap(&ip, gre.payload));
        matches!((known, open), (KnownSum::Unreported, Ok(Checksum::Partial { .. })))
    };
    Sum::of(payload).fold() == 0xffff || is_joined()
}

/// Whether an embedded IPv4 address differs from the outer header's (`packet_is_spoofed`). A tunnel
/// with a remote address compares with that.
fn is_spoofed(tunnel: &Tunnel, decapped: &UdpDecapsulated, ip: &IpPacket) -> bool {
    let config = tunnel.config();
    if config.kind != TunnelKind::Sit || !config.remote.is_unspecified() {
        return false;
    }
    let differs = |inner: IpAddr, outer: IpAddr| match inner {
        IpAddr::V6(inner) => {
            config.six_rd.ipv4_in(inner).is_some_and(|within| IpAddr::V4(within) != outer)
        }
        IpAddr::V4(_) => false,
    };
    differs(ip.source, decapped.source) || differs(ip.destination, decapped.destination)
}

/// State of the inner checksum. If an outer checksum covered the packet, its sum is known except
/// for the headers, so summing those verifies the inner one ("checksum-unnecessary conversion").
fn inner_checksum(known: KnownSum, start: usize, ip: &IpPacket, inner: &[u8]) -> Checksum {
    match known {
        KnownSum::Nothing => Checksum::AsIs,
        KnownSum::Unreported => checksum::verify_if_cheap(ip, inner),
        KnownSum::Open { start: sum_start, field } => open(sum_start, field, start, ip),
        KnownSum::Sum(_) if ip.trailing > 0 || ip.is_fragment() => Checksum::AsIs,
        KnownSum::Sum(sum) => {
            let upper = ip.upper(inner);
            let sum = minus(sum, Sum::of(&inner[..ip.header_len]));
            if is_summed(ip, upper) && covers(ip, upper, sum) {
                Checksum::Verified
            } else {
                Checksum::AsIs
            }
        }
    }
}

/// An open checksum with offsets from the inner packet; one in the outer headers does not concern
/// the host.
fn open(sum_start: usize, field: usize, start: usize, ip: &IpPacket) -> Checksum {
    let place = || {
        let from = u16::try_from(sum_start.checked_sub(start)?).ok()?;
        let offset = u16::try_from(field.checked_sub(sum_start)?).ok()?;
        let within = usize::from(from) + usize::from(offset) + 2 <= ip.total_len;
        within.then_some(Checksum::Partial { start: from, offset })
    };
    place().unwrap_or(Checksum::AsIs)
}

/// Whether the upper layer has a checksum over all of its bytes.
fn is_summed(ip: &IpPacket, upper: &[u8]) -> bool {
    match ip.protocol {
        Protocol::TCP => upper.len() >= 20,
        Protocol::UDP => UdpDatagram::parse(upper)
            .is_ok_and(|udp| udp.header.checksum.get() != 0 && udp.trailing.is_empty()),
        Protocol(_) => false,
    }
}

fn covers(ip: &IpPacket, upper: &[u8], sum: Sum) -> bool {
    u32::try_from(upper.len()).is_ok_and(|len| {
        let pseudo = Sum::of_pseudo(ip.source, ip.destination, ip.protocol, len);
        pseudo.plus(sum).fold() == 0xffff
    })
}

/// Copies the outer path's congestion marks to the inner header.
fn apply_ecn(outer: u8, ip: &IpPacket, inner: &mut [u8]) -> Result<(), DropReason> {
    let tos = ecn::inward(outer, ip.tos)?;
    if tos != ip.tos {
        ip.set_tos(inner, tos);
    }
    Ok(())
}

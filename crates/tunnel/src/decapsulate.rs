//! Out of the tunnel: `net/ipv4/ip_tunnel.c: ip_tunnel_rcv`, `net/ipv4/gre_demux.c: gre_parse_header`,
//! `net/ipv6/sit.c: ipip6_rcv`, `net/ipv6/ip6_tunnel.c: __ip6_tnl_rcv`.
//!
//! 1 peel ([`peel`]) → 2 GRE header → 3 tunnel by kind, ends and key → 4 GRE checksum and number → 5 inner packet → 6 addresses within addresses
//! (6to4, 6rd) → 7 what the outer checksum says of the inner one → 8 ECN.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::ethernet::EtherType;
use uxfrm_packet::gre::Gre;
use uxfrm_packet::udp::Udp;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, Version};

use crate::config::{Field, Kind};
use crate::peel::{Known, Peeled, minus};
use crate::tunnels::kinds;
use crate::{Arrival, DropReason, Ports, Tunnel, Tunnels, ecn, peel};

/// An inner packet within an outer one.
#[derive(Clone, Debug)]
pub struct Decapsulated<'t> {
    /// The tunnel that it came out of.
    pub tunnel: &'t Arc<Tunnel>,
    /// Where it lies, from the outer packet's first byte.
    pub span: Range<usize>,
    /// What is known of its transport checksum; offsets from its own first byte.
    pub checksum: Checksum,
}

/// What a packet of the network was.
#[derive(Clone, Debug)]
pub enum Inside<'t> {
    /// A tunnel's: the buffer holds the inner packet.
    Tunnel(&'t Arc<Tunnel>),
    /// Of a protocol that no tunnel has: the buffer holds a whole IP packet without UDP and GUE.
    Other(Protocol),
}

impl Tunnels {
    /// Takes a packet of the network, whole or from a UDP socket, out of UDP and tunnel.
    ///
    /// # Errors
    /// All variants of [`DropReason`] named `In…`. What is left in the buffer then is the outer packet or a part of it.
    pub fn receive(
        &self,
        packet: &mut PacketBuf,
        device: u32,
        ports: &Ports,
    ) -> Result<Inside<'_>, DropReason> {
        let arrival = Arrival::of(packet, device);
        // 1
        let mut peeled = peel(packet.bytes_mut(), arrival, ports)?;
        if kinds(peeled.protocol, version_of(peeled.source)).is_empty() {
            peeled.fill(packet.bytes_mut());
            return peeled.restore(packet).map(Inside::Other);
        }
        let Decapsulated { tunnel, span, checksum } =
            self.decapsulate(packet.bytes_mut(), &peeled)?;
        packet.trim(span.end);
        packet.pull(span.start);
        packet.udp = None;
        packet.checksum = checksum;
        Ok(Inside::Tunnel(tunnel))
    }

    /// Steps 2 to 8: finds the tunnel and the inner packet in `bytes`, which `peeled` was made of. Only ECN bits change.
    ///
    /// # Errors
    /// [`DropReason::InUnclaimed`] where no tunnel has such a protocol, and the variants named `InGre…`, `InNoTunnel`, `InInnerMalformed`,
    /// `InWrongVersion`, `InEcn`, `InSpoofed`.
    pub fn decapsulate(
        &self,
        bytes: &mut [u8],
        peeled: &Peeled,
    ) -> Result<Decapsulated<'_>, DropReason> {
        let Peeled { source, destination, protocol, .. } = *peeled;
        let kinds = kinds(protocol, version_of(source));
        if kinds.is_empty() {
            return Err(DropReason::InUnclaimed);
        }
        // 2
        let payload = &bytes[peeled.span.clone()];
        let (inner_version, gre, header_len) = inside(protocol, payload)?;
        let key = gre.as_ref().and_then(|gre| gre.fields.key);
        // 3
        let mut found = kinds.iter().filter_map(|kind| self.of(*kind, source, destination, key));
        let tunnel = found.next().ok_or(DropReason::InNoTunnel)?;
        // 4
        if let Some(gre) = &gre {
            check_gre(tunnel, gre, payload, peeled.known)?;
        }
        // 5
        if !tunnel.config().carries.takes(inner_version) {
            return Err(DropReason::InWrongVersion);
        }
        let known = peeled.known.without(&payload[..header_len]);
        let start = peeled.span.start + header_len;
        let inner = &mut bytes[start..peeled.span.end];
        let ip = IpPacket::parse(inner).map_err(|_| DropReason::InInnerMalformed)?;
        if ip.version != inner_version {
            return Err(DropReason::InInnerMalformed);
        }
        // 6
        if is_spoofed(tunnel, peeled, &ip) {
            return Err(DropReason::InSpoofed);
        }
        // 7, 8
        let checksum = converted(known, start, &ip, inner);
        apply_ecn(peeled.tos, &ip, inner)?;
        Ok(Decapsulated { tunnel, span: start..start + ip.total_len, checksum })
    }
}

pub(crate) fn version_of(address: IpAddr) -> Version {
    if address.is_ipv4() { Version::V4 } else { Version::V6 }
}

/// The inner packet's version, the GRE header before it, and how many bytes stand before the packet.
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

/// Bytes of the redirect header that WCCP's second version puts before the IPv4 packet, and its first does not (`net/ipv4/gre_demux.c: gre_parse_header`).
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
    known: Known,
) -> Result<(), DropReason> {
    let input = tunnel.config().input;
    let summed = gre.fields.checksum.is_some();
    if summed != (input.checksum == Field::With) || summed && !is_right(gre, payload, known) {
        return Err(DropReason::InGreChecksum);
    }
    match (input.sequence, gre.fields.sequence) {
        (Field::Without, _) => Ok(()),
        (Field::With, Some(number)) if tunnel.takes_number(number) => Ok(()),
        (Field::With, _) => Err(DropReason::InGreSequence),
    }
}

/// Whether GRE's checksum is right. A device that joins packets (GRO) has looked at each one's and leaves that of the first: these are told by the
/// inner checksum, which is left open then.
fn is_right(gre: &Gre<'_>, payload: &[u8], known: Known) -> bool {
    let is_joined = || {
        let open = IpPacket::parse(gre.payload).map(|ip| checksum::surmise(&ip, gre.payload));
        matches!((known, open), (Known::Untold, Ok(Checksum::Partial { .. })))
    };
    Sum::of(payload).fold() == 0xffff || is_joined()
}

/// Whether an inner address holds an IPv4 address that is not the outer header's (`packet_is_spoofed`). Where the tunnel has a
/// remote address, that is who it is.
fn is_spoofed(tunnel: &Tunnel, peeled: &Peeled, ip: &IpPacket) -> bool {
    let config = tunnel.config();
    if config.kind != Kind::Sit || !config.remote.is_unspecified() {
        return false;
    }
    let differs = |inner: IpAddr, outer: IpAddr| match inner {
        IpAddr::V6(inner) => {
            config.six_rd.ipv4_in(inner).is_some_and(|within| IpAddr::V4(within) != outer)
        }
        IpAddr::V4(_) => false,
    };
    differs(ip.source, peeled.source) || differs(ip.destination, peeled.destination)
}

/// What is known of the inner checksum. Where an outer one covered the packet, its sum is known but for the headers, so a look at
/// those tells whether the inner one is right ("checksum-unnecessary conversion").
fn converted(known: Known, start: usize, ip: &IpPacket, inner: &[u8]) -> Checksum {
    match known {
        Known::Nothing => Checksum::AsIs,
        Known::Untold => checksum::surmise(ip, inner),
        Known::Open { start: sum_start, field } => open(sum_start, field, start, ip),
        Known::Sum(_) if ip.trailing > 0 || ip.is_fragment() => Checksum::AsIs,
        Known::Sum(sum) => {
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

/// A checksum left open, as counted from the inner packet; one in the headers before it is none of the host's.
fn open(sum_start: usize, field: usize, start: usize, ip: &IpPacket) -> Checksum {
    let place = || {
        let from = u16::try_from(sum_start.checked_sub(start)?).ok()?;
        let offset = u16::try_from(field.checked_sub(sum_start)?).ok()?;
        let within = usize::from(from) + usize::from(offset) + 2 <= ip.total_len;
        within.then_some(Checksum::Partial { start: from, offset })
    };
    place().unwrap_or(Checksum::AsIs)
}

/// Whether the upper layer has a checksum over all of itself.
fn is_summed(ip: &IpPacket, upper: &[u8]) -> bool {
    match ip.protocol {
        Protocol::TCP => upper.len() >= 20,
        Protocol::UDP => Udp::parse(upper)
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

/// Carries congestion of the outer path into the inner header.
fn apply_ecn(outer: u8, ip: &IpPacket, inner: &mut [u8]) -> Result<(), DropReason> {
    let tos = ecn::inward(outer, ip.tos)?;
    if tos != ip.tos {
        ip.set_tos(inner, tos);
    }
    Ok(())
}

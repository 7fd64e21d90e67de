//! Stage 4 of ICMP errors that would leave in plaintext.
//!
//! They quote a packet, which a policy `in` or `fwd` may have protected on its way here. The host
//! routes some of them to uxfrm, from an address that no policy names.
//!
//! What a quote does not tell counts as protected ([`crate::spd::quote_rules`]). Only whole errors
//! have a quote, so fragments of ICMP are reassembled before they are judged.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_packet::icmp::Icmp;
use uxfrm_packet::icmpv6::Icmpv6;
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, gre};

use crate::datapath::context::BatchContext;
use crate::spd::quote_rules::QuotedFlow;
use crate::{Direction, FlowKey, Spd};

/// ICMPv6's type of redirects (RFC 4861 §4.5), which Linux gives no error's number.
const REDIRECT: u8 = 137;
/// What may stand before IPv6's upper layer: hop-by-hop options, routing, fragment and
/// authentication headers, destination options.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// What an ICMP message tells of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    /// It is about none.
    Nothing,
    /// It is about one, and too short for its addresses.
    Unreadable,
    Packet(QuotedFlow),
}

/// Whether a packet is of a protocol whose errors quote.
pub(crate) fn may_quote(flow: &FlowKey) -> bool {
    matches!(Protocol(flow.protocol), Protocol::ICMP | Protocol::ICMPV6)
}

/// Whether a plain fragment may be one of an error that is to be judged.
#[cold]
pub(crate) fn is_piece_of_quote(flow: &FlowKey, ctx: &BatchContext<'_>) -> bool {
    may_quote(flow) && ctx.snapshot.spd.judges_arrivals()
}

/// Whether the packet is an error about one that came in protected.
#[cold]
pub(crate) fn quotes_protected(packet: &PacketBuf, flow: &FlowKey, ctx: &BatchContext<'_>) -> bool {
    is_about_protected(&ctx.snapshot.spd, packet.bytes(), flow)
}

fn is_about_protected(spd: &Spd, bytes: &[u8], flow: &FlowKey) -> bool {
    match quote(bytes, flow) {
        Quote::Nothing => false,
        Quote::Unreadable => spd.judges_arrivals(),
        Quote::Packet(quoted) => [Direction::In, Direction::Forward]
            .into_iter()
            .any(|direction| spd.protects_quoted(direction, &quoted)),
    }
}

fn quote(bytes: &[u8], flow: &FlowKey) -> Quote {
    let Ok(ip) = IpPacket::parse(bytes) else { return Quote::Unreadable };
    let upper = ip.upper(bytes);
    let quoted = match ip.protocol {
        Protocol::ICMP => match Icmp::parse(upper) {
            Ok(icmp) if icmp.header.is_error() => quoted_v4(icmp.payload, flow),
            Ok(_) => return Quote::Nothing,
            Err(_) => None,
        },
        Protocol::ICMPV6 => match Icmpv6::parse(upper) {
            Ok(icmp) if icmp.header.is_error() => quoted_v6(icmp.payload, flow),
            Ok(icmp) if icmp.header.kind == REDIRECT => redirected(&ip, icmp.payload, flow),
            Ok(_) => return Quote::Nothing,
            Err(_) => None,
        },
        Protocol(_) => return Quote::Nothing,
    };
    quoted.map_or(Quote::Unreadable, Quote::Packet)
}

/// Quoted packets are truncated, so their length field does not count.
fn quoted_v4(quote: &[u8], flow: &FlowKey) -> Option<QuotedFlow> {
    let fixed: &[u8; 20] = quote.first_chunk()?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    if fixed[0] >> 4 != 4 || header_len < fixed.len() {
        return None;
    }
    let [a, b, c, d, e, f, g, h] = *fixed.last_chunk()?;
    let addresses = (Ipv4Addr::new(a, b, c, d).into(), Ipv4Addr::new(e, f, g, h).into());
    // All but "don't fragment" and the bit that is reserved.
    let is_piece = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
    let upper = quote.get(header_len..).filter(|_| !is_piece).unwrap_or_default();
    Some(quoted(addresses, Some(fixed[9]), upper, flow))
}

fn quoted_v6(quote: &[u8], flow: &FlowKey) -> Option<QuotedFlow> {
    let (fixed, upper) = quote.split_first_chunk::<40>()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let protocol = Some(fixed[6]).filter(|next| !EXTENSIONS.contains(next));
    let addresses = (ipv6(fixed, 8)?, ipv6(fixed, 24)?);
    Some(quoted(addresses, protocol, upper, flow))
}

/// A redirect goes to the packet's source, and tells its destination behind the better next hop.
fn redirected(ip: &IpPacket, body: &[u8], flow: &FlowKey) -> Option<QuotedFlow> {
    Some(quoted((ip.destination, ipv6(body, 16)?), None, &[], flow))
}

fn ipv6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(Ipv6Addr::from(octets).into())
}

fn quoted(
    (source, destination): (IpAddr, IpAddr),
    protocol: Option<u8>,
    upper: &[u8],
    flow: &FlowKey,
) -> QuotedFlow {
    let ports = protocol.and_then(|protocol| ports(Protocol(protocol), upper));
    let (source_port, destination_port) = ports.unwrap_or_default();
    let protocol_or_none = protocol.unwrap_or_default();
    QuotedFlow {
        flow: FlowKey {
            protocol: protocol_or_none,
            source_port,
            destination_port,
            mark: flow.mark,
            ..FlowKey::between(source, destination)
        },
        tells_protocol: protocol.is_some(),
        tells_ports: ports.is_some(),
    }
}

/// What selectors compare with their ports ([`uxfrm_packet::FlowPorts`]), if the quote is long
/// enough. Keys of GRE and types of the mobility header count as not told.
fn ports(protocol: Protocol, upper: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        Protocol::TCP | Protocol::UDP | Protocol::UDPLITE | Protocol::SCTP | Protocol::DCCP => {
            let [a, b, c, d] = *upper.first_chunk()?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        Protocol::ICMP | Protocol::ICMPV6 => {
            let [kind, code] = *upper.first_chunk()?;
            Some((kind.into(), code.into()))
        }
        Protocol::GRE => {
            let flags = u16::from_be_bytes(*upper.first_chunk()?);
            (flags & gre::KEY == 0).then_some((0, 0))
        }
        Protocol::MH => None,
        Protocol(_) => Some((0, 0)),
    }
}

#[cfg(test)]
mod tests;

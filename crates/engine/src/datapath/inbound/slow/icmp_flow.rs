//! Flow that an ICMP error is about, reversed: the quoted packet went the other way
//! (`net/xfrm/xfrm_policy.c: xfrm_selector_inner_icmp_match`, `icmp_err_packet`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_packet::icmp::Icmp;
use uxfrm_packet::icmpv6::Icmpv6;
use uxfrm_packet::{IpPacket, Protocol};

use crate::FlowKey;

/// The flow that an ICMP error is about; `None` if the packet is no error or quotes too little.
pub(crate) fn icmp_inner_flow(bytes: &[u8], flow: &FlowKey) -> Option<FlowKey> {
    if !matches!(Protocol(flow.protocol), Protocol::ICMP | Protocol::ICMPV6) {
        return None;
    }
    let ip = IpPacket::parse(bytes).ok().filter(|ip| !ip.is_fragment())?;
    let upper = ip.upper(bytes);
    match ip.protocol {
        Protocol::ICMP => {
            let icmp = Icmp::parse(upper).ok().filter(|icmp| icmp.header.is_error())?;
            quoted_v4(icmp.payload, flow)
        }
        Protocol::ICMPV6 => {
            let icmp = Icmpv6::parse(upper).ok().filter(|icmp| icmp.header.is_error())?;
            quoted_v6(icmp.payload, flow)
        }
        Protocol(_) => None,
    }
}

/// Quoted packets are truncated, so their length field does not count.
fn quoted_v4(quote: &[u8], flow: &FlowKey) -> Option<FlowKey> {
    let fixed: &[u8; 20] = quote.first_chunk()?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    let [a, b, c, d, e, f, g, h] = *fixed.last_chunk::<8>()?;
    let source = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    let destination = IpAddr::V4(Ipv4Addr::new(e, f, g, h));
    if fixed[0] >> 4 != 4 || header_len < 20 {
        return None;
    }
    Some(turned(source, destination, fixed[9], quote.get(header_len..)?, flow))
}

fn quoted_v6(quote: &[u8], flow: &FlowKey) -> Option<FlowKey> {
    let fixed: &[u8; 40] = quote.first_chunk()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let source: [u8; 16] = *fixed[8..].first_chunk()?;
    let destination: [u8; 16] = *fixed[24..].first_chunk()?;
    let (source, destination) = (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into());
    Some(turned(source, destination, fixed[6], &quote[40..], flow))
}

fn turned(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    upper: &[u8],
    flow: &FlowKey,
) -> FlowKey {
    let has_ports = matches!(
        Protocol(protocol),
        Protocol::TCP | Protocol::UDP | Protocol::UDPLITE | Protocol::SCTP | Protocol::DCCP
    );
    let (source_port, destination_port) = match upper.first_chunk() {
        Some([a, b, c, d]) if has_ports => {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        Some(_) | None => (0, 0),
    };
    FlowKey {
        source: destination,
        destination: source,
        protocol,
        source_port: destination_port,
        destination_port: source_port,
        ..*flow
    }
}

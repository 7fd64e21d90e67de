//! Ports of a flow as XFRM selectors compare them.

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::U16;

use crate::ethernet::EtherType;
use crate::gre::{self, GreHeader};
use crate::{IpPacket, Protocol};

/// What XFRM compares with a selector's ports (`net/xfrm/xfrm_policy.c: decode_session4`,
/// `decode_session6`; `include/net/xfrm.h: xfrm_flowi_sport`, `xfrm_flowi_dport`).
///
/// | protocol | `source` | `destination` |
/// | --- | --- | --- |
/// | TCP, UDP, UDP-Lite, SCTP, DCCP | source port | destination port |
/// | ICMP, ICMPv6 | type | code |
/// | mobility header | type | 0 |
/// | GRE with key | key's upper half | key's lower half |
/// | GRE with key in PPTP's version (RFC 2637) | 0 | key's lower half |
/// | all else (GRE of other versions or with source routes, too), and pieces of larger packets | 0 | 0 |
///
/// An atomic fragment (RFC 6946) is a whole packet, and has its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowPorts {
    /// What a selector's `sport` is compared with.
    pub source: u16,
    /// What a selector's `dport` is compared with.
    pub destination: u16,
}

/// Where a protocol has its ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortsLocation {
    /// Nowhere.
    None,
    /// In the first four bytes.
    Ports,
    /// Type and code in the first two bytes.
    KindAndCode,
    /// Elsewhere, or not in every packet.
    Deeper,
}

/// By protocol.
static PLACES: [PortsLocation; 256] = {
    let mut places = [PortsLocation::None; 256];
    places[Protocol::TCP.0 as usize] = PortsLocation::Ports;
    places[Protocol::UDP.0 as usize] = PortsLocation::Ports;
    places[Protocol::UDPLITE.0 as usize] = PortsLocation::Ports;
    places[Protocol::SCTP.0 as usize] = PortsLocation::Ports;
    places[Protocol::DCCP.0 as usize] = PortsLocation::Ports;
    places[Protocol::ICMP.0 as usize] = PortsLocation::KindAndCode;
    places[Protocol::ICMPV6.0 as usize] = PortsLocation::KindAndCode;
    places[Protocol::MH.0 as usize] = PortsLocation::Deeper;
    places[Protocol::GRE.0 as usize] = PortsLocation::Deeper;
    places
};

impl FlowPorts {
    /// For fragments and protocols without ports.
    pub const NONE: Self = Self { source: 0, destination: 0 };

    /// Reads the ports of a packet; `ip` was parsed from `bytes`.
    ///
    /// An upper layer too short for its ports has none, as in the kernel.
    #[must_use]
    #[inline]
    pub fn of(ip: &IpPacket, bytes: &[u8]) -> Self {
        let upper = ip.upper(bytes);
        let place = PLACES[usize::from(ip.protocol.0)];
        match upper.first_chunk() {
            _ if ip.is_piece() => Self::NONE,
            Some(first) if place != PortsLocation::Deeper => {
                Self::of_first(place, u32::from_be_bytes(*first))
            }
            Some(_) | None => Self::of_upper(ip.protocol, upper).unwrap_or(Self::NONE),
        }
    }

    /// From the first four bytes. Without branches, which would be mispredicted: consecutive
    /// packets have different protocols.
    #[inline]
    fn of_first(place: PortsLocation, first: u32) -> Self {
        let all = |asked: PortsLocation| 0_u32.wrapping_sub(u32::from(place == asked));
        let kind_and_code = first >> 8 & 0x00ff_0000 | first >> 16 & 0xff;
        let both =
            first & all(PortsLocation::Ports) | kind_and_code & all(PortsLocation::KindAndCode);
        let [a, b, c, d] = both.to_be_bytes();
        Self { source: u16::from_be_bytes([a, b]), destination: u16::from_be_bytes([c, d]) }
    }

    #[cold]
    fn of_upper(protocol: Protocol, upper: &[u8]) -> Option<Self> {
        match protocol {
            Protocol::ICMP | Protocol::ICMPV6 => {
                let [kind, code] = *upper.first_chunk()?;
                Some(Self { source: kind.into(), destination: code.into() })
            }
            Protocol::MH => Some(Self { source: (*upper.get(2)?).into(), destination: 0 }),
            Protocol::GRE => Self::of_gre(upper),
            // Too short, or without ports.
            Protocol(_) => None,
        }
    }

    /// As Linux reads the key from 6.7 on (`net/core/flow_dissector.c: __skb_flow_dissect_gre`).
    fn of_gre(upper: &[u8]) -> Option<Self> {
        let (header, fields) = GreHeader::ref_from_prefix(upper).ok()?;
        let flags = header.flags_version.get();
        if flags & (gre::KEY | gre::ROUTING) != gre::KEY {
            return None;
        }
        let key_at = if flags & gre::CHECKSUM == 0 { 0 } else { 4 };
        let ([high, low], _) = <[U16; 2]>::ref_from_prefix(fields.get(key_at..)?).ok()?;
        match flags & gre::VERSION {
            0 => Some(Self { source: high.get(), destination: low.get() }),
            // The upper half is the payload's length.
            1 if header.protocol == EtherType::PPP => {
                Some(Self { source: 0, destination: low.get() })
            }
            _ => None,
        }
    }
}

//! ICMP errors from the gateway's own address about packets that it cannot forward.

use std::net::IpAddr;

use uxfrm_packet::{
    IpPacket, PacketBuf, Pool,
    icmp::{self, IcmpHeader},
    icmp_error,
    icmpv6::{self, Icmpv6Header},
};

/// Why a packet cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpError {
    /// Its TTL expired (RFC 1812 §5.3.1, RFC 4443 §3.3).
    TimeExceeded,
    /// No route (RFC 1812 §5.2.7.1: code 0; RFC 4443 §3.1: code 0).
    NoRoute,
    /// The neighbour does not answer (code 1; RFC 4443: code 3).
    NoNeighbour,
    /// Larger than the next link's MTU, and not to be fragmented (RFC 1191 §4, RFC 4443 §3.2).
    TooBig(u16),
}

impl IcmpError {
    /// Builds the message about a packet, from `own`; `None` where none may be sent (RFC 1122
    /// §3.2.2, RFC 4443 §2.4 e).
    pub(super) fn message(
        self,
        packet: &[u8],
        ip: &IpPacket,
        own: IpAddr,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        if !icmp_error::may_answer(ip, packet) {
            return None;
        }
        match (own, ip.source) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                icmp_error::over_ipv4(self.over_ipv4(), packet, (from, to), pool)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                icmp_error::over_ipv6(self.over_ipv6(), packet, (from, to), pool)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    fn over_ipv4(self) -> IcmpHeader {
        let of = |kind, code| IcmpHeader { kind, code, checksum: 0.into(), rest: [0; 4] };
        match self {
            Self::TimeExceeded => of(icmp::TIME_EXCEEDED, 0),
            Self::NoRoute => of(icmp::UNREACHABLE, 0),
            Self::NoNeighbour => of(icmp::UNREACHABLE, 1),
            Self::TooBig(mtu) => IcmpHeader::fragmentation_needed(mtu),
        }
    }

    fn over_ipv6(self) -> Icmpv6Header {
        let of = |kind, code| Icmpv6Header { kind, code, checksum: 0.into(), rest: 0.into() };
        match self {
            Self::TimeExceeded => of(icmpv6::TIME_EXCEEDED, 0),
            Self::NoRoute => of(icmpv6::UNREACHABLE, 0),
            Self::NoNeighbour => of(icmpv6::UNREACHABLE, 3),
            Self::TooBig(mtu) => Icmpv6Header::packet_too_big(mtu.into()),
        }
    }
}

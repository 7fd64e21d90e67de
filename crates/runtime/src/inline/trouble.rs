//! What a sender is told when its packet can't go on: ICMP errors from the gateway's own address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_engine::Moment;
use uxfrm_packet::{
    Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass,
    checksum::Sum,
    icmp::{self, Icmp, IcmpHeader},
    icmpv6::{self, Icmpv6, Icmpv6Header},
    ipv4::{self, Ipv4Header},
    ipv6::{self, Ipv6Header},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Why a packet can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Its last hop was used up (RFC 1812 §5.3.1, RFC 4443 §3.3).
    TimeExceeded,
    /// No route (RFC 1812 §5.2.7.1: code 0; RFC 4443 §3.1: code 0).
    NoRoute,
    /// The neighbour does not answer (code 1; RFC 4443: code 3).
    NoNeighbour,
    /// Larger than the next link takes, and not to be cut (RFC 1191 §4, RFC 4443 §3.2).
    TooBig(u16),
}

/// Narrower no link is said to be (RFC 8200 §5).
const IPV6_LEAST: usize = 1280;

impl Trouble {
    /// The message about a packet, from `own`; `None` where none may be sent (RFC 1122 §3.2.2, RFC 4443 §2.4 e).
    pub(super) fn about(
        self,
        packet: &[u8],
        ip: &IpPacket,
        own: IpAddr,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        if !may_be_answered(ip, packet) {
            return None;
        }
        match (own, ip.source) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.over_ipv4(packet, from, to, pool),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.over_ipv6(packet, from, to, pool),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    /// As much of the packet as fits into 576 bytes (RFC 1812 §4.3.2.3).
    fn over_ipv4(
        self,
        about: &[u8],
        from: Ipv4Addr,
        to: Ipv4Addr,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        const HEADERS: usize = ipv4::HEADER_LEN + icmp::HEADER_LEN;
        let of = |kind, code| IcmpHeader { kind, code, checksum: 0.into(), rest: [0; 4] };
        let head = match self {
            Self::TimeExceeded => of(icmp::TIME_EXCEEDED, 0),
            Self::NoRoute => of(icmp::UNREACHABLE, 0),
            Self::NoNeighbour => of(icmp::UNREACHABLE, 1),
            Self::TooBig(mtu) => IcmpHeader::fragmentation_needed(mtu),
        };
        let quote = &about[..about.len().min(576 - HEADERS)];
        let mut answer = pool.take(SizeClass::Packet);
        let message = answer.append(icmp::HEADER_LEN + quote.len())?;
        message[..icmp::HEADER_LEN].copy_from_slice(head.as_bytes());
        message[icmp::HEADER_LEN..].copy_from_slice(quote);
        let checksum = Sum::of(message).checksum();
        IcmpHeader::mut_from_prefix(message).ok()?.0.checksum = checksum.into();
        let len = u16::try_from(answer.len() + ipv4::HEADER_LEN).ok()?;
        let mut header = Ipv4Header::new(from, to, Protocol::ICMP, len);
        header.tos = 0xc0;
        header.fill_checksum();
        answer.push(ipv4::HEADER_LEN)?.copy_from_slice(header.as_bytes());
        Some(answer)
    }

    /// As much of the packet as fits into 1280 bytes (RFC 4443 §2.4 c).
    fn over_ipv6(
        self,
        about: &[u8],
        from: Ipv6Addr,
        to: Ipv6Addr,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        const HEADERS: usize = ipv6::HEADER_LEN + icmpv6::HEADER_LEN;
        let of = |kind, code| Icmpv6Header { kind, code, checksum: 0.into(), rest: 0.into() };
        let head = match self {
            Self::TimeExceeded => of(icmpv6::TIME_EXCEEDED, 0),
            Self::NoRoute => of(icmpv6::UNREACHABLE, 0),
            Self::NoNeighbour => of(icmpv6::UNREACHABLE, 3),
            Self::TooBig(mtu) => Icmpv6Header::packet_too_big(mtu.into()),
        };
        let quote = &about[..about.len().min(IPV6_LEAST - HEADERS)];
        let mut answer = pool.take(SizeClass::Packet);
        let message = answer.append(icmpv6::HEADER_LEN + quote.len())?;
        message[..icmpv6::HEADER_LEN].copy_from_slice(head.as_bytes());
        message[icmpv6::HEADER_LEN..].copy_from_slice(quote);
        let len = u16::try_from(message.len()).ok()?;
        let sum = Sum::of_pseudo(from.into(), to.into(), Protocol::ICMPV6, len.into());
        let checksum = sum.plus_bytes(message).checksum();
        Icmpv6Header::mut_from_prefix(message).ok()?.0.checksum = checksum.into();
        let header = Ipv6Header::new(from, to, Protocol::ICMPV6, len);
        answer.push(ipv6::HEADER_LEN)?.copy_from_slice(header.as_bytes());
        Some(answer)
    }
}

fn may_be_answered(ip: &IpPacket, bytes: &[u8]) -> bool {
    let is_error = match ip.protocol {
        Protocol::ICMP => Icmp::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol::ICMPV6 => Icmpv6::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol(_) => false,
    };
    let is_later = matches!(ip.fragment, Fragment::Later { .. });
    let from_one = !ip.source.is_unspecified() && !ip.source.is_multicast();
    !is_error && !is_later && from_one && !ip.destination.is_multicast()
}

/// How many messages may still be sent: `net.ipv4.icmp_msgs_per_sec`, `net.ipv4.icmp_msgs_burst`.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u64,
    filled: Moment,
}

const BURST: u64 = 50;
/// Nanoseconds for one.
const PER_TOKEN: u64 = 1_000_000;

impl Budget {
    pub(super) const fn new() -> Self {
        Self { tokens: BURST, filled: Moment(0) }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Moment) -> bool {
        let fresh = now.0.saturating_sub(self.filled.0) / PER_TOKEN;
        if fresh > 0 {
            self.tokens = self.tokens.saturating_add(fresh).min(BURST);
            self.filled = now;
        }
        let is_left = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        is_left
    }
}

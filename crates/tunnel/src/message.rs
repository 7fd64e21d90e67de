//! ICMP errors that tell a packet's sender what its tunnel could not do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::icmp::{self, IcmpHeader};
use uxfrm_packet::icmpv6::{self, Icmpv6Header};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{PacketBuf, Pool, Protocol, SizeClass};
use zerocopy::{FromBytes, IntoBytes};

use crate::quote::Quoted;
use crate::tunnel::{IPV4_LEAST, IPV6_LEAST};

/// What a sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The packet is too big; so many bytes get through (RFC 1191 §4, RFC 4443 §3.2).
    TooBig {
        /// Bytes of IP packet.
        mtu: u32,
    },
    /// Nobody can be reached that way: `ICMP_HOST_UNREACH`, `ICMPV6_ADDR_UNREACH`.
    Unreachable,
    /// A header field is wrong: the byte at `pointer` (RFC 4443 §3.4). IPv6 only.
    ParameterProblem {
        /// Offset from the packet's first byte.
        pointer: u32,
    },
}

/// `ICMP_HOST_UNREACH`.
const HOST_UNREACHABLE: u8 = 1;
/// `ICMPV6_ADDR_UNREACH`.
const ADDRESS_UNREACHABLE: u8 = 3;

impl Message {
    /// The ICMP packet that tells the sender of `about`: an IP packet, or as much of one as somebody quoted.
    ///
    /// It comes from the packet's destination, as the engine's errors do: from an own address it would enter the host through the TUN as a
    /// martian. `None` where none may be sent (RFC 1122 §3.2.2, RFC 4443 §2.4 e): about ICMP errors, later fragments, and packets to or
    /// from what is no single host.
    #[must_use]
    pub fn about(self, about: &[u8], pool: &mut Pool) -> Option<PacketBuf> {
        let quoted = Quoted::of(about)?;
        if !quoted.may_be_answered() {
            return None;
        }
        match (quoted.destination, quoted.source) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.over_ipv4(about, from, to, pool),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.over_ipv6(about, from, to, pool),
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
        let head = match self {
            Self::TooBig { mtu } => {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                IcmpHeader::fragmentation_needed(mtu.max(u16::try_from(IPV4_LEAST).unwrap_or(0)))
            }
            Self::Unreachable => IcmpHeader {
                kind: icmp::UNREACHABLE,
                code: HOST_UNREACHABLE,
                checksum: 0.into(),
                rest: [0; 4],
            },
            Self::ParameterProblem { .. } => return None,
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
        let head = match self {
            Self::TooBig { mtu } => {
                Icmpv6Header::packet_too_big(mtu.max(u32::try_from(IPV6_LEAST).unwrap_or(0)))
            }
            Self::Unreachable => Icmpv6Header {
                kind: icmpv6::UNREACHABLE,
                code: ADDRESS_UNREACHABLE,
                checksum: 0.into(),
                rest: 0.into(),
            },
            Self::ParameterProblem { pointer } => Icmpv6Header {
                kind: icmpv6::PARAMETER_PROBLEM,
                code: 0,
                checksum: 0.into(),
                rest: pointer.into(),
            },
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

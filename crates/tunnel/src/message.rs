//! ICMP errors to a packet's sender about its tunnel.

use std::net::IpAddr;

use uxfrm_packet::icmp::{self, IcmpHeader};
use uxfrm_packet::icmpv6::{self, Icmpv6Header};
use uxfrm_packet::{PacketBuf, Pool, icmp_error, ipv6};

use crate::icmp_quote::Quoted;
use crate::tunnel::IPV4_LEAST;

/// ICMP errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The packet exceeds the MTU (RFC 1191 §4, RFC 4443 §3.2).
    TooBig {
        /// Bytes of IP packet.
        mtu: u32,
    },
    /// The remote address is unreachable: `ICMP_HOST_UNREACH`, `ICMPV6_ADDR_UNREACH`.
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
    /// The ICMP packet to the sender of `about`, an IP packet or a quoted part of one.
    ///
    /// Its source is the packet's destination, as of the engine's errors: an own address would
    /// enter the host through the TUN as a martian. `None` where none may be sent (RFC 1122 §3.2.2,
    /// RFC 4443 §2.4 e): about ICMP errors, later fragments, and packets to or from no single host.
    #[must_use]
    pub fn about(self, about: &[u8], pool: &mut Pool) -> Option<PacketBuf> {
        let quoted = Quoted::of(about)?;
        if !quoted.may_be_answered() {
            return None;
        }
        match (quoted.destination, quoted.source) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                icmp_error::over_ipv4(self.over_ipv4()?, about, (from, to), pool)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                icmp_error::over_ipv6(self.over_ipv6(), about, (from, to), pool)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    fn over_ipv4(self) -> Option<IcmpHeader> {
        match self {
            Self::TooBig { mtu } => {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                let least = u16::try_from(IPV4_LEAST).unwrap_or(0);
                Some(IcmpHeader::fragmentation_needed(mtu.max(least)))
            }
            Self::Unreachable => Some(IcmpHeader {
                kind: icmp::UNREACHABLE,
                code: HOST_UNREACHABLE,
                checksum: 0.into(),
                rest: [0; 4],
            }),
            Self::ParameterProblem { .. } => None,
        }
    }

    fn over_ipv6(self) -> Icmpv6Header {
        let of = |kind, code, rest: u32| Icmpv6Header {
            kind,
            code,
            checksum: 0.into(),
            rest: rest.into(),
        };
        match self {
            Self::TooBig { mtu } => {
                Icmpv6Header::packet_too_big(mtu.max(u32::try_from(ipv6::LEAST_MTU).unwrap_or(0)))
            }
            Self::Unreachable => of(icmpv6::UNREACHABLE, ADDRESS_UNREACHABLE, 0),
            Self::ParameterProblem { pointer } => of(icmpv6::PARAMETER_PROBLEM, 0, pointer),
        }
    }
}

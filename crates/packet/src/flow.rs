//! The two 16-bit numbers by which a selector tells flows between the same addresses apart.

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

use crate::{IpPacket, Protocol, gre};

/// What XFRM compares with a selector's ports (`net/xfrm/xfrm_policy.c: decode_session4`, `decode_session6`;
/// `include/net/xfrm.h: xfrm_flowi_sport`, `xfrm_flowi_dport`).
///
/// | protocol | `source` | `destination` |
/// | --- | --- | --- |
/// | TCP, UDP, UDP-Lite, SCTP, DCCP | source port | destination port |
/// | ICMP, ICMPv6 | type | code |
/// | mobility header | type | 0 |
/// | GRE with key | key's upper half | key's lower half |
/// | all else, and every fragment | 0 | 0 |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowPorts {
    /// What a selector's `sport` is compared with.
    pub source: u16,
    /// What a selector's `dport` is compared with.
    pub destination: u16,
}

impl FlowPorts {
    /// Neither: what fragments and protocols without ports have.
    pub const NONE: Self = Self { source: 0, destination: 0 };

    /// Reads the ports of a packet; `bytes` are those that `ip` was parsed from.
    ///
    /// An upper layer too short for its ports has none, as in the kernel.
    #[must_use]
    #[inline]
    pub fn of(ip: &IpPacket, bytes: &[u8]) -> Self {
        if ip.is_fragment() {
            return Self::NONE;
        }
        Self::of_upper(ip.protocol, ip.upper(bytes)).unwrap_or(Self::NONE)
    }

    #[inline]
    fn of_upper(protocol: Protocol, upper: &[u8]) -> Option<Self> {
        match protocol {
            Protocol::TCP | Protocol::UDP | Protocol::UDPLITE | Protocol::SCTP | Protocol::DCCP => {
                let ([source, destination], _) = <[U16; 2]>::ref_from_prefix(upper).ok()?;
                Some(Self { source: source.get(), destination: destination.get() })
            }
            Protocol::ICMP | Protocol::ICMPV6 => {
                let [kind, code] = *upper.first_chunk()?;
                Some(Self { source: kind.into(), destination: code.into() })
            }
            Protocol::MH => Some(Self { source: (*upper.get(2)?).into(), destination: 0 }),
            Protocol::GRE => Self::of_gre(upper),
            Protocol(_) => None,
        }
    }

    fn of_gre(upper: &[u8]) -> Option<Self> {
        let (header, fields) = U32::ref_from_prefix(upper).ok()?;
        let flags = gre::high_half(header.get());
        if flags & gre::KEY == 0 {
            return None;
        }
        let key_at = if flags & gre::CHECKSUM == 0 { 0 } else { 4 };
        let ([source, destination], _) = <[U16; 2]>::ref_from_prefix(fields.get(key_at..)?).ok()?;
        Some(Self { source: source.get(), destination: destination.get() })
    }
}

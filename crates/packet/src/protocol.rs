//! IP protocol numbers, which are also IPv6's next-header values.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An IP protocol or IPv6 next-header number (IANA "Protocol Numbers"). Any byte is one.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOPOPTS: Self = Self(0);
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// IPv4 in IP (RFC 2003).
    pub const IPIP: Self = Self(4);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// DCCP (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// IPv6 in IP (RFC 2473).
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: Self = Self(44);
    /// GRE (RFC 2784).
    pub const GRE: Self = Self(47);
    /// ESP (RFC 4303).
    pub const ESP: Self = Self(50);
    /// AH (RFC 4302).
    pub const AH: Self = Self(51);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// Nothing follows; in an ESP trailer, a dummy packet (RFC 4303 §2.6).
    pub const NONE: Self = Self(59);
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DSTOPTS: Self = Self(60);
    /// IPComp (RFC 3173).
    pub const COMP: Self = Self(108);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// IPv6 mobility header (RFC 6275).
    pub const MH: Self = Self(135);
    /// UDP-Lite (RFC 3828).
    pub const UDPLITE: Self = Self(136);

    /// `/etc/protocols`' name in lower case, for those that have a constant here.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::HOPOPTS => "hopopt",
            Self::ICMP => "icmp",
            Self::IPIP => "ipencap",
            Self::TCP => "tcp",
            Self::UDP => "udp",
            Self::DCCP => "dccp",
            Self::IPV6 => "ipv6",
            Self::ROUTING => "ipv6-route",
            Self::FRAGMENT => "ipv6-frag",
            Self::GRE => "gre",
            Self::ESP => "esp",
            Self::AH => "ah",
            Self::ICMPV6 => "ipv6-icmp",
            Self::NONE => "ipv6-nonxt",
            Self::DSTOPTS => "ipv6-opts",
            Self::COMP => "ipcomp",
            Self::SCTP => "sctp",
            Self::MH => "mobility-header",
            Self::UDPLITE => "udplite",
            Self(_) => return None,
        })
    }
}

impl From<u8> for Protocol {
    fn from(number: u8) -> Self {
        Self(number)
    }
}

impl From<Protocol> for u8 {
    fn from(protocol: Protocol) -> Self {
        protocol.0
    }
}

/// The name if there is one, otherwise the number.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol({self})")
    }
}

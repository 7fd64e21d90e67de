//! Configuration of a tunnel: the attributes of `ip link add … type ipip|sit|gre|ip6tnl|ip6gre`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use uxfrm_packet::{Protocol, Version};

use crate::SixRd;
pub use crate::udp_framing::{UdpFraming, UdpFramingProperties};

/// The kind of a tunnel, by iproute2's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelKind {
    /// IPv4 in IPv4 (RFC 2003).
    Ipip,
    /// IPv6 in IPv4 (RFC 4213); IPv4 too in mode `any` or `ipip`.
    Sit,
    /// GRE over IPv4 (RFC 2784, 2890).
    Gre,
    /// IPv4 or IPv6 in IPv6 (RFC 2473).
    Ip6tnl,
    /// GRE over IPv6 (RFC 7676).
    Ip6gre,
}

impl TunnelKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Ipip, Self::Sit, Self::Gre, Self::Ip6tnl, Self::Ip6gre];

    /// iproute2's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
            Self::Gre => "gre",
            Self::Ip6tnl => "ip6tnl",
            Self::Ip6gre => "ip6gre",
        }
    }

    /// The version of the outer header.
    #[must_use]
    pub const fn outer(self) -> Version {
        match self {
            Self::Ipip | Self::Sit | Self::Gre => Version::V4,
            Self::Ip6tnl | Self::Ip6gre => Version::V6,
        }
    }

    /// Whether there is a GRE header.
    #[must_use]
    pub const fn is_gre(self) -> bool {
        match self {
            Self::Gre | Self::Ip6gre => true,
            Self::Ipip | Self::Sit | Self::Ip6tnl => false,
        }
    }

    /// The protocol number of a packet of `inner` version.
    #[must_use]
    pub const fn protocol(self, inner: Version) -> Protocol {
        match (self, inner) {
            (Self::Gre | Self::Ip6gre, _) => Protocol::GRE,
            (Self::Ipip | Self::Sit | Self::Ip6tnl, Version::V4) => Protocol::IPIP,
            (Self::Ipip | Self::Sit | Self::Ip6tnl, Version::V6) => Protocol::IPV6,
        }
    }
}

/// IP versions that a tunnel carries (iproute2's `mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedVersions {
    /// IPv4 only: `ipip`, `ipip6`.
    V4,
    /// IPv6 only: `ip6ip`, `ip6ip6`.
    V6,
    /// Both: `any`.
    Both,
}

impl CarriedVersions {
    /// Whether packets of `version` are carried.
    #[must_use]
    pub const fn takes(self, version: Version) -> bool {
        match (self, version) {
            (Self::Both, _) | (Self::V4, Version::V4) | (Self::V6, Version::V6) => true,
            (Self::V4, Version::V6) | (Self::V6, Version::V4) => false,
        }
    }
}

/// Origin of an outer byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderByte {
    /// Copied from the inner header.
    Inherit,
    /// A fixed value.
    Fixed(u8),
}

/// The flow label of an outer IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLabel {
    /// From the flow's hash (`net.ipv6.auto_flowlabels`).
    Auto,
    /// Copied from the inner IPv6 header; for IPv4 from the hash.
    Inherit,
    /// A fixed value of 20 bits.
    Fixed(u32),
}

/// Whether all outer IPv4 headers have DF (`pmtudisc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMtuDiscovery {
    /// `pmtudisc`: every outer packet has DF.
    On,
    /// `nopmtudisc`: only those of inner packets with DF.
    Off,
}

/// Whether an inner DF bit is copied to the outer header, without path MTU discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerDf {
    /// Copied.
    Copy,
    /// `ignore-df`.
    Ignore,
}

/// Whether GRE has an optional field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GreField {
    /// Absent.
    #[default]
    Without,
    /// Present.
    With,
}

/// The optional GRE fields of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreOptions {
    /// `ikey`, `okey`.
    pub key: Option<u32>,
    /// `iseq`, `oseq`: packets have sequence numbers.
    pub sequence: GreField,
    /// `icsum`, `ocsum`: a checksum over header and payload.
    pub checksum: GreField,
}

/// Origin of the UDP source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// `encap-sport auto`: from the hash of the inner flow.
    Auto,
    /// A fixed port.
    Fixed(NonZeroU16),
}

/// Whether sent packets have a UDP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// Computed: `encap-csum`, `encap6-csum`.
    Computed,
    /// Zero: `noencap-csum`, `noencap6-csum`.
    Zero,
}

/// Who computes a checksum that the host left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOffload {
    /// This end: `noencap-remcsum`.
    Off,
    /// The other end, by GUE's private field: `encap-remcsum`.
    On,
}

/// UDP encapsulation of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelUdpEncap {
    /// FOU or GUE.
    pub framing: UdpFraming,
    /// `encap-sport`.
    pub source_port: SourcePort,
    /// `encap-dport`.
    pub destination_port: NonZeroU16,
    /// `encap-csum`, for an outer IPv4 header.
    pub checksum4: UdpChecksum,
    /// `encap6-csum`, for an outer IPv6 header.
    pub checksum6: UdpChecksum,
    /// `encap-remcsum`.
    pub remote_checksum: RemoteOffload,
}

impl TunnelUdpEncap {
    /// iproute2's defaults: source port from the flow, checksums 0, no remote checksum offload.
    #[must_use]
    pub const fn new(framing: UdpFraming, destination_port: NonZeroU16) -> Self {
        Self {
            framing,
            source_port: SourcePort::Auto,
            destination_port,
            checksum4: UdpChecksum::Zero,
            checksum6: UdpChecksum::Zero,
            remote_checksum: RemoteOffload::Off,
        }
    }
}

/// Configuration of a tunnel, validated by [`Tunnel::new`](crate::Tunnel::new).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// Its kind.
    pub kind: TunnelKind,
    /// IP versions that it carries.
    pub carries: CarriedVersions,
    /// Local address; unspecified for the route's source.
    pub local: IpAddr,
    /// Remote address; unspecified accepts any sender and sends to nobody, except by [`SixRd`].
    pub remote: IpAddr,
    /// TTL or hop limit.
    pub ttl: HeaderByte,
    /// DSCP and ECN. Outgoing ECN follows RFC 6040 whatever this is.
    pub tos: HeaderByte,
    /// Of an outer IPv6 header.
    pub flow_label: FlowLabel,
    /// Of an outer IPv4 header.
    pub path_mtu: PathMtuDiscovery,
    /// Of an outer IPv4 header.
    pub inner_df: InnerDf,
    /// GRE fields of incoming packets.
    pub input: GreOptions,
    /// GRE fields of outgoing packets.
    pub output: GreOptions,
    /// How many tunnels may follow inside this one (RFC 2473 §4.1.1), over IPv6; `None` omits the
    /// option.
    pub encap_limit: Option<u8>,
    /// UDP encapsulation of outgoing packets, if any. Incoming ones need receive ports.
    pub udp: Option<TunnelUdpEncap>,
    /// IPv6 addresses that contain the remote address, for `sit` without one.
    pub six_rd: SixRd,
}

impl TunnelConfig {
    /// The kernel's and iproute2's defaults for a tunnel of this kind.
    #[must_use]
    pub const fn new(kind: TunnelKind, local: IpAddr, remote: IpAddr) -> Self {
        let (carries, ttl, encap_limit) = match kind {
            TunnelKind::Ipip => (CarriedVersions::V4, HeaderByte::Inherit, None),
            TunnelKind::Sit => (CarriedVersions::V6, HeaderByte::Inherit, None),
            TunnelKind::Gre => (CarriedVersions::Both, HeaderByte::Inherit, None),
            TunnelKind::Ip6tnl => (CarriedVersions::Both, HeaderByte::Fixed(64), Some(4)),
            TunnelKind::Ip6gre => (CarriedVersions::Both, HeaderByte::Fixed(64), Some(4)),
        };
        Self {
            kind,
            carries,
            local,
            remote,
            ttl,
            tos: HeaderByte::Fixed(0),
            flow_label: FlowLabel::Auto,
            path_mtu: PathMtuDiscovery::On,
            inner_df: InnerDf::Copy,
            input: GreOptions {
                key: None,
                sequence: GreField::Without,
                checksum: GreField::Without,
            },
            output: GreOptions {
                key: None,
                sequence: GreField::Without,
                checksum: GreField::Without,
            },
            encap_limit,
            udp: None,
            six_rd: SixRd::SIX_TO_FOUR,
        }
    }

    /// The unspecified address of a version.
    #[must_use]
    pub const fn any(version: Version) -> IpAddr {
        match version {
            Version::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Version::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

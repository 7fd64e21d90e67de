//! Errors of requests for tunnels and receive ports, with the kernel's errno.

use thiserror::Error;

/// Why a tunnel or a receive port was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Addresses of another family than the kind's outer header, or of two.
    #[error("a tunnel of this kind has {0} addresses at both ends")]
    EndsFamily(&'static str),
    /// IPv6 in `ipip`.
    #[error("ipip carries IPv4 only")]
    Carries,
    /// Keys, sequence numbers or checksums without GRE.
    #[error("only gre and ip6gre have keys, sequence numbers and checksums")]
    NotGre,
    /// An encapsulation limit over IPv4.
    #[error("only ip6tnl and ip6gre have an encapsulation limit")]
    NoEncapLimit,
    /// A 6rd prefix for what is not `sit`.
    #[error("only sit has a 6rd prefix")]
    NotSit,
    /// A 6rd prefix with host bits, or without room for the rest of the IPv4 address.
    #[error(
        "6rd prefixes must have no bits behind their lengths, and 6rd-prefix with what is left of IPv4 at most 64 bits"
    )]
    SixRd,
    /// Ignoring the inner DF bit contradicts setting every outer one.
    #[error("ignore-df needs nopmtudisc")]
    IgnoreDf,
    /// Remote checksum offload needs GUE's private field.
    #[error("remote checksum offload needs gue")]
    RemoteChecksum,
    /// Another tunnel of this kind has these addresses and this key.
    #[error("File exists")]
    TunnelExists,
    /// No tunnel of this name.
    #[error("Cannot find device")]
    NoTunnel,
    /// A receive port with this identity exists.
    #[error("Operation already in progress")]
    PortAlready,
    /// Another receive port is bound to this UDP port at this address.
    #[error("Address already in use")]
    PortInUse,
    /// The port to delete does not exist.
    #[error("Invalid argument")]
    PortMissing,
    /// The requested port does not exist.
    #[error("No such process")]
    PortUnknown,
    /// UDP port 0.
    #[error("Invalid argument: a port number is needed")]
    PortZero,
    /// A direct port without protocol, or with protocol 0.
    #[error("Invalid argument: ipproto must be 1 to 255")]
    PortProtocol,
    /// An encapsulation type that is neither direct nor GUE.
    #[error("Invalid argument: the type must be 1 (direct) or 2 (gue)")]
    PortType,
    /// A peer address without a peer port.
    #[error("Invalid argument: a peer needs a peer port")]
    PeerPort,
    /// A device without a local address.
    #[error("Invalid argument: a device needs a local address")]
    DeviceLocal,
    /// An address family that is neither IPv4 nor IPv6.
    #[error("Address family not supported by protocol")]
    PortFamily,
}

impl Error {
    /// The kernel's errno (`net/ipv4/fou_core.c`, `net/ipv4/ip_tunnel.c`), positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoTunnel => 19,
            Self::TunnelExists => 17,
            Self::PortAlready => 114,
            Self::PortInUse => 98,
            Self::PortUnknown => 3,
            Self::PortFamily => 97,
            Self::EndsFamily(_)
            | Self::Carries
            | Self::NotGre
            | Self::NoEncapLimit
            | Self::NotSit
            | Self::SixRd
            | Self::IgnoreDf
            | Self::RemoteChecksum
            | Self::PortMissing
            | Self::PortZero
            | Self::PortProtocol
            | Self::PortType
            | Self::PeerPort
            | Self::DeviceLocal => 22,
        }
    }
}

//! Parse errors.

use thiserror::Error;

/// Why bytes are no valid packet: one variant per fault, so that each can be counted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// No bytes at all, or a version nibble that is neither 4 nor 6.
    #[error("not an IP packet: its version is neither 4 nor 6")]
    NotIp,
    /// Fewer than the 14 bytes of an Ethernet header.
    #[error("Ethernet header cut short: 14 bytes are needed")]
    EthernetTruncated,
    /// A tag's type was announced and its 4 bytes are not there.
    #[error("VLAN tag cut short: 4 bytes are needed")]
    VlanTruncated,
    /// More VLAN tags than [`ethernet::MAX_TAGS`](crate::ethernet::MAX_TAGS).
    #[error("too many VLAN tags: at most 2 are read")]
    VlanTooDeep,
    /// Fewer than the 20 bytes of an IPv4 header.
    #[error("IPv4 header cut short: 20 bytes are needed")]
    Ipv4Truncated,
    /// An IPv4 header length below 5 words.
    #[error("IPv4 header length is below 5 words")]
    Ipv4HeaderLength,
    /// The IPv4 header length says that options reach beyond the bytes.
    #[error("IPv4 options cut short")]
    Ipv4OptionsTruncated,
    /// The IPv4 total length does not even cover the header.
    #[error("IPv4 total length is below the header length")]
    Ipv4TotalLengthShort,
    /// The IPv4 total length reaches beyond the bytes.
    #[error("IPv4 total length is more than there are bytes")]
    Ipv4TotalLengthLong,
    /// Fewer than the 40 bytes of an IPv6 header.
    #[error("IPv6 header cut short: 40 bytes are needed")]
    Ipv6Truncated,
    /// The IPv6 payload length reaches beyond the bytes.
    #[error("IPv6 payload length is more than there are bytes")]
    Ipv6PayloadLength,
    /// An IPv6 extension header reaches beyond the packet.
    #[error("IPv6 extension header cut short")]
    ExtensionTruncated,
    /// More IPv6 extension headers than [`ipv6::MAX_EXTENSIONS`](crate::ipv6::MAX_EXTENSIONS).
    #[error("too many IPv6 extension headers: at most 8 are read")]
    ExtensionsTooMany,
    /// Fewer than the 8 bytes of a UDP header.
    #[error("UDP header cut short: 8 bytes are needed")]
    UdpTruncated,
    /// A UDP length below 8, or beyond the bytes.
    #[error("UDP length is below 8 or more than there are bytes")]
    UdpLength,
    /// Fewer than the 20 bytes of a TCP header.
    #[error("TCP header cut short: 20 bytes are needed")]
    TcpTruncated,
    /// A TCP data offset below 5 words.
    #[error("TCP data offset is below 5 words")]
    TcpDataOffset,
    /// The TCP data offset says that options reach beyond the bytes.
    #[error("TCP options cut short")]
    TcpOptionsTruncated,
    /// Fewer than the 8 bytes of an ICMP header.
    #[error("ICMP header cut short: 8 bytes are needed")]
    IcmpTruncated,
    /// Fewer than the 8 bytes of an ICMPv6 header.
    #[error("ICMPv6 header cut short: 8 bytes are needed")]
    Icmpv6Truncated,
    /// Fewer than the 8 bytes of SPI and sequence number.
    #[error("ESP header cut short: 8 bytes are needed")]
    EspTruncated,
    /// A GRE header, with the fields its flags announce, reaches beyond the bytes.
    #[error("GRE header cut short")]
    GreTruncated,
    /// A GRE version other than 0 (RFC 2784).
    #[error("GRE version is not 0")]
    GreVersion,
    /// A GRE header with source routes (RFC 1701's bit 1), which RFC 2784 withdrew.
    #[error("GRE header carries source routes")]
    GreRouting,
    /// [`Checksum::Partial`](crate::Checksum::Partial) points outside the packet.
    #[error("the checksum to be filled in lies outside the packet")]
    ChecksumRange,
    /// The packet to segment is no super-packet.
    #[error("not a super-packet: there is nothing to segment")]
    NotSuper,
    /// A super-packet with segments of 0 bytes.
    #[error("super-packet with segments of 0 bytes")]
    SegmentSize,
    /// A super-packet that is itself a fragment.
    #[error("super-packet that is an IP fragment")]
    SuperFragment,
    /// A super-packet of another transport protocol than its metadata says.
    #[error("super-packet whose protocol is not the one it is marked with")]
    SuperProtocol,
    /// A super-packet with more header than [`segment::MAX_HEADER`](crate::segment::MAX_HEADER).
    #[error("super-packet with more than 256 bytes of headers")]
    SuperHeader,
}

//! Classifies an offered packet: its flow, and whether it can be joined.

use std::net::IpAddr;

use super::{MAX_SUPER, SliceMeta};
use crate::checksum::{self, Sum, TCP_CHECKSUM_AT, UDP_CHECKSUM_AT, Verification};
use crate::tcp::{Tcp, TcpFlags};
use crate::udp::{self, UdpDatagram};
use crate::{Checksum, FlowPorts, IpPacket, Protocol, Version};

/// Addresses and protocol, all that a fragment tells of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowAddresses {
    source: u128,
    destination: u128,
    pub(super) version: Version,
    pub(super) protocol: Protocol,
}

impl FlowAddresses {
    /// Addresses as integers: compared and copied faster than `IpAddr`.
    #[inline]
    fn of(ip: &IpPacket) -> Self {
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        Self {
            source: bits(ip.source),
            destination: bits(ip.destination),
            version: ip.version,
            protocol: ip.protocol,
        }
    }
}

/// A flow, within which the order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    ports: FlowPorts,
    pub(super) ends: FlowAddresses,
}

/// Class of an offered packet.
pub(super) enum Offered {
    /// Neither TCP nor UDP: its flow is never held.
    Foreign,
    /// A fragment: it may belong to any flow between its addresses.
    Fragment(FlowAddresses),
    /// Cannot be joined.
    Passing(Flow),
    /// Can be joined, if it matches the held packet.
    Joinable(Joinable),
}

/// The fields of a joinable packet that must match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joinable {
    pub(super) flow: Flow,
    pub(super) network_len: usize,
    /// Network and transport header.
    pub(super) header_len: usize,
    pub(super) payload_len: usize,
    /// TCP's; 0 in UDP.
    pub(super) sequence: u32,
    /// TCP's; none in UDP.
    pub(super) flags: TcpFlags,
}

impl Offered {
    /// A packet that must not be joined.
    pub(super) fn passing(bytes: &[u8]) -> Self {
        IpPacket::parse(bytes).map_or(Self::Foreign, |ip| Self::barrier(&ip, bytes))
    }

    #[inline]
    pub(super) fn of(bytes: &[u8], notes: SliceMeta) -> Self {
        let Ok(ip) = IpPacket::parse(bytes) else { return Self::Foreign };
        match Self::barrier(&ip, bytes) {
            Self::Passing(flow) => {
                Joinable::of(&ip, flow, bytes, notes).map_or(Self::Passing(flow), Self::Joinable)
            }
            other @ (Self::Foreign | Self::Fragment(_) | Self::Joinable(_)) => other,
        }
    }

    #[inline]
    fn barrier(ip: &IpPacket, bytes: &[u8]) -> Self {
        let ends = FlowAddresses::of(ip);
        match ip.protocol {
            Protocol::TCP | Protocol::UDP if ip.is_fragment() => Self::Fragment(ends),
            Protocol::TCP | Protocol::UDP => {
                Self::Passing(Flow { ports: FlowPorts::of(ip, bytes), ends })
            }
            Protocol(_) => Self::Foreign,
        }
    }
}

impl Joinable {
    /// `None` if the packet must leave as it is.
    #[inline]
    fn of(ip: &IpPacket, flow: Flow, bytes: &[u8], notes: SliceMeta) -> Option<Self> {
        if ip.has_options || ip.trailing != 0 || ip.total_len > MAX_SUPER {
            return None;
        }
        let upper = ip.upper(bytes);
        let (transport_len, sequence, flags) =
            if ip.protocol == Protocol::TCP { tcp_fields(upper)? } else { udp_fields(upper)? };
        let payload_len = upper.len().checked_sub(transport_len).filter(|len| *len > 0)?;
        let piece = Self {
            flow,
            network_len: ip.header_len,
            header_len: ip.header_len + transport_len,
            payload_len,
            sequence,
            flags,
        };
        checksums_are_right(ip, bytes, notes).then_some(piece)
    }

    pub(super) fn checksum_at(&self) -> usize {
        if self.flow.ends.protocol == Protocol::TCP { TCP_CHECKSUM_AT } else { UDP_CHECKSUM_AT }
    }
}

/// Header length, sequence number and flags of a segment whose flags allow joining.
#[inline]
fn tcp_fields(upper: &[u8]) -> Option<(usize, u32, TcpFlags)> {
    const ALLOWED: TcpFlags =
        TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0 | TcpFlags::ECE.0 | TcpFlags::CWR.0);
    let header = Tcp::parse(upper).ok()?.header;
    let flags = header.flags;
    let plain = flags.has(TcpFlags::ACK) && flags.without(ALLOWED) == TcpFlags::default();
    plain.then(|| (header.header_len(), header.sequence.get(), flags))
}

/// Like [`tcp_fields`], for a datagram with a checksum that fills its packet.
#[inline]
fn udp_fields(upper: &[u8]) -> Option<(usize, u32, TcpFlags)> {
    let datagram = UdpDatagram::parse(upper).ok()?;
    let plain = datagram.trailing.is_empty() && datagram.header.checksum.get() != 0;
    plain.then(|| (udp::HEADER_LEN, 0, TcpFlags::default()))
}

/// Joined packets get new checksums, which must not make invalid ones valid.
#[inline]
fn checksums_are_right(ip: &IpPacket, bytes: &[u8], notes: SliceMeta) -> bool {
    let network = ip.version == Version::V6 || Sum::of(&bytes[..ip.header_len]).fold() == 0xffff;
    network
        && match notes.checksum {
            Checksum::Verified => true,
            Checksum::AsIs => checksum::verify(ip, bytes) == Verification::Right,
            Checksum::Partial { .. } => false,
        }
}

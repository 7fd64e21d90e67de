//! Outer headers of a tunnel: IPv4 or IPv6, and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, UdpPath};
use zerocopy::IntoBytes;

use crate::DropReason;
use crate::config::UdpChecksum;
use crate::tunnel::LIMIT_LEN;

/// The UDP header of an encapsulated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEnds {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Whether there is a checksum.
    pub checksum: UdpChecksum,
}

/// All headers before GUE, GRE and the inner packet.
///
/// [`push`](Self::push) writes them all, [`datagram`](Self::datagram) leaves them to a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same version.
    pub destination: IpAddr,
    /// Protocol behind the UDP header, or behind the IP header without UDP.
    pub protocol: Protocol,
    /// DSCP and ECN.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4's DF.
    pub dont_fragment: bool,
    /// IPv6's flow label.
    pub flow_label: u32,
    /// The tunnel encapsulation limit in an IPv6 destination options header.
    pub encap_limit: Option<u8>,
    /// The UDP header, if there is one.
    pub udp: Option<UdpEnds>,
}

impl Outer {
    /// Writes the headers before the packet, which becomes a whole IP packet.
    ///
    /// `source` must be set: checksums cover it. IPv4's identification is 0, for the raw socket to
    /// fill in.
    ///
    /// # Errors
    /// [`DropReason::OutNoRoom`], with the packet unchanged.
    pub fn push(&self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let (before, len) = (self.len(), packet.len());
        if packet.headroom() < before || len + before > usize::from(u16::MAX) {
            return Err(DropReason::OutNoRoom);
        }
        if let Some(ends) = self.udp {
            self.push_udp(ends, packet)?;
        }
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.push_ipv4(source, destination, packet)?;
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.push_ipv6(source, destination, packet)?;
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                return Err(DropReason::OutNoRemote);
            }
        }
        packet.checksum = Checksum::Verified;
        Ok(())
    }

    /// Marks the packet as payload of a UDP socket bound to [`UdpEnds::source`]; TTL and checksum
    /// are then the socket's.
    ///
    /// Returns `false`, and does nothing, for packets without UDP or with an encapsulation limit,
    /// which no UDP socket can send.
    #[must_use]
    pub fn datagram(&self, packet: &mut PacketBuf) -> bool {
        let (Some(ends), None) = (self.udp, self.encap_limit) else { return false };
        packet.udp = Some(UdpPath {
            local: SocketAddr::new(self.source, ends.source),
            remote: SocketAddr::new(self.destination, ends.destination),
            tos: self.tos,
            dont_fragment: self.dont_fragment,
        });
        packet.checksum = Checksum::AsIs;
        true
    }

    /// Bytes of all headers.
    #[must_use]
    pub fn len(&self) -> usize {
        let ip = match self.destination {
            IpAddr::V4(_) => ipv4::HEADER_LEN,
            IpAddr::V6(_) => ipv6::HEADER_LEN + self.encap_limit.map_or(0, |_| LIMIT_LEN),
        };
        ip + self.udp.map_or(0, |_| udp::HEADER_LEN)
    }

    /// Always `false`: there is an IP header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    fn push_udp(&self, ends: UdpEnds, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let bytes = push(packet, udp::HEADER_LEN)?;
        bytes.fill(0);
        let len = narrow(packet.len())?;
        let mut header = UdpHeader {
            source: ends.source.into(),
            destination: ends.destination.into(),
            length: len.into(),
            checksum: 0.into(),
        };
        if ends.checksum == UdpChecksum::Computed {
            let pseudo = Sum::of_pseudo(self.source, self.destination, Protocol::UDP, len.into());
            let sum = pseudo.plus_bytes(header.as_bytes()).plus_bytes(packet.bytes());
            header.checksum = sum.nonzero_checksum().into();
        }
        packet.bytes_mut()[..udp::HEADER_LEN].copy_from_slice(header.as_bytes());
        Ok(())
    }

    fn push_ipv4(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let len = narrow(packet.len() + ipv4::HEADER_LEN)?;
        let mut header = Ipv4Header::new(source, destination, self.behind_ip(), len);
        header.tos = self.tos;
        header.ttl = self.ttl;
        header.flags_fragment = if self.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 }.into();
        header.fill_checksum();
        push(packet, ipv4::HEADER_LEN)?.copy_from_slice(header.as_bytes());
        Ok(())
    }

    fn push_ipv6(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let mut next_header = self.behind_ip();
        if let Some(limit) = self.encap_limit {
            // Option 4 of 1 byte, and 3 bytes of padding (RFC 2473 §4.1.1).
            let options = [next_header.0, 0, 4, 1, limit, 1, 1, 0];
            push(packet, LIMIT_LEN)?.copy_from_slice(&options);
            next_header = Protocol::DSTOPTS;
        }
        let len = narrow(packet.len())?;
        let mut header = Ipv6Header::new(source, destination, next_header, len);
        header.set_traffic_class(self.tos);
        header.set_flow_label(self.flow_label);
        header.hop_limit = self.ttl;
        push(packet, ipv6::HEADER_LEN)?.copy_from_slice(header.as_bytes());
        Ok(())
    }

    /// Protocol in the IP header.
    fn behind_ip(&self) -> Protocol {
        if self.udp.is_some() { Protocol::UDP } else { self.protocol }
    }
}

pub(crate) fn push(packet: &mut PacketBuf, len: usize) -> Result<&mut [u8], DropReason> {
    packet.push(len).ok_or(DropReason::OutNoRoom)
}

pub(crate) fn narrow(len: usize) -> Result<u16, DropReason> {
    u16::try_from(len).map_err(|_| DropReason::OutNoRoom)
}

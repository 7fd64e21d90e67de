//! Segmentation of super-packets into wire packets.
//!
//! A [`SegmentPlan`] is made once per super-packet. It keeps a copy of the headers with the sum of
//! all constant fields, so that a segment costs its header's bytes and one sum over its payload.
//! The super-packet's own headers may be overwritten while the plan is carried out, as in-place
//! segmentation does.
//!
//! Mirrors `net/ipv4/tcp_offload.c: tcp_gso_segment`, `net/ipv4/udp_offload.c: __udp_gso_segment`
//! and `net/ipv4/af_inet.c: inet_gso_segment`: IPv4 ids count up, FIN and PSH stay on the last
//! segment, CWR on the first.

use std::ops::Range;

use crate::checksum::{Sum, TCP_CHECKSUM_AT, UDP_CHECKSUM_AT};
use crate::tcp::{Tcp, TcpFlags};
use crate::udp::{self, UdpHeader};
use crate::{IpPacket, PacketBuf, ParseError, Protocol, Segments, Version};

/// Upper bound of headers (IPv4 with options or IPv6 with extension headers, and transport) that a
/// plan can copy.
pub const MAX_HEADER: usize = 256;

/// Segmentation plan of one super-packet.
#[derive(Clone, Debug)]
pub struct SegmentPlan {
    /// Network and transport header of segment 0, with lengths and checksums 0.
    template: [u8; MAX_HEADER],
    /// Length of all headers.
    header_len: usize,
    /// Length of the network header.
    network_len: usize,
    version: Version,
    transport: Transport,
    /// Payload bytes per segment, except the last.
    size: usize,
    /// Payload bytes in total.
    payload_len: usize,
    count: usize,
    /// IPv4: the sum of the network header, without length, id and checksum.
    network_sum: Sum,
    /// The sum of pseudo-header and transport header, without variable fields.
    transport_sum: Sum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp { sequence: u32, flags: TcpFlags },
    Udp,
}

impl SegmentPlan {
    /// Plans the segmentation of `packet`, an IP packet marked [`Segments::Tcp`] or
    /// [`Segments::Udp`].
    ///
    /// Checksums in the super-packet are ignored: every segment gets its own.
    ///
    /// # Errors
    /// The variants of [`ParseError`] named `Super…`, [`ParseError::NotSuper`],
    /// [`ParseError::SegmentSize`], and errors of the IP, TCP or UDP header.
    pub fn new(packet: &PacketBuf) -> Result<Self, ParseError> {
        let (protocol, size) = match packet.segments {
            Segments::Tcp { mss } => (Protocol::TCP, mss),
            Segments::Udp { size } => (Protocol::UDP, size),
            Segments::One | Segments::Burst { .. } => return Err(ParseError::NotSuper),
        };
        let ip = IpPacket::parse(packet.bytes())?;
        if ip.is_fragment() {
            return Err(ParseError::SuperFragment);
        }
        if ip.protocol != protocol {
            return Err(ParseError::SuperProtocol);
        }
        if size == 0 {
            return Err(ParseError::SegmentSize);
        }
        Self::of_parsed(&ip, packet.bytes(), size.into())
    }

    /// Number of segments: at least 1.
    #[must_use]
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Header length of each segment.
    #[must_use]
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Range of segment `k`'s payload in the super-packet; empty behind the last one.
    #[must_use]
    #[inline]
    pub fn payload(&self, k: usize) -> Range<usize> {
        let start = k.saturating_mul(self.size).min(self.payload_len);
        let end = (start + self.size).min(self.payload_len);
        self.header_len + start..self.header_len + end
    }

    /// Length of segment `k`, headers and payload.
    #[must_use]
    #[inline]
    pub fn len(&self, k: usize) -> usize {
        self.header_len + self.payload(k).len()
    }

    /// Writes segment `k` to the front of `out` and returns its length; `source` is the
    /// super-packet's bytes.
    ///
    /// `None` if there is no segment `k`, or `out` or `source` is too short.
    #[inline]
    pub fn write(&self, k: usize, source: &[u8], out: &mut [u8]) -> Option<usize> {
        let payload = source.get(self.payload(k))?;
        let out = out.get_mut(..self.len(k))?;
        let (header, body) = out.split_at_mut(self.header_len);
        self.write_header(k, payload, header)?;
        body.copy_from_slice(payload);
        Some(self.len(k))
    }

    /// Writes segment `k`'s headers with all checksums to the front of `out` and returns their
    /// length; `payload` is the super-packet's bytes at [`payload(k)`](Self::payload).
    ///
    /// `None` if there is no segment `k`, `out` is too short or `payload` has another length than
    /// planned.
    #[inline]
    pub fn write_header(&self, k: usize, payload: &[u8], out: &mut [u8]) -> Option<usize> {
        if k >= self.count || payload.len() != self.payload(k).len() {
            return None;
        }
        let out = out.get_mut(..self.header_len)?;
        out.copy_from_slice(&self.template[..self.header_len]);
        let (network, transport) = out.split_at_mut(self.network_len);
        self.finish_network(k, network, transport.len() + payload.len());
        self.finish_transport(k, transport, payload);
        Some(self.header_len)
    }

    fn of_parsed(ip: &IpPacket, bytes: &[u8], size: usize) -> Result<Self, ParseError> {
        let upper = ip.upper(bytes);
        let (transport, transport_len) = if ip.protocol == Protocol::TCP {
            let header = Tcp::parse(upper)?.header;
            let (sequence, flags) = (header.sequence.get(), header.flags);
            (Transport::Tcp { sequence, flags }, header.header_len())
        } else if upper.len() < udp::HEADER_LEN {
            return Err(ParseError::UdpTruncated);
        } else {
            (Transport::Udp, size_of::<UdpHeader>())
        };
        let header_len = ip.header_len + transport_len;
        let payload_len = ip.total_len - header_len;
        let mut plan = Self {
            template: [0; MAX_HEADER],
            header_len,
            network_len: ip.header_len,
            version: ip.version,
            transport,
            size,
            payload_len,
            count: payload_len.div_ceil(size).max(1),
            network_sum: Sum::ZERO,
            transport_sum: Sum::of_pseudo(ip.source, ip.destination, ip.protocol, 0),
        };
        let template = plan.template.get_mut(..header_len).ok_or(ParseError::SuperHeader)?;
        template.copy_from_slice(&bytes[..header_len]);
        plan.clear_and_sum();
        Ok(plan)
    }

    /// Clears the variable fields of the template and sums the rest.
    fn clear_and_sum(&mut self) {
        let (network, transport) = self.template[..self.header_len].split_at_mut(self.network_len);
        match self.version {
            Version::V4 => {
                network[2..4].fill(0);
                network[10..12].fill(0);
                let id = u16::from_be_bytes([network[4], network[5]]);
                self.network_sum = Sum::of(network).plus_u16(!id);
            }
            Version::V6 => network[4..6].fill(0),
        }
        match self.transport {
            Transport::Tcp { .. } => {
                transport[4..8].fill(0);
                transport[13] = 0;
                transport[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].fill(0);
            }
            Transport::Udp => transport[4..UDP_CHECKSUM_AT + 2].fill(0),
        }
        self.transport_sum = self.transport_sum.plus_bytes(transport);
    }

    #[inline]
    fn finish_network(&self, k: usize, network: &mut [u8], upper_len: usize) {
        match self.version {
            Version::V4 => {
                let total = low_half(network.len() + upper_len);
                let id = u16::from_be_bytes([network[4], network[5]]).wrapping_add(low_half(k));
                let checksum = self.network_sum.plus_u16(total).plus_u16(id).checksum();
                network[2..4].copy_from_slice(&total.to_be_bytes());
                network[4..6].copy_from_slice(&id.to_be_bytes());
                network[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            Version::V6 => {
                let payload_len = low_half(network.len() - 40 + upper_len);
                network[4..6].copy_from_slice(&payload_len.to_be_bytes());
            }
        }
    }

    #[inline]
    fn finish_transport(&self, k: usize, transport: &mut [u8], payload: &[u8]) {
        let len = low_half(transport.len() + payload.len());
        let sum = self.transport_sum.plus_u16(len).plus_bytes(payload);
        match self.transport {
            Transport::Tcp { sequence, flags } => {
                let sequence = sequence.wrapping_add(low_word(k * self.size));
                let flags = self.flags_of(k, flags);
                let checksum = sum.plus_u32(sequence).plus_u16(flags.0.into()).checksum();
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                transport[13] = flags.0;
                transport[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2]
                    .copy_from_slice(&checksum.to_be_bytes());
            }
            Transport::Udp => {
                let checksum = sum.plus_u16(len).nonzero_checksum();
                transport[4..6].copy_from_slice(&len.to_be_bytes());
                transport[UDP_CHECKSUM_AT..UDP_CHECKSUM_AT + 2]
                    .copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }

    #[inline]
    fn flags_of(&self, k: usize, flags: TcpFlags) -> TcpFlags {
        let flags = if k == 0 { flags } else { flags.without(TcpFlags::CWR) };
        if k + 1 == self.count { flags } else { flags.without(TcpFlags::FIN.with(TcpFlags::PSH)) }
    }
}

/// A length or an index within a packet, which fits into an IP length field.
#[inline]
fn low_half(number: usize) -> u16 {
    debug_assert!(u16::try_from(number).is_ok());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a packet's length came out of 16 bits: IpPacket::total_len"
    )]
    let narrow = number as u16;
    narrow
}

/// An offset within a packet.
#[inline]
fn low_word(number: usize) -> u32 {
    low_half(number).into()
}

#[cfg(test)]
mod tests;

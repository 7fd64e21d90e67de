//! Joining packets of one flow into super-packets, so that what goes to a TUN goes in few, large writes (GRO).
//!
//! The [`Coalescer`] is the inverse of [`SegmentPlan`](crate::SegmentPlan): cutting what it made gives the same packets back, byte for byte,
//! in the same order within each flow. The one exception is the id of IPv4 packets that may not be fragmented, which means nothing (RFC 6864 §4.1).
//! Packets are joined when they
//! - are whole IPv4 packets without options or IPv6 packets without extension headers, with right checksums;
//! - are TCP with data and no flags but ACK, PSH, ECE and, on the first, CWR; or UDP datagrams with a checksum;
//! - have the same headers (addresses, ports, TOS, TTL, DF, flow label, acknowledgment, window, options), mark and interface id;
//! - follow each other in sequence number or, in IPv4, in id;
//! - carry equally much; the last one may carry less. It ends the super-packet, and so does PSH.
//!
//! All others pass, behind what is held of their flow. Mirrors `net/ipv4/tcp_offload.c: tcp_gro_receive` and
//! `net/ipv4/udp_offload.c: udp_gro_receive_segment`, which do not compare the window.

use std::net::IpAddr;

use crate::checksum::{self, Sum, TCP_CHECKSUM_AT, UDP_CHECKSUM_AT, Verification};
use crate::tcp::{Tcp, TcpFlags};
use crate::udp::{self, Udp};
use crate::{
    Batch, Checksum, FlowPorts, IpPacket, PacketBuf, Pool, Protocol, Segments, SizeClass, Version,
    ipv4,
};

/// Flows that are held at once; one more makes the oldest leave.
pub const FLOWS: usize = 16;

/// Datagrams joined at the most, as in the kernel (`UDP_GRO_CNT_MAX`).
pub const MAX_DATAGRAMS: usize = 64;

/// Bytes of a super-packet at the most: what an IPv4 length field holds.
const MAX_SUPER: usize = 65_535;

/// What is known of a packet that does not lie in a [`PacketBuf`] of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The packet mark.
    pub mark: u32,
    /// XFRM interface id.
    pub if_id: u32,
    /// What is known of the transport checksum. A verified one is not looked at again.
    pub checksum: Checksum,
}

impl Notes {
    /// The notes of a buffer, for the packets in it.
    #[must_use]
    pub fn of(packet: &PacketBuf) -> Self {
        Self { mark: packet.mark, if_id: packet.if_id, checksum: packet.checksum }
    }
}

/// Packets held back in the hope of more of their flow; at most [`FLOWS`] flows.
///
/// Nothing is held longer than the caller likes: it calls [`flush`](Self::flush) at the end of each batch. Once warm it
/// allocates nothing.
#[derive(Debug)]
pub struct Coalescer {
    /// In order of arrival; one entry per flow.
    held: Vec<Held>,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self::new()
    }
}

impl Coalescer {
    /// One that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { held: Vec::with_capacity(FLOWS) }
    }

    /// Takes a packet in. What cannot wait any longer goes to `out`; a buffer that was joined to another goes to `pool`.
    ///
    /// Super-packets pass behind what is held of their flow. Trains and the payload of UDP sockets pass behind everything.
    pub fn offer(&mut self, packet: PacketBuf, pool: &mut Pool, out: &mut Batch) {
        if packet.udp.is_some() || matches!(packet.segments, Segments::Train { .. }) {
            self.flush(out);
            return out.push(packet);
        }
        let arrival = match packet.segments {
            Segments::One => Arrival::of(packet.bytes(), Notes::of(&packet)),
            Segments::Tcp { .. } | Segments::Udp { .. } | Segments::Train { .. } => {
                Arrival::passing(packet.bytes())
            }
        };
        match self.join(&arrival, packet.bytes(), Notes::of(&packet), pool, out) {
            Outcome::Joined => pool.give(packet),
            Outcome::Hold(piece) => self.hold(piece, packet, out),
            Outcome::Pass => out.push(packet),
        }
    }

    /// As [`offer`](Self::offer), for one plain packet inside a larger buffer; it is copied.
    pub fn offer_slice(&mut self, packet: &[u8], notes: Notes, pool: &mut Pool, out: &mut Batch) {
        let arrival = Arrival::of(packet, notes);
        match self.join(&arrival, packet, notes, pool, out) {
            Outcome::Joined => {}
            Outcome::Hold(piece) => self.hold(piece, copy(packet, notes, pool), out),
            Outcome::Pass => out.push(copy(packet, notes, pool)),
        }
    }

    /// Lets go of everything that is held, oldest first.
    #[inline]
    pub fn flush(&mut self, out: &mut Batch) {
        if !self.held.is_empty() {
            self.flush_all(out);
        }
    }

    fn flush_all(&mut self, out: &mut Batch) {
        for held in self.held.drain(..) {
            out.push(held.finish());
        }
    }

    /// Joins the packet to what is held of its flow, or makes way for it.
    fn join(
        &mut self,
        arrival: &Arrival,
        bytes: &[u8],
        notes: Notes,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> Outcome {
        match arrival {
            Arrival::Foreign => Outcome::Pass,
            Arrival::Fragment(ends) => {
                self.release_all(ends, out);
                Outcome::Pass
            }
            Arrival::Passing(flow) => {
                self.release(flow, out);
                Outcome::Pass
            }
            Arrival::Piece(piece) => self.join_piece(piece, bytes, notes, pool, out),
        }
    }

    fn join_piece(
        &mut self,
        piece: &Piece,
        bytes: &[u8],
        notes: Notes,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> Outcome {
        if let Some(at) = self.held.iter().position(|held| held.piece.flow == piece.flow) {
            if self.held[at].accepts(piece, bytes, notes) {
                if self.held[at].append(piece, bytes, pool) == Fullness::Full {
                    out.push(self.held.remove(at).finish());
                }
                return Outcome::Joined;
            }
            out.push(self.held.remove(at).finish());
        }
        // PSH is kept on the last segment only, so nothing could follow this one.
        if piece.flags.has(TcpFlags::PSH) { Outcome::Pass } else { Outcome::Hold(*piece) }
    }

    fn hold(&mut self, piece: Piece, packet: PacketBuf, out: &mut Batch) {
        if self.held.len() == FLOWS {
            out.push(self.held.remove(0).finish());
        }
        self.held.push(Held { piece, packet, count: 1 });
    }

    fn release(&mut self, flow: &Flow, out: &mut Batch) {
        if let Some(at) = self.held.iter().position(|held| held.piece.flow == *flow) {
            out.push(self.held.remove(at).finish());
        }
    }

    fn release_all(&mut self, ends: &Ends, out: &mut Batch) {
        for held in self.held.extract_if(.., |held| held.piece.flow.ends == *ends) {
            out.push(held.finish());
        }
    }
}

/// What becomes of an offered packet.
enum Outcome {
    /// Its payload is part of a held one now.
    Joined,
    /// It is the first of its flow.
    Hold(Piece),
    /// It goes out as it is; its flow has been made way for.
    Pass,
}

/// Addresses and protocol, all that a fragment shows of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    source: u128,
    destination: u128,
    version: Version,
    protocol: Protocol,
}

impl Ends {
    /// Addresses as numbers: compared and moved faster than as `IpAddr`.
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

/// Within it order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    ports: FlowPorts,
    ends: Ends,
}

/// What a packet is to the coalescer.
enum Arrival {
    /// Neither TCP nor UDP: nothing is ever held of its flow.
    Foreign,
    /// A fragment: it may belong to any flow between its ends.
    Fragment(Ends),
    /// Cannot be joined.
    Passing(Flow),
    /// Can be joined, if it fits.
    Piece(Piece),
}

/// A packet that can be joined: what has to fit.
#[derive(Clone, Copy, Debug)]
struct Piece {
    flow: Flow,
    network_len: usize,
    /// Network and transport header.
    header_len: usize,
    payload_len: usize,
    /// TCP's; 0 in UDP.
    sequence: u32,
    /// TCP's; none in UDP.
    flags: TcpFlags,
}

impl Arrival {
    /// A packet that is not to be joined whatever it is.
    fn passing(bytes: &[u8]) -> Self {
        IpPacket::parse(bytes).map_or(Self::Foreign, |ip| Self::barrier(&ip, bytes))
    }

    #[inline]
    fn of(bytes: &[u8], notes: Notes) -> Self {
        let Ok(ip) = IpPacket::parse(bytes) else { return Self::Foreign };
        match Self::barrier(&ip, bytes) {
            Self::Passing(flow) => {
                Piece::of(&ip, flow, bytes, notes).map_or(Self::Passing(flow), Self::Piece)
            }
            other @ (Self::Foreign | Self::Fragment(_) | Self::Piece(_)) => other,
        }
    }

    #[inline]
    fn barrier(ip: &IpPacket, bytes: &[u8]) -> Self {
        let ends = Ends::of(ip);
        match ip.protocol {
            Protocol::TCP | Protocol::UDP if ip.is_fragment() => Self::Fragment(ends),
            Protocol::TCP | Protocol::UDP => {
                Self::Passing(Flow { ports: FlowPorts::of(ip, bytes), ends })
            }
            Protocol(_) => Self::Foreign,
        }
    }
}

impl Piece {
    /// `None` when the packet must pass as it is.
    #[inline]
    fn of(ip: &IpPacket, flow: Flow, bytes: &[u8], notes: Notes) -> Option<Self> {
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

    fn checksum_at(&self) -> usize {
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

/// As [`tcp_fields`] for a datagram that has a checksum and fills its packet.
#[inline]
fn udp_fields(upper: &[u8]) -> Option<(usize, u32, TcpFlags)> {
    let datagram = Udp::parse(upper).ok()?;
    let plain = datagram.trailing.is_empty() && datagram.header.checksum.get() != 0;
    plain.then(|| (udp::HEADER_LEN, 0, TcpFlags::default()))
}

/// A joined packet gets new checksums, which must not make wrong ones right.
#[inline]
fn checksums_are_right(ip: &IpPacket, bytes: &[u8], notes: Notes) -> bool {
    let network = ip.version == Version::V6 || Sum::of(&bytes[..ip.header_len]).fold() == 0xffff;
    network
        && match notes.checksum {
            Checksum::Verified => true,
            Checksum::AsIs => checksum::verify(ip, bytes) == Verification::Right,
            Checksum::Partial { .. } => false,
        }
}

/// Whether more can be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fullness {
    Open,
    Full,
}

/// The first packet of a flow, with the payload of those that followed.
#[derive(Debug)]
struct Held {
    /// As the first packet was.
    piece: Piece,
    packet: PacketBuf,
    count: usize,
}

impl Held {
    #[inline]
    fn accepts(&self, piece: &Piece, bytes: &[u8], notes: Notes) -> bool {
        let first = &self.piece;
        notes.mark == self.packet.mark
            && notes.if_id == self.packet.if_id
            && piece.header_len == first.header_len
            && piece.payload_len <= first.payload_len
            && self.packet.len() + piece.payload_len <= MAX_SUPER
            && self.follows_network(bytes)
            && self.follows_transport(piece, bytes)
    }

    /// Same header but for length, id and checksum, and the id is the next one (or means nothing).
    #[inline]
    fn follows_network(&self, bytes: &[u8]) -> bool {
        let held = self.packet.bytes();
        match self.piece.flow.ends.version {
            Version::V4 => {
                let id = |packet: &[u8]| u16::from_be_bytes([packet[4], packet[5]]);
                let step = usize::from(id(bytes).wrapping_sub(id(held)));
                let whole = u16::from_be_bytes([held[6], held[7]]) & ipv4::DONT_FRAGMENT != 0;
                bytes[..2] == held[..2]
                    && bytes[6..10] == held[6..10]
                    && (step == self.count || whole && step == 0)
            }
            Version::V6 => bytes[..4] == held[..4] && bytes[7] == held[7],
        }
    }

    #[inline]
    fn follows_transport(&self, piece: &Piece, bytes: &[u8]) -> bool {
        let first = &self.piece;
        if first.flow.ends.protocol == Protocol::UDP {
            return self.count < MAX_DATAGRAMS;
        }
        let (old, new) = (
            &self.packet.bytes()[first.network_len..first.header_len],
            &bytes[first.network_len..first.header_len],
        );
        let joined = self.packet.len() - first.header_len;
        u32::try_from(joined)
            .is_ok_and(|joined| piece.sequence == first.sequence.wrapping_add(joined))
            && piece.flags.without(TcpFlags::PSH) == first.flags.without(TcpFlags::CWR)
            && old[8..13] == new[8..13]
            && old[14..16] == new[14..16]
            && old[18..] == new[18..]
    }

    #[inline]
    fn append(&mut self, piece: &Piece, bytes: &[u8], pool: &mut Pool) -> Fullness {
        let payload = &bytes[piece.header_len..piece.header_len + piece.payload_len];
        if self.packet.tailroom() < payload.len() {
            self.move_to_super(pool);
        }
        let Some(room) = self.packet.append(payload.len()) else {
            debug_assert!(false, "a super-buffer holds MAX_SUPER bytes");
            return Fullness::Full;
        };
        room.copy_from_slice(payload);
        self.count += 1;
        let last = piece.flags.has(TcpFlags::PSH);
        if last {
            self.packet.bytes_mut()[self.piece.network_len + 13] |= TcpFlags::PSH.0;
        }
        if last || piece.payload_len < self.piece.payload_len {
            Fullness::Full
        } else {
            Fullness::Open
        }
    }

    fn move_to_super(&mut self, pool: &mut Pool) {
        let mut large = pool.take(SizeClass::Super);
        large.inherit(&self.packet);
        if let Some(room) = large.append(self.packet.len()) {
            room.copy_from_slice(self.packet.bytes());
            pool.give(std::mem::replace(&mut self.packet, large));
        }
    }

    /// The packet as it came, or the super-packet with lengths, checksums and notes as virtio wants them.
    fn finish(mut self) -> PacketBuf {
        if self.count == 1 {
            self.packet.checksum = Checksum::Verified;
            return self.packet;
        }
        let piece = self.piece;
        let bytes = self.packet.bytes_mut();
        let upper_len = narrow(bytes.len() - piece.network_len);
        match piece.flow.ends.version {
            Version::V4 => {
                let total = narrow(bytes.len());
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
                bytes[10..12].fill(0);
                let checksum = Sum::of(&bytes[..ipv4::HEADER_LEN]).checksum();
                bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            Version::V6 => bytes[4..6].copy_from_slice(&upper_len.to_be_bytes()),
        }
        self.finish_transport(upper_len);
        self.packet
    }

    fn finish_transport(&mut self, upper_len: u16) {
        let piece = self.piece;
        let protocol = piece.flow.ends.protocol;
        let (network, rest) = self.packet.bytes_mut().split_at_mut(piece.network_len);
        let transport = &mut rest[..piece.header_len - piece.network_len];
        let addresses = match piece.flow.ends.version {
            Version::V4 => &network[12..],
            Version::V6 => &network[8..],
        };
        let pseudo = Sum::of(addresses).plus_u16(upper_len).plus_u16(protocol.0.into()).fold();
        let at = piece.checksum_at();
        transport[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let size = narrow(piece.payload_len);
        self.packet.segments = if protocol == Protocol::UDP {
            transport[4..6].copy_from_slice(&upper_len.to_be_bytes());
            Segments::Udp { size }
        } else {
            Segments::Tcp { mss: size }
        };
        self.packet.checksum =
            Checksum::Partial { start: narrow(piece.network_len), offset: narrow(at) };
    }
}

/// A packet in a buffer of its own.
fn copy(packet: &[u8], notes: Notes, pool: &mut Pool) -> PacketBuf {
    let mut buf = pool.take(SizeClass::holding(packet.len()));
    match buf.append(packet.len()) {
        Some(room) => room.copy_from_slice(packet),
        None => buf = PacketBuf::from_slice(packet),
    }
    (buf.mark, buf.if_id, buf.checksum) = (notes.mark, notes.if_id, notes.checksum);
    buf
}

/// A length within a packet of at most [`MAX_SUPER`] bytes.
fn narrow(len: usize) -> u16 {
    debug_assert!(len <= MAX_SUPER);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "Piece::of and Held::accepts keep packets within MAX_SUPER"
    )]
    let narrow = len as u16;
    narrow
}

#[cfg(test)]
mod tests;

//! GRO: joins packets of one flow into super-packets, so that few, large writes go to a TUN.
//!
//! The [`Coalescer`] is the inverse of [`SegmentPlan`](crate::SegmentPlan): segmenting its output
//! gives the same packets back, byte for byte, in the same order within each flow. One exception:
//! the id of IPv4 packets with DF, which means nothing (RFC 6864 §4.1). Packets are joined when
//! they
//! - are whole IPv4 packets without options or IPv6 packets without extension headers, with valid
//!   checksums;
//! - are TCP with data and no flags but ACK, PSH, ECE and, on the first, CWR; or UDP datagrams with
//!   a checksum;
//! - have the same headers (addresses, ports, TOS, TTL, DF, flow label, acknowledgment, window,
//!   options), mark and interface id;
//! - follow each other in sequence number or, in IPv4, in id;
//! - have equally long payloads; a shorter one ends the super-packet, and so does PSH.
//!
//! All others leave behind the held packets of their flow. Mirrors
//! `net/ipv4/tcp_offload.c: tcp_gro_receive` and
//! `net/ipv4/udp_offload.c: udp_gro_receive_segment`, which do not compare the window.

mod arrival;
mod held;

use crate::tcp::TcpFlags;
use crate::{Batch, Checksum, PacketBuf, Pool, Segments, SizeClass};

use arrival::{Flow, FlowAddresses, Joinable, Offered};
use held::{Fullness, HeldFlow};

/// Flows held at once; one more makes the oldest leave.
pub const FLOWS: usize = 16;

/// Upper bound of joined datagrams, as in the kernel (`UDP_GRO_CNT_MAX`).
pub const MAX_DATAGRAMS: usize = 64;

/// Upper bound of a super-packet: what an IPv4 length field holds.
const MAX_SUPER: usize = 65_535;

/// Metadata of a packet without its own [`PacketBuf`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceMeta {
    /// The packet mark.
    pub mark: u32,
    /// XFRM interface id.
    pub if_id: u32,
    /// State of the transport checksum. A verified one is not checked again.
    pub checksum: Checksum,
}

impl SliceMeta {
    /// Metadata of the packets in a buffer.
    #[must_use]
    pub fn of(packet: &PacketBuf) -> Self {
        Self { mark: packet.mark, if_id: packet.if_id, checksum: packet.checksum }
    }
}

/// Packets held for more of their flow; at most [`FLOWS`] flows.
///
/// The caller limits the delay: it calls [`flush`](Self::flush) at the end of each batch. Once warm
/// it allocates nothing.
#[derive(Debug)]
pub struct Coalescer {
    /// In order of arrival; one entry per flow.
    held: Vec<HeldFlow>,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self::new()
    }
}

impl Coalescer {
    /// A coalescer that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { held: Vec::with_capacity(FLOWS) }
    }

    /// Adds a packet. Packets that cannot wait go to `out`; a buffer that was joined to another
    /// goes to `pool`.
    ///
    /// Super-packets leave behind the held packets of their flow; segment bursts and payload of UDP
    /// sockets behind all held packets.
    pub fn offer(&mut self, packet: PacketBuf, pool: &mut Pool, out: &mut Batch) {
        if packet.udp.is_some() || matches!(packet.segments, Segments::Burst { .. }) {
            self.flush(out);
            return out.push(packet);
        }
        let arrival = match packet.segments {
            Segments::One => Offered::of(packet.bytes(), SliceMeta::of(&packet)),
            Segments::Tcp { .. } | Segments::Udp { .. } | Segments::Burst { .. } => {
                Offered::passing(packet.bytes())
            }
        };
        match self.join(&arrival, packet.bytes(), SliceMeta::of(&packet), pool, out) {
            Outcome::Joined => pool.give(packet),
            Outcome::Hold(piece) => self.hold(piece, packet, out),
            Outcome::Pass => out.push(packet),
        }
    }

    /// Like [`offer`](Self::offer), for one plain packet inside a larger buffer; it is copied.
    pub fn offer_slice(
        &mut self,
        packet: &[u8],
        notes: SliceMeta,
        pool: &mut Pool,
        out: &mut Batch,
    ) {
        let arrival = Offered::of(packet, notes);
        match self.join(&arrival, packet, notes, pool, out) {
            Outcome::Joined => {}
            Outcome::Hold(piece) => self.hold(piece, copy(packet, notes, pool), out),
            Outcome::Pass => out.push(copy(packet, notes, pool)),
        }
    }

    /// Releases everything held, oldest first.
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

    /// Joins the packet to the held one of its flow, or releases that.
    fn join(
        &mut self,
        arrival: &Offered,
        bytes: &[u8],
        notes: SliceMeta,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> Outcome {
        match arrival {
            Offered::Foreign => Outcome::Pass,
            Offered::Fragment(ends) => {
                self.release_all(ends, out);
                Outcome::Pass
            }
            Offered::Passing(flow) => {
                self.release(flow, out);
                Outcome::Pass
            }
            Offered::Joinable(piece) => self.join_piece(piece, bytes, notes, pool, out),
        }
    }

    fn join_piece(
        &mut self,
        piece: &Joinable,
        bytes: &[u8],
        notes: SliceMeta,
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
        // Only the last segment keeps PSH, so nothing may follow this one.
        if piece.flags.has(TcpFlags::PSH) { Outcome::Pass } else { Outcome::Hold(*piece) }
    }

    fn hold(&mut self, piece: Joinable, packet: PacketBuf, out: &mut Batch) {
        if self.held.len() == FLOWS {
            out.push(self.held.remove(0).finish());
        }
        self.held.push(HeldFlow { piece, packet, count: 1 });
    }

    fn release(&mut self, flow: &Flow, out: &mut Batch) {
        if let Some(at) = self.held.iter().position(|held| held.piece.flow == *flow) {
            out.push(self.held.remove(at).finish());
        }
    }

    fn release_all(&mut self, ends: &FlowAddresses, out: &mut Batch) {
        for held in self.held.extract_if(.., |held| held.piece.flow.ends == *ends) {
            out.push(held.finish());
        }
    }
}

/// Outcome for an offered packet.
enum Outcome {
    /// Its payload was joined to a held packet.
    Joined,
    /// It is the first of its flow.
    Hold(Joinable),
    /// It leaves as it is; its flow was released.
    Pass,
}

/// A copy in its own buffer.
fn copy(packet: &[u8], notes: SliceMeta, pool: &mut Pool) -> PacketBuf {
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

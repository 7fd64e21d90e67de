//! A growing super-packet.

use super::arrival::Joinable;
use super::{MAX_DATAGRAMS, MAX_SUPER, SliceMeta, narrow};
use crate::checksum::Sum;
use crate::tcp::TcpFlags;
use crate::{Checksum, PacketBuf, Pool, Protocol, Segments, SizeClass, Version, ipv4};

/// Whether more can be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fullness {
    Open,
    Full,
}

/// The first packet of a flow, with the payload of those that followed.
#[derive(Debug)]
pub(super) struct HeldFlow {
    /// Fields of the first packet.
    pub(super) piece: Joinable,
    pub(super) packet: PacketBuf,
    pub(super) count: usize,
}

impl HeldFlow {
    #[inline]
    pub(super) fn accepts(&self, piece: &Joinable, bytes: &[u8], notes: SliceMeta) -> bool {
        let first = &self.piece;
        notes.mark == self.packet.mark
            && notes.if_id == self.packet.if_id
            && piece.header_len == first.header_len
            && piece.payload_len <= first.payload_len
            && self.packet.len() + piece.payload_len <= MAX_SUPER
            && self.follows_network(bytes)
            && self.follows_transport(piece, bytes)
    }

    /// The same header except for length, id and checksum, and the id is the next one (or means
    /// nothing).
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
    fn follows_transport(&self, piece: &Joinable, bytes: &[u8]) -> bool {
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
    pub(super) fn append(&mut self, piece: &Joinable, bytes: &[u8], pool: &mut Pool) -> Fullness {
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

    /// The original packet, or the super-packet with lengths, checksums and metadata as virtio
    /// wants them.
    pub(super) fn finish(mut self) -> PacketBuf {
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

//! A datagram of which some pieces are there, and what each piece says of it.

use std::net::IpAddr;

use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{
    Ecn, Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass, Version, ipv4, ipv6,
};
use zerocopy::FromBytes as _;

use super::origin::Turns;
use super::reassembly::Outcome;
use crate::Moment;

/// Fragments of one datagram at the most: 64 KiB in pieces of 552 bytes.
pub(super) const PIECES: usize = 120;

#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) key: Key,
    pub(super) since: Moment,
    /// The states that its first piece came by.
    by: Turns,
    /// Whether others came by their kin.
    is_astride: bool,
    /// Ordered by offset, never overlapping.
    pieces: Vec<Piece>,
    /// Bytes of payload, once the last piece is there.
    total: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    source: IpAddr,
    destination: IpAddr,
    ident: u32,
    /// IPv4's; 0 in IPv6, whose identification stands alone.
    protocol: Protocol,
}

#[derive(Debug)]
pub(super) struct Piece {
    offset: usize,
    /// Bytes of header before its payload, fragment header not counted.
    head: usize,
    /// Where its payload begins.
    body: usize,
    /// Bytes of payload.
    len: usize,
    /// Of the datagram.
    is_last: bool,
    /// The byte that announces the fragment header (IPv6).
    next_header_at: usize,
    ecn: Ecn,
    packet: PacketBuf,
}

pub(super) enum Insertion {
    Incomplete,
    Complete,
    Duplicate,
    Conflict,
}

impl Datagram {
    /// One that waits for all of its pieces.
    pub(super) const fn new(key: Key, since: Moment, by: Turns) -> Self {
        Self { key, since, by, is_astride: false, pieces: Vec::new(), total: None }
    }

    /// Notes by which states one more piece comes.
    pub(super) fn note(&mut self, by: Turns) {
        self.is_astride |= self.by != by;
    }

    /// How many pieces wait.
    pub(super) fn held(&self) -> u64 {
        self.pieces.len() as u64
    }

    pub(super) fn insert(&mut self, piece: Piece, pool: &mut Pool) -> Insertion {
        let (start, end) = (piece.offset, piece.offset + piece.len);
        let place = self.pieces.partition_point(|other| other.offset < start);
        if let Some(same) = self.pieces.get(place)
            && (same.offset, same.len) == (start, piece.len)
        {
            pool.give(piece.packet);
            return Insertion::Duplicate;
        }
        let before = place.checked_sub(1).map_or(0, |at| self.pieces[at].end());
        let after = self.pieces.get(place).map_or(usize::MAX, |next| next.offset);
        let longest = self.pieces.last().map_or(0, Piece::end).max(end);
        let total = if piece.is_last { Some(end) } else { self.total };
        let contradicts = self.total.is_some_and(|known| piece.is_last && known != end)
            || total.is_some_and(|total| longest > total);
        if start < before || end > after || contradicts || self.pieces.len() == PIECES {
            pool.give(piece.packet);
            return Insertion::Conflict;
        }
        self.total = total;
        self.pieces.insert(place, piece);
        let have: usize = self.pieces.iter().map(|piece| piece.len).sum();
        if self.total == Some(have) { Insertion::Complete } else { Insertion::Incomplete }
    }

    /// Bytes of its buffers.
    pub(super) fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.packet.capacity()).sum()
    }

    /// Puts the pieces, of which none is missing, together.
    pub(super) fn join(mut self, pool: &mut Pool) -> Outcome {
        let pieces = self.pieces.len() as u64;
        let longest = self.pieces.iter().map(|piece| piece.packet.len()).max().unwrap_or(0);
        let Some(mut packet) = self.assemble(pool) else {
            return Outcome::Ruined { pieces: self.give_up(pool) };
        };
        if let Some(first) = self.pieces.first_mut() {
            (packet.mark, packet.if_id) = (first.packet.mark, first.packet.if_id);
        }
        let is_astride = self.is_astride;
        self.give_up(pool);
        Outcome::Whole { packet, pieces, longest, is_astride }
    }

    fn assemble(&self, pool: &mut Pool) -> Option<PacketBuf> {
        let first = self.pieces.first()?;
        let len = first.head + self.total?;
        if len > usize::from(u16::MAX) {
            return None;
        }
        let ecn = self.ecn()?;
        let mut packet = pool.take(SizeClass::holding(len));
        let bytes = packet.append(len)?;
        bytes[..first.head].copy_from_slice(&first.packet.bytes()[..first.head]);
        for piece in &self.pieces {
            let body = &piece.packet.bytes()[piece.body..piece.body + piece.len];
            bytes[first.head + piece.offset..first.head + piece.offset + piece.len]
                .copy_from_slice(body);
        }
        if self.key.source.is_ipv4() {
            let len = u16::try_from(len).ok()?;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
            bytes[1] = ecn.in_tos(bytes[1]);
            bytes[6..8].fill(0);
            ipv4::fill_checksum(bytes).ok()?;
        } else {
            let len = u16::try_from(len - ipv6::HEADER_LEN).ok()?;
            let (header, _) = Ipv6Header::mut_from_prefix(bytes).ok()?;
            header.payload_len = len.into();
            header.set_traffic_class(ecn.in_tos(header.traffic_class()));
            // The fragment header, which stands behind the head, begins with what it holds a part of.
            bytes[first.next_header_at] = first.packet.bytes()[first.head];
        }
        Some(packet)
    }

    /// What all pieces say of congestion; `None` where only some know ECN (`net/ipv4/inet_fragment.c: ip_frag_ecn_table`).
    fn ecn(&self) -> Option<Ecn> {
        let all = || self.pieces.iter().map(|piece| piece.ecn);
        let first = all().next()?;
        let knows = |ecn: Ecn| ecn != Ecn::NotEct;
        match all().find(|ecn| *ecn == Ecn::Ce) {
            _ if all().any(|ecn| knows(ecn) != knows(first)) => None,
            Some(congestion) => Some(congestion),
            None => Some(first),
        }
    }

    pub(super) fn give_up(self, pool: &mut Pool) -> u64 {
        let count = self.pieces.len() as u64;
        for piece in self.pieces {
            pool.give(piece.packet);
        }
        count
    }
}

impl Piece {
    fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Takes a fragment apart; gives it back when it can't be one.
    pub(super) fn of(packet: PacketBuf, ip: &IpPacket) -> Result<(Key, Self), PacketBuf> {
        let (ident, offset, is_last) = match ip.fragment {
            Fragment::First { id, more } => (id, 0, !more),
            Fragment::Later { id, more, offset } => (id, usize::from(offset), !more),
            Fragment::None => return Err(packet),
        };
        let (head, next_header_at, body) = match ip.version {
            Version::V4 => (ip.header_len, 9, ip.header_len),
            Version::V6 => match fragment_header(packet.bytes()) {
                Some((at, next_header_at)) => (at, next_header_at, at + 8),
                None => return Err(packet),
            },
        };
        let len = ip.total_len.saturating_sub(body);
        let whole_units = is_last || len.is_multiple_of(8);
        if len == 0 || !whole_units || head + offset + len > usize::from(u16::MAX) {
            return Err(packet);
        }
        let protocol = match ip.version {
            Version::V4 => ip.protocol,
            Version::V6 => Protocol(0),
        };
        let (source, destination) = (ip.source, ip.destination);
        let key = Key { source, destination, ident, protocol };
        let ecn = ip.ecn();
        Ok((key, Self { offset, head, body, len, is_last, next_header_at, ecn, packet }))
    }
}

/// Where the fragment header stands, and which byte announces it.
fn fragment_header(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut announced_at, mut at) = (6, ipv6::HEADER_LEN);
    for _ in 0..=ipv6::MAX_EXTENSIONS {
        match Protocol(*bytes.get(announced_at)?) {
            Protocol::FRAGMENT => return bytes.get(at..at + 8).map(|_| (at, announced_at)),
            Protocol::HOPOPTS | Protocol::ROUTING | Protocol::DSTOPTS => {
                announced_at = at;
                at += (usize::from(*bytes.get(at + 1)?) + 1) * 8;
            }
            Protocol(_) => return None,
        }
    }
    None
}

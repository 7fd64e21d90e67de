//! A partially received datagram and its fragments.

use std::net::IpAddr;

use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{
    Ecn, Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass, Version, ipv4, ipv6,
};
use zerocopy::FromBytes as _;

use super::origin::SaSeqs;
use super::reassembly::Reassembled;
use crate::{Moment, SaSubject};

/// Fragments per datagram: 64 KiB in fragments of 552 bytes.
pub(super) const MAX_FRAGMENTS: usize = 120;

#[derive(Debug)]
pub(super) struct PartialDatagram {
    pub(super) key: Key,
    pub(super) since: Moment,
    /// The SAs that the first fragment came by.
    by: SaSeqs,
    /// Whether others came by the SAs before or after a rekey.
    spans_rekey: bool,
    /// Ordered by offset, never overlapping.
    pieces: Vec<PlainFragment>,
    /// Payload length, known from the last fragment on.
    total: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    source: IpAddr,
    destination: IpAddr,
    ident: u32,
    /// Protocol in IPv4; 0 in IPv6, where the identification alone is the key.
    protocol: Protocol,
}

#[derive(Debug)]
pub(super) struct PlainFragment {
    offset: usize,
    /// Bytes of headers before the payload, without fragment header.
    head: usize,
    /// Offset of the payload.
    body: usize,
    /// Payload length.
    len: usize,
    /// Whether it is the datagram's last fragment.
    is_last: bool,
    /// Offset of the byte that names the fragment header (IPv6).
    next_header_at: usize,
    ecn: Ecn,
    packet: PacketBuf,
    /// The SA that it came by last.
    by: Option<SaSubject>,
}

/// A fragment that is given up.
#[derive(Debug)]
pub(crate) struct LostFragment {
    pub(crate) packet: PacketBuf,
    /// The SA that it came by last.
    pub(crate) by: Option<SaSubject>,
}

pub(super) enum InsertResult {
    Incomplete,
    Complete,
    Duplicate,
    Conflict,
}

impl PartialDatagram {
    /// A datagram without fragments.
    pub(super) const fn new(key: Key, since: Moment, by: SaSeqs) -> Self {
        Self { key, since, by, spans_rekey: false, pieces: Vec::new(), total: None }
    }

    /// Records the SAs of one more fragment.
    pub(super) fn note(&mut self, by: SaSeqs) {
        self.spans_rekey |= self.by != by;
    }

    /// Number of fragments.
    pub(super) fn held(&self) -> u64 {
        self.pieces.len() as u64
    }

    pub(super) fn insert(
        &mut self,
        piece: PlainFragment,
        lost: &mut Vec<LostFragment>,
    ) -> InsertResult {
        let (start, end) = (piece.offset, piece.offset + piece.len);
        let place = self.pieces.partition_point(|other| other.offset < start);
        if let Some(same) = self.pieces.get(place)
            && (same.offset, same.len) == (start, piece.len)
        {
            lost.push(piece.lost());
            return InsertResult::Duplicate;
        }
        let before = place.checked_sub(1).map_or(0, |at| self.pieces[at].end());
        let after = self.pieces.get(place).map_or(usize::MAX, |next| next.offset);
        let longest = self.pieces.last().map_or(0, PlainFragment::end).max(end);
        let total = if piece.is_last { Some(end) } else { self.total };
        let contradicts = self.total.is_some_and(|known| piece.is_last && known != end)
            || total.is_some_and(|total| longest > total);
        if start < before || end > after || contradicts || self.pieces.len() == MAX_FRAGMENTS {
            lost.push(piece.lost());
            return InsertResult::Conflict;
        }
        self.total = total;
        self.pieces.insert(place, piece);
        let have: usize = self.pieces.iter().map(|piece| piece.len).sum();
        if self.total == Some(have) { InsertResult::Complete } else { InsertResult::Incomplete }
    }

    /// Capacity of the fragments' buffers.
    pub(super) fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.packet.capacity()).sum()
    }

    /// Assembles a complete datagram.
    pub(super) fn join(mut self, lost: &mut Vec<LostFragment>, pool: &mut Pool) -> Reassembled {
        let pieces = self.pieces.len() as u64;
        let longest = self.pieces.iter().map(|piece| piece.packet.len()).max().unwrap_or(0);
        let Some(mut packet) = self.assemble(pool) else {
            self.give_up(lost);
            return Reassembled::Refused;
        };
        if let Some(first) = self.pieces.first_mut() {
            (packet.mark, packet.if_id) = (first.packet.mark, first.packet.if_id);
        }
        let spans_rekey = self.spans_rekey;
        self.pieces.into_iter().for_each(|piece| pool.give(piece.packet));
        Reassembled::Whole { packet, pieces, longest, spans_rekey }
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
            // The fragment header, which follows the head, begins with the protocol of the payload.
            bytes[first.next_header_at] = first.packet.bytes()[first.head];
        }
        Some(packet)
    }

    /// ECN of the whole datagram; `None` if only some fragments are ECN-capable
    /// (`net/ipv4/inet_fragment.c: ip_frag_ecn_table`).
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

    /// Gives up all fragments; returns how many.
    pub(super) fn give_up(self, lost: &mut Vec<LostFragment>) -> u64 {
        let count = self.pieces.len() as u64;
        lost.extend(self.pieces.into_iter().map(PlainFragment::lost));
        count
    }
}

impl PlainFragment {
    fn end(&self) -> usize {
        self.offset + self.len
    }

    fn lost(self) -> LostFragment {
        LostFragment { packet: self.packet, by: self.by }
    }

    /// Parses a fragment that came by an SA; returns the packet if it is none.
    pub(super) fn of(
        packet: PacketBuf,
        ip: &IpPacket,
        by: Option<SaSubject>,
    ) -> Result<(Key, Self), PacketBuf> {
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
        Ok((key, Self { offset, head, body, len, is_last, next_header_at, ecn, packet, by }))
    }
}

/// Offset of the fragment header, and of the byte that names it.
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

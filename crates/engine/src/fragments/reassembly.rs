//! Putting fragments together (RFC 791 §3.2, RFC 8200 §4.5), in bounded room and time.
//!
//! As the kernel does since 4.19: a fragment that overlaps another makes the whole datagram go (RFC 5722), an exact duplicate goes alone. Congestion that
//! one fragment met is the datagram's (RFC 3168 §5.3).

use std::net::IpAddr;
use std::time::Duration;

use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{
    Ecn, Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass, Version, ipv4, ipv6,
};
use zerocopy::FromBytes as _;

use crate::Moment;
use crate::inbound::check::MAX_DEPTH;

/// Datagrams waiting at once; one more makes the oldest go.
const DATAGRAMS: usize = 64;
/// Fragments of one datagram at the most: 64 KiB in pieces of 552 bytes.
const PIECES: usize = 120;
/// Bytes of all buffers that wait; more make the oldest datagrams go (`net.ipv4.ipfrag_high_thresh` is 4 MiB of smaller ones).
const ROOM: usize = 16 << 20;
/// How long the first fragment waits for the last one (`net.ipv4.ipfrag_time`).
const PATIENCE: Duration = Duration::from_secs(30);

/// Fragments that wait for the rest of their datagram.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// In order of their first fragment.
    waiting: Vec<Datagram>,
}

/// The states that a fragment came by, the outermost first, by their turns; 0 for none. Only what came by the same is put together: what
/// came in the clear, or by another peer's state, becomes no part of it.
pub(crate) type Through = [u64; MAX_DEPTH];

/// What became of a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits.
    Held,
    /// It was the last one missing; so many pieces made up the datagram, the longest of so many bytes.
    Whole { packet: PacketBuf, pieces: u64, longest: usize },
    /// It was refused, alone.
    Refused,
    /// It was refused, and its datagram with it: so many pieces in all.
    Ruined { pieces: u64 },
}

#[derive(Debug)]
struct Datagram {
    key: Key,
    since: Moment,
    /// Ordered by offset, never overlapping.
    pieces: Vec<Piece>,
    /// Bytes of payload, once the last piece is there.
    total: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    ident: u32,
    /// IPv4's; 0 in IPv6, whose identification stands alone.
    protocol: Protocol,
    through: Through,
}

#[derive(Debug)]
struct Piece {
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

impl Reassembly {
    /// Fragments that wait.
    pub(crate) fn held(&self) -> u64 {
        self.waiting.iter().map(|datagram| datagram.pieces.len() as u64).sum()
    }

    /// Datagrams that wait.
    #[inline]
    pub(crate) fn datagrams(&self) -> usize {
        self.waiting.len()
    }

    /// Lets go of what waited too long; says how many fragments those were.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment, pool: &mut Pool) -> u64 {
        if self.waiting.is_empty() { 0 } else { self.expire_some(now, pool) }
    }

    fn expire_some(&mut self, now: Moment, pool: &mut Pool) -> u64 {
        let late = |datagram: &mut Datagram| now.since(datagram.since) >= PATIENCE;
        self.waiting.extract_if(.., late).map(|datagram| datagram.give_up(pool)).sum()
    }

    /// Takes a fragment in; also says how many others had to go for it.
    pub(crate) fn add(
        &mut self,
        packet: PacketBuf,
        ip: &IpPacket,
        through: Through,
        now: Moment,
        pool: &mut Pool,
    ) -> (Outcome, u64) {
        let (key, piece) = match Piece::of(fitted(packet, pool), ip, through) {
            Ok(parts) => parts,
            Err(packet) => {
                pool.give(packet);
                return (Outcome::Refused, 0);
            }
        };
        let mut evicted = 0;
        let place = self.waiting.iter().position(|datagram| datagram.key == key);
        let place = place.unwrap_or_else(|| {
            if self.waiting.len() == DATAGRAMS {
                evicted = self.waiting.remove(0).give_up(pool);
            }
            self.waiting.push(Datagram { key, since: now, pieces: Vec::new(), total: None });
            self.waiting.len() - 1
        });
        let outcome = match self.waiting[place].insert(piece, pool) {
            Insertion::Duplicate => Outcome::Refused,
            Insertion::Conflict => {
                // The refused piece itself is one more.
                Outcome::Ruined { pieces: self.waiting.remove(place).give_up(pool) + 1 }
            }
            Insertion::Incomplete => {
                evicted += self.make_room(pool);
                Outcome::Held
            }
            Insertion::Complete => self.waiting.remove(place).join(pool),
        };
        (outcome, evicted)
    }
}

impl Reassembly {
    /// Lets the oldest datagrams go, though never the last one, until the others fit.
    fn make_room(&mut self, pool: &mut Pool) -> u64 {
        let mut evicted = 0;
        while self.waiting.len() > 1
            && self.waiting.iter().map(Datagram::room).sum::<usize>() > ROOM
        {
            evicted += self.waiting.remove(0).give_up(pool);
        }
        evicted
    }
}

/// A small fragment does not keep a large buffer waiting.
fn fitted(packet: PacketBuf, pool: &mut Pool) -> PacketBuf {
    let class = SizeClass::holding(packet.len());
    if packet.capacity() <= class.capacity() {
        return packet;
    }
    let mut small = pool.take(class);
    small.inherit(&packet);
    match small.append(packet.len()) {
        Some(room) => {
            room.copy_from_slice(packet.bytes());
            pool.give(packet);
            small
        }
        None => packet,
    }
}

enum Insertion {
    Incomplete,
    Complete,
    Duplicate,
    Conflict,
}

impl Datagram {
    fn insert(&mut self, piece: Piece, pool: &mut Pool) -> Insertion {
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
    fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.packet.capacity()).sum()
    }

    /// Puts the pieces, of which none is missing, together.
    fn join(mut self, pool: &mut Pool) -> Outcome {
        let pieces = self.pieces.len() as u64;
        let longest = self.pieces.iter().map(|piece| piece.packet.len()).max().unwrap_or(0);
        let Some(mut packet) = self.assemble(pool) else {
            return Outcome::Ruined { pieces: self.give_up(pool) };
        };
        if let Some(first) = self.pieces.first_mut() {
            (packet.mark, packet.if_id) = (first.packet.mark, first.packet.if_id);
        }
        self.give_up(pool);
        Outcome::Whole { packet, pieces, longest }
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

    fn give_up(self, pool: &mut Pool) -> u64 {
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
    fn of(packet: PacketBuf, ip: &IpPacket, through: Through) -> Result<(Key, Self), PacketBuf> {
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
        let key = Key { source, destination, ident, protocol, through };
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

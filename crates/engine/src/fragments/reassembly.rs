//! Putting fragments together (RFC 791 §3.2, RFC 8200 §4.5), in bounded room and time.
//!
//! As the kernel does since 4.19: a fragment that overlaps another makes the whole datagram go (RFC 5722), an exact duplicate goes alone. Congestion that
//! one fragment met is the datagram's (RFC 3168 §5.3).
//!
//! What came by different states waits on different *shelves*, each with room of its own: whoever
//! fills one, with a key or without, takes nothing from the others.

use std::collections::BTreeMap;
use std::time::Duration;

use uxfrm_packet::{IpPacket, PacketBuf, Pool, SizeClass};

use super::datagram::{Datagram, Insertion, Key, Piece};
use crate::Moment;
use crate::inbound::check::MAX_DEPTH;

/// Datagrams of a shelf that wait at once; one more makes its oldest go.
const DATAGRAMS: usize = 64;
/// Bytes of all buffers of a shelf; more make its oldest datagrams go. The kernel has 4 MiB for all
/// of a namespace (`net.ipv4.ipfrag_high_thresh`).
const ROOM: usize = 8 << 20;
/// Bytes of all shelves' buffers; more make the oldest datagrams of the fullest shelf go.
const ROOM_OF_ALL: usize = 64 << 20;
/// How long the first fragment waits for the last one (`net.ipv4.ipfrag_time`).
const PATIENCE: Duration = Duration::from_secs(30);

/// The states that a fragment came by, the outermost first, by their turns; 0 for none. Only what came by the same is put together: what
/// came in the clear, or by another peer's state, becomes no part of it.
pub(crate) type Through = [u64; MAX_DEPTH];

/// Fragments that wait for the rest of their datagram.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// None of them is empty.
    shelves: BTreeMap<Through, Shelf>,
    /// Of all shelves: fragments, datagrams, bytes of buffers.
    held: u64,
    datagrams: usize,
    room: usize,
    /// Nothing that waits began to before.
    oldest: Option<Moment>,
}

/// What came by the same states.
#[derive(Debug, Default)]
struct Shelf {
    /// In order of their first fragment.
    waiting: Vec<Datagram>,
    room: usize,
}

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

impl Reassembly {
    /// Fragments that wait.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Datagrams that wait.
    #[inline]
    pub(crate) fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Lets go of what waited too long; says how many fragments those were.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment, pool: &mut Pool) -> u64 {
        match self.oldest {
            Some(oldest) if now.since(oldest) >= PATIENCE => self.expire_some(now, pool),
            Some(_) | None => 0,
        }
    }

    #[cold]
    fn expire_some(&mut self, now: Moment, pool: &mut Pool) -> u64 {
        let before = self.held;
        let all: Vec<_> = self.shelves.keys().copied().collect();
        for through in all {
            while let Some(shelf) = self.shelves.get(&through)
                && shelf.waiting.first().is_some_and(|oldest| now.since(oldest.since) >= PATIENCE)
            {
                self.let_go(&through, 0, pool);
            }
        }
        let since = self.shelves.values().filter_map(|shelf| shelf.waiting.first());
        self.oldest = since.map(|datagram| datagram.since).min();
        before - self.held
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
        let (key, piece) = match Piece::of(fitted(packet, pool), ip) {
            Ok(parts) => parts,
            Err(packet) => {
                pool.give(packet);
                return (Outcome::Refused, 0);
            }
        };
        let (mut datagram, place, mut evicted) = self.take(key, &through, now, pool);
        let outcome = match datagram.insert(piece, pool) {
            // The refused piece itself is one more.
            Insertion::Conflict => Outcome::Ruined { pieces: datagram.give_up(pool) + 1 },
            Insertion::Complete => datagram.join(pool),
            Insertion::Duplicate => {
                self.put(&through, place, datagram);
                Outcome::Refused
            }
            Insertion::Incomplete => {
                self.put(&through, place, datagram);
                evicted += self.make_room(&through, pool);
                Outcome::Held
            }
        };
        (outcome, evicted)
    }

    /// The datagram that a piece is of, off its shelf, and its place there; a new one for a first
    /// piece. Says how many fragments went for that.
    fn take(
        &mut self,
        key: Key,
        through: &Through,
        now: Moment,
        pool: &mut Pool,
    ) -> (Datagram, usize, u64) {
        let waiting = self.shelves.get(through).map_or(&[][..], |shelf| &shelf.waiting);
        let (known, is_full) =
            (waiting.iter().position(|datagram| datagram.key == key), waiting.len() >= DATAGRAMS);
        if let Some(place) = known
            && let Some(datagram) = self.remove(through, place)
        {
            return (datagram, place, 0);
        }
        let evicted = if is_full { self.let_go(through, 0, pool) } else { 0 };
        let place = self.shelves.get(through).map_or(0, |shelf| shelf.waiting.len());
        if self.datagrams == 0 {
            self.oldest = Some(now);
        }
        (Datagram::new(key, now), place, evicted)
    }

    fn put(&mut self, through: &Through, place: usize, datagram: Datagram) {
        let room = datagram.room();
        self.held += datagram.held();
        self.datagrams += 1;
        self.room += room;
        let shelf = self.shelves.entry(*through).or_default();
        shelf.room += room;
        shelf.waiting.insert(place, datagram);
    }

    fn remove(&mut self, through: &Through, place: usize) -> Option<Datagram> {
        let shelf = self.shelves.get_mut(through)?;
        let datagram = (place < shelf.waiting.len()).then(|| shelf.waiting.remove(place))?;
        let room = datagram.room();
        shelf.room -= room;
        if shelf.waiting.is_empty() {
            self.shelves.remove(through);
        }
        self.held -= datagram.held();
        self.datagrams -= 1;
        self.room -= room;
        Some(datagram)
    }

    /// Lets a datagram go; says how many fragments it had.
    fn let_go(&mut self, through: &Through, place: usize, pool: &mut Pool) -> u64 {
        self.remove(through, place).map_or(0, |datagram| datagram.give_up(pool))
    }

    /// Lets the oldest datagrams of a shelf go, though never the last one, until the others fit; then
    /// those of the fullest shelf.
    fn make_room(&mut self, through: &Through, pool: &mut Pool) -> u64 {
        let mut evicted = 0;
        while self.shelves.get(through).is_some_and(Shelf::is_over) {
            evicted += self.let_go(through, 0, pool);
        }
        while self.room > ROOM_OF_ALL {
            let fullest = self.shelves.iter().max_by_key(|(_, shelf)| shelf.room);
            let Some(fullest) = fullest.map(|(through, _)| *through) else { break };
            evicted += self.let_go(&fullest, 0, pool);
        }
        evicted
    }
}

impl Shelf {
    fn is_over(&self) -> bool {
        self.room > ROOM && self.waiting.len() > 1
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

#[cfg(test)]
mod tests;

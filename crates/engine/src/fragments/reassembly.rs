//! Putting fragments together (RFC 791 §3.2, RFC 8200 §4.5), in bounded room and time.
//!
//! As the kernel does since 4.19: a fragment that overlaps another makes the whole datagram go (RFC 5722), an exact duplicate goes alone. Congestion that
//! one fragment met is the datagram's (RFC 3168 §5.3).
//!
//! What came by different states waits on different *shelves*, each with room of its own: whoever
//! fills one, with a key or without, takes nothing from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uxfrm_packet::{IpPacket, PacketBuf, Pool, SizeClass};

use super::datagram::{Datagram, Insertion, Key, Piece};
use super::origin::{Kin, Origin};
use crate::Moment;

/// Datagrams of a shelf that wait at once; one more makes its oldest go.
const DATAGRAMS: usize = 64;
/// Bytes of all buffers of a shelf; more make its oldest datagrams go. The kernel has 4 MiB for all
/// of a namespace (`net.ipv4.ipfrag_high_thresh`).
const ROOM: usize = 8 << 20;
/// Bytes of all shelves' buffers; more make the oldest datagrams of the fullest shelf go.
const ROOM_OF_ALL: usize = 64 << 20;
/// How long the first fragment waits for the last one (`net.ipv4.ipfrag_time`).
const PATIENCE: Duration = Duration::from_secs(30);

/// Fragments that wait for the rest of their datagram.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// None of them is empty; each is known by a number that no other had.
    shelves: BTreeMap<u64, Shelf>,
    places: BTreeMap<Vec<Kin>, u64>,
    last_place: u64,
    /// Their rooms, and when the oldest datagram of each began to wait: so nobody walks along all.
    rooms: BTreeSet<(usize, u64)>,
    ages: BTreeSet<(Moment, u64)>,
    /// Of all shelves: fragments, datagrams, bytes of buffers.
    held: u64,
    datagrams: usize,
    room: usize,
    /// When the first of all that wait began to.
    oldest: Option<Moment>,
    #[cfg(test)]
    looked_at: u64,
}

/// What came by the same states, or their kin.
#[derive(Debug, Default)]
struct Shelf {
    kin: Vec<Kin>,
    /// In order of their first fragment.
    waiting: Vec<Datagram>,
    room: usize,
}

/// What became of a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits.
    Held,
    /// It was the last one missing; so many pieces made up the datagram, the longest of so many bytes. Astride: some came by
    /// one state, some by the one that took its place.
    Whole { packet: PacketBuf, pieces: u64, longest: usize, is_astride: bool },
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
        let mut late = 0;
        while let Some((since, place)) = self.ages.first().copied()
            && now.since(since) >= PATIENCE
        {
            late += self.let_go(place, pool);
        }
        late
    }

    /// Takes a fragment in; also says how many others had to go for it.
    pub(crate) fn add(
        &mut self,
        packet: PacketBuf,
        ip: &IpPacket,
        origin: &Origin,
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
        let (mut datagram, seat, mut evicted) = self.take(key, origin, now, pool);
        datagram.note(origin.turns);
        let outcome = match datagram.insert(piece, pool) {
            // The refused piece itself is one more.
            Insertion::Conflict => Outcome::Ruined { pieces: datagram.give_up(pool) + 1 },
            Insertion::Complete => datagram.join(pool),
            Insertion::Duplicate => {
                self.put(origin, seat, datagram);
                Outcome::Refused
            }
            Insertion::Incomplete => {
                let place = self.put(origin, seat, datagram);
                evicted += self.make_room(place, pool);
                Outcome::Held
            }
        };
        (outcome, evicted)
    }

    /// The datagram that a piece is of, off its shelf, and its seat there; a new one for a first
    /// piece. Says how many fragments went for that.
    fn take(
        &mut self,
        key: Key,
        origin: &Origin,
        now: Moment,
        pool: &mut Pool,
    ) -> (Datagram, usize, u64) {
        let place = self.places.get(&origin.kin).copied();
        let shelf = place.and_then(|place| Some((place, self.shelves.get(&place)?)));
        let new = Datagram::new(key, now, origin.turns);
        let Some((place, shelf)) = shelf else { return (new, 0, 0) };
        let (waiting, known) =
            (shelf.waiting.len(), shelf.waiting.iter().position(|other| other.key == key));
        if let Some(seat) = known
            && let Some(datagram) = self.remove(place, seat)
        {
            return (datagram, seat, 0);
        }
        match waiting >= DATAGRAMS {
            true => (new, waiting - 1, self.let_go(place, pool)),
            false => (new, waiting, 0),
        }
    }

    /// Says which shelf it is on.
    fn put(&mut self, origin: &Origin, seat: usize, datagram: Datagram) -> u64 {
        let place = self.places.get(&origin.kin).copied().unwrap_or_else(|| {
            self.last_place += 1;
            self.places.insert(origin.kin.clone(), self.last_place);
            let shelf = Shelf { kin: origin.kin.clone(), ..Shelf::default() };
            self.shelves.insert(self.last_place, shelf);
            self.last_place
        });
        let room = datagram.room();
        self.held += datagram.held();
        self.datagrams += 1;
        self.room += room;
        self.change(place, |shelf| {
            shelf.room += room;
            shelf.waiting.insert(seat.min(shelf.waiting.len()), datagram);
        });
        place
    }

    fn remove(&mut self, place: u64, seat: usize) -> Option<Datagram> {
        let datagram = self.change(place, |shelf| {
            let there = seat < shelf.waiting.len();
            let datagram = there.then(|| shelf.waiting.remove(seat))?;
            shelf.room -= datagram.room();
            Some(datagram)
        })??;
        self.held -= datagram.held();
        self.datagrams -= 1;
        self.room -= datagram.room();
        Some(datagram)
    }

    /// Changes a shelf, and keeps what is found by its room and its age right. An empty one goes.
    fn change<T>(&mut self, place: u64, change: impl FnOnce(&mut Shelf) -> T) -> Option<T> {
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        let shelf = self.shelves.get_mut(&place)?;
        self.rooms.remove(&(shelf.room, place));
        shelf.since().map(|since| self.ages.remove(&(since, place)));
        let changed = change(shelf);
        match shelf.since() {
            Some(since) => {
                self.rooms.insert((shelf.room, place));
                self.ages.insert((since, place));
            }
            None => {
                self.places.remove(&shelf.kin);
                self.shelves.remove(&place);
            }
        }
        self.oldest = self.ages.first().map(|(since, _)| *since);
        Some(changed)
    }

    /// Lets the oldest datagram of a shelf go; says how many fragments it had.
    fn let_go(&mut self, place: u64, pool: &mut Pool) -> u64 {
        self.remove(place, 0).map_or(0, |datagram| datagram.give_up(pool))
    }

    /// Lets the oldest datagrams of a shelf go, though never the last one, until the others fit; then
    /// those of the fullest shelf.
    fn make_room(&mut self, place: u64, pool: &mut Pool) -> u64 {
        let mut evicted = 0;
        while self.shelves.get(&place).is_some_and(Shelf::is_over) {
            evicted += self.let_go(place, pool);
        }
        while self.room > ROOM_OF_ALL {
            let Some((_, fullest)) = self.rooms.last().copied() else { break };
            evicted += self.let_go(fullest, pool);
        }
        evicted
    }
}

impl Shelf {
    /// When its oldest datagram began to wait; `None` for an empty one.
    fn since(&self) -> Option<Moment> {
        self.waiting.first().map(|oldest| oldest.since)
    }

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

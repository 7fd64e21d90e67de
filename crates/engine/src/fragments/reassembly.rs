//! Reassembly of fragments (RFC 791 §3.2, RFC 8200 §4.5), bounded in memory and time.
//!
//! As in the kernel since 4.19, an overlapping fragment drops the whole datagram (RFC 5722), and an
//! exact duplicate drops alone. A congestion mark of one fragment marks the datagram (RFC 3168
//! §5.3).
//!
//! Each origin (SA family, or plain) has its own queue and memory limit, so that no sender can
//! exhaust another's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uxfrm_packet::{IpPacket, PacketBuf, Pool, SizeClass};

use super::datagram::{InsertResult, Key, LostFragment, PartialDatagram, PlainFragment};
use super::origin::{FragmentOrigin, SaFamily};
use crate::Moment;

/// Datagrams per queue; one more evicts the oldest.
const MAX_DATAGRAMS: usize = 64;
/// Buffer capacity per queue; more evicts the oldest datagrams. The kernel has 4 MiB for a whole
/// namespace (`net.ipv4.ipfrag_high_thresh`).
const MAX_BYTES: usize = 8 << 20;
/// Buffer capacity of all queues; more evicts the oldest datagrams of the largest queue.
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// How long a datagram waits after its first fragment (`net.ipv4.ipfrag_time`).
const REASSEMBLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Incomplete datagrams.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// Queues by a number that is never reused; none is empty.
    queues: BTreeMap<u64, OriginQueue>,
    places: BTreeMap<Vec<SaFamily>, u64>,
    last_place: u64,
    /// Queues by capacity and by age of the oldest datagram, so that no search visits all.
    by_bytes: BTreeSet<(usize, u64)>,
    ages: BTreeSet<(Moment, u64)>,
    /// Totals of all queues: fragments, datagrams, buffer capacity.
    held: u64,
    datagrams: usize,
    room: usize,
    /// Time of the oldest first fragment.
    oldest: Option<Moment>,
    /// Fragments given up and not yet taken by the caller.
    lost: Vec<LostFragment>,
    #[cfg(test)]
    looked_at: u64,
}

/// Datagrams of one origin.
#[derive(Debug, Default)]
struct OriginQueue {
    kin: Vec<SaFamily>,
    /// In order of their first fragments.
    waiting: Vec<PartialDatagram>,
    room: usize,
}

/// Result of adding a fragment.
#[derive(Debug)]
pub(crate) enum Reassembled {
    /// It waits.
    Held,
    /// It completed a datagram of so many `pieces`; the longest fragment had `longest` bytes.
    /// `spans_rekey`: some came by an SA and some by its successor.
    Whole { packet: PacketBuf, pieces: u64, longest: usize, spans_rekey: bool },
    /// It was refused, alone or with its datagram.
    Refused,
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

    /// Takes the fragments that were given up, to be counted as dropped.
    #[inline]
    pub(crate) fn take_lost(&mut self) -> Vec<LostFragment> {
        std::mem::take(&mut self.lost)
    }

    /// Gives up datagrams after the time-out; returns how many fragments they had.
    #[inline]
    pub(crate) fn expire(&mut self, now: Moment) -> u64 {
        match self.oldest {
            Some(oldest) if now.since(oldest) >= REASSEMBLY_TIMEOUT => self.expire_some(now),
            Some(_) | None => 0,
        }
    }

    #[cold]
    fn expire_some(&mut self, now: Moment) -> u64 {
        let mut late = 0;
        while let Some((since, place)) = self.ages.first().copied()
            && now.since(since) >= REASSEMBLY_TIMEOUT
        {
            late += self.drop_oldest(place);
        }
        late
    }

    /// Adds a fragment. What is refused or evicted is to be [taken](Self::take_lost).
    pub(crate) fn add(
        &mut self,
        packet: PacketBuf,
        ip: &IpPacket,
        origin: &FragmentOrigin,
        now: Moment,
        pool: &mut Pool,
    ) -> Reassembled {
        let (key, piece) = match PlainFragment::of(fitted(packet, pool), ip, origin.last) {
            Ok(parts) => parts,
            Err(packet) => {
                self.lost.push(LostFragment { packet, by: origin.last });
                return Reassembled::Refused;
            }
        };
        let (mut datagram, seat) = self.take(key, origin, now);
        datagram.note(origin.insertion_seqs);
        match datagram.insert(piece, &mut self.lost) {
            InsertResult::Conflict => {
                datagram.give_up(&mut self.lost);
                Reassembled::Refused
            }
            InsertResult::Complete => datagram.join(&mut self.lost, pool),
            InsertResult::Duplicate => {
                self.put(origin, seat, datagram);
                Reassembled::Refused
            }
            InsertResult::Incomplete => {
                let place = self.put(origin, seat, datagram);
                self.make_room(place);
                Reassembled::Held
            }
        }
    }

    /// Removes the fragment's datagram from its queue, with its position there, or creates one.
    fn take(&mut self, key: Key, origin: &FragmentOrigin, now: Moment) -> (PartialDatagram, usize) {
        let place = self.places.get(&origin.kin).copied();
        let shelf = place.and_then(|place| Some((place, self.queues.get(&place)?)));
        let new = PartialDatagram::new(key, now, origin.insertion_seqs);
        let Some((place, shelf)) = shelf else { return (new, 0) };
        let (waiting, known) =
            (shelf.waiting.len(), shelf.waiting.iter().position(|other| other.key == key));
        if let Some(seat) = known
            && let Some(datagram) = self.remove(place, seat)
        {
            return (datagram, seat);
        }
        if waiting < MAX_DATAGRAMS {
            return (new, waiting);
        }
        self.drop_oldest(place);
        (new, waiting - 1)
    }

    /// Puts a datagram back; returns its queue.
    fn put(&mut self, origin: &FragmentOrigin, seat: usize, datagram: PartialDatagram) -> u64 {
        let place = self.places.get(&origin.kin).copied().unwrap_or_else(|| {
            self.last_place += 1;
            self.places.insert(origin.kin.clone(), self.last_place);
            let shelf = OriginQueue { kin: origin.kin.clone(), ..OriginQueue::default() };
            self.queues.insert(self.last_place, shelf);
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

    fn remove(&mut self, place: u64, seat: usize) -> Option<PartialDatagram> {
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

    /// Changes a queue and keeps the indexes by capacity and age consistent. Removes an empty one.
    fn change<T>(&mut self, place: u64, change: impl FnOnce(&mut OriginQueue) -> T) -> Option<T> {
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        let shelf = self.queues.get_mut(&place)?;
        self.by_bytes.remove(&(shelf.room, place));
        shelf.since().map(|since| self.ages.remove(&(since, place)));
        let changed = change(shelf);
        match shelf.since() {
            Some(since) => {
                self.by_bytes.insert((shelf.room, place));
                self.ages.insert((since, place));
            }
            None => {
                self.places.remove(&shelf.kin);
                self.queues.remove(&place);
            }
        }
        self.oldest = self.ages.first().map(|(since, _)| *since);
        Some(changed)
    }

    /// Gives up a queue's oldest datagram; returns how many fragments it had.
    fn drop_oldest(&mut self, place: u64) -> u64 {
        let oldest = self.remove(place, 0);
        oldest.map_or(0, |datagram| datagram.give_up(&mut self.lost))
    }

    /// Evicts a queue's oldest datagrams, but not the last one, until the limit holds; then those
    /// of the largest queue.
    fn make_room(&mut self, place: u64) {
        while self.queues.get(&place).is_some_and(OriginQueue::is_over) {
            self.drop_oldest(place);
        }
        while self.room > MAX_TOTAL_BYTES {
            let Some((_, fullest)) = self.by_bytes.last().copied() else { break };
            self.drop_oldest(fullest);
        }
    }
}

impl OriginQueue {
    /// Time of the oldest datagram; `None` if empty.
    fn since(&self) -> Option<Moment> {
        self.waiting.first().map(|oldest| oldest.since)
    }

    fn is_over(&self) -> bool {
        self.room > MAX_BYTES && self.waiting.len() > 1
    }
}

/// Copies a small fragment out of a large buffer.
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

//! Devices between lanes' engines and the network, each on a thread of its own.
//!
//! ```text
//!   lane ── handed over ──▶ device's thread ──▶ wire
//!   network ──▶ lane ── as it came ──▶ device's thread ── queue N ──▶ lane N
//! ```
//!
//! A [`Bay`] is what lanes and devices' threads know of each other: lanes take a [`Berth`] each before the first device comes, devices come and go while
//! lanes run. Whoever receives a buffer pays with an empty one of its own pool, so no pool runs dry, and one lock is taken per batch.
//!
//! A ring that is full pushes back: what it has no room for waits with who brings it, in order, and that one asks its port for nothing more until there
//! is room. So a burst waits where it waits without a device, in the kernel's queues.

mod datagram;
mod device_lane;
mod exchange;

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use uxfrm_engine::{DeviceId, Handed, Received};
use uxfrm_io::{
    poll::{Poller, Waker},
    wire_packets,
};
use uxfrm_offload::{ModelNic, Nics};
use uxfrm_packet::{Batch, IpPacket, PacketBuf, Pool, Protocol, esp::Esp};

use crate::Error;
pub use device_lane::{DeviceLane, Exit};
pub use exchange::{Carries, Exchange};

/// Buffers that wait for one device of one lane, in each direction.
const ROOM: usize = 1024;

/// Buffers that wait with a lane for room, in each direction: what one batch becomes once it is cut, and what others than the port bring. What is more is dropped.
const MOST_KEPT: usize = 8 * ROOM;

/// All devices' places; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Bay {
    shared: Arc<Shared>,
    nics: Nics,
}

#[derive(Debug, Default)]
struct Shared {
    /// Grows with each change of docks.
    generation: AtomicU64,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    lanes: Vec<Waker>,
    docks: Vec<Arc<Dock>>,
}

/// A device's place.
#[derive(Debug)]
struct Dock {
    /// The interfaces that it is.
    devices: Vec<DeviceId>,
    nic: Arc<Mutex<ModelNic>>,
    waker: Waker,
    /// What lies between it and each lane.
    rings: Vec<Rings>,
    /// Whether what the device has for a lane waits for room.
    blocked: AtomicBool,
}

#[derive(Debug)]
struct Rings {
    lane: Waker,
    /// To the device, for the wire.
    handed: Exchange<Handed>,
    /// To the device, from the network.
    arrived: Exchange<PacketBuf>,
    /// From the device, for the engine.
    received: Exchange<Received>,
    /// From the device, for the lane's own wire.
    sealed: Exchange<PacketBuf>,
    /// Whether what the lane has for the device waits for room.
    waits: AtomicBool,
}

/// Lanes' side of a [`Bay`]: one lane's.
#[derive(Debug)]
pub(crate) struct Berth {
    bay: Bay,
    lane: usize,
    generation: u64,
    places: Vec<Place>,
    incoming: Vec<PacketBuf>,
    /// What waited for devices that are gone, and nobody was told of.
    lost: Lost,
}

/// A device as a lane meets it, and what waits for room in its rings.
#[derive(Debug)]
struct Place {
    dock: Arc<Dock>,
    outgoing: Vec<Handed>,
    incoming: Vec<PacketBuf>,
}

/// Which ways some device has no room, so that no more is to be brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Full {
    /// To the wire.
    pub(crate) outward: bool,
    /// From the network.
    pub(crate) inward: bool,
}

impl Bay {
    /// Without lanes and devices; `nics` is who knows which device has which state.
    #[must_use]
    pub fn new(nics: Nics) -> Self {
        Self { shared: Arc::default(), nics }
    }

    /// Takes a device out: lanes hand it nothing any more. What it has not sent is lost, as on any device that is pulled.
    pub fn remove(&self, device: DeviceId) {
        let mut all = lock(&self.shared.all);
        all.docks.retain(|dock| !dock.devices.contains(&device));
        self.shared.generation.fetch_add(1, Ordering::Release);
        // One may wait for its room.
        all.lanes.iter().for_each(Waker::wake);
    }

    pub(crate) fn enter(&self, waker: Waker) -> Berth {
        let mut all = lock(&self.shared.all);
        all.lanes.push(waker);
        Berth {
            bay: self.clone(),
            lane: all.lanes.len() - 1,
            generation: u64::MAX,
            places: Vec::new(),
            incoming: Vec::new(),
            lost: Lost::default(),
        }
    }

    fn dock(&self, nic: Arc<Mutex<ModelNic>>, devices: Vec<DeviceId>, waker: Waker) -> Arc<Dock> {
        let mut all = lock(&self.shared.all);
        let rings = all.lanes.iter().map(|lane| Rings::new(lane.clone())).collect();
        let dock = Arc::new(Dock { devices, nic, waker, rings, blocked: AtomicBool::default() });
        all.docks.push(Arc::clone(&dock));
        self.shared.generation.fetch_add(1, Ordering::Release);
        dock
    }
}

impl Rings {
    fn new(lane: Waker) -> Self {
        Self {
            lane,
            handed: Exchange::new(ROOM),
            arrived: Exchange::new(ROOM),
            received: Exchange::new(ROOM),
            sealed: Exchange::new(ROOM),
            waits: AtomicBool::default(),
        }
    }
}

impl Berth {
    /// Takes note of devices that came or went.
    pub(crate) fn look(&mut self, pool: &mut Pool) {
        let generation = self.bay.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let mut before = std::mem::take(&mut self.places);
        let all = lock(&self.bay.shared.all);
        for dock in all.docks.iter().filter(|dock| self.lane < dock.rings.len()) {
            let known = before.iter().position(|place| Arc::ptr_eq(&place.dock, dock));
            self.places.push(match known {
                Some(known) => before.swap_remove(known),
                None => Place::of(Arc::clone(dock)),
            });
        }
        for gone in &mut before {
            self.lost.nowhere +=
                discard(&mut gone.outgoing, pool) + discard(&mut gone.incoming, pool);
        }
    }

    /// Whether there is no device.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether anything waits for room, or for this lane.
    pub(crate) fn has_some(&self) -> bool {
        self.places.iter().any(|place| {
            let rings = place.dock.rings.get(self.lane);
            let is_there = |rings: &Rings| !rings.received.is_empty() || !rings.sealed.is_empty();
            !place.outgoing.is_empty() || !place.incoming.is_empty() || rings.is_some_and(is_there)
        })
    }

    /// Gives devices what waits for room, and says which ways there is none.
    pub(crate) fn retry(&mut self, pool: &mut Pool) -> (Full, Lost) {
        let (mut full, mut lost) = (Full::default(), std::mem::take(&mut self.lost));
        for place in &mut self.places {
            if !place.outgoing.is_empty() {
                lost.full += place.send(self.lane, pool);
                full.outward |= !place.outgoing.is_empty();
            }
            if !place.incoming.is_empty() {
                lost.full += place.bring(self.lane, pool);
                full.inward |= !place.incoming.is_empty();
            }
        }
        (full, lost)
    }

    /// Gives each device what is for it, and keeps what there is no room for. What is lost is for no device any more, or more than may wait.
    pub(crate) fn hand_over(&mut self, handed: &mut Vec<Handed>, pool: &mut Pool) -> Lost {
        let mut lost = Lost::default();
        for place in &mut self.places {
            let is_its = |handed: &Handed| place.dock.devices.contains(&handed.handover.device);
            if handed.iter().all(is_its) {
                place.outgoing.append(handed);
            } else {
                place.outgoing.extend(handed.extract_if(.., |one| is_its(one)));
            }
            lost.full += place.send(self.lane, pool);
        }
        lost.nowhere = Lost::all(handed, pool).nowhere;
        lost
    }

    /// Gives devices what came from the network: all of it, where there is one, as all that comes passes it; with several each packet to the one that has
    /// its state, and what none has to the first.
    pub(crate) fn arrive(&mut self, batch: &mut Batch, pool: &mut Pool) -> Lost {
        let mut lost = Lost::default();
        let [first, others @ ..] = &mut self.places[..] else { return lost };
        self.incoming.extend(batch.drain());
        for place in others {
            let nics = &self.bay.nics;
            let dock = &place.dock;
            let is_its = |packet: &mut PacketBuf| {
                holder(nics, packet).is_some_and(|id| dock.devices.contains(&id))
            };
            place.incoming.extend(self.incoming.extract_if(.., is_its));
            lost.full += place.bring(self.lane, pool);
        }
        first.incoming.append(&mut self.incoming);
        lost.full += first.bring(self.lane, pool);
        lost
    }

    /// Gives devices what is theirs of packets of any kind, and leaves the others: whole ones, and datagrams' payloads. A train with something of a device is
    /// taken apart, as datagrams of several states may be in it.
    pub(crate) fn arrive_among_others(&mut self, batch: &mut Batch, pool: &mut Pool) -> Lost {
        let mut lost = Lost::default();
        let nics = &self.bay.nics;
        if !batch.as_slice().iter().any(|packet| holder(nics, packet).is_some()) {
            return lost;
        }
        let mut others = Vec::with_capacity(batch.len());
        for packet in batch.drain() {
            if packet.udp.is_some() && holder(nics, &packet).is_some() {
                lost.nowhere += datagram::wrap(packet, pool, &mut others);
            } else {
                others.push(packet);
            }
        }
        for place in &mut self.places {
            let dock = &place.dock;
            let is_its = |packet: &mut PacketBuf| {
                holder(nics, packet).is_some_and(|id| dock.devices.contains(&id))
            };
            place.incoming.extend(others.extract_if(.., is_its));
            lost.full += place.bring(self.lane, pool);
        }
        batch.append(&mut others);
        lost
    }

    /// Takes what devices have for the engine; false when nothing.
    pub(crate) fn receive(&self, into: &mut Vec<Received>, pool: &mut Pool) -> bool {
        for dock in self.docks() {
            dock.rings[self.lane].received.take(into, pool);
            dock.has_room();
        }
        !into.is_empty()
    }

    /// Takes what devices have for the lane's own wire.
    pub(crate) fn sealed(&self, into: &mut Vec<PacketBuf>, pool: &mut Pool) {
        for dock in self.docks() {
            dock.rings[self.lane].sealed.take(into, pool);
            dock.has_room();
        }
    }

    /// Those that have rings for this lane, as [`Berth::look`] sees to.
    fn docks(&self) -> impl Iterator<Item = &Arc<Dock>> {
        self.places.iter().map(|place| &place.dock)
    }
}

/// Packets that reached no device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// For want of room.
    pub(crate) full: u64,
    /// The device is not there any more.
    pub(crate) nowhere: u64,
}

impl Lost {
    /// What no device takes.
    pub(crate) fn all(handed: &mut Vec<Handed>, pool: &mut Pool) -> Self {
        Self { full: 0, nowhere: discard(handed, pool) }
    }
}

impl Place {
    const fn of(dock: Arc<Dock>) -> Self {
        Self { dock, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Out, as far as there is room. How many packets are lost, as more wait than may.
    fn send(&mut self, lane: usize, pool: &mut Pool) -> u64 {
        let Self { dock, outgoing, .. } = self;
        let Some(rings) = dock.rings.get(lane) else { return 0 };
        rings.put(&rings.handed, outgoing, pool, &dock.waker)
    }

    /// In, in the same way.
    fn bring(&mut self, lane: usize, pool: &mut Pool) -> u64 {
        let Self { dock, incoming, .. } = self;
        let Some(rings) = dock.rings.get(lane) else { return 0 };
        rings.put(&rings.arrived, incoming, pool, &dock.waker)
    }
}

impl Rings {
    /// Puts in what there is room for. The device wakes us when there is some for the rest: it looks at the flag behind taking out, and we look at the room
    /// behind the flag.
    fn put<T: Carries>(
        &self,
        ring: &Exchange<T>,
        items: &mut Vec<T>,
        pool: &mut Pool,
        device: &Waker,
    ) -> u64 {
        ring.put(items, pool, device);
        if items.is_empty() {
            return 0;
        }
        self.waits.store(true, Ordering::Release);
        ring.put(items, pool, device);
        if items.len() <= MOST_KEPT {
            return 0;
        }
        discard(&mut items.split_off(MOST_KEPT), pool)
    }

    /// The device has taken out something.
    fn has_room(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            self.lane.wake();
        }
    }
}

impl Dock {
    /// A lane has taken out something.
    fn has_room(&self) {
        if self.blocked.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// Gives buffers back; how many packets were in them.
fn discard<T: Carries>(items: &mut Vec<T>, pool: &mut Pool) -> u64 {
    let packets = items.iter().map(|item| wire_packets(item.packet())).sum();
    items.drain(..).for_each(|item| pool.give(item.into_packet()));
    packets
}

/// Waits for a port no longer, or again.
///
/// # Errors
/// When it can't be polled.
pub(crate) fn heed(
    poller: &Poller,
    token: u8,
    descriptor: Option<BorrowedFd<'_>>,
    full: bool,
) -> Result<(), Error> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    let heeded = if full { poller.remove(descriptor) } else { poller.add(descriptor, token) };
    heeded.map_err(Error::Poll)
}

/// Which device has the state of an ESP packet; of a train the first one that any device has.
fn holder(nics: &Nics, packet: &PacketBuf) -> Option<DeviceId> {
    if packet.udp.is_some() {
        return datagram::holder(nics, packet);
    }
    let bytes = packet.bytes();
    let ip = IpPacket::parse(bytes).ok()?;
    let upper = bytes.get(ip.header_len..)?;
    let esp = match ip.protocol {
        Protocol::ESP => upper,
        // Port 500 has a marker before ESP, of which devices have no states.
        Protocol::UDP => upper.get(uxfrm_packet::udp::HEADER_LEN..)?,
        Protocol(_) => return None,
    };
    let esp = Esp::parse(esp).ok()?;
    nics.holder(ip.destination, uxfrm_engine::Spi(esp.header.spi.get()))
}

/// What is shared is whole at every point where a holder could panic.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

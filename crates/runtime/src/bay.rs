//! Devices between lanes' engines and the network, each on a thread of its own.
//!
//! ```text
//!   lane ── handed over ──▶ device's thread ──▶ wire
//!   network ──▶ lane ── as it came ──▶ device's thread ── queue N ──▶ lane N
//! ```
//!
//! A [`Bay`] is what lanes and devices' threads know of each other: lanes take a [`Berth`] each before the first device comes, devices come and go while
//! lanes run. Whoever receives a buffer pays with an empty one of its own pool, so no pool runs dry, and one lock is taken per batch. A ring that
//! is full refuses what is sent out, and holds back what came in until there is room.

mod datagram;
mod device_lane;
mod exchange;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use uxfrm_engine::{DeviceId, Handed, Received};
use uxfrm_io::{poll::Waker, wire_packets};
use uxfrm_offload::{ModelNic, Nics};
use uxfrm_packet::{Batch, IpPacket, PacketBuf, Pool, Protocol, esp::Esp};

pub use device_lane::{DeviceLane, Exit};
pub use exchange::{Carries, Exchange};

/// Buffers that wait for one device of one lane, in each direction.
const ROOM: usize = 1024;

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
    /// Whether what came in waits for room on the way to a lane.
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
}

/// Lanes' side of a [`Bay`]: one lane's.
#[derive(Debug)]
pub(crate) struct Berth {
    bay: Bay,
    lane: usize,
    generation: u64,
    docks: Vec<Arc<Dock>>,
    outgoing: Vec<Handed>,
    incoming: Vec<PacketBuf>,
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
    }

    pub(crate) fn enter(&self, waker: Waker) -> Berth {
        let mut all = lock(&self.shared.all);
        all.lanes.push(waker);
        Berth {
            bay: self.clone(),
            lane: all.lanes.len() - 1,
            generation: u64::MAX,
            docks: Vec::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
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
        }
    }
}

impl Berth {
    /// Takes note of devices that came or went.
    pub(crate) fn look(&mut self) {
        let generation = self.bay.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            let all = lock(&self.bay.shared.all);
            let serves = |dock: &&Arc<Dock>| self.lane < dock.rings.len();
            self.docks = all.docks.iter().filter(serves).cloned().collect();
        }
    }

    /// Whether there is no device.
    pub(crate) fn is_empty(&self) -> bool {
        self.docks.is_empty()
    }

    /// Gives each device what is for it: packets that no device takes any more, and those for which there was no room.
    pub(crate) fn hand_over(&mut self, handed: &mut Vec<Handed>, pool: &mut Pool) -> Lost {
        let mut lost = Lost::default();
        for dock in &self.docks {
            let is_its = |handed: &Handed| dock.devices.contains(&handed.handover.device);
            if handed.iter().all(is_its) {
                lost.full += dock.take_out(self.lane, handed, pool);
            } else {
                self.outgoing.extend(handed.extract_if(.., |one| is_its(one)));
                lost.full += dock.take_out(self.lane, &mut self.outgoing, pool);
            }
        }
        lost.nowhere = Lost::all(handed, pool).nowhere;
        lost
    }

    /// Gives devices what came from the network: all of it, where there is one, as all that comes passes it; with several each packet to the one that has
    /// its state, and what none has to the first.
    pub(crate) fn arrive(&mut self, batch: &mut Batch, pool: &mut Pool) -> Lost {
        let mut lost = Lost::default();
        let [first, others @ ..] = &self.docks[..] else { return lost };
        self.incoming.extend(batch.drain());
        for dock in others {
            let is_its = |packet: &mut PacketBuf| {
                holder(&self.bay.nics, packet).is_some_and(|id| dock.devices.contains(&id))
            };
            let mut its: Vec<_> = self.incoming.extract_if(.., is_its).collect();
            lost.full += dock.take_in(self.lane, &mut its, pool);
        }
        lost.full += first.take_in(self.lane, &mut self.incoming, pool);
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
        for dock in &self.docks {
            let is_its = |packet: &mut PacketBuf| {
                holder(nics, packet).is_some_and(|id| dock.devices.contains(&id))
            };
            self.incoming.extend(others.extract_if(.., is_its));
            lost.full += dock.take_in(self.lane, &mut self.incoming, pool);
        }
        batch.append(&mut others);
        lost
    }

    /// Takes what devices have for the engine; false when nothing.
    pub(crate) fn receive(&self, into: &mut Vec<Received>, pool: &mut Pool) -> bool {
        for dock in &self.docks {
            let Some(rings) = dock.rings.get(self.lane) else { continue };
            rings.received.take(into, pool);
            if dock.blocked.swap(false, Ordering::AcqRel) {
                dock.waker.wake();
            }
        }
        !into.is_empty()
    }

    /// Takes what devices have for the lane's own wire.
    pub(crate) fn sealed(&self, into: &mut Vec<PacketBuf>, pool: &mut Pool) {
        for rings in self.docks.iter().filter_map(|dock| dock.rings.get(self.lane)) {
            rings.sealed.take(into, pool);
        }
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
        let nowhere = handed.iter().map(|handed| wire_packets(&handed.packet)).sum();
        handed.drain(..).for_each(|handed| pool.give(handed.packet));
        Self { full: 0, nowhere }
    }
}

impl Dock {
    fn take_out(&self, lane: usize, handed: &mut Vec<Handed>, pool: &mut Pool) -> u64 {
        let Some(rings) = self.rings.get(lane) else { return 0 };
        rings.handed.put(handed, pool, &self.waker);
        let full = handed.iter().map(|handed| wire_packets(&handed.packet)).sum();
        handed.drain(..).for_each(|handed| pool.give(handed.packet));
        full
    }

    fn take_in(&self, lane: usize, packets: &mut Vec<PacketBuf>, pool: &mut Pool) -> u64 {
        let Some(rings) = self.rings.get(lane) else { return 0 };
        rings.arrived.put(packets, pool, &self.waker);
        let full = packets.iter().map(wire_packets).sum();
        packets.drain(..).for_each(|packet| pool.give(packet));
        full
    }
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

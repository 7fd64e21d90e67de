//! Devices between lanes' engines and the network, each on a thread of its own.
//!
//! ```text
//!   lane ── handed over ──▶ device's thread ──▶ wire
//!   network ──▶ lane ── as it came ──▶ device's thread ── queue N ──▶ lane N
//! ```
//!
//! A [`Bay`] is what lanes and devices' threads know of each other: lanes take a [`PortSlot`] each before the first device comes, devices come and go while
//! lanes run. Whoever receives a buffer pays with an empty one of its own pool, so no pool runs dry, and one lock is taken per batch.
//!
//! A ring that is full pushes back: what it has no room for waits with who brings it, in order, and that one asks its port for nothing more until there
//! is room. So a burst waits where it waits without a device, in the kernel's queues.

mod buffer_ring;
mod device_loop;
mod udp_headers;

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
pub use buffer_ring::{Carries, Exchange};
pub use device_loop::{DeviceLane, Exit};

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
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    workers: Vec<Waker>,
    ports: Vec<Arc<DevicePort>>,
}

/// A device's place.
#[derive(Debug)]
struct DevicePort {
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
    worker: Waker,
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
pub(crate) struct PortSlot {
    shared_ports: Bay,
    worker: usize,
    generation: u64,
    attached: Vec<AttachedPort>,
    incoming: Vec<PacketBuf>,
    /// What waited for devices that are gone, and nobody was told of.
    lost: LostPackets,
}

/// A device as a lane meets it, and what waits for room in its rings.
#[derive(Debug)]
struct AttachedPort {
    port: Arc<DevicePort>,
    outgoing: Vec<Handed>,
    incoming: Vec<PacketBuf>,
}

/// Which ways some device has no room, so that no more is to be brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backpressure {
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
        let mut registry = lock(&self.shared.registry);
        registry.ports.retain(|port| !port.devices.contains(&device));
        self.shared.generation.fetch_add(1, Ordering::Release);
        // One may wait for its room.
        registry.workers.iter().for_each(Waker::wake);
    }

    pub(crate) fn add_worker(&self, waker: Waker) -> PortSlot {
        let mut registry = lock(&self.shared.registry);
        registry.workers.push(waker);
        PortSlot {
            shared_ports: self.clone(),
            worker: registry.workers.len() - 1,
            generation: u64::MAX,
            attached: Vec::new(),
            incoming: Vec::new(),
            lost: LostPackets::default(),
        }
    }

    fn add_device(
        &self,
        nic: Arc<Mutex<ModelNic>>,
        devices: Vec<DeviceId>,
        waker: Waker,
    ) -> Arc<DevicePort> {
        let mut registry = lock(&self.shared.registry);
        let rings = registry.workers.iter().map(|worker| Rings::new(worker.clone())).collect();
        let port =
            Arc::new(DevicePort { devices, nic, waker, rings, blocked: AtomicBool::default() });
        registry.ports.push(Arc::clone(&port));
        self.shared.generation.fetch_add(1, Ordering::Release);
        port
    }
}

impl Rings {
    fn new(worker: Waker) -> Self {
        Self {
            worker,
            handed: Exchange::new(ROOM),
            arrived: Exchange::new(ROOM),
            received: Exchange::new(ROOM),
            sealed: Exchange::new(ROOM),
            waits: AtomicBool::default(),
        }
    }
}

impl PortSlot {
    /// Takes note of devices that came or went.
    pub(crate) fn refresh_devices(&mut self, pool: &mut Pool) {
        let generation = self.shared_ports.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let mut before = std::mem::take(&mut self.attached);
        let registry = lock(&self.shared_ports.shared.registry);
        for port in registry.ports.iter().filter(|port| self.worker < port.rings.len()) {
            let known = before.iter().position(|device| Arc::ptr_eq(&device.port, port));
            self.attached.push(match known {
                Some(known) => before.swap_remove(known),
                None => AttachedPort::of(Arc::clone(port)),
            });
        }
        for gone in &mut before {
            self.lost.no_device +=
                discard(&mut gone.outgoing, pool) + discard(&mut gone.incoming, pool);
        }
    }

    /// Whether there is no device.
    pub(crate) fn is_empty(&self) -> bool {
        self.attached.is_empty()
    }

    /// Whether anything waits for room, or for this lane.
    pub(crate) fn has_pending(&self) -> bool {
        self.attached.iter().any(|device| {
            let rings = device.port.rings.get(self.worker);
            let is_there = |rings: &Rings| !rings.received.is_empty() || !rings.sealed.is_empty();
            !device.outgoing.is_empty()
                || !device.incoming.is_empty()
                || rings.is_some_and(is_there)
        })
    }

    /// Gives devices what waits for room, and says which ways there is none.
    pub(crate) fn retry(&mut self, pool: &mut Pool) -> (Backpressure, LostPackets) {
        let (mut backpressure, mut lost) =
            (Backpressure::default(), std::mem::take(&mut self.lost));
        for device in &mut self.attached {
            if !device.outgoing.is_empty() {
                lost.no_room += device.push_outgoing(self.worker, pool);
                backpressure.outward |= !device.outgoing.is_empty();
            }
            if !device.incoming.is_empty() {
                lost.no_room += device.push_incoming(self.worker, pool);
                backpressure.inward |= !device.incoming.is_empty();
            }
        }
        (backpressure, lost)
    }

    /// Gives each device what is for it, and keeps what there is no room for. What is lost is for no device any more, or more than may wait.
    pub(crate) fn hand_over(&mut self, handed: &mut Vec<Handed>, pool: &mut Pool) -> LostPackets {
        let mut lost = LostPackets::default();
        for device in &mut self.attached {
            let is_its = |handed: &Handed| device.port.devices.contains(&handed.handover.device);
            if handed.iter().all(is_its) {
                device.outgoing.append(handed);
            } else {
                device.outgoing.extend(handed.extract_if(.., |one| is_its(one)));
            }
            lost.no_room += device.push_outgoing(self.worker, pool);
        }
        lost.no_device = LostPackets::without_device(handed, pool).no_device;
        lost
    }

    /// Gives devices what came from the network: all of it, where there is one, as all that comes passes it; with several each packet to the one that has
    /// its state, and what none has to the first.
    pub(crate) fn dispatch_all(&mut self, batch: &mut Batch, pool: &mut Pool) -> LostPackets {
        let mut lost = LostPackets::default();
        let [first, others @ ..] = &mut self.attached[..] else { return lost };
        self.incoming.extend(batch.drain());
        for device in others {
            let nics = &self.shared_ports.nics;
            let port = &device.port;
            let is_its = |packet: &mut PacketBuf| {
                device_of(nics, packet).is_some_and(|id| port.devices.contains(&id))
            };
            device.incoming.extend(self.incoming.extract_if(.., is_its));
            lost.no_room += device.push_incoming(self.worker, pool);
        }
        first.incoming.append(&mut self.incoming);
        lost.no_room += first.push_incoming(self.worker, pool);
        lost
    }

    /// Gives devices what is theirs of packets of any kind, and leaves the others: whole ones, and datagrams' payloads. A train with something of a device is
    /// taken apart, as datagrams of several states may be in it.
    pub(crate) fn dispatch_offloaded(&mut self, batch: &mut Batch, pool: &mut Pool) -> LostPackets {
        let mut lost = LostPackets::default();
        let nics = &self.shared_ports.nics;
        if !batch.as_slice().iter().any(|packet| device_of(nics, packet).is_some()) {
            return lost;
        }
        let mut others = Vec::with_capacity(batch.len());
        for packet in batch.drain() {
            if packet.udp.is_some() && device_of(nics, &packet).is_some() {
                lost.no_device += udp_headers::add_headers(packet, pool, &mut others);
            } else {
                others.push(packet);
            }
        }
        for device in &mut self.attached {
            let port = &device.port;
            let is_its = |packet: &mut PacketBuf| {
                device_of(nics, packet).is_some_and(|id| port.devices.contains(&id))
            };
            device.incoming.extend(others.extract_if(.., is_its));
            lost.no_room += device.push_incoming(self.worker, pool);
        }
        batch.append(&mut others);
        lost
    }

    /// Takes what devices have for the engine; false when nothing.
    pub(crate) fn receive(&self, into: &mut Vec<Received>, pool: &mut Pool) -> bool {
        for port in self.ports() {
            port.rings[self.worker].received.take(into, pool);
            port.wake_if_blocked();
        }
        !into.is_empty()
    }

    /// Takes what devices have for the lane's own wire.
    pub(crate) fn receive_sealed(&self, into: &mut Vec<PacketBuf>, pool: &mut Pool) {
        for port in self.ports() {
            port.rings[self.worker].sealed.take(into, pool);
            port.wake_if_blocked();
        }
    }

    /// Those that have rings for this lane, as [`PortSlot::refresh_devices`] sees to.
    fn ports(&self) -> impl Iterator<Item = &Arc<DevicePort>> {
        self.attached.iter().map(|device| &device.port)
    }
}

/// Packets that reached no device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostPackets {
    /// For want of room.
    pub(crate) no_room: u64,
    /// The device is not there any more.
    pub(crate) no_device: u64,
}

impl LostPackets {
    /// What no device takes.
    pub(crate) fn without_device(handed: &mut Vec<Handed>, pool: &mut Pool) -> Self {
        Self { no_room: 0, no_device: discard(handed, pool) }
    }
}

impl AttachedPort {
    const fn of(port: Arc<DevicePort>) -> Self {
        Self { port, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Out, as far as there is room. How many packets are lost, as more wait than may.
    fn push_outgoing(&mut self, worker: usize, pool: &mut Pool) -> u64 {
        let Self { port, outgoing, .. } = self;
        let Some(rings) = port.rings.get(worker) else { return 0 };
        rings.put(&rings.handed, outgoing, pool, &port.waker)
    }

    /// In, in the same way.
    fn push_incoming(&mut self, worker: usize, pool: &mut Pool) -> u64 {
        let Self { port, incoming, .. } = self;
        let Some(rings) = port.rings.get(worker) else { return 0 };
        rings.put(&rings.arrived, incoming, pool, &port.waker)
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
    fn wake_if_blocked(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            self.worker.wake();
        }
    }
}

impl DevicePort {
    /// A lane has taken out something.
    fn wake_if_blocked(&self) {
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
pub(crate) fn set_polled(
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
fn device_of(nics: &Nics, packet: &PacketBuf) -> Option<DeviceId> {
    if packet.udp.is_some() {
        return udp_headers::device_of(nics, packet);
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
    nics.device_of(ip.destination, uxfrm_engine::Spi(esp.header.spi.get()))
}

/// What is shared is whole at every point where a holder could panic.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

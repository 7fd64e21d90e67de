//! Rings between worker loops and offload devices, each on a thread of its own.
//!
//! ```text
//!   worker ── handed over ──▶ device thread ──▶ wire
//!   network ──▶ worker ── raw packets ──▶ device thread ── queue N ──▶ worker N
//! ```
//!
//! [`DevicePorts`] lists workers and devices: every worker takes a [`PortSlot`] before the first
//! device comes; devices come and go while workers run. A receiver pays for each buffer with an
//! empty one of its own pool, so no pool runs dry, and one lock is taken per batch.
//!
//! A full ring pushes back: the rest waits with the sender, in order, and the sender stops reading
//! its port until there is room. So a burst waits in the kernel's queues, as it would without a
//! device.

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

use uxfrm_engine::{DeviceId, OffloadedPacket, ReceivedPacket};
use uxfrm_io::{
    poll::{Poller, Waker},
    wire_packets,
};
use uxfrm_offload::{ModelNic, Nics};
use uxfrm_packet::{Batch, IpPacket, PacketBuf, Pool, Protocol, esp::Esp};

use crate::Error;
pub use buffer_ring::{BufferRing, HasPacket};
pub use device_loop::{DeviceEgress, DeviceLoop};

/// Buffers in one ring, which is per device, worker and direction.
const ROOM: usize = 1024;

/// Buffers that wait at a worker for room in one ring: segments of a batch, and what others than
/// the port bring. More are dropped.
const MOST_KEPT: usize = 8 * ROOM;

/// All workers' and devices' rings; clones share them.
#[derive(Clone, Debug, Default)]
pub struct DevicePorts {
    shared: Arc<Shared>,
    nics: Nics,
}

#[derive(Debug, Default)]
struct Shared {
    /// Incremented whenever a device comes or goes.
    generation: AtomicU64,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    workers: Vec<Waker>,
    ports: Vec<Arc<DevicePort>>,
}

/// A device's side of the rings.
#[derive(Debug)]
struct DevicePort {
    /// Interfaces of this device.
    devices: Vec<DeviceId>,
    nic: Arc<Mutex<ModelNic>>,
    waker: Waker,
    /// One set for each worker.
    rings: Vec<Rings>,
    /// Whether something for a worker waits for room.
    blocked: AtomicBool,
}

#[derive(Debug)]
struct Rings {
    worker: Waker,
    /// To the device, for the wire.
    handed: BufferRing<OffloadedPacket>,
    /// To the device, from the network.
    arrived: BufferRing<PacketBuf>,
    /// From the device, for the engine.
    received: BufferRing<ReceivedPacket>,
    /// From the device, for the worker's own wire.
    sealed: BufferRing<PacketBuf>,
    /// Whether something for the device waits for room.
    waits: AtomicBool,
}

/// One worker's access to all devices.
#[derive(Debug)]
pub(crate) struct PortSlot {
    shared_ports: DevicePorts,
    worker: usize,
    generation: u64,
    attached: Vec<AttachedPort>,
    incoming: Vec<PacketBuf>,
    /// Lost at devices that are gone, and not reported yet.
    lost: LostPackets,
}

/// A device as one worker sees it, and what waits for room in its rings.
#[derive(Debug)]
struct AttachedPort {
    port: Arc<DevicePort>,
    outgoing: Vec<OffloadedPacket>,
    incoming: Vec<PacketBuf>,
}

/// Directions in which some device has no room, so that nothing more may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backpressure {
    /// To the wire.
    pub(crate) outward: bool,
    /// From the network.
    pub(crate) inward: bool,
}

impl DevicePorts {
    /// Starts without workers and devices; `nics` tells which device has which SA.
    #[must_use]
    pub fn new(nics: Nics) -> Self {
        Self { shared: Arc::default(), nics }
    }

    /// Removes a device: workers hand it nothing any more. What it has not sent is lost, as on any
    /// device that is pulled.
    pub fn remove(&self, device: DeviceId) {
        let mut registry = lock(&self.shared.registry);
        registry.ports.retain(|port| !port.devices.contains(&device));
        self.shared.generation.fetch_add(1, Ordering::Release);
        // One may wait for room in its rings.
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
            handed: BufferRing::new(ROOM),
            arrived: BufferRing::new(ROOM),
            received: BufferRing::new(ROOM),
            sealed: BufferRing::new(ROOM),
            waits: AtomicBool::default(),
        }
    }
}

impl PortSlot {
    /// Attaches devices that came and detaches those that went.
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

    /// Whether anything waits for room, or for this worker.
    pub(crate) fn has_pending(&self) -> bool {
        self.attached.iter().any(|device| {
            let rings = device.port.rings.get(self.worker);
            let is_there = |rings: &Rings| !rings.received.is_empty() || !rings.sealed.is_empty();
            !device.outgoing.is_empty()
                || !device.incoming.is_empty()
                || rings.is_some_and(is_there)
        })
    }

    /// Pushes what waits for room; returns the directions that stay blocked.
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

    /// Pushes each packet to its device and keeps what finds no room. Packets are lost if their
    /// device is gone or too many wait.
    pub(crate) fn hand_over(
        &mut self,
        handed: &mut Vec<OffloadedPacket>,
        pool: &mut Pool,
    ) -> LostPackets {
        let mut lost = LostPackets::default();
        for device in &mut self.attached {
            let is_its =
                |handed: &OffloadedPacket| device.port.devices.contains(&handed.handover.device);
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

    /// Pushes all packets from the network to devices. One device gets all, as all traffic passes
    /// it; of several each gets the packets of its SAs, and the first one the rest.
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

    /// Pushes packets of offloaded SAs to their devices, whole packets and UDP payloads alike, and
    /// leaves the others. A GSO burst with an offloaded packet is split, as it may mix SAs.
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

    /// Receives from all devices for the engine; `false` if nothing came.
    pub(crate) fn receive(&self, into: &mut Vec<ReceivedPacket>, pool: &mut Pool) -> bool {
        for port in self.ports() {
            port.rings[self.worker].received.take(into, pool);
            port.wake_if_blocked();
        }
        !into.is_empty()
    }

    /// Receives from all devices for the worker's own wire.
    pub(crate) fn receive_sealed(&self, into: &mut Vec<PacketBuf>, pool: &mut Pool) {
        for port in self.ports() {
            port.rings[self.worker].sealed.take(into, pool);
            port.wake_if_blocked();
        }
    }

    /// Devices with rings for this worker, as [`PortSlot::refresh_devices`] ensures.
    fn ports(&self) -> impl Iterator<Item = &Arc<DevicePort>> {
        self.attached.iter().map(|device| &device.port)
    }
}

/// Packets that reached no device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostPackets {
    /// The ring was full.
    pub(crate) no_room: u64,
    /// The device is gone.
    pub(crate) no_device: u64,
}

impl LostPackets {
    /// Drops packets for which there is no device.
    pub(crate) fn without_device(handed: &mut Vec<OffloadedPacket>, pool: &mut Pool) -> Self {
        Self { no_room: 0, no_device: discard(handed, pool) }
    }
}

impl AttachedPort {
    const fn of(port: Arc<DevicePort>) -> Self {
        Self { port, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Pushes outgoing packets as far as there is room; returns the number dropped.
    fn push_outgoing(&mut self, worker: usize, pool: &mut Pool) -> u64 {
        let Self { port, outgoing, .. } = self;
        let Some(rings) = port.rings.get(worker) else { return 0 };
        rings.put(&rings.handed, outgoing, pool, &port.waker)
    }

    /// Pushes incoming packets likewise.
    fn push_incoming(&mut self, worker: usize, pool: &mut Pool) -> u64 {
        let Self { port, incoming, .. } = self;
        let Some(rings) = port.rings.get(worker) else { return 0 };
        rings.put(&rings.arrived, incoming, pool, &port.waker)
    }
}

impl Rings {
    /// Pushes as far as there is room. The device wakes us when there is room for the rest: it
    /// reads the flag after it has taken, and we look for room after we have set the flag.
    fn put<T: HasPacket>(
        &self,
        ring: &BufferRing<T>,
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

    /// Called after the device has taken something.
    fn wake_if_blocked(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            self.worker.wake();
        }
    }
}

impl DevicePort {
    /// Called after a worker has taken something.
    fn wake_if_blocked(&self) {
        if self.blocked.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// Gives buffers back; returns the number of packets in them.
fn discard<T: HasPacket>(items: &mut Vec<T>, pool: &mut Pool) -> u64 {
    let packets = items.iter().map(|item| wire_packets(item.packet())).sum();
    items.drain(..).for_each(|item| pool.give(item.into_packet()));
    packets
}

/// Stops or starts polling a port.
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

/// The device that has the SA of an ESP packet; of a GSO burst the first match.
fn device_of(nics: &Nics, packet: &PacketBuf) -> Option<DeviceId> {
    if packet.udp.is_some() {
        return udp_headers::device_of(nics, packet);
    }
    let bytes = packet.bytes();
    let ip = IpPacket::parse(bytes).ok()?;
    let upper = bytes.get(ip.header_len..)?;
    let esp = match ip.protocol {
        Protocol::ESP => upper,
        // On port 500 a marker precedes ESP; devices have no such SAs.
        Protocol::UDP => upper.get(uxfrm_packet::udp::HEADER_LEN..)?,
        Protocol(_) => return None,
    };
    let esp = Esp::parse(esp).ok()?;
    nics.device_of(ip.destination, uxfrm_engine::Spi(esp.header.spi.get()))
}

/// A panic leaves the data consistent, so poisoning is ignored.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

//! The loop of a device's thread.
//!
//! 1 wait for a worker or for a delayed completion → 2 packets from workers through the device to
//! the wire → 3 packets from the network through the device into its queues → 4 completions that
//! are due → 5 queues to workers → 1. Queue N belongs to worker N; surplus queues go round again.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use uxfrm_engine::{
    DeviceId, DropReason, Drops, Event, Moment, OffloadedPacket, ReceivedPacket, min_path_mtu,
};
use uxfrm_io::{
    PathMtu, Transmitted, clock,
    poll::{Poller, Waker},
};
use uxfrm_offload::{ModelNic, NicQueues};
use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool};

use super::{DevicePort, DevicePorts, Rings, lock};
use crate::{Error, EventLoop, Events, WirePorts};

/// Longest wait.
const IDLE: Duration = Duration::from_millis(100);

/// Where a device sends.
#[derive(Debug)]
pub enum DeviceEgress {
    /// By its own ports.
    Wire(WirePorts),
    /// Back to the worker that handed it over, which knows the next hop.
    Worker,
}

/// A device and its side of the [`DevicePorts`].
#[derive(Debug)]
pub struct DeviceLoop {
    shared_ports: DevicePorts,
    port: Arc<DevicePort>,
    poller: Poller,
    exit: DeviceEgress,
    queues: NicQueues,
    pool: Pool,
    handed: Vec<OffloadedPacket>,
    arrived: Vec<PacketBuf>,
    batch: Batch,
    out: Batch,
    /// Sealed packets that wait for room, per worker.
    sealed: Vec<Vec<PacketBuf>>,
    /// Received packets that wait for room, per worker.
    received: Vec<Vec<ReceivedPacket>>,
    drops: Arc<Drops>,
    /// Receives events about path MTUs.
    events: Option<Events>,
    /// Last event sent.
    last_reported: Option<PathMtu>,
}

impl DeviceLoop {
    /// Attaches a device under its interfaces. Workers that start later don't know it.
    ///
    /// # Errors
    /// When there is no descriptor to wait with.
    pub fn new(
        shared_ports: &DevicePorts,
        nic: Arc<Mutex<ModelNic>>,
        devices: Vec<DeviceId>,
        exit: DeviceEgress,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        let queues = lock(&nic).queues();
        let port = shared_ports.add_device(nic, devices, poller.waker());
        Ok(Self {
            shared_ports: shared_ports.clone(),
            received: port.rings.iter().map(|_| Vec::new()).collect(),
            sealed: port.rings.iter().map(|_| Vec::new()).collect(),
            port,
            poller,
            exit,
            queues,
            pool: Pool::new(),
            handed: Vec::new(),
            arrived: Vec::new(),
            batch: Batch::new(),
            out: Batch::new(),
            drops: Arc::default(),
            events: None,
            last_reported: None,
        })
    }

    /// Reports paths whose MTU is below what its own ports send.
    #[must_use]
    pub fn with_events(mut self, events: Events) -> Self {
        self.events = Some(events);
        self
    }

    /// What its ports refuse.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// 1 How long to wait.
    fn timeout(&self) -> Duration {
        let due = lock(&self.port.nic).next_due();
        due.map_or(IDLE, |due| due.since(now()).min(IDLE))
    }

    /// 2 Out. What the worker has no room for goes first.
    fn send(&mut self, worker: usize) {
        self.return_sealed(worker);
        if !self.sealed[worker].is_empty() {
            return;
        }
        let rings = &self.port.rings[worker];
        rings.handed.take(&mut self.handed, &mut self.pool);
        rings.wake_if_blocked();
        if self.handed.is_empty() {
            return;
        }
        lock(&self.port.nic).transmit(&mut self.handed, now(), &mut self.pool, &mut self.out);
        self.transmit_for(worker);
    }

    /// 3 In. What a worker has no room for stays where it is.
    fn receive(&mut self, worker: usize) {
        if self.arrived.is_empty() && !self.is_blocked() {
            let rings = &self.port.rings[worker];
            rings.arrived.take(&mut self.arrived, &mut self.pool);
            rings.wake_if_blocked();
        }
        while !self.arrived.is_empty() && !self.is_blocked() {
            let count = self.arrived.len().min(BATCH);
            self.arrived.drain(..count).for_each(|packet| self.batch.push(packet));
            let mut nic = lock(&self.port.nic);
            nic.receive(&mut self.batch, now(), &mut self.pool, &mut self.queues);
            let runs_short = nic.take_near_limit();
            drop(nic);
            if let Some(events) = self.events.as_ref().filter(|_| runs_short) {
                events.wake();
            }
            self.deliver();
        }
    }

    /// Whether a worker may have too little room. It will wake us then: it looks at the flag behind
    /// taking out, and we look at the room behind the flag.
    fn is_blocked(&mut self) -> bool {
        if !self.lacks_room() {
            return false;
        }
        self.port.blocked.store(true, Ordering::Release);
        self.deliver();
        self.lacks_room()
    }

    fn lacks_room(&self) -> bool {
        let mut workers = self.port.rings.iter().zip(&self.received);
        workers.any(|(rings, kept)| !kept.is_empty() || rings.received.room() < BATCH)
    }

    /// 5 Queues to workers, as it came. What there is no room for waits.
    fn deliver(&mut self) {
        let workers = self.received.len().max(1);
        for (function, queue, received) in self.queues.in_order() {
            let number = usize::from(function.0).checked_sub(1).unwrap_or_else(|| queue.0.into());
            if let Some(worker) = self.received.get_mut(number % workers) {
                worker.push(received);
            }
        }
        for (rings, received) in self.port.rings.iter().zip(&mut self.received) {
            rings.received.put(received, &mut self.pool, &rings.worker);
        }
    }

    /// Back to a worker. Before it looks at the flag it takes out, and we look at the room behind
    /// the flag.
    fn return_sealed(&mut self, worker: usize) {
        let (rings, sealed) = (&self.port.rings[worker], &mut self.sealed[worker]);
        rings.sealed.put(sealed, &mut self.pool, &rings.worker);
        if !sealed.is_empty() {
            self.port.blocked.store(true, Ordering::Release);
            rings.sealed.put(sealed, &mut self.pool, &rings.worker);
        }
    }

    /// Tells of a narrow path. Beneath the least its packets are sent on all the same, and telling
    /// of it again changes nothing.
    #[cold]
    pub(super) fn report_pmtu(&mut self, path: PathMtu) {
        let is_known = path.mtu < min_path_mtu(path.to).into() && self.last_reported == Some(path);
        if let Some(events) = self.events.as_ref().filter(|_| !is_known) {
            events.send(&mut vec![Event::NarrowPath(path.to)]);
            self.last_reported = Some(path);
        }
    }

    fn has_pending(&self) -> bool {
        let is_there = |rings: &Rings| !rings.handed.is_empty() || !rings.arrived.is_empty();
        self.port.rings.iter().any(is_there)
            || !self.arrived.is_empty()
            || self.received.iter().any(|kept| !kept.is_empty())
            || self.sealed.iter().any(|kept| !kept.is_empty())
            || lock(&self.port.nic).next_due().is_some()
    }

    /// 2 to 5, and what is delayed is due `now`.
    fn run_stages(&mut self, now: Moment) {
        for worker in 0..self.port.rings.len() {
            // 2 out
            self.send(worker);
            // 3 in
            self.receive(worker);
        }
        // 4 what is due
        lock(&self.port.nic).complete(now, &mut self.out, &mut self.queues);
        if !self.out.is_empty() {
            self.transmit_for(0);
        }
        // 5 queues to workers
        self.deliver();
    }

    /// To the wire, on behalf of a worker.
    fn transmit_for(&mut self, worker: usize) {
        match &mut self.exit {
            DeviceEgress::Wire(wire) => {
                let Transmitted { refused, .. } = wire.transmit(&mut self.out, &mut self.pool);
                self.drops.add(DropReason::PortFull, refused.busy);
                self.drops.add(DropReason::PortTooBig, refused.too_big);
                self.drops.add(DropReason::PortRefused, refused.unsupported + refused.failed);
                if let Some(path) = refused.path {
                    self.report_pmtu(path);
                }
            }
            DeviceEgress::Worker => {
                self.sealed[worker].extend(self.out.drain());
                self.return_sealed(worker);
            }
        }
    }
}

impl EventLoop for DeviceLoop {
    fn turn(&mut self) -> Result<(), Error> {
        // 1 wait
        let timeout = self.timeout();
        self.poller.wait(Some(timeout)).map_err(Error::Poll)?;
        self.run_stages(now());
        Ok(())
    }

    fn drain(&mut self) -> bool {
        let had_some = self.has_pending();
        self.run_stages(Moment(u64::MAX));
        had_some
    }

    fn waker(&self) -> Waker {
        self.poller.waker()
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::default()
    }
}

impl Drop for DeviceLoop {
    fn drop(&mut self) {
        self.port.devices.iter().take(1).for_each(|device| self.shared_ports.remove(*device));
    }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

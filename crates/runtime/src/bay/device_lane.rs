//! The loop of a device's thread.
//!
//! 1 wait until a lane has something, or what is delayed is due → 2 what lanes handed over, through the device to the wire → 3 what came from the
//! network, through the device into its queues → 4 what was delayed and is due → 5 queues to lanes → 1. Queue N is lane N's, and as there may be
//! more queues than lanes, of those behind them again from the first.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use uxfrm_engine::{DeviceId, DropReason, Drops, Event, Handed, Moment, Received, least_path};
use uxfrm_io::{
    NarrowPath, Transmitted, clock,
    poll::{Poller, Waker},
    wire_packets,
};
use uxfrm_offload::{ModelNic, Queues};
use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool};

use super::{Bay, Dock, lock};
use crate::{Error, Events, Turns, Wire};

/// The longest wait.
const IDLE: Duration = Duration::from_millis(100);

/// Where a device sends.
#[derive(Debug)]
pub enum Exit {
    /// By ports of its own.
    Wire(Wire),
    /// Back to the lane that handed it over, which knows the next hop.
    Lane,
}

/// A device and its thread's side of the [`Bay`].
#[derive(Debug)]
pub struct DeviceLane {
    bay: Bay,
    dock: Arc<Dock>,
    poller: Poller,
    exit: Exit,
    queues: Queues,
    pool: Pool,
    handed: Vec<Handed>,
    arrived: Vec<PacketBuf>,
    batch: Batch,
    out: Batch,
    sealed: Vec<PacketBuf>,
    received: Vec<Vec<Received>>,
    drops: Arc<Drops>,
    /// Who hears where its ports' packets are too long for the network.
    events: Option<Events>,
    /// The last they heard.
    told: Option<NarrowPath>,
}

impl DeviceLane {
    /// Puts a device into the bay, under the interfaces that it is. Lanes that come later don't know it.
    ///
    /// # Errors
    /// When there is no descriptor to wait with.
    pub fn new(
        bay: &Bay,
        nic: Arc<Mutex<ModelNic>>,
        devices: Vec<DeviceId>,
        exit: Exit,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        let queues = lock(&nic).queues();
        let dock = bay.dock(nic, devices, poller.waker());
        Ok(Self {
            bay: bay.clone(),
            received: dock.rings.iter().map(|_| Vec::new()).collect(),
            dock,
            poller,
            exit,
            queues,
            pool: Pool::new(),
            handed: Vec::new(),
            arrived: Vec::new(),
            batch: Batch::new(),
            out: Batch::new(),
            sealed: Vec::new(),
            drops: Arc::default(),
            events: None,
            told: None,
        })
    }

    /// The same, which tells of paths that do not take what its own ports are to send.
    #[must_use]
    pub fn telling(mut self, events: Events) -> Self {
        self.events = Some(events);
        self
    }

    /// What its ports refuse.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// 1 How long to wait.
    fn patience(&self) -> Duration {
        let due = lock(&self.dock.nic).next_due();
        due.map_or(IDLE, |due| due.since(now()).min(IDLE))
    }

    /// 2 Out.
    fn send(&mut self, lane: usize) {
        self.dock.rings[lane].handed.take(&mut self.handed, &mut self.pool);
        if self.handed.is_empty() {
            return;
        }
        lock(&self.dock.nic).transmit(&mut self.handed, now(), &mut self.pool, &mut self.out);
        self.leave(lane);
    }

    /// 3 In. What a lane has no room for stays where it is.
    fn receive(&mut self, lane: usize) {
        if !self.is_blocked() {
            self.dock.rings[lane].arrived.take(&mut self.arrived, &mut self.pool);
        }
        while !self.arrived.is_empty() {
            let count = self.arrived.len().min(BATCH);
            self.arrived.drain(..count).for_each(|packet| self.batch.push(packet));
            lock(&self.dock.nic).receive(&mut self.batch, now(), &mut self.pool, &mut self.queues);
            self.deliver();
        }
    }

    /// Whether a lane may have too little room. It will wake us then: it looks at the flag behind taking out, and we look at the room behind the flag.
    fn is_blocked(&self) -> bool {
        let lacks_room = || self.dock.rings.iter().any(|rings| rings.received.room() < BATCH);
        if !lacks_room() {
            return false;
        }
        self.dock.blocked.store(true, Ordering::Release);
        lacks_room()
    }

    /// 5 Queues to lanes.
    fn deliver(&mut self) {
        let lanes = self.received.len().max(1);
        let physical = self.queues.physical().enumerate();
        for (number, queue) in physical {
            if let Some(received) = self.received.get_mut(number % lanes) {
                received.append(queue);
            }
        }
        for (number, queue) in self.queues.virtuals().enumerate() {
            if let Some(received) = self.received.get_mut(number % lanes) {
                received.append(queue);
            }
        }
        for (rings, received) in self.dock.rings.iter().zip(&mut self.received) {
            rings.received.put(received, &mut self.pool, &rings.lane);
            let full = received.iter().map(|received| wire_packets(&received.packet)).sum();
            self.drops.add(DropReason::PortFull, full);
            received.drain(..).for_each(|received| self.pool.give(received.packet));
        }
    }

    /// Tells of a narrow path. Beneath the least its packets are sent on all the same, and telling of it again changes nothing.
    #[cold]
    pub(super) fn tell(&mut self, path: NarrowPath) {
        let is_known = path.mtu < least_path(path.to).into() && self.told == Some(path);
        if let Some(events) = self.events.as_ref().filter(|_| !is_known) {
            events.send(&mut vec![Event::NarrowPath(path.to)]);
            self.told = Some(path);
        }
    }

    /// To the wire, on behalf of a lane.
    fn leave(&mut self, lane: usize) {
        match &mut self.exit {
            Exit::Wire(wire) => {
                let Transmitted { refused, .. } = wire.transmit(&mut self.out, &mut self.pool);
                self.drops.add(DropReason::PortFull, refused.busy);
                self.drops.add(DropReason::PortTooBig, refused.too_big);
                self.drops.add(DropReason::PortRefused, refused.unsupported + refused.failed);
                if let Some(path) = refused.path {
                    self.tell(path);
                }
            }
            Exit::Lane => {
                let rings = &self.dock.rings[lane];
                self.sealed.extend(self.out.drain());
                rings.sealed.put(&mut self.sealed, &mut self.pool, &rings.lane);
                let full = self.sealed.iter().map(wire_packets).sum();
                self.drops.add(DropReason::PortFull, full);
                self.sealed.drain(..).for_each(|packet| self.pool.give(packet));
            }
        }
    }
}

impl Turns for DeviceLane {
    fn turn(&mut self) -> Result<(), Error> {
        // 1 wait
        let patience = self.patience();
        self.poller.wait(Some(patience)).map_err(Error::Poll)?;
        for lane in 0..self.dock.rings.len() {
            // 2 out
            self.send(lane);
            // 3 in
            self.receive(lane);
        }
        // 4 what is due
        lock(&self.dock.nic).complete(now(), &mut self.out, &mut self.queues);
        if !self.out.is_empty() {
            self.leave(0);
        }
        // 5 queues to lanes
        self.deliver();
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.poller.waker()
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::default()
    }
}

impl Drop for DeviceLane {
    fn drop(&mut self) {
        self.dock.devices.iter().take(1).for_each(|device| self.bay.remove(*device));
    }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

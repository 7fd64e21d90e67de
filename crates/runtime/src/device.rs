//! A device between a lane's engine and its wire: what the engine hands over goes through it, and whole IP packets from the network do.
//!
//! It is shared by all lanes and by whoever controls it; each holds it for one batch. The device's work is done on the lane's own thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uxfrm_engine::{Moment, Output, Received};
use uxfrm_offload::{ModelNic, Queues};
use uxfrm_packet::{Batch, Pool};

/// A lane's way to the device.
#[derive(Debug)]
pub(crate) struct Device {
    nic: Arc<Mutex<ModelNic>>,
    queues: Queues,
    received: Vec<Received>,
}

impl Device {
    pub(crate) fn new(nic: Arc<Mutex<ModelNic>>) -> Self {
        let queues = lock(&nic).queues();
        Self { nic, queues, received: Vec::new() }
    }

    /// Sends what was handed over: behind all else that is for the wire.
    pub(crate) fn transmit(&self, out: &mut Output, now: Moment, pool: &mut Pool) {
        let Output { handed, wire, .. } = out;
        lock(&self.nic).transmit(handed, now, pool, wire);
    }

    /// Takes packets from the network; what is for the engine of them.
    pub(crate) fn receive(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
    ) -> &mut Vec<Received> {
        lock(&self.nic).receive(batch, now, pool, &mut self.queues);
        self.received.extend(self.queues.drain());
        &mut self.received
    }

    /// What was delayed and is due; what is for the engine of it.
    pub(crate) fn complete(&mut self, now: Moment, wire: &mut Batch) -> &mut Vec<Received> {
        lock(&self.nic).complete(now, wire, &mut self.queues);
        self.received.extend(self.queues.drain());
        &mut self.received
    }
}

/// A device is as it was when another who held it panicked: each call leaves it whole.
fn lock(nic: &Mutex<ModelNic>) -> MutexGuard<'_, ModelNic> {
    nic.lock().unwrap_or_else(PoisonError::into_inner)
}

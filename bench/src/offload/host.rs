//! A host's half, which is what is measured: from its own port to the device's ring, and back.

use uxfrm_engine::{Output, Received, Settings, Traffic, Worker};
use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool};

use super::association::End;
use super::site::Site;
use super::traffic::Flow;
use super::wire::{Sent, Wire};
use super::{NOW, RING};
use crate::clock::TscClock;

/// One worker of a host.
#[derive(Debug)]
pub(super) struct Host {
    worker: Worker,
    pub(super) pool: Pool,
    out: Output,
    batch: Batch,
    /// What its own port holds: to be sent, last one first.
    pub(super) outgoing: Vec<PacketBuf>,
    /// What it has received.
    incoming: Vec<PacketBuf>,
    sent: Vec<Sent>,
    arrived: Vec<Received>,
    marked: Vec<Received>,
    pub(super) flow: Flow,
}

impl Host {
    pub(super) fn new(site: &Site, end: End, number: usize) -> anyhow::Result<Self> {
        let settings =
            Settings { cpu: uxfrm_engine::Cpu(u32::try_from(number)?), ..site.settings(end) };
        Ok(Self {
            worker: Worker::new(settings, &site.published())?,
            pool: Pool::new(),
            out: Output::default(),
            batch: Batch::new(),
            outgoing: Vec::with_capacity(RING),
            incoming: Vec::with_capacity(RING),
            sent: Vec::with_capacity(RING),
            arrived: Vec::with_capacity(RING),
            marked: Vec::with_capacity(RING),
            flow: Flow::new(end, number),
        })
    }

    /// Cycles from the port to the ring.
    pub(super) fn send(&mut self, wire: &Wire) -> u64 {
        let from = TscClock::now();
        while !self.outgoing.is_empty() {
            let rest = self.outgoing.len().saturating_sub(BATCH);
            self.outgoing.drain(rest..).rev().for_each(|packet| self.batch.push(packet));
            self.worker.outbound(&mut self.batch, NOW, &mut self.pool, &mut self.out);
            self.sent.extend(self.out.handed.drain(..).map(Sent::from));
            self.sent.extend(self.out.wire.drain().map(Sent::from));
            wire.sent.put(&mut self.sent, &mut self.pool, &wire.waker);
        }
        TscClock::now().wrapping_sub(from)
    }

    /// Cycles from the ring to the port.
    pub(super) fn receive(&mut self, wire: &Wire) -> u64 {
        let from = TscClock::now();
        wire.received.take(&mut self.arrived, &mut self.pool);
        while !self.arrived.is_empty() {
            let count = self.arrived.len().min(BATCH);
            self.marked.extend(self.arrived.drain(..count));
            self.worker.inbound_from_device(&mut self.marked, NOW, &mut self.pool, &mut self.out);
            self.incoming.extend(self.out.host.drain());
        }
        let cycles = TscClock::now().wrapping_sub(from);
        self.incoming.drain(..).for_each(|packet| self.pool.give(packet));
        cycles
    }

    /// What went out and came in so far.
    pub(super) fn traffic(&self) -> (Traffic, Traffic) {
        (self.worker.outward(), self.worker.inward())
    }
}

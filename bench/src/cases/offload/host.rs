//! A host's half, which is what is measured: from its own port to the device's ring, and back.

use uxfrm_engine::{Output, Received, Settings, Traffic, Worker};
use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool, SizeClass};

use super::association::End;
use super::site::Site;
use super::traffic::Flow;
use super::wire::{Sent, Wire};
use super::{NOW, RING, SUPERS};
use crate::clock::TscClock;

/// One worker of a host.
#[derive(Debug)]
pub(super) struct Host {
    worker: Worker,
    pub(super) flow: Flow,
}

/// A worker's own port, with its buffers and scratch room: the same memory for the workers of all paths, so that none has better places in it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) pool: Pool,
    out: Output,
    batch: Batch,
    /// What is to be sent, last one first.
    pub(super) outgoing: Vec<PacketBuf>,
    /// What was received.
    incoming: Vec<PacketBuf>,
    sent: Vec<Sent>,
    arrived: Vec<Received>,
    marked: Vec<Received>,
}

impl Host {
    pub(super) fn new(site: &Site, end: End, number: usize) -> anyhow::Result<Self> {
        let settings =
            Settings { cpu: uxfrm_engine::Cpu(u32::try_from(number)?), ..site.settings(end) };
        Ok(Self { worker: Worker::new(settings, &site.published())?, flow: Flow::new(end, number) })
    }

    /// Cycles from the port to the ring.
    pub(super) fn send(&mut self, port: &mut Port, wire: &Wire) -> u64 {
        let Port { pool, out, batch, outgoing, sent, .. } = port;
        let from = TscClock::now();
        while !outgoing.is_empty() {
            let rest = outgoing.len().saturating_sub(BATCH);
            outgoing.drain(rest..).rev().for_each(|packet| batch.push(packet));
            self.worker.outbound(batch, NOW, pool, out);
            sent.extend(out.handed.drain(..).map(Sent::from));
            sent.extend(out.wire.drain().map(Sent::from));
            wire.sent.put(sent, pool, &wire.waker);
        }
        TscClock::now().wrapping_sub(from)
    }

    /// Cycles from the ring to the port.
    pub(super) fn receive(&mut self, port: &mut Port, wire: &Wire) -> u64 {
        let Port { pool, out, incoming, arrived, marked, .. } = port;
        let from = TscClock::now();
        wire.received.take(arrived, pool);
        while !arrived.is_empty() {
            let count = arrived.len().min(BATCH);
            marked.extend(arrived.drain(..count));
            self.worker.inbound_from_device(marked, NOW, pool, out);
            incoming.extend(out.host.drain());
        }
        let cycles = TscClock::now().wrapping_sub(from);
        incoming.drain(..).for_each(|packet| pool.give(packet));
        cycles
    }

    /// What went out and came in so far.
    pub(super) fn traffic(&self) -> (Traffic, Traffic) {
        (self.worker.outward(), self.worker.inward())
    }
}

/// A pool that needs no more memory: what a worker's thread asks for is elsewhere in memory than what others do, and slower or faster.
pub(super) fn stocked() -> Pool {
    let mut pool = Pool::new();
    for (class, count) in [(SizeClass::Packet, 2 * RING), (SizeClass::Super, SUPERS)] {
        let buffers: Vec<_> = (0..count).map(|_| pool.take(class)).collect();
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
    }
    pool
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            pool: stocked(),
            out: Output::default(),
            batch: Batch::new(),
            outgoing: Vec::with_capacity(RING),
            incoming: Vec::with_capacity(RING),
            sent: Vec::with_capacity(RING),
            arrived: Vec::with_capacity(RING),
            marked: Vec::with_capacity(RING),
        }
    }
}

//! The measured part of a host: from its port to the device's ring, and back.

use uxfrm_engine::{Output, ReceivedPacket, Settings, TrafficCounters, Worker};
use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool, SizeClass};

use super::association::HostSide;
use super::host_config::HostConfig;
use super::rings::{DeviceRings, TxEntry};
use super::traffic::PacketFlow;
use super::{NOW, RING, SUPERS};
use crate::clock::TscClock;

/// One worker of a host.
#[derive(Debug)]
pub(super) struct HostWorker {
    worker: Worker,
    pub(super) flow: PacketFlow,
}

/// A worker's port with its buffers: the same memory for the workers of all paths, so that no path
/// has better placed memory.
#[derive(Debug)]
pub(super) struct WorkerPort {
    pub(super) pool: Pool,
    out: Output,
    batch: Batch,
    /// Packets to send, the last first.
    pub(super) outgoing: Vec<PacketBuf>,
    /// Received packets.
    incoming: Vec<PacketBuf>,
    sent: Vec<TxEntry>,
    arrived: Vec<ReceivedPacket>,
    marked: Vec<ReceivedPacket>,
}

impl HostWorker {
    pub(super) fn new(site: &HostConfig, end: HostSide, number: usize) -> anyhow::Result<Self> {
        let settings =
            Settings { cpu: uxfrm_engine::Cpu(u32::try_from(number)?), ..site.settings(end) };
        Ok(Self {
            worker: Worker::new(settings, &site.published())?,
            flow: PacketFlow::new(end, number),
        })
    }

    /// Cycles from the port to the ring.
    pub(super) fn send(&mut self, port: &mut WorkerPort, rings: &DeviceRings) -> u64 {
        let WorkerPort { pool, out, batch, outgoing, sent, .. } = port;
        let from = TscClock::now();
        while !outgoing.is_empty() {
            let rest = outgoing.len().saturating_sub(BATCH);
            outgoing.drain(rest..).rev().for_each(|packet| batch.push(packet));
            self.worker.outbound(batch, NOW, pool, out);
            sent.extend(out.offloaded.drain(..).map(TxEntry::from));
            sent.extend(out.wire.drain().map(TxEntry::from));
            rings.sent.put(sent, pool, &rings.waker);
        }
        TscClock::now().wrapping_sub(from)
    }

    /// Cycles from the ring to the port.
    pub(super) fn receive(&mut self, port: &mut WorkerPort, rings: &DeviceRings) -> u64 {
        let WorkerPort { pool, out, incoming, arrived, marked, .. } = port;
        let from = TscClock::now();
        rings.received.take(arrived, pool);
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

    /// Outbound and inbound traffic so far.
    pub(super) fn traffic(&self) -> (TrafficCounters, TrafficCounters) {
        (self.worker.outward(), self.worker.inward())
    }
}

/// A pool that needs no further memory. Memory that a worker's thread allocates itself may lie
/// better or worse than another's.
pub(super) fn stocked() -> Pool {
    let mut pool = Pool::new();
    for (class, count) in [(SizeClass::Packet, 2 * RING), (SizeClass::Super, SUPERS)] {
        let buffers: Vec<_> = (0..count).map(|_| pool.take(class)).collect();
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
    }
    pool
}

impl WorkerPort {
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

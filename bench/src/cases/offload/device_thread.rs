//! The model NICs and the network between them. Their cycles are not a host's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use uxfrm_engine::{OffloadedPacket, ReceivedPacket};
use uxfrm_io::poll::{Poller, Waker};
use uxfrm_offload::{ModelNic, NicQueues};
use uxfrm_packet::{BATCH, Batch, Checksum, PacketBuf, Pool, Segments, SizeClass};

use super::NOW;
use super::host::stocked;
use super::rings::{DeviceRings, TxEntry};
use crate::clock::TscClock;

/// A host's model NIC, if it has one.
pub(super) type Device<'a> = Option<&'a Mutex<ModelNic>>;

#[derive(Debug)]
pub(super) struct DeviceThread {
    poller: Poller,
    pool: Pool,
    handed: Vec<OffloadedPacket>,
    sent: Vec<TxEntry>,
    batch: Batch,
    arriving: Batch,
    received: Vec<ReceivedPacket>,
}

impl DeviceThread {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            poller: Poller::new().context("no descriptor to wait with")?,
            pool: stocked(),
            handed: Vec::new(),
            sent: Vec::new(),
            batch: Batch::new(),
            arriving: Batch::new(),
            received: Vec::new(),
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Moves what one host sent to the other; returns the cycles of both devices.
    pub(super) fn carry(
        &mut self,
        (from, to): (Device<'_>, Device<'_>),
        rings: &DeviceRings,
    ) -> u64 {
        // Consumes the wake-up, so that the next entry pays for one again.
        let _ready = self.poller.wait(Some(Duration::ZERO));
        rings.sent.take(&mut self.sent, &mut self.pool);
        for TxEntry { packet, handover } in self.sent.drain(..) {
            match handover {
                Some(handover) => self.handed.push(OffloadedPacket { packet, handover }),
                None => self.batch.push(packet),
            }
        }
        let lock = |nic| Mutex::lock(nic).unwrap_or_else(PoisonError::into_inner);
        let cycles = match (from.map(lock), to.map(lock)) {
            (Some(mut sender), Some(mut receiver)) => {
                let from = TscClock::now();
                sender.transmit(&mut self.handed, NOW, &mut self.pool, &mut self.batch);
                let sent = TscClock::now().wrapping_sub(from);
                self.copy();
                sent + self.receive(&mut receiver)
            }
            (Some(_) | None, _) => {
                self.copy();
                // All NICs verify the checksums of plain packets.
                self.received.extend(self.arriving.drain().map(|mut packet| {
                    packet.checksum = Checksum::Verified;
                    ReceivedPacket::from(packet)
                }));
                0
            }
        };
        rings.received.put(&mut self.received, &mut self.pool, &rings.waker);
        cycles
    }

    /// The network: each packet arrives in its own new buffer, as by DMA.
    fn copy(&mut self) {
        for packet in self.batch.drain() {
            let stride = match packet.segments {
                Segments::Burst { stride } => stride.into(),
                Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
            };
            for frame in packet.bytes().chunks(stride) {
                let mut copy = self.pool.take(SizeClass::Packet);
                if let Some(room) = copy.append(frame.len()) {
                    room.copy_from_slice(frame);
                }
                self.arriving.push(copy);
            }
            self.pool.give(packet);
        }
    }

    fn receive(&mut self, nic: &mut ModelNic) -> u64 {
        let mut queues: NicQueues = nic.queues();
        let mut cycles = 0;
        let arriving: Vec<PacketBuf> = self.arriving.drain().collect();
        let mut arriving = arriving.into_iter().peekable();
        while arriving.peek().is_some() {
            arriving.by_ref().take(BATCH).for_each(|packet| self.batch.push(packet));
            let from = TscClock::now();
            nic.receive(&mut self.batch, NOW, &mut self.pool, &mut queues);
            cycles += TscClock::now().wrapping_sub(from);
            // Each worker's flow has its own queue.
            self.received.extend(queues.drain());
        }
        cycles
    }
}

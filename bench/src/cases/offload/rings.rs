//! The rings between a worker and the device thread, as gateways have them.

use uxfrm_engine::{OffloadOrder, OffloadedPacket, ReceivedPacket};
use uxfrm_io::poll::Waker;
use uxfrm_packet::PacketBuf;
use uxfrm_runtime::{BufferRing, HasPacket};

use super::RING;

/// One direction of one worker.
#[derive(Debug)]
pub(super) struct DeviceRings {
    /// From the host to the device.
    pub(super) sent: BufferRing<TxEntry>,
    /// From the device to the other host.
    pub(super) received: BufferRing<ReceivedPacket>,
    /// Wakes the device thread when a ring is no longer empty.
    pub(super) waker: Waker,
}

/// An entry of a transmit ring.
#[derive(Debug)]
pub(super) struct TxEntry {
    pub(super) packet: PacketBuf,
    /// What the device does; `None` to send the packet as it is.
    pub(super) handover: Option<OffloadOrder>,
}

impl DeviceRings {
    pub(super) fn new(waker: Waker) -> Self {
        Self { sent: BufferRing::new(RING), received: BufferRing::new(RING), waker }
    }
}

impl HasPacket for TxEntry {
    fn packet(&self) -> &PacketBuf {
        &self.packet
    }

    fn into_packet(self) -> PacketBuf {
        self.packet
    }
}

impl From<PacketBuf> for TxEntry {
    fn from(packet: PacketBuf) -> Self {
        Self { packet, handover: None }
    }
}

impl From<OffloadedPacket> for TxEntry {
    fn from(OffloadedPacket { packet, handover }: OffloadedPacket) -> Self {
        Self { packet, handover: Some(handover) }
    }
}

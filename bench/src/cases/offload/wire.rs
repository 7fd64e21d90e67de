//! What lies between two hosts and the network: rings as gateways have them between a worker and a device's thread.

use uxfrm_engine::{Handed, Handover, Received};
use uxfrm_io::poll::Waker;
use uxfrm_packet::PacketBuf;
use uxfrm_runtime::{Carries, Exchange};

use super::RING;

/// One direction of one worker.
#[derive(Debug)]
pub(super) struct Wire {
    /// From the host.
    pub(super) sent: Exchange<Sent>,
    /// For the other host.
    pub(super) received: Exchange<Received>,
    /// Who is woken when a ring is not empty any more.
    pub(super) waker: Waker,
}

/// What a card's transmit ring holds.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) packet: PacketBuf,
    /// What the device is to do; `None` to send it as it is.
    pub(super) handover: Option<Handover>,
}

impl Wire {
    pub(super) fn new(waker: Waker) -> Self {
        Self { sent: Exchange::new(RING), received: Exchange::new(RING), waker }
    }
}

impl Carries for Sent {
    fn packet(&self) -> &PacketBuf {
        &self.packet
    }

    fn into_packet(self) -> PacketBuf {
        self.packet
    }
}

impl From<PacketBuf> for Sent {
    fn from(packet: PacketBuf) -> Self {
        Self { packet, handover: None }
    }
}

impl From<Handed> for Sent {
    fn from(Handed { packet, handover }: Handed) -> Self {
        Self { packet, handover: Some(handover) }
    }
}

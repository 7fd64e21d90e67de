//! What the place that drops knows.

use uxfrm_packet::{PacketBuf, UdpPath};

use super::subject::DropSubject;
use crate::Sa;

/// What the place that drops a packet knows of it. The rest is looked up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropSite<'a> {
    pub(crate) packet: Option<SeenPacket<'a>>,
    pub(crate) known: DropSubject,
}

/// A packet as it is when it is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenPacket<'a> {
    pub(crate) bytes: &'a [u8],
    /// Set if the bytes are the payload of a datagram that a socket received.
    pub(crate) udp: Option<UdpPath>,
    pub(crate) mark: u32,
    pub(crate) if_id: u32,
    pub(crate) wrapping: EspAround,
}

/// What may be around a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EspAround {
    /// ESP if it has come in, nothing if it is to go out.
    AsOnArrival,
    /// Outbound: ESP of this gateway.
    Sealed,
}

impl<'a> DropSite<'a> {
    /// A packet of which nothing else is known.
    pub(crate) fn of(packet: &'a PacketBuf) -> Self {
        Self { packet: Some(SeenPacket::of(packet)), known: DropSubject::NOBODY }
    }

    /// Adds an SA.
    pub(crate) fn by_sa(self, sa: &Sa) -> Self {
        Self { known: DropSubject { sa: Some(sa.into()), ..self.known }, ..self }
    }
}

impl<'a> SeenPacket<'a> {
    pub(crate) fn of(packet: &'a PacketBuf) -> Self {
        Self {
            bytes: packet.bytes(),
            udp: packet.udp,
            mark: packet.mark,
            if_id: packet.if_id,
            wrapping: EspAround::AsOnArrival,
        }
    }
}

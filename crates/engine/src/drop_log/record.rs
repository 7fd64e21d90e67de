//! A record: one dropped packet, and what is known of it.

use std::fmt;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use uxfrm_packet::UdpPath;

use super::headers::Headers;
use super::site::{DropSite, SeenPacket};
use super::subject::DropSubject;
use crate::{DropReason, FlowKey, Moment, Spi};

/// Bytes of a dropped packet that its record keeps.
pub const HEAD_BYTES: usize = 128;

/// A dropped packet, sampled: what is known of it, and how it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRecord {
    /// When the worker dropped it, by the worker's clock.
    pub at: Moment,
    /// Why.
    pub reason: DropReason,
    /// Packets that the record stands for: those that the worker dropped for this reason since the
    /// record before it.
    pub packets: u64,
    /// The state, policy and device that had to do with it.
    pub subject: DropSubject,
    /// The ESP packet's outer ends and SPI: of the packet, or of the state that it came or should
    /// have left by.
    pub esp: Option<EspEnds>,
    /// Sequence number of the ESP packet, its lower 32 bits, as on the wire.
    pub sequence: Option<u32>,
    /// The plain packet's flow, the inner one if it came by ESP.
    pub flow: Option<FlowKey>,
    /// The kernel's `errno`, of a packet that it refused to send.
    pub errno: Option<i32>,
    /// How the packet began; `None` where only a number is known, as of what the kernel dropped.
    pub packet: Option<PacketHead>,
}

/// The ends of an ESP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspEnds {
    /// Outer source.
    pub source: IpAddr,
    /// Outer destination.
    pub destination: IpAddr,
    /// Security parameter index.
    pub spi: Spi,
    /// UDP source and destination port, of ESP in UDP.
    pub ports: Option<(u16, u16)>,
}

/// How a dropped packet began, as it was when it was dropped: decrypted where it was opened
/// already, and still plain where it was not sealed yet.
#[derive(Clone, PartialEq, Eq)]
pub struct PacketHead {
    /// What the bytes are.
    pub form: PacketForm,
    /// Length of the whole packet, or of all packets of a super-packet.
    pub len: usize,
    /// Its first bytes.
    pub bytes: ArrayVec<u8, HEAD_BYTES>,
}

/// What the bytes of a packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketForm {
    /// A plain IP packet, or what should have been one.
    Plain,
    /// An IP packet with ESP in it, perhaps in UDP.
    Esp,
    /// The payload of a UDP datagram between these ends.
    UdpPayload(UdpPath),
}

/// Without the bytes, which may be somebody's data.
impl fmt::Debug for PacketHead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PacketHead")
            .field("form", &self.form)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl DropRecord {
    pub(super) const fn new(reason: DropReason, packets: u64, at: Moment) -> Self {
        Self {
            at,
            reason,
            packets,
            subject: DropSubject::NOBODY,
            esp: None,
            sequence: None,
            flow: None,
            errno: None,
            packet: None,
        }
    }

    pub(super) fn at_site(
        self,
        site: &DropSite<'_>,
        subject: DropSubject,
        headers: &Headers,
    ) -> Self {
        let by_state = subject.sa.map(|sa| EspEnds {
            source: sa.source,
            destination: sa.id.destination,
            spi: sa.id.spi,
            ports: None,
        });
        Self {
            subject,
            esp: headers.esp.map(|esp| esp.ends).or(by_state),
            sequence: headers.esp.map(|esp| esp.sequence),
            flow: headers.flow,
            packet: site.packet.map(|packet| PacketHead::of(&packet, headers)),
            ..self
        }
    }
}

impl PacketHead {
    fn of(packet: &SeenPacket<'_>, headers: &Headers) -> Self {
        let form = match (packet.udp, headers.esp) {
            (Some(path), _) => PacketForm::UdpPayload(path),
            (None, Some(_)) => PacketForm::Esp,
            (None, None) => PacketForm::Plain,
        };
        let bytes = packet.bytes.iter().take(HEAD_BYTES).copied().collect();
        Self { form, len: packet.bytes.len(), bytes }
    }
}

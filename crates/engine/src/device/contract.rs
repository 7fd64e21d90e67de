//! Contract between the engine and an offload device, for both directions.
//!
//! # Outbound
//! Packets of offloaded states leave by [`Output::offloaded`](crate::Output::offloaded), never by
//! [`Output::wire`](crate::Output::wire): a caller that ignores devices cannot send plaintext by
//! mistake. They are in order of arrival, and the device must keep that order per flow.
//!
//! - [`OffloadTask::Protect`] (packet offload): a plain IP packet, or a super-packet if the device
//!   [segments](crate::Segmentation::Device). It fits the state's MTU, is no fragment, has neither
//!   IPv4 options nor IPv6 extension headers, and its transport checksum is complete (a
//!   super-packet's segments get theirs when they are cut). The device assigns numbers, writes
//!   headers, encrypts, counts, and keeps the limits.
//! - [`OffloadTask::Encrypt`] (crypto offload): an ESP packet, or a
//!   [burst](uxfrm_packet::Segments::Burst) of them by one state: whole IP packets with valid
//!   lengths and header checksums, ESP header, *room* for the IV, the payload with padding and
//!   trailer, *room* for the ICV. The device writes IV, ciphertext and ICV. The engine has charged,
//!   numbered and counted them.
//! - [`OffloadTask::Segment`] (crypto offload by a device that
//!   [segments](crate::Segmentation::Device)): a plain super-packet, as for
//!   [`OffloadTask::Protect`], that the engine has charged, numbered and counted. The device
//!   segments it, writes the state's headers for each segment, and encrypts.
//!
//! A device derives its IVs from the state's [`IvPrefix`](crate::IvPrefix), which
//! [`set_iv_prefix`](crate::OffloadDevices::set_iv_prefix) gives it, and the sequence number, for
//! both kinds of offload: so engine and device never use the same IV, not even when the engine
//! encrypts some packets of a crypto offload itself (those with IP options).
//!
//! # Inbound
//! Everything that a device received goes to
//! [`Worker::inbound_from_device`](crate::Worker::inbound_from_device), in order, each packet with
//! the device's [`DeviceMetadata`] or without. A packet without metadata is not protected, whatever
//! port it came by.
//!
//! - Packet offload: the plain IP packet, as if it had come through the state: headers, padding and
//!   ICV are removed, ECN and DSCP are copied, the number is checked, the state is charged.
//! - Crypto offload: the ESP packet as received, with its payload decrypted. IV and ICV are in
//!   place and are ignored. The engine checks the number, charges and strips. If the device opened
//!   it with another number than the window infers, it counts as forged.
//!
//! Mirrors `struct xfrm_offload` of `include/net/xfrm.h`, which accompanies a packet too.

use uxfrm_packet::PacketBuf;

use crate::ids::{Attachment, DeviceId, Handle};
use crate::{DropReason, OffloadKind};

/// Instructions for the device that go with an outbound packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOrder {
    /// The device that must send it; no other may.
    pub device: DeviceId,
    /// The SA that protects it. If the device has lost it, it drops the packet.
    pub handle: Handle,
    /// The task left to do.
    pub task: OffloadTask,
}

/// Task left to do for a packet that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadTask {
    /// Crypto offload: write IV, ciphertext and ICV.
    Encrypt {
        /// Sequence number of the first packet, all 64 bits; others of a burst have the next ones.
        sequence: u64,
    },
    /// Crypto offload of a super-packet: segment it, write headers for each segment, then proceed
    /// as with [`OffloadTask::Encrypt`].
    Segment {
        /// Sequence number of the first segment, all 64 bits; others have the next ones.
        sequence: u64,
        /// How many segments to send; those behind were refused.
        count: u32,
    },
    /// Packet offload: everything.
    Protect,
}

/// A packet for a device.
#[derive(Debug)]
pub struct OffloadedPacket {
    /// The packet.
    pub packet: PacketBuf,
    /// What the device is to do with it.
    pub handover: OffloadOrder,
}

/// A device's metadata of a received packet that it decrypted, or tried to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMetadata {
    /// The device.
    pub device: DeviceId,
    /// The SA that decrypted it; `None` from devices that do not tell (82599). Then a packet with
    /// crypto offload must match the SA of its SPI, and one with packet offload is dropped.
    pub handle: Option<Handle>,
    /// How much of the work is done.
    pub kind: OffloadKind,
    /// Result of the work.
    pub status: DeviceStatus,
    /// Crypto offload with extended sequence numbers: the upper half that was used, else 0. The
    /// packet is authentic only with this half; the engine may infer another one if the device
    /// knows less or the packet is older than the window.
    pub high: u32,
}

/// Result of a device's work on a received packet (`CRYPTO_*` of `include/net/xfrm.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStatus {
    /// `CRYPTO_SUCCESS`: authentic.
    Success,
    /// `CRYPTO_GENERIC_ERROR`: the device could not process it.
    GenericError,
    /// `CRYPTO_TRANSPORT_ESP_AUTH_FAILED`, `CRYPTO_TUNNEL_ESP_AUTH_FAILED`: forged.
    AuthFailed,
    /// `CRYPTO_INVALID_PACKET_SYNTAX`
    InvalidSyntax,
    /// `CRYPTO_INVALID_PROTOCOL`: not the SA's protocol.
    InvalidProtocol,
}

/// A packet from a device.
#[derive(Debug)]
pub struct ReceivedPacket {
    /// The packet.
    pub packet: PacketBuf,
    /// The device's metadata; `None` if it passed the packet on as it came.
    pub metadata: Option<DeviceMetadata>,
}

impl DeviceStatus {
    /// Drop reason of this status; `None` for success (`net/xfrm/xfrm_input.c: xfrm_input`).
    #[must_use]
    pub const fn refusal(self) -> Option<DropReason> {
        match self {
            Self::Success => None,
            Self::AuthFailed => Some(DropReason::InForged),
            Self::InvalidProtocol => Some(DropReason::InDeviceProtocol),
            Self::GenericError | Self::InvalidSyntax => Some(DropReason::InDeviceError),
        }
    }
}

impl OffloadTask {
    /// Kind of offload.
    #[must_use]
    pub const fn kind(self) -> OffloadKind {
        match self {
            Self::Encrypt { .. } | Self::Segment { .. } => OffloadKind::Crypto,
            Self::Protect => OffloadKind::Packet,
        }
    }
}

impl From<PacketBuf> for ReceivedPacket {
    fn from(packet: PacketBuf) -> Self {
        Self { packet, metadata: None }
    }
}

impl Attachment {
    /// Handover of a task to this device and SA.
    pub(crate) const fn over(self, task: OffloadTask) -> OffloadOrder {
        OffloadOrder { device: self.device, handle: self.handle, task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::XfrmCounter;

    #[test]
    fn device_status_maps_to_kernel_counter() {
        for (status, counter) in [
            (DeviceStatus::Success, None),
            (DeviceStatus::GenericError, Some(XfrmCounter::InBufferError)),
            (DeviceStatus::InvalidSyntax, Some(XfrmCounter::InBufferError)),
            (DeviceStatus::AuthFailed, Some(XfrmCounter::InStateProtoError)),
            (DeviceStatus::InvalidProtocol, Some(XfrmCounter::InStateProtoError)),
        ] {
            assert_eq!(status.refusal().and_then(DropReason::counter), counter, "{status:?}");
        }
    }

    #[test]
    fn device_metadata_is_small() {
        assert!(size_of::<OffloadedPacket>() <= 32, "{}", size_of::<OffloadedPacket>());
        assert!(size_of::<ReceivedPacket>() <= 32, "{}", size_of::<ReceivedPacket>());
        assert!(size_of::<Option<Attachment>>() <= 12);
    }
}

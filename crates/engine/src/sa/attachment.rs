//! Where an SA is offloaded.

use std::sync::Arc;

use super::Sa;
use crate::{Attachment, DeviceId, LifetimeLimits, OffloadKind, SoftHardLimit};

impl Sa {
    /// Where it is offloaded; `None` if it is not.
    #[must_use]
    #[inline]
    pub fn attachment(&self) -> Option<Attachment> {
        self.attachment
    }

    /// The device of packet offload; `None` without.
    #[must_use]
    #[inline]
    pub fn packet_device(&self) -> Option<DeviceId> {
        self.attachment.filter(|place| place.kind == OffloadKind::Packet).map(|place| place.device)
    }

    /// Attachment of packet offload.
    pub(crate) fn packet_place(&self) -> Option<Attachment> {
        self.attachment.filter(|place| place.kind == OffloadKind::Packet)
    }

    /// The SA with its attachment, before others see it.
    pub(crate) fn on(mut self: Arc<Self>, place: Option<Attachment>) -> Arc<Self> {
        if let Some(sa) = Arc::get_mut(&mut self) {
            sa.attachment = place;
        }
        self
    }

    /// Whether a device counts its packets.
    #[must_use]
    pub fn device_counts(&self) -> bool {
        self.packet_device().is_some()
    }

    /// Whether it has limits and a device's counters are to be checked against them.
    pub(crate) fn has_device_limits(&self) -> bool {
        let LifetimeLimits { bytes, packets, .. } = self.shared.limits;
        let ends = |budget: SoftHardLimit| budget.soft.min(budget.hard) != u64::MAX;
        self.device_counts() && (ends(bytes) || ends(packets))
    }
}

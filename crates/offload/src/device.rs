//! The driver interface of a device: the kernel's `struct xfrmdev_ops`
//! (`include/linux/netdevice.h`), and its events.
//!
//! Control uses a [`Device`]; packets use the device itself ([`ModelNic`](crate::ModelNic)). Time
//! is an argument.

use std::ops::RangeInclusive;

use uxfrm_engine::{
    DeviceEvent, DeviceSaCounters, Handle, IvPrefix, Moment, Policy, SaConfig, SaFailures,
    SaHistory, SaId, SaProgress, SaRequest,
};
use uxfrm_packet::IpPacket;

use crate::{Attached, Refusal};

/// The control half of a device for one of its functions.
pub trait Device {
    /// `xdo_dev_state_add`. The SA gets its table entry; packets use it after
    /// [`Device::open_state`].
    ///
    /// # Errors
    /// A [`Refusal`] with errno and text, with nothing changed. A silent fallback to software, as
    /// in Linux, is [`Attached::Software`] and no refusal.
    fn add_state(&mut self, state: &SaConfig, now: Moment) -> Result<Attached, Refusal>;

    /// Activates an SA at `position`, sequence numbers and counts. In the kernel this is part of
    /// `xdo_dev_state_add`, as the SA contains its numbers (`replay_esn`); here an SA that moves is
    /// queried after the new one has its entry. Called again when others have carried it further;
    /// numbers only increase.
    fn open_state(&mut self, handle: Handle, position: &SaProgress);

    /// Restores history that its counts do not contain, from another process. The kernel has no
    /// such call: its drivers outlive processes.
    fn set_history(&mut self, handle: Handle, history: &SaHistory);

    /// `XFRM_MSG_UPDSA`: other limits, another encapsulation; a soft limit may be passed again. The
    /// kernel does not inform drivers of it.
    fn update_state(&mut self, handle: Handle, state: &SaConfig);

    /// `xdo_dev_state_add` of a larval SA (`XFRM_DEV_OFFLOAD_FLAG_ACQ`): a handle without a key,
    /// whose packets are dropped. It takes no table entry.
    ///
    /// # Errors
    /// A [`Refusal`] when the device lacks kind *packet*, or the function is not trusted.
    fn add_larval(&mut self, wanted: &SaRequest) -> Result<Handle, Refusal>;

    /// `xdo_dev_state_delete`: stops the SA and frees its entry; its counts remain readable. Like
    /// all following calls it ignores unknown handles.
    fn delete_state(&mut self, handle: Handle);

    /// As [`Device::delete_state`], for an SA that moves elsewhere: packets already handed over do
    /// not leave either, so its counts are final.
    fn close_state(&mut self, handle: Handle);

    /// `xdo_dev_state_free`: its counts are no longer needed.
    fn free_state(&mut self, handle: Handle);

    /// `xdo_dev_offload_ok`: whether the device can process a packet of the SA.
    fn offload_ok(&self, handle: Handle, packet: &IpPacket) -> bool;

    /// `xdo_dev_state_advance_esn`: kind *crypto* with ESN. The stack has accepted (or sent)
    /// `number`; the device infers the upper half of received numbers from the nearest one. Must be
    /// called at least once in 2^31 packets.
    fn advance_esn(&mut self, handle: Handle, number: u64);

    /// `xdo_dev_state_update_stats`: the device's counts; `None` for an unknown handle.
    fn update_stats(&self, handle: Handle) -> Option<StateCounts>;

    /// Sequence numbers in an SA's window that were received (`replay_esn->bmp`).
    fn window(&self, handle: Handle) -> Vec<u64>;

    /// Kind *packet*: limits sending to these sequence numbers; lower ones are never sent. Not in
    /// the kernel: with keys that survive a restart, numbers are recorded as reserved before use,
    /// and the device is the one that uses them.
    fn reserve(&mut self, handle: Handle, numbers: RangeInclusive<u64>);

    /// Kind *packet*: limits receiving to these sequence numbers; lower ones may have been received
    /// before a restart. Not in the kernel, for the same reason.
    fn reserve_received(&mut self, handle: Handle, numbers: RangeInclusive<u64>);

    /// Sets the IV prefix for all numbers with its upper half. Not in the kernel, whose devices
    /// read IVs from packets or count by themselves.
    fn set_iv_prefix(&mut self, handle: Handle, prefix: IvPrefix);

    /// `xdo_dev_policy_add`.
    ///
    /// # Errors
    /// A [`Refusal`], as for states.
    fn add_policy(&mut self, policy: &Policy) -> Result<Handle, Refusal>;

    /// `xdo_dev_policy_delete`: no packet matches it any more.
    fn delete_policy(&mut self, handle: Handle);

    /// `xdo_dev_policy_free`.
    fn free_policy(&mut self, handle: Handle);

    /// Takes pending events, oldest first.
    fn take_events(&mut self, events: &mut Vec<NicEvent>);
}

/// Events of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// An SA reached a soft limit of bytes or packets, once.
    SoftLimit {
        /// Its handle.
        handle: Handle,
        /// The SA.
        state: SaId,
    },
    /// An SA reached a hard limit, once; the device drops its packets from now on.
    HardLimit {
        /// Its handle.
        handle: Handle,
        /// The SA.
        state: SaId,
    },
    /// The lower half of an SA's ESN wrapped, and the upper half increased.
    SequenceWrap {
        /// Its handle.
        handle: Handle,
        /// The SA.
        state: SaId,
    },
    /// An SA's sequence numbers are exhausted, once; the device drops its packets from now on.
    SequenceEnd {
        /// Its handle.
        handle: Handle,
        /// The SA.
        state: SaId,
    },
    /// `NETDEV_DOWN`: no packets pass. Linux then removes all SAs and policies from the device.
    LinkDown,
    /// `NETDEV_UP`: nothing is restored automatically.
    LinkUp,
}

impl NicEvent {
    /// The event for the database to [hear](uxfrm_engine::Database::hear); `None` if the device
    /// handles it alone.
    #[must_use]
    pub const fn to_hear(self) -> Option<DeviceEvent> {
        match self {
            Self::SoftLimit { handle, .. } => Some(DeviceEvent::SoftLimit(handle)),
            Self::HardLimit { handle, .. } => Some(DeviceEvent::HardLimit(handle)),
            Self::LinkDown => Some(DeviceEvent::Down),
            // Its packets are dropped and counted, as in software.
            Self::SequenceWrap { .. } | Self::SequenceEnd { .. } | Self::LinkUp => None,
        }
    }
}

/// A device's counters of an SA: `struct xfrm_lifetime_cur`, `struct xfrm_stats`, and sequence
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Packets that went through it.
    pub packets: u64,
    /// Their bytes: of IP packets before encapsulation or after decapsulation, as in software.
    pub bytes: u64,
    /// Highest sequence number sent, 64 bits.
    pub sent: u64,
    /// Highest sequence number received, 64 bits.
    pub received: u64,
    /// Highest authentic sequence number refused as beyond the
    /// [reservation](Device::reserve_received).
    pub wanted: u64,
    /// Failure counts.
    pub failures: SaFailures,
    /// Time of the first packet.
    pub first_used: Option<Moment>,
    /// Time of the last packet.
    pub last_used: Option<Moment>,
}

impl From<StateCounts> for DeviceSaCounters {
    fn from(counts: StateCounts) -> Self {
        let StateCounts { packets, bytes, sent, received, wanted, .. } = counts;
        let StateCounts { failures, first_used, last_used, .. } = counts;
        Self { packets, bytes, sent, received, wanted, first_used, last_used, failures }
    }
}

//! What a device's driver offers to the stack: the kernel's `struct xfrmdev_ops` (`include/linux/netdevice.h`), and the events that come back.
//!
//! Control goes through a [`Device`]; packets go to the device itself ([`ModelNic`](crate::ModelNic)). Time is an argument.

use std::ops::RangeInclusive;

use uxfrm_engine::{
    DeviceCounts, DeviceEvent, Failures, Handle, History, IvPrefix, Moment, Policy, Position,
    SaConfig, SaId, Wanted,
};
use uxfrm_packet::IpPacket;

use crate::{Attached, Refusal};

/// The control half of a device, as one of its functions sees it.
pub trait Device {
    /// `xdo_dev_state_add`. The state has its place; packets go through it from [`Device::open_state`] on.
    ///
    /// # Errors
    /// A [`Refusal`] with errno and words; nothing has changed then. What Linux does in software without a word is no refusal, but
    /// [`Attached::Software`].
    fn add_state(&mut self, state: &SaConfig, now: Moment) -> Result<Attached, Refusal>;

    /// From now on packets go through a state: it goes on from `position`, numbers and counts. In the kernel that is part of `xdo_dev_state_add`, as the numbers
    /// stand in the state (`replay_esn`); here a state that goes on elsewhere is asked how far it came once the new one has its place. Again when
    /// others have carried it further; numbers only go on.
    fn open_state(&mut self, handle: Handle, position: &Position);

    /// What its counts do not tell of a state that another process has carried. Not the kernel's, whose drivers outlive all processes.
    fn set_history(&mut self, handle: Handle, history: &History);

    /// `XFRM_MSG_UPDSA`: other limits, another encapsulation; a soft limit that was passed may be passed again. The kernel's drivers don't hear of it.
    fn update_state(&mut self, handle: Handle, state: &SaConfig);

    /// `xdo_dev_state_add` of a larval state (`XFRM_DEV_OFFLOAD_FLAG_ACQ`): a handle without a key, whose packets are dropped. It takes no
    /// place in the tables.
    ///
    /// # Errors
    /// A [`Refusal`] when the device does not do kind *packet*, or the function may not ask.
    fn add_larval(&mut self, wanted: &Wanted) -> Result<Handle, Refusal>;

    /// `xdo_dev_state_delete`: from now on nothing is sent or received by it, and its place is free. Its counts can still be read. Unknown
    /// handles are ignored, as by all that follow.
    fn delete_state(&mut self, handle: Handle);

    /// As [`Device::delete_state`], for a state that goes on elsewhere: what was handed over before does not leave either, so that its counts are final.
    fn close_state(&mut self, handle: Handle);

    /// `xdo_dev_state_free`: nobody will ask for it again.
    fn free_state(&mut self, handle: Handle);

    /// `xdo_dev_offload_ok`: whether a packet of the state may be given to the device.
    fn offload_ok(&self, handle: Handle, packet: &IpPacket) -> bool;

    /// `xdo_dev_state_advance_esn`: kind *crypto*, extended numbers. The stack has accepted (or sent) `number`; the device takes the upper half of
    /// what it receives from whatever is nearest. To be told at least once in 2^31 packets.
    fn advance_esn(&mut self, handle: Handle, number: u64);

    /// `xdo_dev_state_update_stats`: what the device has counted; `None` for a handle that it does not know.
    fn update_stats(&self, handle: Handle) -> Option<StateCounts>;

    /// The numbers in a state's window that were received (`replay_esn->bmp`).
    fn window(&self, handle: Handle) -> Vec<u64>;

    /// Kind *packet*: from now on only these numbers are sent, and those below that were not yet are never. Not the kernel's: with keys that stay the
    /// same over a restart, numbers are written down as reserved before they are used, and here it is the device that uses them.
    fn reserve(&mut self, handle: Handle, numbers: RangeInclusive<u64>);

    /// Kind *packet*: from now on only these numbers are accepted, and those below may have been before a restart. Not the kernel's either, and for the same
    /// reason.
    fn reserve_received(&mut self, handle: Handle, numbers: RangeInclusive<u64>);

    /// From now on all numbers with its upper half have this IV prefix. Not the kernel's, whose devices read IVs from packets or count by themselves.
    fn set_iv_prefix(&mut self, handle: Handle, prefix: IvPrefix);

    /// `xdo_dev_policy_add`.
    ///
    /// # Errors
    /// A [`Refusal`], as for states.
    fn add_policy(&mut self, policy: &Policy) -> Result<Handle, Refusal>;

    /// `xdo_dev_policy_delete`: no packet meets it any more.
    fn delete_policy(&mut self, handle: Handle);

    /// `xdo_dev_policy_free`: nobody will ask for it again.
    fn free_policy(&mut self, handle: Handle);

    /// Takes the events that are there, the oldest first.
    fn take_events(&mut self, events: &mut Vec<NicEvent>);
}

/// What a device says of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// A state reached a soft limit of bytes or packets, once.
    SoftLimit {
        /// What the device calls it.
        handle: Handle,
        /// The state.
        state: SaId,
    },
    /// A state reached a hard limit, once; the device drops its packets from now on.
    HardLimit {
        /// What the device calls it.
        handle: Handle,
        /// The state.
        state: SaId,
    },
    /// The lower half of a state's extended numbers began again, and the upper half went on.
    SequenceWrap {
        /// What the device calls it.
        handle: Handle,
        /// The state.
        state: SaId,
    },
    /// A state's numbers are used up, once; the device drops its packets from now on.
    SequenceEnd {
        /// What the device calls it.
        handle: Handle,
        /// The state.
        state: SaId,
    },
    /// `NETDEV_DOWN`: nothing passes. Linux takes all states and policies off the device then.
    LinkDown,
    /// `NETDEV_UP`: nothing comes back by itself.
    LinkUp,
}

impl NicEvent {
    /// What the database is to [hear](uxfrm_engine::Database::hear); nothing of what the device copes with by itself.
    #[must_use]
    pub const fn to_hear(self) -> Option<DeviceEvent> {
        match self {
            Self::SoftLimit { handle, .. } => Some(DeviceEvent::SoftLimit(handle)),
            Self::HardLimit { handle, .. } => Some(DeviceEvent::HardLimit(handle)),
            Self::LinkDown => Some(DeviceEvent::Down),
            // Its packets are dropped, and counted, as in software.
            Self::SequenceWrap { .. } | Self::SequenceEnd { .. } | Self::LinkUp => None,
        }
    }
}

/// What a device knows of a state: `struct xfrm_lifetime_cur`, `struct xfrm_stats`, and numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Packets that went through it.
    pub packets: u64,
    /// Their bytes: of IP packets before encapsulation or after decapsulation, as in software.
    pub bytes: u64,
    /// The last number sent, all 64 bits.
    pub sent: u64,
    /// The highest number received, all 64 bits.
    pub received: u64,
    /// The highest authentic number that was refused for being above what is [reserved](Device::reserve_received).
    pub wanted: u64,
    /// What went wrong.
    pub failures: Failures,
    /// When the first packet went through it.
    pub first_used: Option<Moment>,
    /// When the latest did.
    pub last_used: Option<Moment>,
}

impl From<StateCounts> for DeviceCounts {
    fn from(counts: StateCounts) -> Self {
        let StateCounts { packets, bytes, sent, received, wanted, .. } = counts;
        let StateCounts { failures, first_used, last_used, .. } = counts;
        Self { packets, bytes, sent, received, wanted, first_used, last_used, failures }
    }
}

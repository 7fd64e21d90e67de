//! Control half of offload: what the database asks of devices that SAs and policies name.
//!
//! The engine knows no device. An owner of devices implements [`OffloadDevices`]
//! (`crates/offload`); the database attaches an SA or policy when it is added and detaches it
//! whenever it goes. Mirrors `struct xfrmdev_ops` (`include/linux/netdevice.h`) as
//! `net/xfrm/xfrm_device.c` calls it.

use std::fmt::Debug;

use crate::error::DeviceRefusal;
use crate::sa::usage::DeviceSaCounters;
use crate::{
    Attachment, DeviceId, Handle, IvPrefix, Policy, SaConfig, SaHistory, SaProgress, SaRequest,
};

/// Devices that take SAs and policies.
pub trait OffloadDevices: Debug + Send {
    /// `xfrm_dev_state_add`, including the device look-up: attaches an SA to the device that it
    /// names. `None`: software does the work, silently, as in Linux with crypto offload where the
    /// device cannot; never with packet offload. The device has a place for the SA then, and
    /// neither sends nor receives by it before [`OffloadDevices::open_state`].
    ///
    /// # Errors
    /// A [`DeviceRefusal`]; the device then keeps nothing of the SA.
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal>;

    /// Opens an SA for packets, with the numbers and counters of `position`; again when others have
    /// carried it further (`XFRM_MSG_NEWAE`). Numbers only rise: what was received stays received.
    fn open_state(&mut self, device: DeviceId, handle: Handle, position: &SaProgress);

    /// History of an SA with packet offload that another process carried until now: failures,
    /// latest use, and whether the soft limit was reported.
    fn set_history(&mut self, device: DeviceId, handle: Handle, history: &SaHistory);

    /// `XFRM_MSG_UPDSA`: an SA continues with other limits and encapsulation; a soft limit may be
    /// passed again.
    fn update_state(&mut self, device: DeviceId, handle: Handle, state: &SaConfig);

    /// `xdo_dev_state_add` of a larval SA (`XFRM_DEV_OFFLOAD_FLAG_ACQ`), which `xfrm_state_find`
    /// adds for a policy on `device`. [`OffloadDevices::detach_state`] removes it like others.
    ///
    /// # Errors
    /// A [`DeviceRefusal`]: then there is no larval SA and no acquire.
    fn attach_larval(
        &mut self,
        device: DeviceId,
        wanted: &SaRequest,
    ) -> Result<Handle, DeviceRefusal>;

    /// Sequence numbers that an SA with packet offload may use, which the device assigns itself:
    /// above `used` and up to `ceiling`. Not in the kernel: with keys that survive a restart,
    /// numbers are stored as reserved before they are used. Without this call a device uses all.
    fn reserve(&mut self, device: DeviceId, handle: Handle, used: u64, ceiling: u64);

    /// Sequence numbers that an SA with packet offload may accept: up to `edge`; those up to
    /// `before` may have been received before a restart. Without this call a device accepts all.
    fn reserve_received(&mut self, device: DeviceId, handle: Handle, before: u64, edge: u64);

    /// Not in the kernel: the IV prefix for all sequence numbers with its upper half, for either
    /// kind. Set before the SA or the numbers are used.
    fn set_iv_prefix(&mut self, device: DeviceId, handle: Handle, prefix: IvPrefix);

    /// `xdo_dev_state_delete`: detaches an SA. An unknown one is no error.
    fn detach_state(&mut self, device: DeviceId, handle: Handle);

    /// Like [`OffloadDevices::detach_state`], for an SA that continues elsewhere
    /// (`XFRM_MSG_MIGRATE`): after the return nothing is sent or received by it, not even what was
    /// handed over before. Its [counters](OffloadDevices::counts) are final.
    fn close_state(&mut self, device: DeviceId, handle: Handle);

    /// `xfrm_dev_policy_add`: attaches a policy to the device that it names.
    ///
    /// # Errors
    /// A [`DeviceRefusal`]; the device then keeps nothing of the policy.
    fn attach_policy(&mut self, policy: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal>;

    /// `xdo_dev_policy_delete`.
    fn detach_policy(&mut self, device: DeviceId, handle: Handle);

    /// `xdo_dev_state_advance_esn`: the highest number that an SA with crypto offload and extended
    /// numbers has sent or received, so that the device knows the upper half. Called far more often
    /// than once in 2^31 packets.
    fn advance_esn(&mut self, device: DeviceId, handle: Handle, number: u64);

    /// `xdo_dev_state_update_stats`: counters of an SA with packet offload; `None` if the device
    /// does not have it (any more).
    fn counts(&mut self, device: DeviceId, handle: Handle) -> Option<DeviceSaCounters>;

    /// Received numbers in the window of an SA with packet offload; empty if the device does not
    /// have it (any more).
    fn window(&mut self, device: DeviceId, handle: Handle) -> Vec<u64>;
}

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// An SA passed a soft limit: its counters are to be checked (`xfrm_state_check_expire` as
    /// drivers call it).
    SoftLimit(Handle),
    /// A packet came for an SA past its hard limit.
    HardLimit(Handle),
    /// The link is down, or the device is gone (`NETDEV_DOWN`, `NETDEV_UNREGISTER`): it has no SAs
    /// and policies any more.
    Down,
}

/// No devices.
#[derive(Debug)]
pub(crate) struct NoDevices;

impl OffloadDevices for NoDevices {
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        use crate::OffloadKind;
        match state.offload.as_ref().map(|offload| offload.kind) {
            None | Some(OffloadKind::Crypto) => Ok(None),
            Some(OffloadKind::Packet) => Err(DeviceRefusal::invalid("")),
        }
    }

    fn open_state(&mut self, _: DeviceId, _: Handle, _: &SaProgress) {}

    fn set_history(&mut self, _: DeviceId, _: Handle, _: &SaHistory) {}

    fn update_state(&mut self, _: DeviceId, _: Handle, _: &SaConfig) {}

    fn attach_larval(&mut self, _: DeviceId, _: &SaRequest) -> Result<Handle, DeviceRefusal> {
        Err(DeviceRefusal::invalid(""))
    }

    fn reserve(&mut self, _: DeviceId, _: Handle, _: u64, _: u64) {}

    fn reserve_received(&mut self, _: DeviceId, _: Handle, _: u64, _: u64) {}

    fn set_iv_prefix(&mut self, _: DeviceId, _: Handle, _: IvPrefix) {}

    fn detach_state(&mut self, _: DeviceId, _: Handle) {}

    fn close_state(&mut self, _: DeviceId, _: Handle) {}

    fn attach_policy(&mut self, _: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal> {
        Err(DeviceRefusal::invalid("Policy offload is not supported"))
    }

    fn detach_policy(&mut self, _: DeviceId, _: Handle) {}

    fn advance_esn(&mut self, _: DeviceId, _: Handle, _: u64) {}

    fn counts(&mut self, _: DeviceId, _: Handle) -> Option<DeviceSaCounters> {
        None
    }

    fn window(&mut self, _: DeviceId, _: Handle) -> Vec<u64> {
        Vec::new()
    }
}

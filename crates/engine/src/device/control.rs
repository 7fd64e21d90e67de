//! The control half of offload: what the database asks of the devices that states and policies name.
//!
//! The engine knows no device. Whoever has some implements [`Devices`] (`crates/offload`); the database asks for a place when a state or
//! policy is added and gives it back when it goes, whichever way it goes. Mirrors `struct xfrmdev_ops` (`include/linux/netdevice.h`) as
//! `net/xfrm/xfrm_device.c` calls it.

use std::fmt::Debug;

use crate::error::DeviceRefusal;
use crate::sa::usage::DeviceCounts;
use crate::{Attachment, DeviceId, Handle, History, IvPrefix, Policy, Position, SaConfig, Wanted};

/// Devices that take states and policies.
pub trait Devices: Debug + Send {
    /// `xfrm_dev_state_add`, from where the device is looked for: gives a state to the device that it names. `None`: it is done in software,
    /// without a word, as Linux does with kind *crypto* where the device can't; never with kind *packet*. The device has a place for it then, and
    /// neither sends nor takes anything by it before [`Devices::open_state`].
    ///
    /// # Errors
    /// A [`DeviceRefusal`]; the device has nothing of it then.
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal>;

    /// From now on packets go through a state, with the numbers and counts of `position`; again when others have carried it further
    /// (`XFRM_MSG_NEWAE`). Numbers only go on: what was received stays received.
    fn open_state(&mut self, device: DeviceId, handle: Handle, position: &Position);

    /// What counters do not tell of a state of kind *packet* that another process has carried until now: what went wrong, its latest use, and whether a
    /// soft limit was told.
    fn set_history(&mut self, device: DeviceId, handle: Handle, history: &History);

    /// `XFRM_MSG_UPDSA`: a state goes on with other limits and another encapsulation; a soft limit that was passed may be passed again.
    fn update_state(&mut self, device: DeviceId, handle: Handle, state: &SaConfig);

    /// `xdo_dev_state_add` of a larval state (`XFRM_DEV_OFFLOAD_FLAG_ACQ`), which `xfrm_state_find` asks for on behalf of a policy on `device`. It goes by
    /// [`Devices::detach_state`] like others.
    ///
    /// # Errors
    /// A [`DeviceRefusal`]: there is no larval state then, and nobody is asked for a real one.
    fn attach_larval(&mut self, device: DeviceId, wanted: &Wanted)
    -> Result<Handle, DeviceRefusal>;

    /// Numbers that a state of kind *packet* may use, which the device hands out itself: those above `used`, and none above `ceiling` from now
    /// on. Not the kernel's: with keys that stay the same over a restart, numbers are written down as reserved before they are used. A device
    /// that has never been asked this uses all.
    fn reserve(&mut self, device: DeviceId, handle: Handle, used: u64, ceiling: u64);

    /// Numbers that a state of kind *packet* may accept, as for those to send: none above `edge` from now on; those up to `before` may have been received
    /// before a restart. A device that has never been asked this accepts all.
    fn reserve_received(&mut self, device: DeviceId, handle: Handle, before: u64, edge: u64);

    /// Not the kernel's: the IV prefix of all numbers of a state that have its upper half, of either kind. Told before the state or numbers are used.
    fn set_iv_prefix(&mut self, device: DeviceId, handle: Handle, prefix: IvPrefix);

    /// `xdo_dev_state_delete`: the device forgets the state. One that it does not have (any more) is no error.
    fn detach_state(&mut self, device: DeviceId, handle: Handle);

    /// As [`Devices::detach_state`], for a state that goes on elsewhere (`XFRM_MSG_MIGRATE`): nothing is sent or received by it once this returns, not even
    /// what was handed over before. Its [counts](Devices::counts) are final then.
    fn close_state(&mut self, device: DeviceId, handle: Handle);

    /// `xfrm_dev_policy_add`: gives a policy to the device that it names.
    ///
    /// # Errors
    /// A [`DeviceRefusal`]; the device has nothing of it then.
    fn attach_policy(&mut self, policy: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal>;

    /// `xdo_dev_policy_delete`.
    fn detach_policy(&mut self, device: DeviceId, handle: Handle);

    /// `xdo_dev_state_advance_esn`: the highest number that a state of kind *crypto* with extended numbers has sent or received, so that its device
    /// knows the upper half. Told now and then, far more often than once in 2^31 packets.
    fn advance_esn(&mut self, device: DeviceId, handle: Handle, number: u64);

    /// `xdo_dev_state_update_stats`: what a state of kind *packet* has carried; `None` when the device does not have it (any more).
    fn counts(&mut self, device: DeviceId, handle: Handle) -> Option<DeviceCounts>;

    /// The numbers in the window of a state of kind *packet* that were received; none when the device does not have it (any more).
    fn window(&mut self, device: DeviceId, handle: Handle) -> Vec<u64>;
}

/// What a device has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A state passed a soft limit: its counts are to be looked at (`xfrm_state_check_expire` as drivers call it).
    SoftLimit(Handle),
    /// A state was past its hard limit when a packet came.
    HardLimit(Handle),
    /// The link is down, or the device is gone (`NETDEV_DOWN`, `NETDEV_UNREGISTER`): it has no states and policies any more.
    Down,
}

/// Where there are none.
#[derive(Debug)]
pub(crate) struct NoDevices;

impl Devices for NoDevices {
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        use crate::OffloadKind;
        match state.offload.as_ref().map(|offload| offload.kind) {
            None | Some(OffloadKind::Crypto) => Ok(None),
            Some(OffloadKind::Packet) => Err(DeviceRefusal::invalid("")),
        }
    }

    fn open_state(&mut self, _: DeviceId, _: Handle, _: &Position) {}

    fn set_history(&mut self, _: DeviceId, _: Handle, _: &History) {}

    fn update_state(&mut self, _: DeviceId, _: Handle, _: &SaConfig) {}

    fn attach_larval(&mut self, _: DeviceId, _: &Wanted) -> Result<Handle, DeviceRefusal> {
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

    fn counts(&mut self, _: DeviceId, _: Handle) -> Option<DeviceCounts> {
        None
    }

    fn window(&mut self, _: DeviceId, _: Handle) -> Vec<u64> {
        Vec::new()
    }
}

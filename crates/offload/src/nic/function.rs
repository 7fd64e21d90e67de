//! Functions of a device: the physical one, and virtual ones for guests.

use std::net::IpAddr;

use uxfrm_engine::DeviceId;

use crate::profile::TableSizes;

/// A function of a device: 0 is the physical one, virtual ones count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u16);

/// Whether a virtual function may use offload (`ip link set DEV vf N trust on`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// It may.
    Trusted,
    /// It is refused with `EACCES`, as by `ixgbe`.
    #[default]
    Untrusted,
}

/// One virtual function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    /// Its interface.
    pub device: DeviceId,
    /// Its trust.
    pub trust: Trust,
    /// Its share of the device's tables, an upper limit. Its SAs count for the device too.
    pub share: TableSizes,
    /// Its addresses, for packets without an SA on the device.
    pub addresses: Vec<IpAddr>,
}

impl VirtualFunction {
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

impl FunctionId {
    /// The device itself.
    pub const PHYSICAL: Self = Self(0);

    /// The virtual function at index `place`.
    #[must_use]
    pub const fn of_virtual(place: u16) -> Self {
        Self(place.saturating_add(1))
    }
}

//! Who uses a device: the physical function, and virtual functions that guests are given.

use std::net::IpAddr;

use uxfrm_engine::DeviceId;

use crate::profile::TableSizes;

/// A function of a device: 0 is the physical one, virtual ones count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u16);

/// Whether a virtual function may ask for offload (`ip link set DEV vf N trust on`).
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
    /// The interface that it is.
    pub device: DeviceId,
    /// Whether it may ask for anything.
    pub trust: Trust,
    /// Its share of the device's tables: as much as it may hold at the most. What it holds counts for the device too.
    pub share: TableSizes,
    /// Its addresses: what comes to them without a state of the device is its, too.
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

    /// The virtual function `place`, counted from 0.
    #[must_use]
    pub const fn of_virtual(place: u16) -> Self {
        Self(place.saturating_add(1))
    }
}

//! An IP address as an integer: compared and hashed in words, where an [`IpAddr`] is copied byte by
//! byte.

use std::net::IpAddr;

use crate::Family;

/// An address of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedAddress {
    pub(crate) family: Family,
    /// IPv4 uses the lowest 32.
    pub(crate) bits: u128,
}

impl From<IpAddr> for PackedAddress {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self { family: Family::V4, bits: address.to_bits().into() },
            IpAddr::V6(address) => Self { family: Family::V6, bits: address.to_bits() },
        }
    }
}

//! `xfrm_address_t`: sixteen bytes that a family gives a meaning.

use std::net::IpAddr;

use uxfrm_engine::Family;

/// An address of either family.
pub type RawAddress = [u8; 16];

/// `AF_INET`
pub const INET: u16 = 2;
/// `AF_INET6`
pub const INET6: u16 = 10;

/// The family by number.
#[must_use]
pub const fn family(number: u16) -> Option<Family> {
    match number {
        INET => Some(Family::V4),
        INET6 => Some(Family::V6),
        _ => None,
    }
}

/// A family's number.
#[must_use]
pub const fn family_number(family: Family) -> u16 {
    match family {
        Family::V4 => INET,
        Family::V6 => INET6,
    }
}

/// The address that the bytes are in a family.
#[must_use]
pub fn address(family: Family, raw: RawAddress) -> IpAddr {
    let [a, b, c, d, ..] = raw;
    match family {
        Family::V4 => [a, b, c, d].into(),
        Family::V6 => raw.into(),
    }
}

/// The bytes of an address.
#[must_use]
pub fn raw(address: IpAddr) -> RawAddress {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Whether the first `bits` bits agree (`addr_match`); more bits than there are count all.
#[must_use]
pub fn matches(left: RawAddress, right: RawAddress, bits: u8) -> bool {
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(u32::from(bits))).unwrap_or(0);
    (u128::from_be_bytes(left) ^ u128::from_be_bytes(right)) & mask == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_prefix_matches_by_prefix_bits() {
        let (left, right) = (raw("192.0.2.1".parse().unwrap()), raw("192.0.3.1".parse().unwrap()));
        assert!(matches(left, right, 0) && matches(left, right, 23));
        assert!(!matches(left, right, 24) && !matches(left, right, 255));
    }
}

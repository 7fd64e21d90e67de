//! IP prefixes.

use std::{fmt, net::IpAddr};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bits in an address.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The unspecified address: all zero.
    #[must_use]
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// A prefix: an address of which the first `len` bits count. Host bits are kept (`14.0.0.52/24` is
/// printed so) and do not matter for matching.
///
/// ```
/// use uxfrm_engine::{Family, Prefix};
///
/// let network = Prefix::new([10, 1, 0, 0].into(), 16)?;
/// assert!(network.contains([10, 1, 2, 3].into()));
/// assert!(Prefix::any(Family::V4).contains([10, 2, 0, 1].into()));
/// assert!(Prefix::new([10, 1, 0, 0].into(), 33).is_err());
/// # Ok::<(), uxfrm_engine::PrefixError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

/// A prefix length that the family does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefix length {len} is out of range 0..{max} for {address}")]
pub struct PrefixError {
    /// The address given.
    pub address: IpAddr,
    /// The length given.
    pub len: u8,
    /// The longest one of the family.
    pub max: u8,
}

impl Prefix {
    /// `address/len`.
    ///
    /// # Errors
    /// When `len` is above 32 (IPv4) or 128 (IPv6).
    pub const fn new(address: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let max = Family::of(address).bits();
        if len > max {
            return Err(PrefixError { address, len, max });
        }
        Ok(Self { address, len })
    }

    /// The prefix of a single address.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        Self { address, len: Family::of(address).bits() }
    }

    /// Every address of a family.
    #[must_use]
    pub const fn any(family: Family) -> Self {
        Self { address: family.unspecified(), len: 0 }
    }

    /// The address as given, host bits included.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The address without host bits.
    #[must_use]
    pub fn network(self) -> Self {
        let host_bits = u32::from(self.family().bits() - self.len);
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        };
        Self { address, ..self }
    }

    /// Prefix length.
    #[must_use]
    pub const fn prefix_len(self) -> u8 {
        self.len
    }

    /// Whether it contains every address of its family.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.len == 0
    }

    /// Its family.
    #[must_use]
    pub const fn family(self) -> Family {
        Family::of(self.address)
    }

    /// Whether it contains `address`; never across families.
    #[must_use]
    #[inline]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0);
                (ours.to_bits() ^ theirs.to_bits()) & mask == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.len)).unwrap_or(0);
                (ours.to_bits() ^ theirs.to_bits()) & mask == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Whether it contains all addresses of `other`.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.address)
    }

    /// Whether they have addresses in common: then one contains the other.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_kept_and_ignored() {
        let net = Prefix::new("14.0.0.52".parse().unwrap(), 24).unwrap();
        assert!(net.contains("14.0.0.70".parse().unwrap()));
        assert!(!net.contains("14.0.1.70".parse().unwrap()));
        assert_eq!(net.to_string(), "14.0.0.52/24");
    }

    #[test]
    fn networks_lose_their_host_bits() {
        let network = |text: &str, len| Prefix::new(text.parse().unwrap(), len).unwrap().network();
        assert_eq!(network("14.0.0.52", 24).to_string(), "14.0.0.0/24");
        assert_eq!(network("fd00::1", 0).to_string(), "::/0");
        assert_eq!(network("fd00::1", 128).to_string(), "fd00::1/128");
    }

    #[test]
    fn prefix_length_bounds_are_accepted() {
        let all = Prefix::any(Family::V6);
        assert!(all.contains("ff02::1".parse().unwrap()));
        assert!(!all.contains("10.0.0.1".parse().unwrap()));
        let one = Prefix::host("::1".parse().unwrap());
        assert!(one.contains("::1".parse().unwrap()));
        assert!(!one.contains("::2".parse().unwrap()));
        assert!(Prefix::new("::".parse().unwrap(), 129).is_err());
    }

    #[test]
    fn prefixes_cover_and_overlap_by_table() {
        let prefix = |text: &str| {
            let (address, len) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
        };
        for (one, other, covers, overlaps) in [
            ("10.1.0.0/16", "10.1.2.0/24", true, true),
            ("10.1.2.0/24", "10.1.0.0/16", false, true),
            ("10.1.2.3/24", "10.1.2.9/24", true, true),
            ("10.1.2.0/24", "10.1.3.0/24", false, false),
            ("0.0.0.0/0", "10.1.2.3/32", true, true),
            ("::/0", "10.1.2.3/32", false, false),
            ("fd00::/8", "fd01::1/128", true, true),
        ] {
            let (one, other) = (prefix(one), prefix(other));
            assert_eq!(one.covers(other), covers, "{one} {other}");
            assert_eq!((one.overlaps(other), other.overlaps(one)), (overlaps, overlaps));
        }
    }
}

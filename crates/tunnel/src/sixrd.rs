//! IPv4 addresses embedded in IPv6 ones: 6to4 (RFC 3056) and 6rd (RFC 5969; `net/ipv6/sit.c:
//! check_6rd`).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Error;

/// Which IPv6 addresses hold an IPv4 address, and where.
///
/// ```
/// use uxfrm_tunnel::SixRd;
///
/// assert_eq!(SixRd::SIX_TO_FOUR.ipv4_in("2002:c000:201::1".parse()?), Some("192.0.2.1".parse()?));
/// // All customers have 10.0.0.0/8, so their IPv6 addresses hold only the other 24 bits.
/// let provider = SixRd::new("2001:db8::".parse()?, 32, "10.0.0.0".parse()?, 8)?;
/// assert_eq!(provider.ipv4_in("2001:db8:102:300::7".parse()?), Some("10.1.2.3".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SixRd {
    prefix: u128,
    prefix_len: u8,
    relay: u32,
    relay_len: u8,
}

impl SixRd {
    /// 2002::/16, followed by the whole IPv4 address.
    pub const SIX_TO_FOUR: Self =
        Self { prefix: 0x2002 << 112, prefix_len: 16, relay: 0, relay_len: 0 };

    /// A provider's prefix: addresses under `prefix` embed what follows `relay_len` bits of an IPv4
    /// address, the bits of `relay` (iproute2's `6rd-prefix` and `6rd-relay_prefix`).
    ///
    /// # Errors
    /// [`Error::SixRd`] when host bits are set, or both together leave no room
    /// (`ipip6_tunnel_update_6rd`).
    pub fn new(
        prefix: Ipv6Addr,
        prefix_len: u8,
        relay: Ipv4Addr,
        relay_len: u8,
    ) -> Result<Self, Error> {
        let (prefix, relay) = (prefix.to_bits(), relay.to_bits());
        if relay_len > 32
            || u32::from(prefix_len) + (32 - u32::from(relay_len)) > 64
            || prefix.checked_shl(prefix_len.into()).unwrap_or(0) != 0
            || relay.checked_shl(relay_len.into()).unwrap_or(0) != 0
        {
            return Err(Error::SixRd);
        }
        Ok(Self { prefix, prefix_len, relay, relay_len })
    }

    /// The IPv6 prefix and its length.
    #[must_use]
    pub const fn prefix(&self) -> (Ipv6Addr, u8) {
        (Ipv6Addr::from_bits(self.prefix), self.prefix_len)
    }

    /// The IPv4 prefix omitted from the IPv6 addresses, and its length.
    #[must_use]
    pub const fn relay(&self) -> (Ipv4Addr, u8) {
        (Ipv4Addr::from_bits(self.relay), self.relay_len)
    }

    /// The IPv4 address embedded in `address`; `None` outside the prefix.
    #[must_use]
    pub fn ipv4_in(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let bits = address.to_bits();
        let outside = 128 - u32::from(self.prefix_len);
        if bits.checked_shr(outside) != self.prefix.checked_shr(outside) {
            return None;
        }
        let own = bits.checked_shl(self.prefix_len.into()).unwrap_or(0) >> 96;
        // The upper 32 bits of 128 are 32 bits.
        let own = u32::try_from(own).ok()?;
        Some(Ipv4Addr::from_bits(self.relay | own.checked_shr(self.relay_len.into()).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn v6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn only_addresses_under_the_prefix_hold_one() {
        assert_eq!(SixRd::SIX_TO_FOUR.ipv4_in(v6("2002:c633:6401:1::5")), Some(v4("198.51.100.1")));
        assert_eq!(SixRd::SIX_TO_FOUR.ipv4_in(v6("2003:c633:6401:1::5")), None);
        let all = SixRd::new(v6("::"), 0, v4("0.0.0.0"), 0).unwrap();
        assert_eq!(all.ipv4_in(v6("102:304::")), Some(v4("1.2.3.4")));
        let none = SixRd::new(v6("2001:db8:1:2::"), 64, v4("192.0.2.7"), 32).unwrap();
        assert_eq!(none.ipv4_in(v6("2001:db8:1:2::9")), Some(v4("192.0.2.7")));
    }

    #[test]
    fn invalid_configuration_is_refused() {
        for (prefix, len, relay, relay_len) in [
            ("2001:db8::1", 32, "0.0.0.0", 0),
            ("2001:db8::", 33, "0.0.0.0", 0),
            ("2001:db8::", 32, "10.0.0.1", 8),
            ("2001:db8::", 32, "10.0.0.0", 33),
            ("2001:db8::", 129, "10.0.0.0", 8),
        ] {
            let made = SixRd::new(v6(prefix), len, v4(relay), relay_len);
            assert!(made.is_err(), "{prefix}/{len} {relay}/{relay_len}");
        }
    }
}

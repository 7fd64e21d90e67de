//! Names a state and its key in the journal.

use std::{fmt, net::IpAddr, str::FromStr};

use uxfrm_engine::{Mark, Sa, SaId, SaProtocol, Spi};

/// A state by its key's fingerprint, destination, SPI and mark. States that share a key are
/// neighbours in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SaName {
    key: u128,
    destination: IpAddr,
    spi: u32,
    mark: u32,
    mask: u32,
}

impl SaName {
    /// The key is that of the cipher, which the IV belongs to. Without a cipher no IV matters.
    pub(super) fn of(sa: &Sa) -> Self {
        let transform = sa.secrets();
        let no_cipher = transform.encryption_key.is_empty();
        let key = if no_cipher { &transform.authentication_key } else { &transform.encryption_key };
        let (id, mark) = (sa.id(), sa.config().mark);
        Self {
            key: key.fingerprint(),
            destination: id.destination,
            spi: id.spi.0,
            mark: mark.value,
            mask: mark.mask,
        }
    }

    /// Before all states with the same key.
    pub(super) fn first_with_key(self) -> Self {
        let destination = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        Self { destination, spi: 0, mark: 0, mask: 0, ..self }
    }

    /// Behind all states with the same key.
    pub(super) fn last_with_key(self) -> Self {
        let destination = IpAddr::V6(u128::MAX.into());
        Self { destination, spi: u32::MAX, mark: u32::MAX, mask: u32::MAX, ..self }
    }

    /// As an SA of ESP.
    pub(super) fn sa(&self) -> (SaId, Mark) {
        let Self { destination, spi, mark, mask, .. } = *self;
        let id = SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp };
        (id, Mark { value: mark, mask })
    }

    /// The key's fingerprint.
    pub(super) fn key(&self) -> u128 {
        self.key
    }

    /// The same in 128 bits, in every release: for memory that outlives the process.
    pub(super) fn digest(&self) -> u128 {
        let destination = match self.destination {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let numbers =
            u128::from(self.spi) << 64 | u128::from(self.mark) << 32 | u128::from(self.mask);
        [numbers, destination].into_iter().fold(self.key, |hash, word| {
            // The multiplier of 128-bit PCG; halves change places so that all bits reach all.
            (hash ^ word).wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).rotate_left(64)
        })
    }

    pub(super) fn shares_key(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl fmt::Display for SaName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, destination, spi, mark, mask } = self;
        write!(out, "{key:032x} {destination} {spi:#010x} {mark:#x}/{mask:#x}")
    }
}

/// The text is no state's name.
#[derive(Debug)]
pub(super) struct InvalidSaName;

impl FromStr for SaName {
    type Err = InvalidSaName;

    fn from_str(text: &str) -> Result<Self, InvalidSaName> {
        read(text).ok_or(InvalidSaName)
    }
}

fn read(text: &str) -> Option<SaName> {
    let words: Vec<_> = text.split(' ').collect();
    let [key, destination, spi, mark] = words[..] else { return None };
    let hex = |word: &str| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let (mark, mask) = mark.split_once('/')?;
    // Files of before have bits in the mark that do not count, which states' marks no longer have.
    let Mark { value: mark, mask } = Mark { value: hex(mark)?, mask: hex(mask)? }.sanitized();
    Some(SaName {
        key: u128::from_str_radix(key, 16).ok()?,
        destination: destination.parse().ok()?,
        spi: hex(spi)?,
        mark,
        mask,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sa_name_printed_and_parsed_is_unchanged() {
        for text in [
            "000102030405060708090a0b0c0d0e0f 10.0.0.1 0x00000001 0x0/0x0",
            "ff0102030405060708090a0b0c0d0e0f fd00::1 0xffffffff 0x10/0xffffffff",
        ] {
            assert_eq!(text.parse::<SaName>().unwrap().to_string(), text);
        }
        let before = "000102030405060708090a0b0c0d0e0f 10.0.0.1 0x00000001 0x105/0xff";
        let now = "000102030405060708090a0b0c0d0e0f 10.0.0.1 0x00000001 0x5/0xff";
        assert_eq!(before.parse::<SaName>().unwrap().to_string(), now);
        for text in ["", "a b c d", "00 10.0.0.1 0x1 0x0", "00 10.0.0.1 1 0x0/0x0"] {
            assert!(text.parse::<SaName>().is_err(), "{text}");
        }
    }
}

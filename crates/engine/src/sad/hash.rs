//! Keyed hash of an index: products with secret random words.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use crate::Family;
use crate::sa::address::PackedAddress;

/// Secret of an index's hashes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashSeed([u64; 2]);

impl Default for HashSeed {
    fn default() -> Self {
        let random = RandomState::default();
        Self([random.hash_one(0), random.hash_one(1)])
    }
}

impl HashSeed {
    /// Hash of two words.
    #[inline]
    pub(super) const fn hash_words(self, first: u64, second: u64) -> u64 {
        // Twice: with one seed in a hundred, a single product clusters consecutive words.
        fold(self.mix(first, second), GOLDEN)
    }

    #[inline]
    const fn mix(self, first: u64, second: u64) -> u64 {
        fold(first ^ self.0[0], second ^ self.0[1])
    }

    /// Hash of an address and the other fields of a key.
    #[inline]
    pub(super) fn hash_address(self, address: PackedAddress, beside: u32, more: u64) -> u64 {
        let [low, high] = halves(address.bits);
        let first = match address.family {
            Family::V4 => low << 32 | u64::from(beside),
            Family::V6 => self.mix(high, low) ^ u64::from(beside),
        };
        self.hash_words(first, more)
    }
}

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
const fn fold(one: u64, other: u64) -> u64 {
    let [low, high] = halves(one as u128 * other as u128);
    low ^ high
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half is taken apart")]
const fn halves(bits: u128) -> [u64; 2] {
    [bits as u64, (bits >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Similar keys fill the slots of a page table about as evenly as random ones, whichever bits
    /// of the hash select the slot.
    #[test]
    fn hash_spreads_consecutive_keys_over_all_bits() {
        const PLACES: usize = 4096;
        let v4 = |at: u32| PackedAddress::from(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + at)));
        let v6 = |at: u32| PackedAddress::from(IpAddr::V6(Ipv6Addr::from_bits(at.into())));
        let seed = HashSeed::default();
        let kinds: [&dyn Fn(u32) -> u64; 7] = [
            &|at| seed.hash_address(v4(at), 0x1000 + at, 1),
            &|at| seed.hash_address(v4(at), 1, 0x0100),
            &|at| seed.hash_address(v4(at << 8), 1, 0x0100),
            &|at| seed.hash_address(v4(at % 64), at / 64, 0x0100),
            &|at| seed.hash_address(v6(at), at, 1),
            &|at| seed.hash_address(v4(7), at, 1),
            &|at| seed.hash_address(v4(7), 1, u64::from(at) << 32 | 0x0100),
        ];
        for (kind, hash) in kinds.iter().enumerate() {
            for from in [0, 12, 52] {
                let places = (0..4096).map(|at| hash(at) >> from & 0xfff).collect::<HashSet<_>>();
                // By chance 1 - 1/e of all: 2589.
                assert!(
                    places.len() > PLACES * 3 / 5,
                    "{} of kind {kind}, bit {from}",
                    places.len()
                );
            }
        }
    }
}

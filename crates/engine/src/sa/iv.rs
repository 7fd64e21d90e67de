//! Which IVs an SA takes: its sequence numbers, moved to a place of its own.
//!
//! Counter modes break when one key meets one IV twice. A sender never repeats a number, but hand-made states often have *one key for
//! both directions* (the kernel's documentation, slides and scripts do), and then both ends would count from 1 with it. So the counter
//! is the number under a mask that depends on source, destination, SPI and mark: states that share a key count in different places, and a
//! restart goes on in the same one. The kernel's `crypto/seqiv.c` has a random mask for this, which a restart forgets.

use std::net::IpAddr;

use crate::{Mark, SaConfig, SaId};

/// A mask over an SA's sequence numbers; a permutation, so no two numbers meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvSpace(u64);

impl IvSpace {
    /// The one of a state.
    #[must_use]
    pub fn of(config: &SaConfig) -> Self {
        Self::new(config.id, config.source, config.mark)
    }

    /// The one of a state with these names.
    #[must_use]
    pub fn new(id: SaId, source: IpAddr, mark: Mark) -> Self {
        let spi = u128::from(id.spi.0);
        let numbers = spi << 64 | u128::from(mark.value) << 32 | u128::from(mark.mask);
        let words = [numbers, address(source), address(id.destination)];
        Self(words.into_iter().fold(0, mix))
    }

    /// The IV counter of a sequence number.
    #[must_use]
    #[inline]
    pub const fn counter(self, sequence: u64) -> u64 {
        sequence ^ self.0
    }
}

fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Folds a word into a hash, whole and fixed for all time: the multiply-xorshift of splitmix64 over both halves.
fn mix(hash: u64, word: u128) -> u64 {
    [word >> 64, word].into_iter().fold(hash, |hash, half| {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let mut z = (hash ^ half as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::sa::sample;

    fn state(source: &str, destination: &str, spi: u32) -> SaConfig {
        SaConfig { source: source.parse().unwrap(), ..sample(destination, spi) }
    }

    /// The Niantic slides' and the flow-cache slides' states (one key, one SPI, both directions), neighbouring SPIs, and marks.
    #[test]
    fn states_that_share_a_key_share_no_iv() {
        let mut states: Vec<_> = (1..200).map(|spi| state("10.0.0.1", "10.0.0.2", spi)).collect();
        for (near, far, spi) in [
            ("14.0.0.52", "14.0.0.70", 7),
            ("192.168.11.1", "192.168.11.2", 1),
            ("fd00::1", "fd00::2", 1),
        ] {
            states.extend([state(near, far, spi), state(far, near, spi)]);
        }
        let mark = Mark { value: 1, mask: u32::MAX };
        states.push(SaConfig { mark, ..state("10.0.0.1", "10.0.0.2", 1) });
        // Where the upper 24 bits differ, the lower 2^40 numbers of each never meet.
        let places: HashSet<_> = states.iter().map(|s| IvSpace::of(s).counter(0) >> 40).collect();
        assert_eq!(places.len(), states.len());
    }

    /// Changing the mask makes every gateway that is upgraded use IVs again.
    #[test]
    fn the_place_is_the_same_after_a_restart_and_in_every_release() {
        let space = IvSpace::of(&state("14.0.0.52", "14.0.0.70", 7));
        assert_eq!(space.counter(0), 17_148_274_807_019_333_656);
    }
}

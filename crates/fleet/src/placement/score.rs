//! Weighted rendezvous hashing: what child and gateway are to each other.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use super::PlacementTarget;
use crate::names::ChildId;

/// A gateway of twice the weight has the highest score twice as often.
///
/// The same on all machines: SipHash of names, and a logarithm that is not the platform's.
pub(super) fn score(child: &ChildId, gateway: &PlacementTarget<'_>) -> f64 {
    let mut hasher = SipHasher24::new();
    for part in [child.tunnel.as_str(), gateway.name.as_str()] {
        hasher.write(part.as_bytes());
        // No name has this byte: "ab", "c" is not "a", "bc".
        hasher.write(b"/");
    }
    hasher.write(&child.index.to_be_bytes());
    f64::from(gateway.weight) / -libm::log(fraction(hasher.finish()))
}

/// Above 0 and below 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits are what an f64 holds")]
fn fraction(hash: u64) -> f64 {
    ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_inside() {
        for hash in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let fraction = fraction(hash);
            assert!(fraction > 0.0 && fraction < 1.0, "{hash}");
        }
    }

    #[test]
    fn scores_are_the_same_everywhere() {
        // Gateways of other versions and machines must find the same. A SipHash
        // in Python agrees, but for the last bit of glibc's logarithm.
        let child = |tunnel: &str, index| ChildId { tunnel: tunnel.parse().unwrap(), index };
        let one = "one".parse().unwrap();
        let candidate = |weight| PlacementTarget { name: &one, weight, capacity: 1 };
        for (child, weight, bits) in [
            (child("branch-1", 0), 1, 0x403d_84c9_c907_436a_u64),
            (child("branch-1", 1), 1, 0x3fe1_f433_3e8d_5ec4),
            (child("branch-2", 0), 3, 0x4007_d28a_e2c6_99fa),
        ] {
            assert_eq!(score(&child, &candidate(weight)).to_bits(), bits, "{child}");
        }
    }
}

//! Hints in a line with a spare word: which flows have overflowed from it, and to which line.
//!
//! Four hints of sixteen bits: the distance to the line (exclusive or), above a tag from the flow's
//! hash. Zero means none.

/// Overflow hints of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverflowHints(pub(super) u64);

/// Bits of a hint.
const HINT: u32 = 16;
const HINTS: u32 = u64::BITS / HINT;
/// Hash bits of a hint.
const TAG_BITS: u32 = 12;
/// Lowest bit of each hint.
const LOWEST: u64 = 0x0001_0001_0001_0001;
/// All tag bits.
const TAG_MASK: u64 = LOWEST * ((1 << TAG_BITS) - 1);
/// The bit above each tag.
const ABOVE: u64 = LOWEST << TAG_BITS;

impl OverflowHints {
    /// Distance to the line of a flow with this hash; rarely that of another flow with an equal
    /// tag.
    #[inline]
    pub(super) fn distance(self, hash: u64) -> Option<usize> {
        let differing = (self.0 ^ (tag(hash) * LOWEST)) & TAG_MASK;
        // Each subtraction borrows from the bit above its tag unless the tags are equal.
        let alike = (ABOVE - differing) & ABOVE;
        let lane = alike.trailing_zeros() / HINT;
        (alike != 0).then(|| self.distance_at(lane))
    }

    /// Whether all hints are in use.
    pub(super) fn is_full(self) -> bool {
        (0..HINTS).all(|lane| self.distance_at(lane) != 0)
    }

    /// Adds a hint, unless all are in use.
    pub(super) fn with(self, hash: u64, distance: usize) -> Option<Self> {
        let lane = (0..HINTS).find(|lane| self.distance_at(*lane) == 0)?;
        Some(Self(self.0 | ((distance as u64) << TAG_BITS | tag(hash)) << (lane * HINT)))
    }

    /// Removes the hint for a line.
    pub(super) fn without(self, distance: usize) -> Self {
        let lanes = (0..HINTS).filter(|lane| self.distance_at(*lane) == distance);
        Self(lanes.fold(self.0, |left, lane| left & !(0xffff << (lane * HINT))))
    }

    #[inline]
    const fn distance_at(self, lane: u32) -> usize {
        ((self.0 >> (lane * HINT + TAG_BITS)) & 0xf) as usize
    }
}

/// Never zero, which means none.
#[inline]
const fn tag(hash: u64) -> u64 {
    (hash % (1 << TAG_BITS)) | 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn overflow_hints_hold_up_to_four_distances(
            steps in proptest::collection::vec((any::<u64>(), 1..16_usize, any::<bool>()), 1..60),
        ) {
            let (mut hints, mut model) = (OverflowHints(0), Vec::<(u64, usize)>::new());
            for (hash, distance, comes) in steps {
                let taken = model.iter().any(|(_, held)| *held == distance);
                if comes && !taken {
                    match hints.with(hash, distance) {
                        Some(with) => {
                            hints = with;
                            model.push((hash, distance));
                        }
                        None => prop_assert_eq!(model.len(), 4),
                    }
                } else {
                    hints = hints.without(distance);
                    model.retain(|(_, held)| *held != distance);
                }
                for (hash, distance) in &model {
                    let alike = |other: &&(u64, usize)| tag(other.0) == tag(*hash);
                    let found = hints.distance(*hash);
                    prop_assert!(model.iter().filter(alike).any(|(_, held)| found == Some(*held)), "{distance}");
                }
                let known = model.iter().any(|(held, _)| tag(*held) == tag(hash));
                prop_assert_eq!(hints.distance(hash).is_some(), known);
            }
        }
    }
}

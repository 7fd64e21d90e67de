//! What a line with a word to spare says of flows that are at home in it but stay elsewhere: which of them stays where.
//!
//! Four of sixteen bits each: by how much the line is away, counted by exclusive or, over a part of the flow's hash. Zero is nobody.

/// Flows that a line knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverflowHints(pub(super) u64);

/// Bits of a flow's.
const HINT: u32 = 16;
const HINTS: u32 = u64::BITS / HINT;
/// Bits of its hash in them.
const TAG_BITS: u32 = 12;
/// The lowest bit of each.
const LOWEST: u64 = 0x0001_0001_0001_0001;
/// All bits of hashes.
const TAG_MASK: u64 = LOWEST * ((1 << TAG_BITS) - 1);
/// The bit above each of these.
const ABOVE: u64 = LOWEST << TAG_BITS;

impl OverflowHints {
    /// By how much the line is away in which a flow of this hash stays; rarely another's, of a hash much like it.
    #[inline]
    pub(super) fn distance(self, hash: u64) -> Option<usize> {
        let differing = (self.0 ^ (tag(hash) * LOWEST)) & TAG_MASK;
        // Each takes from the bit above its tag, which stays where nothing differs.
        let alike = (ABOVE - differing) & ABOVE;
        let lane = alike.trailing_zeros() / HINT;
        (alike != 0).then(|| self.distance_at(lane))
    }

    /// Whether there are four.
    pub(super) fn is_full(self) -> bool {
        (0..HINTS).all(|lane| self.distance_at(lane) != 0)
    }

    /// With one more, unless there are four.
    pub(super) fn with(self, hash: u64, distance: usize) -> Option<Self> {
        let lane = (0..HINTS).find(|lane| self.distance_at(*lane) == 0)?;
        Some(Self(self.0 | ((distance as u64) << TAG_BITS | tag(hash)) << (lane * HINT)))
    }

    /// Without the one that stays in this line.
    pub(super) fn without(self, distance: usize) -> Self {
        let lanes = (0..HINTS).filter(|lane| self.distance_at(*lane) == distance);
        Self(lanes.fold(self.0, |left, lane| left & !(0xffff << (lane * HINT))))
    }

    #[inline]
    const fn distance_at(self, lane: u32) -> usize {
        ((self.0 >> (lane * HINT + TAG_BITS)) & 0xf) as usize
    }
}

/// Never zero, as nobody's is.
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
        fn a_line_knows_where_up_to_four_stay(
            steps in proptest::collection::vec((any::<u64>(), 1..16_usize, any::<bool>()), 1..60),
        ) {
            let (mut strays, mut model) = (OverflowHints(0), Vec::<(u64, usize)>::new());
            for (hash, distance, comes) in steps {
                let taken = model.iter().any(|(_, held)| *held == distance);
                if comes && !taken {
                    match strays.with(hash, distance) {
                        Some(with) => {
                            strays = with;
                            model.push((hash, distance));
                        }
                        None => prop_assert_eq!(model.len(), 4),
                    }
                } else {
                    strays = strays.without(distance);
                    model.retain(|(_, held)| *held != distance);
                }
                for (hash, distance) in &model {
                    let alike = |other: &&(u64, usize)| tag(other.0) == tag(*hash);
                    let found = strays.distance(*hash);
                    prop_assert!(model.iter().filter(alike).any(|(_, held)| found == Some(*held)), "{distance}");
                }
                let known = model.iter().any(|(held, _)| tag(*held) == tag(hash));
                prop_assert_eq!(strays.distance(hash).is_some(), known);
            }
        }
    }
}

//! What a line with a word to spare says of flows that are at home in it but stay elsewhere: which of them stays where.
//!
//! Four of sixteen bits each: by how much the line is away, counted by exclusive or, over a part of the flow's hash. Zero is nobody.

/// Flows that a line knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strays(pub(super) u64);

/// Bits of a flow's.
const LANE: u32 = 16;
const LANES: u32 = u64::BITS / LANE;
/// Bits of its hash in them.
const TAG: u32 = 12;
/// The lowest bit of each.
const LOWEST: u64 = 0x0001_0001_0001_0001;
/// All bits of hashes.
const TAGS: u64 = LOWEST * ((1 << TAG) - 1);
/// The bit above each of these.
const ABOVE: u64 = LOWEST << TAG;

impl Strays {
    /// By how much the line is away in which a flow of this hash stays; rarely another's, of a hash much like it.
    #[inline]
    pub(super) fn away(self, hash: u64) -> Option<usize> {
        let differing = (self.0 ^ (tag(hash) * LOWEST)) & TAGS;
        // Each takes from the bit above its tag, which stays where nothing differs.
        let alike = (ABOVE - differing) & ABOVE;
        let lane = alike.trailing_zeros() / LANE;
        (alike != 0).then(|| self.away_in(lane))
    }

    /// Whether there are four.
    pub(super) fn is_full(self) -> bool {
        (0..LANES).all(|lane| self.away_in(lane) != 0)
    }

    /// With one more, unless there are four.
    pub(super) fn with(self, hash: u64, away: usize) -> Option<Self> {
        let lane = (0..LANES).find(|lane| self.away_in(*lane) == 0)?;
        Some(Self(self.0 | ((away as u64) << TAG | tag(hash)) << (lane * LANE)))
    }

    /// Without the one that stays in this line.
    pub(super) fn without(self, away: usize) -> Self {
        let lanes = (0..LANES).filter(|lane| self.away_in(*lane) == away);
        Self(lanes.fold(self.0, |left, lane| left & !(0xffff << (lane * LANE))))
    }

    #[inline]
    const fn away_in(self, lane: u32) -> usize {
        ((self.0 >> (lane * LANE + TAG)) & 0xf) as usize
    }
}

/// Never zero, as nobody's is.
#[inline]
const fn tag(hash: u64) -> u64 {
    (hash % (1 << TAG)) | 1
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
            let (mut strays, mut model) = (Strays(0), Vec::<(u64, usize)>::new());
            for (hash, away, comes) in steps {
                let taken = model.iter().any(|(_, held)| *held == away);
                if comes && !taken {
                    match strays.with(hash, away) {
                        Some(with) => {
                            strays = with;
                            model.push((hash, away));
                        }
                        None => prop_assert_eq!(model.len(), 4),
                    }
                } else {
                    strays = strays.without(away);
                    model.retain(|(_, held)| *held != away);
                }
                for (hash, away) in &model {
                    let alike = |other: &&(u64, usize)| tag(other.0) == tag(*hash);
                    let found = strays.away(*hash);
                    prop_assert!(model.iter().filter(alike).any(|(_, held)| found == Some(*held)), "{away}");
                }
                let known = model.iter().any(|(held, _)| tag(*held) == tag(hash));
                prop_assert_eq!(strays.away(hash).is_some(), known);
            }
        }
    }
}

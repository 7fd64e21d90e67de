//! Prefilter of a tuple space: the best rank that a hash table may hold for a key, read before the
//! table itself.

mod probe;

use std::sync::Arc;

pub(crate) use probe::{MAX_TABLES, PrefilterProbe, ProbeTargets};

/// Maps the hash of a key under a mask to the lowest rank inserted for that hash. A slot holds the
/// rank and, while all insertions had the same one, a fingerprint of the hash. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefilterTable {
    /// Mask of each key word.
    mask: Box<[u64]>,
    slots: Arc<[u32]>,
    /// Right shift that turns a hash into a slot number.
    shift: u32,
}

/// Rank of an empty slot, above all others.
pub(crate) const NO_RANK: u32 = u16::MAX as u32;
const EMPTY: u32 = NO_RANK << 16;
/// Fingerprint bits of a slot.
const FINGERPRINT: u32 = 0x7fff;
/// Set in slots that several fingerprints share.
const MIXED: u32 = 0x8000;
/// Position of the fingerprint in a hash; independent of the slot number up to 2^33 slots.
const FINGERPRINT_SHIFT: u32 = 16;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Upper limit of log2 of the number of slots.
const MAX_BITS: u32 = 24;

impl PrefilterTable {
    /// An empty table of `1 << bits` slots (`bits` from 1 to 24) over the key bits in `mask`.
    pub(crate) fn of(mask: &[u64], bits: u32) -> Self {
        let bits = bits.clamp(1, MAX_BITS);
        Self { mask: mask.into(), slots: vec![EMPTY; 1 << bits].into(), shift: u64::BITS - bits }
    }

    /// Hash of a key under the mask.
    #[inline]
    pub(crate) fn hash(&self, key: &[u64]) -> u64 {
        self.hash_of(key.iter().copied())
    }

    #[inline]
    fn hash_of(&self, key: impl Iterator<Item = u64>) -> u64 {
        let asked = self.mask.iter().zip(key).filter(|(mask, _)| **mask != 0);
        asked.fold(0, |hash: u64, (mask, word)| {
            (hash.rotate_left(32) ^ (word & mask)).wrapping_mul(MULTIPLIER)
        })
    }

    /// Slot number of a hash.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more than MAX_BITS are left")]
    pub(crate) const fn slot(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The lowest rank inserted for a hash, or a lower one; [`NO_RANK`] if there is none.
    #[inline]
    pub(crate) fn rank(&self, hash: u64) -> u32 {
        rank_in(self.slots.get(self.slot(hash)).copied().unwrap_or(EMPTY), hash)
    }

    /// Inserts a rank, below [`NO_RANK`], for a hash.
    pub(crate) fn insert(&mut self, hash: u64, rank: u32) {
        let at = self.slot(hash);
        let slot = &mut Arc::make_mut(&mut self.slots)[at];
        let alike = *slot == EMPTY || (*slot ^ fingerprint(hash)) & (FINGERPRINT | MIXED) == 0;
        let fingerprint = if alike { fingerprint(hash) } else { MIXED };
        *slot = rank.min(*slot >> 16) << 16 | fingerprint;
    }

    /// Raises a slot's rank to at least `rank`, after lower ones were removed.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub(crate) fn raise_rank(&mut self, slot: usize, rank: u32) {
        let slot = &mut Arc::make_mut(&mut self.slots)[slot];
        *slot = rank.max(*slot >> 16) << 16 | *slot & (FINGERPRINT | MIXED);
    }

    /// Empties a slot.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub(crate) fn clear(&mut self, slot: usize) {
        Arc::make_mut(&mut self.slots)[slot] = EMPTY;
    }

    /// Copies one slot from a table of equal size.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub(crate) fn sync_slot(&mut self, other: &Self, slot: usize) {
        if self.slots[slot] != other.slots[slot] {
            Arc::make_mut(&mut self.slots)[slot] = other.slots[slot];
        }
    }

    /// Bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.mask) + size_of_val(&*self.slots)
    }
}

/// The rank that a slot gives a hash. Branch-free.
#[inline]
fn rank_in(slot: u32, hash: u64) -> u32 {
    let is_known = ((slot ^ fingerprint(hash)) & FINGERPRINT == 0) | (slot & MIXED != 0);
    std::hint::select_unpredictable(is_known, slot >> 16, NO_RANK)
}

/// Hash bits that do not select the slot.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "fifteen bits are used")]
const fn fingerprint(hash: u64) -> u32 {
    (hash >> FINGERPRINT_SHIFT) as u32 & FINGERPRINT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never above the inserted rank, and seldom below.
    #[test]
    fn prefilter_table_returns_lowest_rank() {
        let mut slots = PrefilterTable::of(&[0xff, 0, u64::MAX], 8);
        let hash = |slots: &PrefilterTable, at: u64| slots.hash(&[at, at * 7, 0]);
        let rank = |at: u64| u32::try_from(at % 90).unwrap();
        for at in 0..100 {
            let hash = hash(&slots, at);
            slots.insert(hash, rank(at) + 3);
            slots.insert(hash, rank(at));
        }
        for at in 0..100 {
            assert!(slots.rank(hash(&slots, at)) <= rank(at));
        }
        let exact = (0..100).filter(|at| slots.rank(hash(&slots, *at)) == rank(*at)).count();
        assert!(exact > 70, "{exact}");
        let strange = (100..200).filter(|at| slots.rank(hash(&slots, *at)) != NO_RANK).count();
        assert!(strange < 30, "{strange}");
        assert_eq!(slots.hash(&[5, 1, 2]), slots.hash(&[0x105, 9, 2]), "not under the mask");
    }

    #[test]
    fn prefilter_table_clears_and_syncs_single_slots() {
        let mut slots = PrefilterTable::of(&[u64::MAX], 4);
        let hashes = [1, 2, 3, 4].map(|key| slots.hash(&[key]));
        hashes.iter().for_each(|hash| slots.insert(*hash, 7));
        slots.raise_rank(slots.slot(hashes[1]), 3);
        assert_eq!(slots.rank(hashes[1]), 7, "it is no lower");
        slots.raise_rank(slots.slot(hashes[1]), 9);
        assert_eq!(slots.rank(hashes[1]), 9);
        let mut other = slots.clone();
        other.clear(other.slot(hashes[0]));
        assert_eq!(other.rank(hashes[0]), NO_RANK);
        assert_eq!(slots.rank(hashes[0]), 7);
        slots.sync_slot(&other, slots.slot(hashes[0]));
        assert_eq!(slots, other);
    }
}

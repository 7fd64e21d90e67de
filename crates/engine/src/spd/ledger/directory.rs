//! Policies by index: where one stands follows from its index, as these are mostly given out in turn. There may be a million, so this has
//! little more than a number for each.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::PolicyIndex;

/// Slots by index. Whoever asks tells which index a slot has.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// A power of two of places, as many as policies or more; each for the indexes of which it is the remainder.
    places: Vec<u32>,
    /// Those that found theirs taken.
    others: HashTable<u32>,
    len: usize,
    hasher: RandomState,
}

/// A place that nobody has.
const FREE: u32 = u32::MAX;
/// Bits of an index that are the direction's.
const DIRECTION: u32 = 3;

impl Directory {
    /// The slot of an index.
    pub(super) fn find(
        &self,
        index: PolicyIndex,
        index_of: impl Fn(u32) -> Option<PolicyIndex>,
    ) -> Option<u32> {
        let is_it = |slot: &u32| index_of(*slot) == Some(index);
        let placed = self.places.get(self.place(index)).copied();
        placed
            .filter(|slot| *slot != FREE && is_it(slot))
            .or_else(|| self.others.find(self.hasher.hash_one(index), is_it).copied())
    }

    /// Puts in a slot whose index is new. Its policy is known to `index_of`, as are those of all others.
    pub(super) fn insert(
        &mut self,
        index: PolicyIndex,
        slot: u32,
        index_of: impl Fn(u32) -> Option<PolicyIndex>,
    ) {
        self.len += 1;
        if self.len > self.places.len() {
            self.widen(&index_of);
        }
        self.put(index, slot, &index_of);
    }

    /// Takes a slot out that has this index.
    pub(super) fn remove(&mut self, index: PolicyIndex, slot: u32) {
        let place = self.place(index);
        match self.places.get_mut(place) {
            Some(held) if *held == slot => *held = FREE,
            Some(_) | None => {
                let hash = self.hasher.hash_one(index);
                let Ok(found) = self.others.find_entry(hash, |held| *held == slot) else { return };
                found.remove();
            }
        }
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    fn put(
        &mut self,
        index: PolicyIndex,
        slot: u32,
        index_of: &impl Fn(u32) -> Option<PolicyIndex>,
    ) {
        let place = self.place(index);
        match self.places.get_mut(place) {
            Some(held) if *held == FREE => *held = slot,
            Some(_) | None => {
                let hasher = &self.hasher;
                self.others.insert_unique(hasher.hash_one(index), slot, |slot| {
                    index_of(*slot).map_or(0, |index| hasher.hash_one(index))
                });
            }
        }
    }

    fn widen(&mut self, index_of: &impl Fn(u32) -> Option<PolicyIndex>) {
        let places = vec![FREE; self.len.next_power_of_two()];
        let placed = std::mem::replace(&mut self.places, places);
        let others = std::mem::take(&mut self.others);
        for slot in placed.into_iter().filter(|slot| *slot != FREE).chain(others) {
            if let Some(index) = index_of(slot) {
                self.put(index, slot, index_of);
            }
        }
    }

    fn place(&self, index: PolicyIndex) -> usize {
        (index.0 >> DIRECTION) as usize & self.places.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map; indexes in turn, and some that somebody asked for.
        #[test]
        fn finds_what_a_map_finds(
            steps in prop::collection::vec((0_u8..4, 0_u32..400, any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut directory, mut model) = (Directory::default(), HashMap::new());
            let (mut slots, mut serial) = (Vec::<PolicyIndex>::new(), 0_u32);
            for (choice, asked, which) in steps {
                serial += 1;
                let index = PolicyIndex(if choice == 0 { asked } else { serial << DIRECTION | 1 });
                if choice < 3 && !model.contains_key(&index) {
                    let slot = u32::try_from(slots.len()).unwrap();
                    slots.push(index);
                    model.insert(index, slot);
                    directory.insert(index, slot, |slot| slots.get(slot as usize).copied());
                } else if !model.is_empty() {
                    let mut all: Vec<_> = model.keys().copied().collect();
                    all.sort_by_key(|index| index.0);
                    let gone = all[which.index(all.len())];
                    let slot = model.remove(&gone).unwrap();
                    directory.remove(gone, slot);
                }
                prop_assert_eq!(directory.len(), model.len());
                for index in slots.iter().copied().chain([PolicyIndex(asked)]) {
                    let found = directory.find(index, |slot| slots.get(slot as usize).copied());
                    prop_assert_eq!(found, model.get(&index).copied());
                }
            }
            prop_assert!(directory.places.len() <= 2 * slots.len().max(1));
        }
    }
}

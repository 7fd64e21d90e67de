//! Slots by a number: the policy index, or the hash of its identity. Direct-mapped, as indexes are
//! mostly consecutive and hashes rarely collide. With a million policies this takes little more
//! than a slot each.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Slots by number. The caller supplies the number of a slot.
#[derive(Debug, Default)]
pub(super) struct IdIndex {
    /// A power of two of places, at least as many as policies; each for the numbers congruent to
    /// it.
    places: Vec<u32>,
    /// Slots whose place was taken.
    others: HashTable<u32>,
    len: usize,
    hasher: RandomState,
}

/// An empty place.
const FREE: u32 = u32::MAX;

impl IdIndex {
    /// The slot with this number for which `is_match` holds.
    pub(super) fn find(&self, number: u64, is_match: impl Fn(u32) -> bool) -> Option<u32> {
        let is_match = |slot: &u32| is_match(*slot);
        let placed = self.places.get(self.place(number)).copied();
        placed
            .filter(|slot| *slot != FREE && is_match(slot))
            .or_else(|| self.others.find(self.hasher.hash_one(number), is_match).copied())
    }

    /// Inserts a slot. `number_of` must know it and all others.
    pub(super) fn insert(&mut self, slot: u32, number_of: impl Fn(u32) -> u64) {
        self.len += 1;
        if self.len > self.places.len() {
            self.widen(&number_of);
        }
        self.put(slot, &number_of);
    }

    /// Removes a slot with this number.
    pub(super) fn remove(&mut self, number: u64, slot: u32) {
        let place = self.place(number);
        match self.places.get_mut(place) {
            Some(held) if *held == slot => *held = FREE,
            Some(_) | None => {
                let hash = self.hasher.hash_one(number);
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

    fn put(&mut self, slot: u32, number_of: &impl Fn(u32) -> u64) {
        let number = number_of(slot);
        let place = self.place(number);
        match self.places.get_mut(place) {
            Some(held) if *held == FREE => *held = slot,
            Some(_) | None => {
                let Self { others, hasher, .. } = self;
                let hash = hasher.hash_one(number);
                others.insert_unique(hash, slot, |slot| hasher.hash_one(number_of(*slot)));
            }
        }
    }

    fn widen(&mut self, number_of: &impl Fn(u32) -> u64) {
        let places = vec![FREE; self.len.next_power_of_two()];
        let placed = std::mem::replace(&mut self.places, places);
        let others = std::mem::take(&mut self.others);
        let placed = placed.into_iter().filter(|slot| *slot != FREE);
        let mut slots: Vec<u32> = placed.chain(others).collect();
        // In slot order policies are mostly sequential in memory, which is far faster than random
        // access.
        slots.sort_unstable();
        slots.into_iter().for_each(|slot| self.put(slot, number_of));
    }

    #[expect(clippy::cast_possible_truncation, reason = "a remainder has its low bits only")]
    fn place(&self, number: u64) -> usize {
        number as usize & self.places.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map: consecutive numbers, some that share a place, and some that several slots
        /// have.
        #[test]
        fn id_index_agrees_with_map(
            steps in prop::collection::vec((0_u8..5, 0_u64..400, any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut index, mut model) = (IdIndex::default(), HashMap::<u32, u64>::new());
            let (mut numbers, mut serial) = (Vec::<u64>::new(), 0_u64);
            for (choice, asked, which) in steps {
                serial += 1;
                if choice < 3 {
                    let slot = u32::try_from(numbers.len()).unwrap();
                    let number = [serial, asked, asked << 32][usize::from(choice)];
                    numbers.push(number);
                    model.insert(slot, number);
                    index.insert(slot, |slot| numbers[slot as usize]);
                } else if !model.is_empty() {
                    let mut all: Vec<_> = model.keys().copied().collect();
                    all.sort_unstable();
                    let gone = all[which.index(all.len())];
                    index.remove(model.remove(&gone).unwrap(), gone);
                }
                prop_assert_eq!(index.len(), model.len());
                for (slot, number) in (0..).zip(&numbers) {
                    let found = index.find(*number, |held| held == slot);
                    prop_assert_eq!(found, model.contains_key(&slot).then_some(slot));
                }
                let same = |slot: u32| numbers[slot as usize] == asked;
                prop_assert_eq!(
                    index.find(asked, same).is_some(),
                    model.values().any(|number| *number == asked)
                );
            }
            prop_assert!(index.places.len() <= 2 * numbers.len().max(1));
        }
    }
}

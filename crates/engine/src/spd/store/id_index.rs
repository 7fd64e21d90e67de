//! Policies by a number of theirs: the index, or the hash of the name. Where one stands follows from the number, as indexes are mostly given
//! out in turn, and hashes meet seldom enough. There may be a million, so this has little more than a slot for each.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Slots by numbers. Whoever asks tells which number a slot has.
#[derive(Debug, Default)]
pub(super) struct IdIndex {
    /// A power of two of places, as many as policies or more; each for the numbers of which it is the remainder.
    places: Vec<u32>,
    /// Those that found theirs taken.
    others: HashTable<u32>,
    len: usize,
    hasher: RandomState,
}

/// A place that nobody has.
const FREE: u32 = u32::MAX;

impl IdIndex {
    /// The slot that has this number and `is_match`.
    pub(super) fn find(&self, number: u64, is_match: impl Fn(u32) -> bool) -> Option<u32> {
        let is_match = |slot: &u32| is_match(*slot);
        let placed = self.places.get(self.place(number)).copied();
        placed
            .filter(|slot| *slot != FREE && is_match(slot))
            .or_else(|| self.others.find(self.hasher.hash_one(number), is_match).copied())
    }

    /// Puts in a slot that is not in. Its policy is known to `number_of`, as are those of all others.
    pub(super) fn insert(&mut self, slot: u32, number_of: impl Fn(u32) -> u64) {
        self.len += 1;
        if self.len > self.places.len() {
            self.widen(&number_of);
        }
        self.put(slot, &number_of);
    }

    /// Takes a slot out that has this number.
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
        // As policies mostly lie in memory, which takes far less time than at random.
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
        /// Against a map; numbers in turn, some that share a place, and some that several slots have.
        #[test]
        fn finds_what_a_map_finds(
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

//! Things in the order in which they came, to be shown bit by bit: each look begins where the one before ended, whatever has come
//! and gone meanwhile. So a dump holds nothing between two looks, and nobody waits for it. There may be a million, so this has each
//! thing and little more; whoever asks tells which turn a thing has, as for all numbers that it is kept by.

use std::collections::BTreeMap;

/// Things by their turns, in runs; a run is known by a turn that is not above its first and above all of the runs before.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    runs: BTreeMap<u64, Vec<T>>,
}

/// Things of one run at the most.
const MOST: usize = 64;
/// A run that gets shorter looks for another to join when it has a multiple of so many.
const LOOK: usize = 4;

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<T> Turns<T> {
    /// Puts in a thing whose turn no other has; it may be known to `turn_of` already. Quickest behind all others.
    pub(crate) fn insert(&mut self, turn: u64, thing: T, turn_of: impl Fn(&T) -> u64) {
        // Most come last, and the way to the first run is long and cold.
        if let Some(mut last) = self.runs.last_entry()
            && last.get().len() < MOST
            && last.get().last().is_some_and(|other| turn_of(other) < turn)
        {
            last.get_mut().push(thing);
            return;
        }
        self.begin_at(turn);
        let Some((_, run)) = self.runs.range_mut(..=turn).next_back() else { return };
        let at = run.iter().rposition(|other| turn_of(other) < turn).map_or(0, |at| at + 1);
        if run.len() < MOST {
            run.insert(at, thing);
        } else if at == MOST {
            let mut next = Vec::with_capacity(MOST);
            next.push(thing);
            self.runs.insert(turn, next);
        } else {
            let mut behind = run.split_off(MOST / 2);
            let key = turn_of(&behind[0]);
            match at.checked_sub(MOST / 2) {
                Some(at) if at > 0 => behind.insert(at, thing),
                Some(_) | None => run.insert(at, thing),
            }
            self.runs.insert(key, behind);
        }
    }

    /// Takes out the thing of this turn, if `place` finds one in the run where it has to be.
    pub(crate) fn remove(&mut self, turn: u64, place: impl FnOnce(&[T]) -> Option<usize>) {
        let Some((key, run)) = self.run_of(turn) else { return };
        let Some(at) = place(run) else { return };
        run.remove(at);
        if run.is_empty() {
            self.runs.remove(&key);
        } else if run.len() <= MOST / 2 && run.len().is_multiple_of(LOOK) {
            let next = self.runs.range(key + 1..).next().map(|(next, _)| *next);
            next.into_iter().chain([key]).for_each(|key| self.join(key));
        }
    }

    /// The thing of this turn, if `place` finds one in the run where it has to be.
    pub(crate) fn of_mut(
        &mut self,
        turn: u64,
        place: impl FnOnce(&[T]) -> Option<usize>,
    ) -> Option<&mut T> {
        let (_, run) = self.run_of(turn)?;
        place(run).map(|at| &mut run[at])
    }

    /// Those that came before a turn, the youngest first.
    pub(crate) fn before(
        &self,
        turn: u64,
        turn_of: impl Fn(&T) -> u64,
    ) -> impl Iterator<Item = &T> {
        self.runs.range(..turn).rev().flat_map(move |(_, run)| {
            let older = run.partition_point(|thing| turn_of(thing) < turn);
            run[..older].iter().rev()
        })
    }

    /// How many runs there are.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// What came before all others has its place in the first run.
    fn begin_at(&mut self, turn: u64) {
        if self.runs.first_key_value().is_none_or(|(key, _)| *key > turn) {
            let first = self.runs.pop_first();
            self.runs.insert(turn, first.map_or_else(|| Vec::with_capacity(MOST), |(_, run)| run));
        }
    }

    /// The run where this turn's thing is if it is in.
    fn run_of(&mut self, turn: u64) -> Option<(u64, &mut Vec<T>)> {
        // Mostly one begins near; a search from the first on goes down to that as well.
        let near = turn.saturating_sub(2 * MOST as u64);
        let from = self.runs.range(near..=turn).next().map_or(0, |(key, _)| *key);
        self.runs.range_mut(from..=turn).next_back().map(|(key, run)| (*key, run))
    }

    /// Joins a run with the one before it when they are small.
    fn join(&mut self, key: u64) {
        let mut two = self.runs.range_mut(..=key).rev();
        if let (Some((_, run)), Some((_, before))) = (two.next(), two.next())
            && run.len() + before.len() <= MOST / 2
        {
            before.append(run);
            self.runs.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set: most come last, some where others were, and some before all; somebody looks from anywhere.
        #[test]
        fn keeps_what_a_set_keeps(
            steps in prop::collection::vec((0_u8..8, 0_u64..1000, any::<prop::sample::Index>()), 0..1500),
        ) {
            let (mut turns, mut model) = (Turns::default(), BTreeSet::new());
            let mut last = 1000;
            for (choice, number, which) in steps {
                match choice {
                    0..3 => {
                        last += 1;
                        model.insert(last);
                        turns.insert(last, last, |turn| *turn);
                    }
                    3..5 => if model.insert(number) {
                        turns.insert(number, number, |turn| *turn);
                    }
                    5..7 if !model.is_empty() => {
                        let gone = *model.iter().nth(which.index(model.len())).unwrap();
                        model.remove(&gone);
                        turns.remove(gone, |run| run.binary_search(&gone).ok());
                    }
                    _ => turns.remove(u64::MAX, |run| run.binary_search(&u64::MAX).ok()),
                }
                let older: Vec<_> = turns.before(number, |turn| *turn).collect();
                prop_assert_eq!(older, model.range(..number).rev().collect::<Vec<_>>());
                let found = turns.of_mut(number, |run| run.binary_search(&number).ok()).copied();
                prop_assert_eq!(found, model.get(&number).copied());
                prop_assert!(turns.runs.values().all(|run| (1..=MOST).contains(&run.len())));
            }
            let all: Vec<_> = turns.before(u64::MAX, |turn| *turn).collect();
            prop_assert_eq!(all, model.iter().rev().collect::<Vec<_>>());
        }

        /// Little memory whatever the order in which they come, and however many go.
        #[test]
        fn runs_are_not_many(
            mut order in Just((0_u64..700).collect::<Vec<_>>()).prop_shuffle(),
            sorted in 0_u8..3,
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..690),
        ) {
            match sorted {
                0 => order.sort_unstable(),
                1 => order.sort_unstable_by_key(|turn| std::cmp::Reverse(*turn)),
                _ => {}
            }
            let mut turns = Turns::default();
            order.iter().for_each(|turn| turns.insert(*turn, *turn, |turn| *turn));
            prop_assert!(turns.runs() <= 2 * order.len() / (MOST / 2) + 1, "{}", turns.runs());
            for which in gone {
                let gone = order.swap_remove(which.index(order.len()));
                turns.remove(gone, |run| run.binary_search(&gone).ok());
            }
            // Two neighbours had more than half a run when one of them last looked.
            let most = 2 * order.len() / (MOST / 2 + 1 - 2 * (LOOK - 1)) + 1;
            prop_assert!(turns.runs() <= most, "{} of {}", turns.runs(), order.len());
        }
    }
}

//! Items by insertion sequence number, for dumps in steps: each step continues where the previous
//! one ended, whatever was inserted or removed meanwhile. So a dump holds no reference between two
//! steps, and nobody waits for it. There may be a million items, so this stores little besides
//! them; callers pass a function from an item to its number.

use std::collections::BTreeMap;

/// Items in runs by sequence number. The key of a run is at most its first number and above all of
/// the runs before.
#[derive(Debug)]
pub(crate) struct InsertionOrder<T> {
    runs: BTreeMap<u64, Vec<T>>,
}

/// Items per run.
const MOST: usize = 64;
/// A shrinking run looks for another to join when its length is a multiple of this.
const LOOK: usize = 4;

impl<T> Default for InsertionOrder<T> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<T> InsertionOrder<T> {
    /// Inserts an item with a unique sequence number, which `seq_of` may know already. Fastest at
    /// the end.
    pub(crate) fn insert(&mut self, seq: u64, thing: T, seq_of: impl Fn(&T) -> u64) {
        // Most are inserted at the end, and the path to the first run is long and cold.
        if let Some(mut last) = self.runs.last_entry()
            && last.get().len() < MOST
            && last.get().last().is_some_and(|other| seq_of(other) < seq)
        {
            last.get_mut().push(thing);
            return;
        }
        self.begin_at(seq);
        let Some((_, run)) = self.runs.range_mut(..=seq).next_back() else { return };
        let at = run.iter().rposition(|other| seq_of(other) < seq).map_or(0, |at| at + 1);
        if run.len() < MOST {
            run.insert(at, thing);
        } else if at == MOST {
            let mut next = Vec::with_capacity(MOST);
            next.push(thing);
            self.runs.insert(seq, next);
        } else {
            let mut behind = run.split_off(MOST / 2);
            let key = seq_of(&behind[0]);
            match at.checked_sub(MOST / 2) {
                Some(at) if at > 0 => behind.insert(at, thing),
                Some(_) | None => run.insert(at, thing),
            }
            self.runs.insert(key, behind);
        }
    }

    /// Removes the item of a number, if `place` finds it in its run.
    pub(crate) fn remove(&mut self, seq: u64, place: impl FnOnce(&[T]) -> Option<usize>) {
        let Some((key, run)) = self.run_of(seq) else { return };
        let Some(at) = place(run) else { return };
        run.remove(at);
        if run.is_empty() {
            self.runs.remove(&key);
        } else if run.len() <= MOST / 2 && run.len().is_multiple_of(LOOK) {
            let next = self.runs.range(key + 1..).next().map(|(next, _)| *next);
            next.into_iter().chain([key]).for_each(|key| self.join(key));
        }
    }

    /// The item of a number, if `place` finds it in its run.
    pub(crate) fn of_mut(
        &mut self,
        seq: u64,
        place: impl FnOnce(&[T]) -> Option<usize>,
    ) -> Option<&mut T> {
        let (_, run) = self.run_of(seq)?;
        place(run).map(|at| &mut run[at])
    }

    /// Items inserted before a number, the youngest first.
    pub(crate) fn before(&self, seq: u64, seq_of: impl Fn(&T) -> u64) -> impl Iterator<Item = &T> {
        self.runs.range(..seq).rev().flat_map(move |(_, run)| {
            let older = run.partition_point(|thing| seq_of(thing) < seq);
            run[..older].iter().rev()
        })
    }

    /// Number of runs.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// An item older than all others goes into the first run.
    fn begin_at(&mut self, seq: u64) {
        if self.runs.first_key_value().is_none_or(|(key, _)| *key > seq) {
            let first = self.runs.pop_first();
            self.runs.insert(seq, first.map_or_else(|| Vec::with_capacity(MOST), |(_, run)| run));
        }
    }

    /// The run that has this number, if any has.
    fn run_of(&mut self, seq: u64) -> Option<(u64, &mut Vec<T>)> {
        // Mostly a run begins nearby; a search from the first run would descend there too.
        let near = seq.saturating_sub(2 * MOST as u64);
        let from = self.runs.range(near..=seq).next().map_or(0, |(key, _)| *key);
        self.runs.range_mut(from..=seq).next_back().map(|(key, run)| (*key, run))
    }

    /// Joins a run with the one before if both are small.
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
        /// Against a set: most are appended, some inserted among others or before all; reads start
        /// anywhere.
        #[test]
        fn insertion_order_agrees_with_set(
            steps in prop::collection::vec((0_u8..8, 0_u64..1000, any::<prop::sample::Index>()), 0..1500),
        ) {
            let (mut turns, mut model) = (InsertionOrder::default(), BTreeSet::new());
            let mut last = 1000;
            for (choice, number, which) in steps {
                match choice {
                    0..3 => {
                        last += 1;
                        model.insert(last);
                        turns.insert(last, last, |seq| *seq);
                    }
                    3..5 => if model.insert(number) {
                        turns.insert(number, number, |seq| *seq);
                    }
                    5..7 if !model.is_empty() => {
                        let gone = *model.iter().nth(which.index(model.len())).unwrap();
                        model.remove(&gone);
                        turns.remove(gone, |run| run.binary_search(&gone).ok());
                    }
                    _ => turns.remove(u64::MAX, |run| run.binary_search(&u64::MAX).ok()),
                }
                let older: Vec<_> = turns.before(number, |seq| *seq).collect();
                prop_assert_eq!(older, model.range(..number).rev().collect::<Vec<_>>());
                let found = turns.of_mut(number, |run| run.binary_search(&number).ok()).copied();
                prop_assert_eq!(found, model.get(&number).copied());
                prop_assert!(turns.runs.values().all(|run| (1..=MOST).contains(&run.len())));
            }
            let all: Vec<_> = turns.before(u64::MAX, |seq| *seq).collect();
            prop_assert_eq!(all, model.iter().rev().collect::<Vec<_>>());
        }

        /// Runs stay few whatever the order of insertions and removals.
        #[test]
        fn number_of_runs_is_bounded(
            mut order in Just((0_u64..700).collect::<Vec<_>>()).prop_shuffle(),
            sorted in 0_u8..3,
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..690),
        ) {
            match sorted {
                0 => order.sort_unstable(),
                1 => order.sort_unstable_by_key(|seq| std::cmp::Reverse(*seq)),
                _ => {}
            }
            let mut turns = InsertionOrder::default();
            order.iter().for_each(|seq| turns.insert(*seq, *seq, |seq| *seq));
            prop_assert!(turns.runs() <= 2 * order.len() / (MOST / 2) + 1, "{}", turns.runs());
            for which in gone {
                let gone = order.swap_remove(which.index(order.len()));
                turns.remove(gone, |run| run.binary_search(&gone).ok());
            }
            // Two neighbouring runs were more than half full together when one of them last looked.
            let most = 2 * order.len() / (MOST / 2 + 1 - 2 * (LOOK - 1)) + 1;
            prop_assert!(turns.runs() <= most, "{} of {}", turns.runs(), order.len());
        }
    }
}

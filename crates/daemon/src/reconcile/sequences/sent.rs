//! Numbers that may have been sent: a number for each state that is there, and for those that are
//! gone, as far as they are remembered.
//!
//! Each question and each change costs the logarithm of what is known, also where all states share
//! one key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::sa_name::SaName;

/// The numbers of all states that are known.
#[derive(Debug)]
pub(super) struct SentNumbers {
    states: BTreeMap<SaName, Number>,
    /// Those of states that are gone, by their keys' fingerprints and in order: the last with a key
    /// is its highest.
    spent: BTreeSet<(u128, u64, SaName)>,
    /// States in the order in which they went, with the ticket that each got then.
    gone: VecDeque<(SaName, u64)>,
    tickets: u64,
    /// States that are known, by their keys' fingerprints.
    keys: BTreeMap<u128, usize>,
    /// How many of them are kept.
    pub(super) remembered: usize,
}

/// What is known of the numbers of one state.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// None above it may have been used.
    highest: u64,
    /// Where it began.
    begun: u64,
    /// The ticket that it got when it went.
    gone: Option<u64>,
}

impl SentNumbers {
    /// None yet; of states that are gone so many will be kept.
    pub(super) const fn remembering(remembered: usize) -> Self {
        Self {
            states: BTreeMap::new(),
            spent: BTreeSet::new(),
            gone: VecDeque::new(),
            tickets: 0,
            keys: BTreeMap::new(),
            remembered,
        }
    }

    /// Each state with the number above which none may have been used.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&SaName, u64)> {
        self.states.iter().map(|(state, number)| (state, number.highest))
    }

    /// Whether anything is known of a key.
    pub(super) fn has_key(&self, key: u128) -> bool {
        self.keys.contains_key(&key)
    }

    /// Where a state began; zero for one that is not known.
    pub(super) fn begun(&self, state: SaName) -> u64 {
        self.states.get(&state).map_or(0, |number| number.begun)
    }

    /// The highest number that may have been used with a state's key by states that are gone. Those
    /// that are there count in places of their own, under [prefixes](uxfrm_engine::IvPrefix) of
    /// their own.
    pub(super) fn used_with_key_of(&self, state: SaName) -> u64 {
        let key = state.key();
        let (first, last) = (state.first_with_key(), state.last_with_key());
        let spent = self.spent.range((key, 0, first)..=(key, u64::MAX, last)).next_back();
        spent.map_or(0, |(_, highest, _)| *highest)
    }

    /// Sets what a state that is there may use.
    pub(super) fn reserve(&mut self, state: SaName, highest: u64, begun: u64) {
        self.put(state, Number { highest, begun, gone: None });
    }

    /// Keeps the number of a state that is gone, unless it sent nothing.
    pub(super) fn remember(&mut self, state: SaName, highest: u64) {
        if highest == 0 {
            self.forget(state);
            return;
        }
        self.tickets += 1;
        self.put(state, Number { highest, begun: 0, gone: Some(self.tickets) });
        self.gone.push_back((state, self.tickets));
        while self.gone.len() > self.remembered {
            let Some((oldest, ticket)) = self.gone.pop_front() else { return };
            // It may have come back meanwhile, or come and gone.
            if self.states.get(&oldest).is_some_and(|number| number.gone == Some(ticket)) {
                self.forget(oldest);
            }
        }
    }

    fn put(&mut self, state: SaName, number: Number) {
        let before = self.states.insert(state, number);
        if before.is_none() {
            *self.keys.entry(state.key()).or_default() += 1;
        }
        self.return_unused(state, before);
        if number.gone.is_some() {
            self.spent.insert((state.key(), number.highest, state));
        }
    }

    fn forget(&mut self, state: SaName) {
        let before = self.states.remove(&state);
        if before.is_some()
            && let Some(count) = self.keys.get_mut(&state.key())
        {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&state.key());
            }
        }
        self.return_unused(state, before);
    }

    fn return_unused(&mut self, state: SaName, before: Option<Number>) {
        if let Some(Number { highest, gone: Some(_), .. }) = before {
            self.spent.remove(&(state.key(), highest, state));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A name among few, so that they come again and share keys.
    fn name(key: u32, spi: u32) -> SaName {
        format!("{key:032x} 10.0.0.1 {spi:#010x} 0x0/0x0").parse().unwrap()
    }

    proptest! {
        /// Beside a list of what happened, newest last.
        #[test]
        fn sent_numbers_keep_highest_of_key(
            happened in prop::collection::vec((0_u32..3, 0_u32..4, 0_u64..50, any::<bool>()), 0..60),
            remembered in 1_usize..8,
        ) {
            let mut numbers = SentNumbers::remembering(remembered);
            for (count, (key, spi, highest, goes)) in happened.iter().enumerate() {
                let state = name(*key, *spi);
                if *goes { numbers.remember(state, *highest) } else { numbers.reserve(state, *highest, 0) }
                let gone = kept(&happened[..=count], remembered);
                for key in 0..3 {
                    let used = gone.iter().filter(|gone| gone.0 == key).map(|gone| gone.2).max();
                    prop_assert_eq!(numbers.used_with_key_of(name(key, 9)), used.unwrap_or(0));
                }
                prop_assert_eq!(numbers.spent.len(), gone.len());
            }
        }
    }

    /// The states that are gone and remembered, from everything that happened: of all that went and
    /// had sent something the latest, of those whose last word that is.
    fn kept(happened: &[(u32, u32, u64, bool)], remembered: usize) -> Vec<(u32, u32, u64)> {
        let went = |at: &usize| happened[*at].3 && happened[*at].2 > 0;
        let all: Vec<_> = (0..happened.len()).filter(went).collect();
        let is_last = |at: &usize| {
            let (key, spi, ..) = happened[*at];
            !happened[at + 1..].iter().any(|(k, s, ..)| (*k, *s) == (key, spi))
        };
        let latest = all.iter().rev().take(remembered).copied();
        latest.filter(is_last).map(|at| (happened[at].0, happened[at].1, happened[at].2)).collect()
    }
}

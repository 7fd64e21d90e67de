//! Pairs of a sub policy and the main policy behind it, by number.

use std::collections::HashMap;
use std::sync::Arc;

use crate::PolicyEntry;

/// A sub policy, and the main policy behind it.
pub(super) type SubMainPair = [Arc<PolicyEntry>; 2];

/// Pairs that packets matched.
#[derive(Debug, Default)]
pub(super) struct SubMainPairs {
    pairs: Vec<Option<SubMainPair>>,
    /// By the memory addresses of both.
    numbers: HashMap<[usize; 2], u32, foldhash::fast::RandomState>,
    /// Unused numbers.
    free: Vec<u32>,
    /// Number at which the release stopped.
    next: usize,
}

impl SubMainPairs {
    #[inline]
    pub(super) fn find(&self, number: u32) -> Option<&SubMainPair> {
        self.pairs.get(number as usize)?.as_ref()
    }

    /// Number of pairs.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Number of a pair, below `most`.
    pub(super) fn number(&mut self, pair: [&Arc<PolicyEntry>; 2], most: u32) -> u32 {
        let Self { pairs, numbers, free, .. } = self;
        *numbers.entry(addresses(pair)).or_insert_with(|| {
            let number = free.pop().unwrap_or_else(|| {
                pairs.push(None);
                u32::try_from(pairs.len() - 1).unwrap_or(most).min(most)
            });
            pairs[number as usize] = Some(pair.map(Arc::clone));
            number
        })
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Scans some pairs, continuing where it stopped, and releases those that are not kept. No
    /// cached flow may refer to these.
    pub(super) fn release_stale(&mut self, some: usize, keep: impl Fn(&SubMainPair) -> bool) {
        for _ in 0..self.pairs.len().min(some) {
            self.next = (self.next + 1) % self.pairs.len();
            if let Some(gone) = self.pairs[self.next].take_if(|pair| !keep(pair)) {
                self.numbers.remove(&addresses(gone.each_ref()));
                self.free.push(u32::try_from(self.next).unwrap_or(u32::MAX));
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        let number = size_of::<[usize; 2]>() + size_of::<u32>();
        self.pairs.capacity() * size_of::<Option<SubMainPair>>()
            + self.numbers.capacity() * number
            + self.free.capacity() * size_of::<u32>()
    }
}

fn addresses(pair: [&Arc<PolicyEntry>; 2]) -> [usize; 2] {
    pair.map(|one| Arc::as_ptr(one).addr())
}

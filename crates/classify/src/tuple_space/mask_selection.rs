//! Selects the masks of a tuple space greedily: each time the one whose tuple costs keys least
//! per rule taken.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::prefix_lengths::{FIELDS, PrefixLengths};
use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::rule::{MatchRule, Rank, Rule};

/// Assumed costs, in tenths of a cycle. Higher costs of large buckets yield finer tuples, and more
/// of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TupleCosts {
    /// Probing a tuple.
    pub(crate) tuple: usize,
    /// Comparing up to 8, 16 and 64 rules, and more.
    pub(crate) buckets: [usize; 4],
}

/// A mask, and the number of rules left after it.
pub(crate) type SelectedMask<W> = (W, usize);

/// Upper limit of tuples: each is probed by every key.
const MAX_TUPLES: usize = 12;
const _: () = assert!(MAX_TUPLES <= crate::prefilter_table::MAX_TABLES, "all tiers are asked");
/// Stop when this few rules are left.
const RESIDUE: usize = 512;
/// Prefix lengths tried per address, and lengths per port or protocol.
const ADDRESS_LENGTHS: usize = 7;
const PORT_LENGTHS: usize = 3;
/// Sample sizes: of rules; and of rules for the choice of lengths and the share of a mask.
const SAMPLE: usize = 32_768;
const LENGTHS: usize = 2048;
/// A tuple takes at least one in this many of the remaining rules.
const MIN_SHARE: usize = 12;

/// A sample of the remaining rules, one in `step`.
struct Remaining<'a, 'k, W: Words, E: Entry> {
    rules: Vec<&'a Rule<W, E>>,
    step: usize,
    /// Keys, with the rank of the rule that each finds.
    sampled: &'k [(W, Rank)],
}

/// Selects masks for rules matched by these keys.
pub(crate) fn select_masks<W: Words, E: Entry>(
    rules: &[&Rule<W, E>],
    keys: &[Key<W>],
    costs: TupleCosts,
) -> Vec<SelectedMask<W>> {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let rules: Vec<&Rule<W, E>> = rules.iter().copied().step_by(step).collect();
    let first = |key: &Key<W>| {
        let fits = rules.iter().filter(|rule| rule.fits(&key.words));
        fits.map(|rule| rule.rank()).min().unwrap_or(Rank::LAST)
    };
    let sampled: Vec<_> = keys.iter().map(|key| (key.words, first(key))).collect();
    let mut remaining = Remaining { rules, step, sampled: &sampled };
    let mut selected = Vec::new();
    while remaining.rules.len() * step > RESIDUE && selected.len() < MAX_TUPLES {
        let Some(mask) = remaining.best_mask(costs) else { break };
        remaining.rules.retain(|rule| rule.mask.masked(&mask) != mask);
        selected.push((mask, remaining.rules.len() * step));
    }
    selected
}

impl<W: Words, E: Entry> Remaining<'_, '_, W, E> {
    /// The mask with the least cost per rule taken.
    fn best_mask(&self, costs: TupleCosts) -> Option<W> {
        let mut kinds = HashMap::<W, usize, RandomState>::default();
        let each = self.rules.len().div_ceil(LENGTHS).max(1);
        for rule in self.rules.iter().step_by(each) {
            *kinds.entry(rule.mask.masked(&W::SIGNIFICANT)).or_default() += each;
        }
        let kinds: Vec<_> = kinds.into_iter().collect();
        let price = |mask: &W| {
            let taken = kinds.iter().filter(|(kind, _)| kind.masked(mask) == *mask);
            let taken = taken.map(|(_, count)| count).sum::<usize>();
            let cost = || costs.tuple * self.sampled.len() + self.cost(mask, costs);
            (taken * MIN_SHARE > self.rules.len()).then(|| cost() * 1000 / taken)
        };
        let priced = self.masks().into_iter().filter_map(|mask| Some((price(&mask)?, mask)));
        priced.min_by_key(|(price, _)| *price).map(|(_, mask)| mask)
    }

    /// Cost for keys of the buckets of a tuple that they visit.
    fn cost(&self, mask: &W, costs: TupleCosts) -> usize {
        let buckets = self.sampled.iter().map(|(words, _)| (words.masked(mask), (0, Rank::LAST)));
        let mut buckets: HashMap<W, (usize, Rank), RandomState> = buckets.collect();
        for rule in self.rules.iter().filter(|rule| rule.mask.masked(mask) == *mask) {
            if let Some((count, first)) = buckets.get_mut(&rule.value.masked(mask)) {
                *count += self.step;
                *first = rule.rank().min(*first);
            }
        }
        let paid = |(words, found): &(W, Rank)| match buckets.get(&words.masked(mask)) {
            Some((count, first)) if *count > 0 && first <= found => costs.of(*count),
            Some(_) | None => 0,
        };
        self.sampled.iter().map(paid).sum()
    }

    /// Candidate masks, by lengths that occur in each field.
    fn masks(&self) -> Vec<W> {
        let some = self.rules.iter().step_by(self.rules.len().div_ceil(LENGTHS).max(1));
        let lengths: Vec<_> = some.map(|rule| PrefixLengths::of(&rule.mask)).collect();
        let mut masks = vec![PrefixLengths::default()];
        for field in 0..FIELDS {
            let these = length_candidates(&lengths, field);
            let with =
                |mask: PrefixLengths| these.iter().map(move |length| mask.with(field, *length));
            masks = masks.into_iter().flat_map(with).collect();
        }
        masks.retain(|mask| *mask != PrefixLengths::default());
        masks.into_iter().map(PrefixLengths::mask).collect()
    }
}

impl TupleCosts {
    /// Cost of comparing `rules`.
    const fn of(self, rules: usize) -> usize {
        let Self { buckets: [few, some, more, many], .. } = self;
        match rules {
            0..=8 => few,
            9..=16 => some,
            17..=64 => more,
            _ => many + 120 * (rules / 64).ilog2() as usize,
        }
    }
}

/// Zero, and quantiles of the lengths that occur.
fn length_candidates(lengths: &[PrefixLengths], field: usize) -> Vec<u32> {
    let mut all: Vec<_> = lengths.iter().map(|lengths| lengths.0[field]).collect();
    all.sort_unstable();
    let count = if field < 2 { ADDRESS_LENGTHS } else { PORT_LENGTHS };
    let quantiles =
        (0..=count).filter_map(|at| all.get(all.len() * at / count).or_else(|| all.last()));
    let mut some: Vec<_> = quantiles.copied().chain([0]).collect();
    some.sort_unstable();
    some.dedup();
    some
}

//! Which masks make a good sieve: one after the other, each time the one whose tier costs packets least for each policy that it takes.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::prefix_lengths::{FIELDS, PrefixLengths};
use crate::spd::classifier::rule::{MatchRule, Rank, Rule};
use crate::spd::classifier::ternary::{KeyWords, PacketKey};

/// Tenths of a cycle that a tier is thought to cost: more for each look at many policies makes finer tiers, and more of them.
#[derive(Clone, Copy, Debug)]
pub(in crate::spd::classifier) struct TupleCosts {
    /// Of asking a tier.
    pub(in crate::spd::classifier) tuple: usize,
    /// Of comparing up to 8, 16 and 64 policies, and more.
    pub(in crate::spd::classifier) buckets: [usize; 4],
}

/// A mask, and how many policies are left behind its tier.
pub(in crate::spd::classifier) type SelectedMask<W> = (W, usize);

/// No more tiers: asking them takes time.
const MAX_TUPLES: usize = 12;
const _: () = assert!(MAX_TUPLES <= uxfrm_packet::MAX_TABLES, "all tiers are asked");
/// So few are left for the end.
const RESIDUE: usize = 512;
/// So many different lengths of an address are tried, and of a port or the protocol.
const ADDRESS_LENGTHS: usize = 7;
const PORT_LENGTHS: usize = 3;
/// Of a larger set so many are looked at; and so many for which lengths there are, and how many a mask takes.
const SAMPLE: usize = 32_768;
const LENGTHS: usize = 2048;
/// A tier takes no smaller part of what is left.
const MIN_SHARE: usize = 12;

/// A sample of rules that are left, of each `step` of which there is one.
struct Remaining<'a, 'k, W: KeyWords> {
    rules: Vec<&'a Rule<W>>,
    step: usize,
    /// What packets are, and the rank of the policy that each finds.
    packets: &'k [(W, Rank)],
}

/// The masks of tiers for rules that such packets meet.
pub(in crate::spd::classifier) fn select_masks<W: KeyWords>(
    rules: &[&Rule<W>],
    keys: &[PacketKey<W>],
    costs: TupleCosts,
) -> Vec<SelectedMask<W>> {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let rules: Vec<&Rule<W>> = rules.iter().copied().step_by(step).collect();
    let first = |key: &PacketKey<W>| {
        let fits = rules.iter().filter(|rule| rule.fits(&key.words));
        fits.map(|rule| rule.rank()).min().unwrap_or(Rank::LAST)
    };
    let packets: Vec<_> = keys.iter().map(|key| (key.words, first(key))).collect();
    let mut remaining = Remaining { rules, step, packets: &packets };
    let mut selected = Vec::new();
    while remaining.rules.len() * step > RESIDUE && selected.len() < MAX_TUPLES {
        let Some(mask) = remaining.best_mask(costs) else { break };
        remaining.rules.retain(|rule| rule.mask.masked(&mask) != mask);
        selected.push((mask, remaining.rules.len() * step));
    }
    selected
}

impl<W: KeyWords> Remaining<'_, '_, W> {
    /// The mask that costs least for each policy that it takes.
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
            let cost = || costs.tuple * self.packets.len() + self.cost(mask, costs);
            (taken * MIN_SHARE > self.rules.len()).then(|| cost() * 1000 / taken)
        };
        let priced = self.masks().into_iter().filter_map(|mask| Some((price(&mask)?, mask)));
        priced.min_by_key(|(price, _)| *price).map(|(_, mask)| mask)
    }

    /// What packets pay for the parts of a tier that they look at.
    fn cost(&self, mask: &W, costs: TupleCosts) -> usize {
        let buckets = self.packets.iter().map(|(words, _)| (words.masked(mask), (0, Rank::LAST)));
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
        self.packets.iter().map(paid).sum()
    }

    /// What masks may be worth it: by lengths that policies have in each field.
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
    /// Of comparing so many.
    const fn of(self, policies: usize) -> usize {
        let Self { buckets: [few, some, more, many], .. } = self;
        match policies {
            0..=8 => few,
            9..=16 => some,
            17..=64 => more,
            _ => many + 120 * (policies / 64).ilog2() as usize,
        }
    }
}

/// None, and some of those that there are, each for as many.
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

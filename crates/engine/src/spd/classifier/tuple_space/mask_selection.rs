//! Which masks make a good sieve: one after the other, each time the one whose tier costs packets least for each policy that it takes.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::prefix_lengths::{FIELDS, Lengths};
use crate::spd::classifier::rule::{Comparable, Rank, Rule};
use crate::spd::classifier::ternary::{Key, Words};

/// Tenths of a cycle that a tier is thought to cost: more for each look at many policies makes finer tiers, and more of them.
#[derive(Clone, Copy, Debug)]
pub(in crate::spd::classifier) struct Prices {
    /// Of asking a tier.
    pub(in crate::spd::classifier) tier: usize,
    /// Of comparing up to 8, 16 and 64 policies, and more.
    pub(in crate::spd::classifier) parts: [usize; 4],
}

/// A mask, and how many policies are left behind its tier.
pub(in crate::spd::classifier) type Drafted<W> = (W, usize);

/// No more tiers: asking them takes time.
const TIERS: usize = 12;
const _: () = assert!(TIERS <= uxfrm_packet::TABLES, "all tiers are asked");
/// So few are left for the end.
const FEW: usize = 512;
/// So many different lengths of an address are tried, and of a port or the protocol.
const ADDRESS: usize = 7;
const SHORT: usize = 3;
/// Of a larger set so many are looked at; and so many for which lengths there are, and how many a mask takes.
const SAMPLE: usize = 32_768;
const LENGTHS: usize = 2048;
/// A tier takes no smaller part of what is left.
const SHARE: usize = 12;

/// A sample of rules that are left, of each `step` of which there is one.
struct Left<'a, 'k, W: Words> {
    rules: Vec<&'a Rule<W>>,
    step: usize,
    /// What packets are, and the rank of the policy that each finds.
    packets: &'k [(W, Rank)],
}

/// The masks of tiers for rules that such packets meet.
pub(in crate::spd::classifier) fn draft<W: Words>(
    rules: &[&Rule<W>],
    keys: &[Key<W>],
    prices: Prices,
) -> Vec<Drafted<W>> {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let rules: Vec<&Rule<W>> = rules.iter().copied().step_by(step).collect();
    let first = |key: &Key<W>| {
        let fits = rules.iter().filter(|rule| rule.fits(&key.words));
        fits.map(|rule| rule.rank()).min().unwrap_or(Rank::LAST)
    };
    let packets: Vec<_> = keys.iter().map(|key| (key.words, first(key))).collect();
    let mut left = Left { rules, step, packets: &packets };
    let mut drafted = Vec::new();
    while left.rules.len() * step > FEW && drafted.len() < TIERS {
        let Some(mask) = left.cheapest(prices) else { break };
        left.rules.retain(|rule| rule.mask.under(&mask) != mask);
        drafted.push((mask, left.rules.len() * step));
    }
    drafted
}

impl<W: Words> Left<'_, '_, W> {
    /// The mask that costs least for each policy that it takes.
    fn cheapest(&self, prices: Prices) -> Option<W> {
        let mut kinds = HashMap::<W, usize, RandomState>::default();
        let each = self.rules.len().div_ceil(LENGTHS).max(1);
        for rule in self.rules.iter().step_by(each) {
            *kinds.entry(rule.mask.under(&W::COUNTING)).or_default() += each;
        }
        let kinds: Vec<_> = kinds.into_iter().collect();
        let price = |mask: &W| {
            let taken = kinds.iter().filter(|(kind, _)| kind.under(mask) == *mask);
            let taken = taken.map(|(_, count)| count).sum::<usize>();
            let cost = || prices.tier * self.packets.len() + self.cost(mask, prices);
            (taken * SHARE > self.rules.len()).then(|| cost() * 1000 / taken)
        };
        let priced = self.masks().into_iter().filter_map(|mask| Some((price(&mask)?, mask)));
        priced.min_by_key(|(price, _)| *price).map(|(_, mask)| mask)
    }

    /// What packets pay for the parts of a tier that they look at.
    fn cost(&self, mask: &W, prices: Prices) -> usize {
        let parts = self.packets.iter().map(|(words, _)| (words.under(mask), (0, Rank::LAST)));
        let mut parts: HashMap<W, (usize, Rank), RandomState> = parts.collect();
        for rule in self.rules.iter().filter(|rule| rule.mask.under(mask) == *mask) {
            if let Some((count, first)) = parts.get_mut(&rule.value.under(mask)) {
                *count += self.step;
                *first = rule.rank().min(*first);
            }
        }
        let paid = |(words, found): &(W, Rank)| match parts.get(&words.under(mask)) {
            Some((count, first)) if *count > 0 && first <= found => prices.of(*count),
            Some(_) | None => 0,
        };
        self.packets.iter().map(paid).sum()
    }

    /// What masks may be worth it: by lengths that policies have in each field.
    fn masks(&self) -> Vec<W> {
        let some = self.rules.iter().step_by(self.rules.len().div_ceil(LENGTHS).max(1));
        let lengths: Vec<_> = some.map(|rule| Lengths::of(&rule.mask)).collect();
        let mut masks = vec![Lengths::default()];
        for field in 0..FIELDS {
            let these = lengths_of(&lengths, field);
            let with = |mask: Lengths| these.iter().map(move |length| mask.with(field, *length));
            masks = masks.into_iter().flat_map(with).collect();
        }
        masks.retain(|mask| *mask != Lengths::default());
        masks.into_iter().map(Lengths::mask).collect()
    }
}

impl Prices {
    /// Of comparing so many.
    const fn of(self, policies: usize) -> usize {
        let Self { parts: [few, some, more, many], .. } = self;
        match policies {
            0..=8 => few,
            9..=16 => some,
            17..=64 => more,
            _ => many + 120 * (policies / 64).ilog2() as usize,
        }
    }
}

/// None, and some of those that there are, each for as many.
fn lengths_of(lengths: &[Lengths], field: usize) -> Vec<u32> {
    let mut all: Vec<_> = lengths.iter().map(|lengths| lengths.0[field]).collect();
    all.sort_unstable();
    let count = if field < 2 { ADDRESS } else { SHORT };
    let quantiles =
        (0..=count).filter_map(|at| all.get(all.len() * at / count).or_else(|| all.last()));
    let mut some: Vec<_> = quantiles.copied().chain([0]).collect();
    some.sort_unstable();
    some.dedup();
    some
}

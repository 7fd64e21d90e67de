//! Some tens of policies, compared eight at a time.

use std::sync::Arc;

use uxfrm_packet::Lanes;

use super::rule::{Best, Brief, Rank, Rule, fits_more};
use super::ternary::{Key, NOTHING, Words};
use crate::PolicyEntry;

/// Policies in their order; those of the last eight that are none stand at the end.
pub(crate) type Several<W> = Arc<[<W as Words>::Eight]>;

/// Up to eight policies, of `N` words.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Eight<const N: usize> {
    lanes: Lanes<N>,
    entries: [Option<Arc<PolicyEntry>>; 8],
}

/// What words of either family do with eights of theirs.
pub(crate) trait EightOf<W>: Clone + std::fmt::Debug + Send + Sync {
    /// Of as many rules at the most.
    fn of(rules: &[Rule<W>]) -> Self;
    /// Which of the policies of up to eight eights fit.
    fn fitting(eights: &[Self], words: &W) -> u64;
    /// The same, for many packets beside their eights, in as many `fits` as there are.
    fn fitting_each<'a>(pairs: impl Iterator<Item = (&'a [Self], &'a W)>, fits: &mut [u64])
    where
        W: 'a,
        Self: 'a;
    /// The policy in a lane, with its rank and brief.
    fn policy(&self, lane: usize) -> Option<(Rank, Brief, &Arc<PolicyEntry>)>;
    /// All rules.
    fn rules(&self) -> impl Iterator<Item = Rule<W>>;
}

/// The most.
pub(crate) const MOST: usize = 64;

/// Of rules in their order, [`MOST`] of them at the most.
pub(crate) fn several<W: Words>(rules: &[Rule<W>]) -> Several<W> {
    rules.chunks(8).map(W::Eight::of).collect()
}

/// How many there are.
pub(crate) fn count<W: Words>(several: &[W::Eight]) -> usize {
    several.iter().map(|eight| (0..8).filter(|lane| eight.policy(*lane).is_some()).count()).sum()
}

/// Shows each policy in order.
pub(crate) fn each<'a, W: Words>(
    several: &'a [W::Eight],
    visit: &mut impl FnMut(&'a Arc<PolicyEntry>),
) {
    for eight in several {
        let entry = |lane| eight.policy(lane).map(|(_, _, entry)| entry);
        (0..8).filter_map(entry).for_each(&mut *visit);
    }
}

/// Considers the first that fits.
#[inline(always)]
pub(crate) fn find<'a, W: Words>(several: &'a [W::Eight], key: &Key<W>, best: &mut Best<'a>) {
    consider(several, W::Eight::fitting(several, &key.words), key, best);
}

/// Considers the first of those whose words fit, which are bits. Whether there is any is no branch.
#[inline(always)]
pub(crate) fn consider<'a, W: Words>(
    several: &'a [W::Eight],
    mut fits: u64,
    key: &Key<W>,
    best: &mut Best<'a>,
) {
    loop {
        let at = if fits == 0 { 0 } else { fits.trailing_zeros() as usize };
        let policy = several.get(at / 8).and_then(|eight| eight.policy(at % 8));
        let Some((rank, brief, entry)) = policy else { return };
        if !brief.asks_more() || fits == 0 || fits_more(entry, key) {
            return best.consider(rank.unless(fits == 0), brief, entry);
        }
        fits &= fits - 1;
    }
}

impl<const N: usize> AsRef<Lanes<N>> for Eight<N> {
    #[inline]
    fn as_ref(&self) -> &Lanes<N> {
        &self.lanes
    }
}

impl<const N: usize> EightOf<[u64; N]> for Eight<N>
where
    [u64; N]: Words,
{
    fn of(rules: &[Rule<[u64; N]>]) -> Self {
        let rule = |lane: usize| rules.get(lane);
        // Where there is none nothing is told from it either, which does no harm behind all others.
        let words = |of: fn(&Rule<[u64; N]>) -> &[u64; N]| {
            std::array::from_fn(|word| {
                std::array::from_fn(|lane| rule(lane).map_or(u64::MAX, |rule| of(rule)[word]))
            })
        };
        Self {
            lanes: Lanes { values: words(|rule| &rule.value), masks: words(|rule| &rule.mask) },
            entries: std::array::from_fn(|lane| rule(lane).map(|rule| Arc::clone(&rule.entry))),
        }
    }

    #[inline]
    fn fitting(eights: &[Self], words: &[u64; N]) -> u64 {
        uxfrm_packet::fitting(eights, words, !NOTHING)
    }

    #[inline]
    fn fitting_each<'a>(pairs: impl Iterator<Item = (&'a [Self], &'a [u64; N])>, fits: &mut [u64]) {
        uxfrm_packet::fitting_each(pairs, !NOTHING, fits);
    }

    #[inline]
    fn policy(&self, lane: usize) -> Option<(Rank, Brief, &Arc<PolicyEntry>)> {
        let entry = self.entries[lane % 8].as_ref()?;
        let (value, mask) = (self.lanes.values[N - 1][lane % 8], self.lanes.masks[N - 1][lane % 8]);
        Some((Rank::beside(value), Brief::beside(mask), entry))
    }

    fn rules(&self) -> impl Iterator<Item = Rule<[u64; N]>> {
        let Lanes { values, masks } = &self.lanes;
        let words = |of: &[[u64; 8]; N], lane: usize| of.map(|word| word[lane]);
        let rule = move |(lane, entry): (usize, &Option<Arc<PolicyEntry>>)| {
            let entry = Arc::clone(entry.as_ref()?);
            Some(Rule { value: words(values, lane), mask: words(masks, lane), entry })
        };
        self.entries.iter().enumerate().filter_map(rule)
    }
}

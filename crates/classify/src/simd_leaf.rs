//! SIMD comparison of up to 64 rules, eight at a time.

use std::sync::Arc;

use crate::entry::Entry;
use crate::key::{Key, UNUSED_BITS, Words};
use crate::rule::{Best, Rank, Rule, TagBits, fits_extra};
use crate::simd_ternary::SimdTernary8;

/// Rules in match order; unused lanes are at the end.
pub(crate) type SimdLeaf<W, E> = Arc<[<W as Words>::RuleBlock8<E>]>;

/// Up to eight rules of `N` words.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct RuleBlock8<const N: usize, E> {
    simd: SimdTernary8<N>,
    entries: [Option<E>; 8],
}

/// Operations on blocks of eight, for both families.
pub(crate) trait RuleBlock<W, E>: Clone + std::fmt::Debug + Send + Sync {
    /// Builds a block of at most eight rules.
    fn of(rules: &[Rule<W, E>]) -> Self;
    /// Which rules of up to eight blocks match, as bits.
    fn fitting(blocks: &[Self], words: &W) -> u64;
    /// [`RuleBlock::fitting`] for many keys, each with its own blocks.
    fn fitting_each<'a>(pairs: impl Iterator<Item = (&'a [Self], &'a W)>, fits: &mut [u64])
    where
        W: 'a,
        Self: 'a;
    /// The rule of a lane, with rank and tag bits.
    fn rule(&self, lane: usize) -> Option<(Rank, TagBits, &E)>;
    /// All rules.
    fn rules(&self) -> impl Iterator<Item = Rule<W, E>>;
}

/// Upper limit of rules in a leaf.
pub(crate) const MAX_RULES: usize = 64;

/// Builds a leaf of at most [`MAX_RULES`] rules in match order.
pub(crate) fn build<W: Words, E: Entry>(rules: &[Rule<W, E>]) -> SimdLeaf<W, E> {
    rules.chunks(8).map(W::RuleBlock8::<E>::of).collect()
}

/// Number of rules.
pub(crate) fn count<W: Words, E: Entry>(leaf: &[W::RuleBlock8<E>]) -> usize {
    leaf.iter().map(|block8| (0..8).filter(|lane| block8.rule(*lane).is_some()).count()).sum()
}

/// Visits all rules in order.
pub(crate) fn each<'a, W: Words, E: Entry>(
    leaf: &'a [W::RuleBlock8<E>],
    visit: &mut impl FnMut(&'a E),
) {
    for block8 in leaf {
        let entry = |lane| block8.rule(lane).map(|(_, _, entry)| entry);
        (0..8).filter_map(entry).for_each(&mut *visit);
    }
}

/// Offers the first match.
#[inline(always)]
pub(crate) fn find<'a, W: Words, E: Entry>(
    leaf: &'a [W::RuleBlock8<E>],
    key: &Key<W>,
    best: &mut Best<'a, E>,
) {
    consider(leaf, W::RuleBlock8::<E>::fitting(leaf, &key.words), key, best);
}

/// Offers the first match among `fits` (bits). Branch-free over whether there is any.
#[inline(always)]
pub(crate) fn consider<'a, W: Words, E: Entry>(
    leaf: &'a [W::RuleBlock8<E>],
    mut fits: u64,
    key: &Key<W>,
    best: &mut Best<'a, E>,
) {
    loop {
        let at = if fits == 0 { 0 } else { fits.trailing_zeros() as usize };
        let rule = leaf.get(at / 8).and_then(|block8| block8.rule(at % 8));
        let Some((rank, tag_bits, entry)) = rule else { return };
        if !tag_bits.has_extra() || fits == 0 || fits_extra(entry, key) {
            return best.consider(rank.or_last_if(fits == 0), tag_bits, entry);
        }
        fits &= fits - 1;
    }
}

impl<const N: usize, E> AsRef<SimdTernary8<N>> for RuleBlock8<N, E> {
    #[inline]
    fn as_ref(&self) -> &SimdTernary8<N> {
        &self.simd
    }
}

impl<const N: usize, E: Entry> RuleBlock<[u64; N], E> for RuleBlock8<N, E>
where
    [u64; N]: Words,
{
    fn of(rules: &[Rule<[u64; N], E>]) -> Self {
        let rule = |lane: usize| rules.get(lane);
        // Unused lanes match nothing a rule would not, and come last.
        let words = |of: fn(&Rule<[u64; N], E>) -> &[u64; N]| {
            std::array::from_fn(|word| {
                std::array::from_fn(|lane| rule(lane).map_or(u64::MAX, |rule| of(rule)[word]))
            })
        };
        Self {
            simd: SimdTernary8 {
                values: words(|rule| &rule.value),
                masks: words(|rule| &rule.mask),
            },
            entries: std::array::from_fn(|lane| rule(lane).map(|rule| rule.entry.clone())),
        }
    }

    #[inline]
    fn fitting(blocks: &[Self], words: &[u64; N]) -> u64 {
        crate::simd_ternary::match_lanes(blocks, words, !UNUSED_BITS)
    }

    #[inline]
    fn fitting_each<'a>(pairs: impl Iterator<Item = (&'a [Self], &'a [u64; N])>, fits: &mut [u64]) {
        crate::simd_ternary::match_lanes_batch(pairs, !UNUSED_BITS, fits);
    }

    #[inline]
    fn rule(&self, lane: usize) -> Option<(Rank, TagBits, &E)> {
        let entry = self.entries[lane % 8].as_ref()?;
        let (value, mask) = (self.simd.values[N - 1][lane % 8], self.simd.masks[N - 1][lane % 8]);
        Some((Rank::from_value_word(value), TagBits::from_mask_word(mask), entry))
    }

    fn rules(&self) -> impl Iterator<Item = Rule<[u64; N], E>> {
        let SimdTernary8 { values, masks } = &self.simd;
        let words = |of: &[[u64; 8]; N], lane: usize| of.map(|word| word[lane]);
        let rule = move |(lane, entry): (usize, &Option<E>)| {
            let entry = entry.clone()?;
            Some(Rule { value: words(values, lane), mask: words(masks, lane), entry })
        };
        self.entries.iter().enumerate().filter_map(rule)
    }
}

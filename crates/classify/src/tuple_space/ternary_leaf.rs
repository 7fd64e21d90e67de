//! Up to eight rules in match order, compared at once and stored without padding.

use std::sync::Arc;

use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::rule::{Best, Rank, Rule, TagBits, fits_extra};
use crate::ternary_block::{BLOCK_LANES, TernaryBlock};

/// Up to [`BLOCK_LANES`] rules.
#[derive(Clone, Debug)]
pub(crate) struct TernaryLeaf<E> {
    /// Values of each word, then masks of each word.
    words: Arc<[u64]>,
    entries: Arc<[E]>,
}

impl<E> Default for TernaryLeaf<E> {
    fn default() -> Self {
        Self { words: Arc::default(), entries: Arc::default() }
    }
}

/// Cache lines that are prefetched; leaves are rarely longer.
const LINES: usize = 5;

impl<E: Entry> TernaryLeaf<E> {
    /// Builds it of rules in match order; `None` if they are too many.
    pub(super) fn of<W: Words>(rules: &[&Rule<W, E>]) -> Option<Self> {
        if rules.len() > BLOCK_LANES {
            return None;
        }
        let all = |of: fn(&Rule<W, E>) -> W| {
            (0..W::COUNT).flat_map(move |word| rules.iter().map(move |rule| of(rule).word(word)))
        };
        let words = all(|rule| rule.value).chain(all(|rule| rule.mask)).collect();
        let entries = rules.iter().map(|rule| rule.entry.clone()).collect();
        Some(Self { words, entries })
    }

    /// The rules.
    pub(crate) fn entries(&self) -> &[E] {
        &self.entries
    }

    /// Offers the first match.
    pub(super) fn find<'a, W: Words>(&'a self, key: &Key<W>, best: &mut Best<'a, E>) {
        let mut fits = [0];
        W::match_blocks([(self.block(), &key.words)].into_iter(), &mut fits);
        self.consider(fits[0], key, best);
    }

    /// Prefetches the words.
    #[inline]
    pub(crate) fn prefetch(&self) {
        uxfrm_packet::prefetch_first(&self.words, LINES);
    }

    /// The block that keys are compared with.
    #[inline]
    pub(crate) fn block(&self) -> TernaryBlock<'_> {
        TernaryBlock { words: &self.words, lanes: self.entries.len() }
    }

    /// Offers the first match among `fits` (bits). Branch-free over whether there is any.
    #[inline]
    pub(crate) fn consider<'a, W: Words>(
        &'a self,
        mut fits: u8,
        key: &Key<W>,
        best: &mut Best<'a, E>,
    ) {
        let lanes = self.entries.len();
        loop {
            let lane = if fits == 0 { 0 } else { fits.trailing_zeros() as usize };
            let value = self.words.get((W::COUNT - 1) * lanes + lane);
            let mask = self.words.get((2 * W::COUNT - 1) * lanes + lane);
            let entry = self.entries.get(lane);
            let (Some(value), Some(mask), Some(entry)) = (value, mask, entry) else { return };
            let (rank, tag_bits) = (Rank::from_value_word(*value), TagBits::from_mask_word(*mask));
            if !tag_bits.has_extra() || fits == 0 || fits_extra(entry, key) {
                return best.consider(rank.or_last_if(fits == 0), tag_bits, entry);
            }
            fits &= fits - 1;
        }
    }

    pub(super) fn memory(&self) -> usize {
        /// Counts of an `Arc`, and the allocator's overhead.
        const EACH: usize = 16 + 8;
        if self.entries.is_empty() {
            return 0;
        }
        2 * EACH + size_of_val(&*self.words) + size_of_val(&*self.entries)
    }
}

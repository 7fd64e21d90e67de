//! Up to eight policies in match order, compared at once and stored without padding.

use std::sync::Arc;

use uxfrm_classify::{BLOCK_LANES, TernaryBlock};

use crate::PolicyEntry;
use crate::spd::classifier::rule::{Best, Rank, Rule, VerdictBits, fits_extra};
use crate::spd::classifier::ternary::{Key, Words};

/// Up to [`BLOCK_LANES`] policies.
#[derive(Clone, Debug, Default)]
pub(in crate::spd::classifier) struct TernaryLeaf {
    /// Values of each word, then masks of each word.
    words: Arc<[u64]>,
    entries: Arc<[Arc<PolicyEntry>]>,
}

/// Cache lines that are prefetched; leaves are rarely longer.
const LINES: usize = 5;

impl TernaryLeaf {
    /// Builds it of rules in match order; `None` if they are too many.
    pub(super) fn of<W: Words>(rules: &[&Rule<W>]) -> Option<Self> {
        if rules.len() > BLOCK_LANES {
            return None;
        }
        let all = |of: fn(&Rule<W>) -> W| {
            (0..W::COUNT).flat_map(move |word| rules.iter().map(move |rule| of(rule).word(word)))
        };
        let words = all(|rule| rule.value).chain(all(|rule| rule.mask)).collect();
        let entries = rules.iter().map(|rule| Arc::clone(&rule.entry)).collect();
        Some(Self { words, entries })
    }

    /// The policies.
    pub(in crate::spd::classifier) fn entries(&self) -> &[Arc<PolicyEntry>] {
        &self.entries
    }

    /// Offers the first match.
    pub(super) fn find<'a, W: Words>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let mut fits = [0];
        W::match_blocks([(self.block(), &key.words)].into_iter(), &mut fits);
        self.consider(fits[0], key, best);
    }

    /// Prefetches the words.
    #[inline]
    pub(in crate::spd::classifier) fn prefetch(&self) {
        uxfrm_packet::prefetch_first(&self.words, LINES);
    }

    /// The block that packets are compared with.
    #[inline]
    pub(in crate::spd::classifier) fn block(&self) -> TernaryBlock<'_> {
        TernaryBlock { words: &self.words, lanes: self.entries.len() }
    }

    /// Offers the first match among `fits` (bits). Branch-free over whether there is any.
    #[inline]
    pub(in crate::spd::classifier) fn consider<'a, W: Words>(
        &'a self,
        mut fits: u8,
        key: &Key<W>,
        best: &mut Best<'a>,
    ) {
        let lanes = self.entries.len();
        loop {
            let lane = if fits == 0 { 0 } else { fits.trailing_zeros() as usize };
            let value = self.words.get((W::COUNT - 1) * lanes + lane);
            let mask = self.words.get((2 * W::COUNT - 1) * lanes + lane);
            let entry = self.entries.get(lane);
            let (Some(value), Some(mask), Some(entry)) = (value, mask, entry) else { return };
            let (rank, verdict_bits) =
                (Rank::from_value_word(*value), VerdictBits::from_mask_word(*mask));
            if !verdict_bits.has_extra() || fits == 0 || fits_extra(entry, key) {
                return best.consider(rank.or_last_if(fits == 0), verdict_bits, entry);
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

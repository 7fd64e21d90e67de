//! Patricia trie look-up of many keys: all pass the root, then those not yet at a leaf pass further
//! forks, and finally all are compared with their leaves.

use core::arch::x86_64::{
    _mm_cmple_epu8_mask, _mm_loadu_si128, _mm_set1_epi8, _mm512_cmpge_epu16_mask,
    _mm512_loadu_si512, _mm512_set1_epi16, _pext_u64,
};

use crate::bitvector::field_rows::KEYS;
use crate::bitvector::field_rows::patricia::{Fork, PatriciaTrie};

impl PatriciaTrie {
    /// Finds and prefetches the leaf of each key.
    ///
    /// # Safety
    ///
    /// The processor has what [`has_avx512`](super::has_avx512) asks for, and keys have both words;
    /// there are [`KEYS`] keys at the most.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "loads through pointers")]
    pub(super) unsafe fn find_leaves_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        let forks = u16::try_from(self.leaves.len()).unwrap_or(u16::MAX);
        let forks = _mm512_set1_epi16(forks.cast_signed());
        // SAFETY: as this function's caller says; what is no leaf's number is a fork's, and no
        // key's that is not there.
        unsafe {
            self.step_root(keys, numbers);
            loop {
                let here = _mm512_loadu_si512(numbers.as_ptr().cast());
                let left = _mm512_cmpge_epu16_mask(here, forks);
                if left == 0 {
                    break;
                }
                self.step_forks(keys, left, numbers);
            }
        }
        for number in &numbers[..keys.len()] {
            // SAFETY: there is such a leaf.
            uxfrm_packet::prefetch(unsafe { self.leaves.get_unchecked(usize::from(*number)) });
        }
    }

    /// Passes the root, which all keys share.
    ///
    /// # Safety
    ///
    /// As of [`PatriciaTrie::find_leaves_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    #[expect(clippy::cast_possible_truncation, reason = "a fork has few bits")]
    unsafe fn step_root<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        let Some(Fork { mask, word, .. }) = self.forks.first().copied() else { return };
        let at = self.word + word as usize;
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have both words, and the root's ways, one for each value of its bits,
            // are the first.
            unsafe {
                let child = _pext_u64(*key.as_ref().get_unchecked(at), mask) as usize;
                *number = *self.children.get_unchecked(child);
            }
        }
    }

    /// Passes the forks that the keys in `left` (bits) have reached.
    ///
    /// # Safety
    ///
    /// As of [`PatriciaTrie::find_leaves_avx512`]; there are these keys, and forks of their
    /// numbers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    #[expect(clippy::cast_possible_truncation, reason = "a fork has few bits")]
    unsafe fn step_forks<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        mut left: u32,
        numbers: &mut [u16; KEYS],
    ) {
        let forks = self.forks.as_ptr().wrapping_sub(self.leaves.len());
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            // SAFETY: there is such a key, such a fork, and a way for each value of its bits; keys
            // have both words.
            unsafe {
                let number = numbers.get_unchecked_mut(at);
                let fork = &*forks.wrapping_add(usize::from(*number));
                let key = keys.get_unchecked(at).as_ref();
                let word = *key.get_unchecked(self.word + fork.word as usize);
                let child = fork.first as usize + _pext_u64(word, fork.mask) as usize;
                *number = *self.children.get_unchecked(child);
            }
        }
    }

    /// Turns leaves into rows.
    ///
    /// # Safety
    ///
    /// As of [`PatriciaTrie::find_leaves_avx512`], and there are leaves of these numbers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    pub(super) unsafe fn rows_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: there is such a leaf, and it has a row more than lengths that a value may
            // pass; keys have both words.
            unsafe {
                let leaf = self.leaves.get_unchecked(usize::from(*number));
                let words = key.as_ref().as_ptr().add(self.word);
                let high = (*words ^ leaf.value[0]).leading_zeros();
                let low = (*words.add(1) ^ leaf.value[1]).leading_zeros();
                // Branch-free: whether the first words are equal is unpredictable.
                let [equal, ..] = (high + (low & (high / u64::BITS).wrapping_neg())).to_le_bytes();
                let lengths = _mm_loadu_si128(leaf.lengths.as_ptr().cast());
                let passed = _mm_cmple_epu8_mask(lengths, _mm_set1_epi8(equal.cast_signed()));
                *number = *leaf.rows.get_unchecked(passed.count_ones() as usize);
            }
        }
    }
}

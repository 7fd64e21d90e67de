//! [`FieldRows`] look-up with AVX-512.

mod patricia;

use core::arch::x86_64::{
    _mm512_and_si512, _mm512_cmpge_epu32_mask, _mm512_loadu_si512, _mm512_set1_epi32,
};

use super::row_index::{
    DirectIndex, FANOUT, MAX_LEVELS, PAGE, Paged, RowIndex, SearchNode, SearchTree, SortedIndex,
};
use super::{BLOCK, FieldRows, KEYS, MAX_KEY_FIELDS, RowNumbers};
use crate::bitvector::{BitLine, first_bit};

/// Keys processed side by side, so that shared loads are done once.
const UNROLL: usize = 2;
/// Bits of a block.
const BITS: usize = BLOCK * BitLine::BITS;

/// Whether the CPU has the features that these functions are compiled for.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

impl FieldRows {
    /// # Safety
    ///
    /// The CPU has what [`has_avx512`] checks, `live` has a row, and `N` is at least
    /// `min_words`; there are at most [`KEYS`] keys, and no fewer `found`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    pub(super) unsafe fn chunk_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        let mut numbers: RowNumbers = [[0; KEYS]; MAX_KEY_FIELDS];
        for (field, numbers) in self.fields.iter().zip(&mut numbers) {
            // SAFETY: as this function's caller says.
            unsafe { field.lookup_avx512(keys, numbers) };
        }
        // The leaves were prefetched above.
        for (field, numbers) in self.fields.iter().zip(&mut numbers) {
            if let RowIndex::Trie(patricia) = field {
                // SAFETY: as this function's caller says; these are the leaves that keys have come
                // to.
                unsafe { patricia.rows_avx512(keys, numbers) };
            }
        }
        let count = keys.len();
        // SAFETY: as this function's caller says; rows have a block of so many lines.
        unsafe {
            match self.width {
                1 => self.batch_lines::<1>(&numbers, count, live, found),
                2 => self.batch_lines::<2>(&numbers, count, live, found),
                3 => self.batch_lines::<3>(&numbers, count, live, found),
                _ => self.batch_lines::<BLOCK>(&numbers, count, live, found),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`FieldRows::chunk_avx512`]; rows have `LINES` lines, or a multiple of them if
    /// `LINES` is [`BLOCK`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn batch_lines<const LINES: usize>(
        &self,
        numbers: &RowNumbers,
        count: usize,
        live: &[BitLine],
        found: &mut [u32],
    ) {
        for first in (0..count.next_multiple_of(UNROLL)).step_by(UNROLL) {
            // SAFETY: as this function's caller says; `KEYS` is a multiple of `UNROLL`.
            let bits = unsafe { self.and_lines::<LINES, UNROLL>(numbers, first, live, 0) };
            for (found, bit) in found[..count].iter_mut().skip(first).zip(bits) {
                *found = bit;
            }
        }
        for (key, found) in found[..count].iter_mut().enumerate() {
            for (block, first) in (0..self.width / LINES).zip((0..).step_by(BITS)).skip(1) {
                if *found < first {
                    break;
                }
                // SAFETY: as this function's caller says, and rows have this block.
                let [bit] = unsafe { self.and_lines::<LINES, 1>(numbers, key, live, block) };
                *found = first + bit;
            }
        }
    }

    /// Intersects one block for the keys from `key` on.
    ///
    /// # Safety
    ///
    /// As of [`FieldRows::batch_lines`], `numbers` has so many keys from there on, and rows have
    /// this block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "loads through pointers")]
    unsafe fn and_lines<const LINES: usize, const KEYS: usize>(
        &self,
        numbers: &RowNumbers,
        key: usize,
        live: &[BitLine],
        block: usize,
    ) -> [u32; KEYS] {
        // SAFETY: rows have this block, and `live` has a row.
        let load = |line: *const BitLine| unsafe {
            std::array::from_fn::<_, LINES, _>(|at| _mm512_loadu_si512(line.add(at).cast()))
        };
        let first = self.lines.as_ptr().wrapping_add(block * self.count * LINES);
        let mut all = [load(live.as_ptr().wrapping_add(block * LINES)); KEYS];
        for numbers in &numbers[..self.fields.len()] {
            for (all, row) in all.iter_mut().zip(&numbers[key..key + KEYS]) {
                let row = load(first.wrapping_add(usize::from(*row) * LINES));
                *all = std::array::from_fn(|line| _mm512_and_si512(all[line], row[line]));
            }
        }
        // SAFETY: this function is compiled for it.
        all.map(|lines| unsafe { first_bit(lines) })
    }
}

impl RowIndex {
    /// Finds the rows that keys select, or the leaves that lead to them.
    ///
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and keys have all words that are asked for;
    /// there are [`KEYS`] keys at the most.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    unsafe fn lookup_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        // SAFETY: as this function's caller says.
        unsafe {
            match self {
                Self::Direct(byte) => byte.lookup_avx512(keys, numbers),
                Self::Paged(paged) => paged.lookup_avx512(keys, numbers),
                Self::Sorted(narrow) => narrow.lookup_avx512(keys, numbers),
                Self::Trie(patricia) => patricia.find_leaves_avx512(keys, numbers),
            }
        }
    }
}

impl DirectIndex {
    /// # Safety
    ///
    /// As of [`RowIndex::lookup_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn lookup_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have this word.
            let word = unsafe { *key.as_ref().get_unchecked(self.bits.word) };
            *number = self.numbers[self.bits.inside(word) as usize % self.numbers.len()];
        }
    }
}

impl Paged {
    /// # Safety
    ///
    /// As of [`RowIndex::lookup_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn lookup_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have this word, there is a page for each value, and a page has a number
            // for each of its values.
            unsafe {
                let value = self.bits.inside(*key.as_ref().get_unchecked(self.bits.word));
                let page = usize::from(*self.pages.get_unchecked(value as usize >> PAGE));
                let low = value as usize % (1 << PAGE);
                *number = *self.numbers.get_unchecked(page << PAGE | low);
            }
        }
    }
}

impl SortedIndex {
    /// # Safety
    ///
    /// As of [`RowIndex::lookup_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    unsafe fn lookup_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        // SAFETY: as this function's caller says; there are so many levels.
        unsafe {
            match self.levels.starts.len() {
                1 => self.lookup_levels::<1, N, K>(keys, numbers),
                2 => self.lookup_levels::<2, N, K>(keys, numbers),
                3 => self.lookup_levels::<3, N, K>(keys, numbers),
                _ => self.lookup_levels::<MAX_LEVELS, N, K>(keys, numbers),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`RowIndex::lookup_avx512`], and there are so many levels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn lookup_levels<const MAX_LEVELS: usize, const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        let levels = self.levels.levels::<MAX_LEVELS>();
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have this word, these are all levels, and there are as many numbers as
            // values, of which the last is not below any.
            unsafe {
                let value = self.bits.inside(*key.as_ref().get_unchecked(self.bits.word));
                *number = *self.numbers.get_unchecked(find::<MAX_LEVELS>(&levels, value));
            }
        }
    }
}

impl SearchTree {
    /// First node of each level.
    fn levels<const MAX_LEVELS: usize>(&self) -> [*const SearchNode; MAX_LEVELS] {
        let start = |level| self.starts.get(level).copied().unwrap_or(0);
        std::array::from_fn(|level| self.nodes.as_ptr().wrapping_add(start(level)))
    }
}

/// Number of values below `value`.
///
/// # Safety
///
/// The processor has what [`has_avx512`] asks for, and these are all levels that there are.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
#[expect(unsafe_code, reason = "loads through pointers")]
unsafe fn find<const MAX_LEVELS: usize>(
    levels: &[*const SearchNode; MAX_LEVELS],
    value: u32,
) -> usize {
    let value = _mm512_set1_epi32(value.cast_signed());
    let mut found = 0;
    for level in levels {
        // SAFETY: a node's last value is never below, so that each level has this node.
        let node = unsafe { _mm512_loadu_si512(level.add(found).cast()) };
        let first = u32::from(_mm512_cmpge_epu32_mask(node, value)).trailing_zeros();
        found = found * FANOUT + first as usize;
    }
    found
}

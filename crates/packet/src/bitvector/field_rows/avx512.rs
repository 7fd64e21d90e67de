//! With AVX-512.

mod patricia;

use core::arch::x86_64::{
    _mm512_and_si512, _mm512_cmpge_epu32_mask, _mm512_loadu_si512, _mm512_set1_epi32,
};

use super::row_index::{Byte, Ends, FAN, LEVELS, Levels, Narrow, Node, PAGE, Paged};
use super::{AXES, BLOCK, Grid, KEYS, Numbers};
use crate::bitvector::{Line, first_bit};

/// Keys that are looked up side by side, so that what is the same for all of them is read once.
const TOGETHER: usize = 2;
/// Of a block.
const BITS: usize = BLOCK * Line::BITS;

/// Whether the processor has what these functions are compiled for.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

impl Grid {
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, `among` has a row, and `N` is the grid's reach at least; there are [`KEYS`] keys at the most, and no
    /// fewer `found`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each packet")]
    pub(super) unsafe fn firsts_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        among: &[Line],
        found: &mut [u32],
    ) {
        let mut numbers: Numbers = [[0; KEYS]; AXES];
        for (axis, numbers) in self.axes.iter().zip(&mut numbers) {
            // SAFETY: as this function's caller says.
            unsafe { axis.numbers_avx512(keys, numbers) };
        }
        // The leaves have come meanwhile.
        for (axis, numbers) in self.axes.iter().zip(&mut numbers) {
            if let Ends::Wide(patricia) = axis {
                // SAFETY: as this function's caller says; these are the leaves that keys have come to.
                unsafe { patricia.rows_avx512(keys, numbers) };
            }
        }
        let count = keys.len();
        // SAFETY: as this function's caller says; rows have a block of so many lines.
        unsafe {
            match self.width {
                1 => self.each_of_lines::<1>(&numbers, count, among, found),
                2 => self.each_of_lines::<2>(&numbers, count, among, found),
                3 => self.each_of_lines::<3>(&numbers, count, among, found),
                _ => self.each_of_lines::<BLOCK>(&numbers, count, among, found),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Grid::firsts_avx512`], and rows are of so many lines, or of some times as many if these are [`BLOCK`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each packet")]
    unsafe fn each_of_lines<const LINES: usize>(
        &self,
        numbers: &Numbers,
        count: usize,
        among: &[Line],
        found: &mut [u32],
    ) {
        for first in (0..count.next_multiple_of(TOGETHER)).step_by(TOGETHER) {
            // SAFETY: as this function's caller says; `KEYS` is a multiple of `TOGETHER`.
            let bits = unsafe { self.first_of_lines::<LINES, TOGETHER>(numbers, first, among, 0) };
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
                let [bit] = unsafe { self.first_of_lines::<LINES, 1>(numbers, key, among, block) };
                *found = first + bit;
            }
        }
    }

    /// Of some keys from a number on, in a block of lines.
    ///
    /// # Safety
    ///
    /// As of [`Grid::each_of_lines`], `numbers` has so many keys from there on, and rows have this block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "loads through pointers")]
    unsafe fn first_of_lines<const LINES: usize, const KEYS: usize>(
        &self,
        numbers: &Numbers,
        key: usize,
        among: &[Line],
        block: usize,
    ) -> [u32; KEYS] {
        // SAFETY: rows have this block, and `among` has a row.
        let load = |line: *const Line| unsafe {
            std::array::from_fn::<_, LINES, _>(|at| _mm512_loadu_si512(line.add(at).cast()))
        };
        let first = self.lines.as_ptr().wrapping_add(block * self.count * LINES);
        let mut all = [load(among.as_ptr().wrapping_add(block * LINES)); KEYS];
        for numbers in &numbers[..self.axes.len()] {
            for (all, row) in all.iter_mut().zip(&numbers[key..key + KEYS]) {
                let row = load(first.wrapping_add(usize::from(*row) * LINES));
                *all = std::array::from_fn(|line| _mm512_and_si512(all[line], row[line]));
            }
        }
        // SAFETY: this function is compiled for it.
        all.map(|lines| unsafe { first_bit(lines) })
    }
}

impl Ends {
    /// The rows that keys stand for, or the leaves that lead to them.
    ///
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and keys have all words that are asked for; there are [`KEYS`] keys at the most.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    unsafe fn numbers_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        // SAFETY: as this function's caller says.
        unsafe {
            match self {
                Self::Byte(byte) => byte.numbers_avx512(keys, numbers),
                Self::Paged(paged) => paged.numbers_avx512(keys, numbers),
                Self::Narrow(narrow) => narrow.numbers_avx512(keys, numbers),
                Self::Wide(patricia) => patricia.leaves_avx512(keys, numbers),
            }
        }
    }
}

impl Byte {
    /// # Safety
    ///
    /// As of [`Ends::numbers_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each packet")]
    unsafe fn numbers_avx512<const N: usize, K: AsRef<[u64; N]>>(
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
    /// As of [`Ends::numbers_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each packet")]
    unsafe fn numbers_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have this word, there is a page for each value, and a page has a number for each of its values.
            unsafe {
                let value = self.bits.inside(*key.as_ref().get_unchecked(self.bits.word));
                let page = usize::from(*self.pages.get_unchecked(value as usize >> PAGE));
                let low = value as usize % (1 << PAGE);
                *number = *self.numbers.get_unchecked(page << PAGE | low);
            }
        }
    }
}

impl Narrow {
    /// # Safety
    ///
    /// As of [`Ends::numbers_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    unsafe fn numbers_avx512<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        // SAFETY: as this function's caller says; there are so many levels.
        unsafe {
            match self.levels.starts.len() {
                1 => self.numbers_by::<1, N, K>(keys, numbers),
                2 => self.numbers_by::<2, N, K>(keys, numbers),
                3 => self.numbers_by::<3, N, K>(keys, numbers),
                _ => self.numbers_by::<LEVELS, N, K>(keys, numbers),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Ends::numbers_avx512`], and there are so many levels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each packet")]
    unsafe fn numbers_by<const LEVELS: usize, const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        numbers: &mut [u16; KEYS],
    ) {
        let levels = self.levels.levels::<LEVELS>();
        for (key, number) in keys.iter().zip(numbers) {
            // SAFETY: keys have this word, these are all levels, and there are as many numbers as values, of which the last is not below any.
            unsafe {
                let value = self.bits.inside(*key.as_ref().get_unchecked(self.bits.word));
                *number = *self.numbers.get_unchecked(find::<LEVELS>(&levels, value));
            }
        }
    }
}

impl Levels {
    /// Where the nodes of each level begin.
    fn levels<const LEVELS: usize>(&self) -> [*const Node; LEVELS] {
        let start = |level| self.starts.get(level).copied().unwrap_or(0);
        std::array::from_fn(|level| self.nodes.as_ptr().wrapping_add(start(level)))
    }
}

/// How many of some levels' values are below one.
///
/// # Safety
///
/// The processor has what [`has_avx512`] asks for, and these are all levels that there are.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
#[expect(unsafe_code, reason = "loads through pointers")]
unsafe fn find<const LEVELS: usize>(levels: &[*const Node; LEVELS], value: u32) -> usize {
    let value = _mm512_set1_epi32(value.cast_signed());
    let mut found = 0;
    for level in levels {
        // SAFETY: a node's last value is never below, so that each level has this node.
        let node = unsafe { _mm512_loadu_si512(level.add(found).cast()) };
        let first = u32::from(_mm512_cmpge_epu32_mask(node, value)).trailing_zeros();
        found = found * FAN + first as usize;
    }
    found
}

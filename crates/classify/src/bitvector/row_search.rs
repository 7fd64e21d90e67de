//! Row intersection without AVX-512, and from a given bit on.

use super::BLOCK;

/// Selected rows that are to be intersected.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowScan<'a> {
    /// All rows: the first 16 words of each, then the next 16. A row beyond the end matches all.
    pub(super) words: &'a [u64],
    pub(super) numbers: &'a [u16],
    /// One more row; missing words are 0.
    pub(super) live: &'a [u64],
    /// Words of a row: 1, 2, 4, 8 or a multiple of 16.
    pub(super) width: usize,
    /// Number of all rows.
    pub(super) count: usize,
}

impl RowScan<'_> {
    /// The lowest bit from `from` on that all rows have.
    pub(super) fn first(self, from: usize) -> Option<usize> {
        match self.width {
            1 => self.search::<1>(from),
            2 => self.search::<2>(from),
            4 => self.search::<4>(from),
            _ => self.search_wide(from),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn search_wide(self, from: usize) -> Option<usize> {
        if is_x86_feature_detected!("avx2") {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: AVX2 was detected.
            return unsafe { self.search_avx2(from) };
        }
        self.search::<8>(from)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn search_wide(self, from: usize) -> Option<usize> {
        self.search::<8>(from)
    }

    /// Hand-written: the compiler would gather the words one by one.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn search_avx2(self, from: usize) -> Option<usize> {
        if self.width == 8 { self.search_quads::<2>(from) } else { self.search_quads::<4>(from) }
    }

    /// `QUADS` vectors of four words at a time.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    fn search_quads<const QUADS: usize>(self, from: usize) -> Option<usize> {
        use core::arch::x86_64::{
            __m256i, _mm256_and_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256,
            _mm256_movemask_pd, _mm256_setzero_si256, _mm256_storeu_si256,
        };
        let load = |quad: &[u64; 4]| {
            #[expect(unsafe_code, reason = "a load through a pointer")]
            // SAFETY: there are four words; the load needs no alignment.
            unsafe {
                _mm256_loadu_si256(quad.as_ptr().cast::<__m256i>())
            }
        };
        let [rows, live] =
            [self.words, self.live].map(|words| words.as_chunks::<4>().0.as_chunks::<QUADS>().0);
        for block in from / 256 / QUADS..self.width / 4 / QUADS {
            let mut all = live.get(block)?.each_ref().map(load);
            for row in self.numbers {
                if let Some(row) = rows.get(block * self.count + usize::from(*row)) {
                    for (all, row) in all.iter_mut().zip(row) {
                        *all = _mm256_and_si256(*all, load(row));
                    }
                }
            }
            let mut left = [[0_u64; 4]; QUADS];
            let mut none = 0_u32;
            for (quad, (left, all)) in left.iter_mut().zip(all).enumerate() {
                let empty = _mm256_cmpeq_epi64(all, _mm256_setzero_si256());
                let empty = _mm256_movemask_pd(_mm256_castsi256_pd(empty)).cast_unsigned();
                none |= empty << (4 * quad);
                #[expect(unsafe_code, reason = "a store through a pointer")]
                // SAFETY: there is room for four words; the store needs no alignment.
                unsafe {
                    _mm256_storeu_si256(left.as_mut_ptr().cast::<__m256i>(), all);
                }
            }
            if let Some(bit) = first_set(left.as_flattened(), !none, block * QUADS * 4, from) {
                return Some(bit);
            }
        }
        None
    }

    /// `N` words at a time.
    #[inline(always)]
    pub(super) fn search<const N: usize>(self, from: usize) -> Option<usize> {
        let [rows, live] = [self.words, self.live].map(|words| words.as_chunks::<N>().0);
        for block in (from / (64 * N) * N..self.width).step_by(N) {
            let mut all = *live.get(block / N)?;
            for row in self.numbers {
                let before = block / BLOCK * self.count + usize::from(*row);
                let at = (before * self.width.min(BLOCK) + block % BLOCK) / N;
                if let Some(row) = rows.get(at) {
                    for (all, word) in all.iter_mut().zip(row) {
                        *all &= word;
                    }
                }
            }
            let some = (0..N).fold(0, |some, at| some | u32::from(all[at] != 0) << at);
            if let Some(bit) = first_set(&all, some, block, from) {
                return Some(bit);
            }
        }
        None
    }
}

/// The lowest bit from `from` on, in words numbered from `first`; `some` marks those that are not
/// empty. Branch-free over the position of the result.
#[inline(always)]
fn first_set(left: &[u64], some: u32, first: usize, from: usize) -> Option<usize> {
    if from > first * 64 {
        return lowest(left.iter().copied(), first, from);
    }
    let word = some.trailing_zeros() as usize;
    let bits = left.get(word)?;
    Some((first + word) * 64 + bits.trailing_zeros() as usize)
}

/// The lowest bit from `from` on, in words numbered from `first`.
#[inline(always)]
fn lowest(words: impl IntoIterator<Item = u64>, first: usize, from: usize) -> Option<usize> {
    for (word, bits) in (first..).zip(words) {
        let before = from.saturating_sub(word * 64);
        let bits = if before < 64 { bits & u64::MAX << before } else { 0 };
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
    }
    None
}

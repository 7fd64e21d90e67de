//! Intersecting rows of bits.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Eight words of rows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

/// Rows of bits, and which of them each byte of a key stands for.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// One row after the other. Those beyond the end ask nothing.
    pub lines: &'a [Line],
    /// Words of a row: 1, 2, 4, 8 or a multiple of 16.
    pub width: usize,
    /// Which bytes of a key are asked, no more than 64 of them. One that the key does not have asks nothing.
    pub places: &'a [u8],
    /// For each of them, the rows of its values.
    pub numbers: &'a [[u16; 256]],
}

/// No more rows are intersected.
const MOST_ROWS: usize = 64;

impl Rows<'_> {
    /// The lowest bit from `from` on that is set in the rows of all bytes of a key.
    #[must_use]
    #[inline]
    pub fn first_common(&self, key: &[u8], from: usize) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if from == 0 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
        {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: AVX-512F and AVX-512VL were detected.
            return unsafe { self.first_avx512(key) };
        }
        self.first_anywhere(key, from)
    }

    /// Notes the rows first: the loop over them is quicker without.
    fn first_anywhere(&self, key: &[u8], from: usize) -> Option<usize> {
        let mut numbers = [0; MOST_ROWS];
        let rows = self.rows(key);
        let count = numbers.iter_mut().zip(rows).map(|(number, row)| *number = row).count();
        let words = <[u64]>::ref_from_bytes(self.lines.as_bytes()).unwrap_or_default();
        first_common(words, &numbers[..count], self.width, from)
    }

    /// The rows of a key's bytes.
    #[inline(always)]
    fn rows(&self, key: &[u8]) -> impl Iterator<Item = u16> {
        let asked = self.places.iter().zip(self.numbers).take(MOST_ROWS);
        asked.filter_map(|(place, of)| Some(of[usize::from(*key.get(usize::from(*place))?)]))
    }

    /// Looks rows up where it needs them, and those of up to half a line all in one way, of whatever width: nobody could foretell which comes next.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn first_avx512(&self, key: &[u8]) -> Option<usize> {
        if self.width <= 4 {
            return self.first_short(key);
        }
        if self.width == 8 {
            return self.first_of_lines::<1>(key, 0);
        }
        for block in 0..self.width / 16 {
            if let Some(bit) = self.first_of_lines::<2>(key, block) {
                return Some(bit);
            }
        }
        None
    }

    /// A load of half a line never takes two lines where a row of four words is read.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    fn first_short(&self, key: &[u8]) -> Option<usize> {
        use core::arch::x86_64::{
            _mm256_and_si256, _mm256_maskz_loadu_epi64, _mm256_set1_epi64x, _mm256_test_epi64_mask,
            _mm512_castsi256_si512,
        };
        let words = self.lines.len() * 8;
        let first = self.lines.as_ptr().cast::<i64>();
        let unwanted = u32::try_from(8 - self.width.min(4)).unwrap_or(8);
        let wanted = u8::MAX.checked_shr(unwanted).unwrap_or(0);
        let mut all = _mm256_set1_epi64x(-1);
        for (place, of) in self.places.iter().zip(self.numbers) {
            let Some(byte) = key.get(usize::from(*place)) else { continue };
            let row = of[usize::from(*byte)];
            let from = usize::from(row) * self.width;
            if from + self.width <= words {
                #[expect(unsafe_code, reason = "a load through a pointer")]
                // SAFETY: `width` words from `from` on are inside, and no others are read, as `wanted` has no more bits.
                let row = unsafe { _mm256_maskz_loadu_epi64(wanted, first.add(from)) };
                all = _mm256_and_si256(all, row);
            }
        }
        let some = u32::from(_mm256_test_epi64_mask(all, all) & wanted);
        first_of([_mm512_castsi256_si512(all)], some)
    }

    /// In block number `block` of so many lines of each row.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn first_of_lines<const LINES: usize>(&self, key: &[u8], block: usize) -> Option<usize> {
        use core::arch::x86_64::{
            _mm512_and_si512, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_test_epi64_mask,
        };
        let (blocks, _) = self.lines.as_chunks::<LINES>();
        let each = self.width / 8 / LINES;
        let mut all = [_mm512_set1_epi64(-1); LINES];
        for (place, of) in self.places.iter().zip(self.numbers) {
            let Some(byte) = key.get(usize::from(*place)) else { continue };
            let row = of[usize::from(*byte)];
            if let Some(row) = blocks.get(usize::from(row) * each + block) {
                for (all, line) in all.iter_mut().zip(row) {
                    #[expect(unsafe_code, reason = "a load through a pointer")]
                    // SAFETY: the line has eight words; the load needs no alignment.
                    let line = unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) };
                    *all = _mm512_and_si512(*all, line);
                }
            }
        }
        let mut some = 0;
        for (at, line) in all.iter().enumerate() {
            some |= u32::from(_mm512_test_epi64_mask(*line, *line)) << (8 * at);
        }
        first_of(all, some).map(|bit| block * LINES * 512 + bit)
    }
}

/// The lowest bit of words, of which `some` tells which are not empty. Whatever the word is in which the answer stands, the way to it is the
/// same: no branch to be foretold.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn first_of<const LINES: usize>(
    all: [core::arch::x86_64::__m512i; LINES],
    some: u32,
) -> Option<usize> {
    use core::arch::x86_64::_mm512_storeu_si512;
    let mut left = [[0_u64; 8]; LINES];
    for (left, all) in left.iter_mut().zip(all) {
        #[expect(unsafe_code, reason = "a store through a pointer")]
        // SAFETY: there is room for eight words; the store needs no alignment.
        unsafe {
            _mm512_storeu_si512(left.as_mut_ptr().cast(), all);
        }
    }
    let word = some.trailing_zeros() as usize;
    let bits = left.as_flattened().get(word)?;
    Some(word * 64 + bits.trailing_zeros() as usize)
}

/// The lowest bit from `from` on that is set in all of some rows, by their numbers. A row beyond the end asks nothing.
fn first_common(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    match width {
        1 => search::<1>(words, rows, width, from),
        2 => search::<2>(words, rows, width, from),
        4 => search::<4>(words, rows, width, from),
        _ => search_wide(words, rows, width, from),
    }
}

#[cfg(target_arch = "x86_64")]
fn search_wide(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    if is_x86_feature_detected!("avx2") {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: AVX2 was detected.
        return unsafe { search_avx2(words, rows, width, from) };
    }
    search::<8>(words, rows, width, from)
}

#[cfg(not(target_arch = "x86_64"))]
fn search_wide(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    search::<8>(words, rows, width, from)
}

/// Written out, because the compiler would gather the words one by one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn search_avx2(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    if width == 8 {
        search_quads::<2>(words, rows, width, from)
    } else {
        search_quads::<4>(words, rows, width, from)
    }
}

/// `QUADS` times four words at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn search_quads<const QUADS: usize>(
    words: &[u64],
    rows: &[u16],
    width: usize,
    from: usize,
) -> Option<usize> {
    use core::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256,
        _mm256_movemask_pd, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_storeu_si256,
    };
    let (quads, _) = words.as_chunks::<4>();
    let (quads, _) = quads.as_chunks::<QUADS>();
    let each = width / 4 / QUADS;
    for block in from / 256 / QUADS..each {
        let mut all = [_mm256_set1_epi64x(-1); QUADS];
        for row in rows {
            if let Some(row) = quads.get(usize::from(*row) * each + block) {
                for (all, row) in all.iter_mut().zip(row) {
                    #[expect(unsafe_code, reason = "a load through a pointer")]
                    // SAFETY: there are four words; the load needs no alignment.
                    let row = unsafe { _mm256_loadu_si256(row.as_ptr().cast::<__m256i>()) };
                    *all = _mm256_and_si256(*all, row);
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
        if let Some(bit) = first_left(left.as_flattened(), !none, block * QUADS * 4, from) {
            return Some(bit);
        }
    }
    None
}

/// The lowest bit from `from` on in words of which the first is number `first`, and of which `some` tells which are not empty. Whatever the
/// word is in which the answer stands, the way to it is the same: no branch to be foretold.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first_left(left: &[u64], some: u32, first: usize, from: usize) -> Option<usize> {
    if from > first * 64 {
        return lowest(left.iter().copied(), first, from);
    }
    let word = some.trailing_zeros() as usize;
    let bits = left.get(word)?;
    Some((first + word) * 64 + bits.trailing_zeros() as usize)
}

/// `N` words at a time.
#[inline(always)]
fn search<const N: usize>(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    let (lines, _) = words.as_chunks::<N>();
    for block in (from / (64 * N) * N..width).step_by(N) {
        let mut all = [u64::MAX; N];
        for row in rows {
            if let Some(row) = lines.get((usize::from(*row) * width + block) / N) {
                for (all, word) in all.iter_mut().zip(row) {
                    *all &= word;
                }
            }
        }
        let some = (0..N).fold(0, |some, at| some | u32::from(all[at] != 0) << at);
        if some == 0 {
            continue;
        }
        if from <= block * 64 {
            // Which word has the answer is no branch.
            let word = some.trailing_zeros() as usize % N;
            return Some((block + word) * 64 + all[word].trailing_zeros() as usize);
        }
        if let Some(first) = lowest(all, block, from) {
            return Some(first);
        }
    }
    None
}

/// The lowest bit from `from` on in words of which the first is number `block`.
#[inline(always)]
fn lowest(words: impl IntoIterator<Item = u64>, block: usize, from: usize) -> Option<usize> {
    for (word, bits) in (block..).zip(words) {
        let before = from.saturating_sub(word * 64);
        let bits = if before < 64 { bits & u64::MAX << before } else { 0 };
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the processor has, and the forms for those that have less.
    #[test]
    fn finds_what_a_walk_over_the_bits_finds() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed ^ seed >> 29
        };
        for (width, places) in [1, 2, 4, 8, 16, 32, 48]
            .into_iter()
            .flat_map(|width| (0..6).map(move |places| (width, places)))
        {
            let rows: usize = 12;
            // Dense enough that some bits are left, and some words empty.
            let mut lines = vec![Line::default(); (rows * width).div_ceil(8)];
            for word in lines.iter_mut().flat_map(|line| &mut line.0) {
                *word = if next() % 3 == 0 { 0 } else { next() | next() };
            }
            // Some numbers are of rows beyond the end.
            let numbers: Vec<[u16; 256]> = (0..places)
                .map(|_| std::array::from_fn(|_| u16::try_from(next() % 13).unwrap()))
                .collect();
            // Some places are beyond the key.
            let places: Vec<u8> = (0..places).map(|_| u8::try_from(next() % 18).unwrap()).collect();
            let key: [u8; 16] = std::array::from_fn(|_| next().to_le_bytes()[3]);
            let all = Rows { lines: &lines, width, places: &places, numbers: &numbers };
            let numbers: Vec<u16> = all.rows(&key).collect();
            let words: Vec<u64> = lines.iter().flat_map(|line| line.0).collect();
            let set = |bit: usize| {
                numbers.iter().all(|row| {
                    let word = words.get(usize::from(*row) * width + bit / 64);
                    usize::from(*row) >= words.len() / width
                        || word.is_some_and(|word| word >> (bit % 64) & 1 != 0)
                })
            };
            for from in (0..width * 64).step_by(13) {
                let expected = (from..width * 64).find(|bit| set(*bit));
                assert_eq!(all.first_common(&key, from), expected);
                assert_eq!(all.first_anywhere(&key, from), expected);
                if width >= 8 {
                    assert_eq!(search::<8>(&words, &numbers, width, from), expected);
                    #[cfg(target_arch = "x86_64")]
                    if is_x86_feature_detected!("avx2") {
                        #[expect(unsafe_code, reason = "as in search_wide")]
                        // SAFETY: AVX2 was detected.
                        let found = unsafe { search_avx2(&words, &numbers, width, from) };
                        assert_eq!(found, expected);
                    }
                }
            }
        }
    }
}

//! Intersecting rows of bits.

/// No more rows are intersected.
const MOST_ROWS: usize = 64;

/// The lowest bit from `from` on that is set in all of some rows, by their numbers. `words` are rows of `width` words each, which is 1, 2, 4,
/// 8 or a multiple of 16. A row beyond the end asks nothing. No more than 64 rows count.
#[must_use]
#[inline]
pub fn first_common(
    words: &[u64],
    rows: impl Iterator<Item = u16> + Clone,
    width: usize,
    from: usize,
) -> Option<usize> {
    match width {
        1 => search::<1>(words, rows, width, from),
        2 => search::<2>(words, rows, width, from),
        4 => search::<4>(words, rows, width, from),
        _ => {
            // In one go: the loop over long rows is quicker without.
            let mut numbers = [0; MOST_ROWS];
            let count = numbers.iter_mut().zip(rows).map(|(number, row)| *number = row).count();
            search_wide(words, &numbers[..count], width, from)
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn search_wide(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    if is_x86_feature_detected!("avx512f") {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: AVX-512F was detected.
        return unsafe { search_avx512(words, rows, width, from) };
    }
    if is_x86_feature_detected!("avx2") {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: AVX2 was detected.
        return unsafe { search_avx2(words, rows, width, from) };
    }
    search::<8>(words, rows.iter().copied(), width, from)
}

#[cfg(not(target_arch = "x86_64"))]
fn search_wide(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    search::<8>(words, rows.iter().copied(), width, from)
}

/// Written out, because the compiler would gather the words one by one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn search_avx512(words: &[u64], rows: &[u16], width: usize, from: usize) -> Option<usize> {
    if width == 8 {
        search_lines::<1>(words, rows, width, from)
    } else {
        search_lines::<2>(words, rows, width, from)
    }
}

/// `LINES` times eight words at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn search_lines<const LINES: usize>(
    words: &[u64],
    rows: &[u16],
    width: usize,
    from: usize,
) -> Option<usize> {
    use core::arch::x86_64::{
        _mm512_and_si512, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_storeu_si512,
        _mm512_test_epi64_mask,
    };
    let (lines, _) = words.as_chunks::<8>();
    let (lines, _) = lines.as_chunks::<LINES>();
    let each = width / 8 / LINES;
    for block in from / 512 / LINES..each {
        let mut all = [_mm512_set1_epi64(-1); LINES];
        for row in rows {
            if let Some(row) = lines.get(usize::from(*row) * each + block) {
                for (all, row) in all.iter_mut().zip(row) {
                    #[expect(unsafe_code, reason = "a load through a pointer")]
                    // SAFETY: the line has eight words; the load needs no alignment.
                    let row = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
                    *all = _mm512_and_si512(*all, row);
                }
            }
        }
        let mut left = [[0_u64; 8]; LINES];
        let mut some = 0_u32;
        for (line, (left, all)) in left.iter_mut().zip(all).enumerate() {
            some |= u32::from(_mm512_test_epi64_mask(all, all)) << (8 * line);
            #[expect(unsafe_code, reason = "a store through a pointer")]
            // SAFETY: there is room for eight words; the store needs no alignment.
            unsafe {
                _mm512_storeu_si512(left.as_mut_ptr().cast(), all);
            }
        }
        if let Some(bit) = first_left(left.as_flattened(), some, block * LINES * 8, from) {
            return Some(bit);
        }
    }
    None
}

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
fn search<const N: usize>(
    words: &[u64],
    rows: impl Iterator<Item = u16> + Clone,
    width: usize,
    from: usize,
) -> Option<usize> {
    let (lines, _) = words.as_chunks::<N>();
    for block in (from / (64 * N) * N..width).step_by(N) {
        let mut all = [u64::MAX; N];
        for row in rows.clone() {
            if let Some(row) = lines.get((usize::from(row) * width + block) / N) {
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

    /// What the processor has, and the form for those that have less.
    #[test]
    fn finds_what_a_walk_over_the_bits_finds() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed ^ seed >> 29
        };
        for width in [1, 2, 4, 8, 16, 32, 48] {
            for count in 1..6 {
                // Dense enough that some bits are left, and some words empty.
                let words: Vec<u64> = (0..count * width)
                    .map(|_| if next() % 3 == 0 { 0 } else { next() | next() })
                    .collect();
                let rows = 0..u16::try_from(count).unwrap();
                let each: Vec<u16> = rows.clone().collect();
                let set = |bit: usize| {
                    (0..count).all(|row| words[row * width + bit / 64] >> (bit % 64) & 1 != 0)
                };
                for from in (0..width * 64).step_by(13) {
                    let expected = (from..width * 64).find(|bit| set(*bit));
                    assert_eq!(first_common(&words, rows.clone(), width, from), expected);
                    if width >= 8 {
                        assert_eq!(search::<8>(&words, rows.clone(), width, from), expected);
                        #[cfg(target_arch = "x86_64")]
                        if is_x86_feature_detected!("avx2") {
                            #[expect(unsafe_code, reason = "as in search_wide")]
                            // SAFETY: AVX2 was detected.
                            let found = unsafe { search_avx2(&words, &each, width, from) };
                            assert_eq!(found, expected);
                        }
                    }
                }
            }
        }
    }
}

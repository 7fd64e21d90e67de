//! Compares keys with up to eight values under masks, stored without padding.

/// Values and masks: for each word of a key the values, then for each word the masks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TernaryBlock<'a> {
    /// Two words (value, mask) per key word and value.
    pub(crate) words: &'a [u64],
    /// Number of values, at most [`BLOCK_LANES`].
    pub(crate) lanes: usize,
}

/// Values compared at a time.
pub(crate) const BLOCK_LANES: usize = 8;

/// For each key, which values of its block match, as bits: those that equal the key under their
/// masks. Bits of the last word that are not in `last` do not count. A block with too few words
/// matches nothing.
#[inline]
pub(crate) fn match_blocks<'a, const N: usize>(
    pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a [u64; N])>,
    last: u64,
    fits: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: all that the function is compiled for was detected.
        return unsafe { match_blocks_avx512(pairs, last, fits) };
    }
    match_blocks_portable(pairs, last, fits);
}

fn match_blocks_portable<'a, const N: usize>(
    pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a [u64; N])>,
    last: u64,
    fits: &mut [u8],
) {
    for ((block, key), fits) in pairs.zip(fits) {
        let TernaryBlock { words, lanes } = block;
        *fits = 0;
        if lanes == 0 || lanes > BLOCK_LANES || words.len() < 2 * N * lanes {
            continue;
        }
        for lane in 0..lanes {
            let differs = |word: usize| {
                let counts = if word == N - 1 { last } else { u64::MAX };
                let (value, mask) = (words[word * lanes + lane], words[(N + word) * lanes + lane]);
                (key[word] ^ value) & mask & counts
            };
            let fit = (0..N).fold(0, |all, word| all | differs(word)) == 0;
            *fits |= u8::from(fit) << lane;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,bmi2")]
fn match_blocks_avx512<'a, const N: usize>(
    pairs: impl Iterator<Item = (TernaryBlock<'a>, &'a [u64; N])>,
    last: u64,
    fits: &mut [u8],
) {
    use core::arch::x86_64::{
        _mm512_maskz_loadu_epi64, _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512,
        _mm512_ternarylogic_epi64, _mm512_test_epi64_mask,
    };
    /// `(a ^ b) & c`.
    const DIFFERENCE: i32 = 0x28;
    let last = _mm512_set1_epi64(last.cast_signed());
    for ((block, key), fits) in pairs.zip(fits) {
        let TernaryBlock { words, lanes } = block;
        if lanes == 0 || lanes > BLOCK_LANES || words.len() < 2 * N * lanes {
            *fits = 0;
            continue;
        }
        let these = u8::MAX >> (BLOCK_LANES - lanes);
        let (mut before, mut differs) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (word, key) in key.iter().enumerate() {
            let load = |word: usize| {
                #[expect(unsafe_code, reason = "a load through a pointer")]
                // SAFETY: of each word there are so many lanes among the words, and no others are
                // read.
                unsafe {
                    _mm512_maskz_loadu_epi64(these, words.as_ptr().cast::<i64>().add(word * lanes))
                }
            };
            before = _mm512_or_si512(before, differs);
            let key = _mm512_set1_epi64(key.cast_signed());
            differs = _mm512_ternarylogic_epi64::<DIFFERENCE>(key, load(word), load(N + word));
        }
        let differ = _mm512_test_epi64_mask(before, before) | _mm512_test_epi64_mask(differs, last);
        *fits = these & !differ;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("bmi2")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both the CPU's vector form and the portable form.
    #[test]
    fn simd_match_agrees_with_scalar() {
        const LAST: u64 = 5;
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33 & 7 & seed >> 40
        };
        for lanes in (0..=BLOCK_LANES + 1).cycle().take(1000) {
            let words: Vec<u64> = (0..6 * lanes).map(|_| next()).collect();
            let key = [next(), next(), next()];
            let differs = |word: usize, lane: usize| {
                (key[word] ^ words[word * lanes + lane]) & words[(3 + word) * lanes + lane]
            };
            let fits = |lane: usize| {
                differs(0, lane) == 0 && differs(1, lane) == 0 && differs(2, lane) & LAST == 0
            };
            let all = (0..lanes).fold(0, |all, lane| all | u32::from(fits(lane)) << lane);
            let all = if lanes > BLOCK_LANES { 0 } else { u8::try_from(all).unwrap() };
            let block = TernaryBlock { words: &words, lanes };
            let short = TernaryBlock { words: &words[..words.len().saturating_sub(1)], lanes };
            let pairs = [(block, &key), (short, &key)];
            let mut found = [7; 3];
            match_blocks(pairs.into_iter(), LAST, &mut found);
            assert_eq!(found, [all, 0, 7]);
            let mut found = [7; 3];
            match_blocks_portable(pairs.into_iter(), LAST, &mut found);
            assert_eq!(found, [all, 0, 7]);
        }
    }
}

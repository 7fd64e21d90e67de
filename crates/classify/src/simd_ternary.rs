//! Compares a key with up to 64 values under masks, eight per vector.

/// Eight values and masks of `N` words each; one cache line holds one word of all eight.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SimdTernary8<const N: usize> {
    /// For each word, the eight values.
    pub(crate) values: [[u64; 8]; N],
    /// For each word, the eight masks.
    pub(crate) masks: [[u64; 8]; N],
}

/// Values compared at a time.
#[derive(Clone, Copy, Debug)]
enum SimdWidth {
    One,
    /// With AVX2.
    #[cfg(target_arch = "x86_64")]
    Four,
    /// With AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Eight,
}

/// Which of the first 64 values match, as bits: those that equal `key` under their masks. Bits of
/// the last word that are not in `last` do not count.
#[inline]
pub(crate) fn match_lanes<const N: usize, T: AsRef<SimdTernary8<N>>>(
    lanes: &[T],
    key: &[u64; N],
    last: u64,
) -> u64 {
    match_with(SimdWidth::detect(), lanes, key, last)
}

/// [`match_lanes`] for each key with its own lanes, in as many `fits` as there are.
#[inline]
pub(crate) fn match_lanes_batch<'a, const N: usize, T: AsRef<SimdTernary8<N>> + 'a>(
    pairs: impl Iterator<Item = (&'a [T], &'a [u64; N])>,
    last: u64,
    fits: &mut [u64],
) {
    match_batch_with(SimdWidth::detect(), pairs, last, fits);
}

impl SimdWidth {
    /// The widest form that this CPU supports.
    #[inline(always)]
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Self::Eight;
        } else if is_x86_feature_detected!("avx2") {
            return Self::Four;
        }
        Self::One
    }
}

#[inline(always)]
fn match_with<const N: usize, T: AsRef<SimdTernary8<N>>>(
    width: SimdWidth,
    lanes: &[T],
    key: &[u64; N],
    last: u64,
) -> u64 {
    match width {
        SimdWidth::One => match_portable(lanes, key, last),
        #[cfg(target_arch = "x86_64")]
        SimdWidth::Four => {
            #[expect(unsafe_code, reason = "compiled for more than every x86-64 has")]
            // SAFETY: this width is one of processors that have AVX2.
            unsafe {
                match_avx2(lanes, key, last)
            }
        }
        #[cfg(target_arch = "x86_64")]
        SimdWidth::Eight => {
            #[expect(unsafe_code, reason = "compiled for more than every x86-64 has")]
            // SAFETY: this width is one of processors that have AVX-512F.
            unsafe {
                match_avx512(lanes, key, last)
            }
        }
    }
}

/// With AVX-512 the loop itself is compiled for it.
#[inline(always)]
fn match_batch_with<'a, const N: usize, T: AsRef<SimdTernary8<N>> + 'a>(
    width: SimdWidth,
    pairs: impl Iterator<Item = (&'a [T], &'a [u64; N])>,
    last: u64,
    fits: &mut [u64],
) {
    #[cfg(target_arch = "x86_64")]
    if let SimdWidth::Eight = width {
        #[expect(unsafe_code, reason = "compiled for more than every x86-64 has")]
        // SAFETY: this width is one of processors that have AVX-512F.
        return unsafe { match_batch_avx512(pairs, last, fits) };
    }
    for ((lanes, key), fits) in pairs.zip(fits) {
        *fits = match_with(width, lanes, key, last);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn match_batch_avx512<'a, const N: usize, T: AsRef<SimdTernary8<N>> + 'a>(
    pairs: impl Iterator<Item = (&'a [T], &'a [u64; N])>,
    last: u64,
    fits: &mut [u64],
) {
    for ((lanes, key), fits) in pairs.zip(fits) {
        *fits = match_avx512(lanes, key, last);
    }
}

fn match_portable<const N: usize, T: AsRef<SimdTernary8<N>>>(
    lanes: &[T],
    key: &[u64; N],
    last: u64,
) -> u64 {
    let mut fits = 0;
    for (first, lanes) in (0..64).step_by(8).zip(lanes) {
        let SimdTernary8 { values, masks } = lanes.as_ref();
        let mut differs = [0; 8];
        for (at, key) in key.iter().enumerate() {
            let counts = if at == N - 1 { last } else { u64::MAX };
            for (lane, differs) in differs.iter_mut().enumerate() {
                *differs |= (key ^ values[at][lane]) & masks[at][lane] & counts;
            }
        }
        for (lane, differs) in differs.into_iter().enumerate() {
            fits |= u64::from(differs == 0) << (first + lane);
        }
    }
    fits
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn match_avx512<const N: usize, T: AsRef<SimdTernary8<N>>>(
    lanes: &[T],
    key: &[u64; N],
    last: u64,
) -> u64 {
    use core::arch::x86_64::{
        _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512,
        _mm512_ternarylogic_epi64, _mm512_test_epi64_mask,
    };
    /// `(a ^ b) & c`.
    const DIFFERENCE: i32 = 0x28;
    let last = _mm512_set1_epi64(last.cast_signed());
    let mut fits = 0;
    for (first, lanes) in (0..64).step_by(8).zip(lanes) {
        let SimdTernary8 { values, masks } = lanes.as_ref();
        let (mut before, mut differs) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for at in 0..N {
            #[expect(unsafe_code, reason = "loads through pointers")]
            // SAFETY: both have eight words; the loads need no alignment.
            let (values, masks) = unsafe {
                (
                    _mm512_loadu_si512(values[at].as_ptr().cast()),
                    _mm512_loadu_si512(masks[at].as_ptr().cast()),
                )
            };
            let key = _mm512_set1_epi64(key[at].cast_signed());
            before = _mm512_or_si512(before, differs);
            differs = _mm512_ternarylogic_epi64::<DIFFERENCE>(key, values, masks);
        }
        let differ = _mm512_test_epi64_mask(before, before) | _mm512_test_epi64_mask(differs, last);
        fits |= u64::from(!differ) << first;
    }
    fits
}

/// Four values at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn match_avx2<const N: usize, T: AsRef<SimdTernary8<N>>>(
    lanes: &[T],
    key: &[u64; N],
    last: u64,
) -> u64 {
    use core::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256,
        _mm256_movemask_pd, _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_xor_si256,
    };
    let none = _mm256_setzero_si256();
    let last = _mm256_set1_epi64x(last.cast_signed());
    let mut fits = 0;
    for (first, lanes) in (0..64).step_by(8).zip(lanes) {
        let SimdTernary8 { values, masks } = lanes.as_ref();
        for half in 0..2 {
            let (mut before, mut differs) = (none, none);
            for at in 0..N {
                let (values, masks) =
                    (&values[at].as_chunks::<4>().0[half], &masks[at].as_chunks::<4>().0[half]);
                #[expect(unsafe_code, reason = "loads through pointers")]
                // SAFETY: both have four words; the loads need no alignment.
                let (values, masks) = unsafe {
                    (
                        _mm256_loadu_si256(values.as_ptr().cast::<__m256i>()),
                        _mm256_loadu_si256(masks.as_ptr().cast::<__m256i>()),
                    )
                };
                let key = _mm256_set1_epi64x(key[at].cast_signed());
                before = _mm256_or_si256(before, differs);
                differs = _mm256_and_si256(_mm256_xor_si256(key, values), masks);
            }
            let differs = _mm256_or_si256(before, _mm256_and_si256(differs, last));
            let fit = _mm256_castsi256_pd(_mm256_cmpeq_epi64(differs, none));
            fits |= u64::from(_mm256_movemask_pd(fit).cast_unsigned()) << (first + 4 * half);
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<const N: usize> AsRef<Self> for SimdTernary8<N> {
        fn as_ref(&self) -> &Self {
            self
        }
    }

    /// All forms that this CPU supports.
    fn simd_widths() -> Vec<SimdWidth> {
        let mut simd_widths = vec![SimdWidth::One];
        #[cfg(target_arch = "x86_64")]
        {
            simd_widths.extend(is_x86_feature_detected!("avx2").then_some(SimdWidth::Four));
            simd_widths.extend(is_x86_feature_detected!("avx512f").then_some(SimdWidth::Eight));
        }
        simd_widths
    }

    #[test]
    fn simd_width_detects_widest() {
        let widest = simd_widths().pop().map(|width| format!("{width:?}"));
        assert_eq!(widest, Some(format!("{:?}", SimdWidth::detect())));
    }

    /// All widths, single and batched, against a scalar comparison.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn simd_match_agrees_with_scalar() {
        const LAST: u64 = 5;
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33 & 7 & seed >> 40
        };
        let (mut before, mut all_before, mut key_before) = (Vec::new(), 0, [0; 3]);
        for count in (0..=9).cycle().take(1000) {
            let mut words = || std::array::from_fn(|_| std::array::from_fn(|_| next()));
            let lanes: Vec<SimdTernary8<3>> =
                (0..count).map(|_| SimdTernary8 { values: words(), masks: words() }).collect();
            let key = [next(), next(), next()];
            let fits = |at: usize| {
                let SimdTernary8 { values, masks } = &lanes[at / 8];
                let differs =
                    |word: usize| (key[word] ^ values[word][at % 8]) & masks[word][at % 8];
                differs(0) == 0 && differs(1) == 0 && differs(2) & LAST == 0
            };
            let all = (0..8 * count.min(8)).fold(0, |all, at| all | u64::from(fits(at)) << at);
            assert_eq!(match_lanes(&lanes, &key, LAST), all);
            for width in simd_widths() {
                assert_eq!(match_with(width, &lanes, &key, LAST), all, "{width:?}");
                let pairs = [(&*lanes, &key), (&[], &key), (&*before, &key_before)];
                for (room, expected) in [(2, [all, 0, 7, 7]), (4, [all, 0, all_before, 7])] {
                    let mut each = [7; 4];
                    match_batch_with(width, pairs.into_iter(), LAST, &mut each[..room]);
                    assert_eq!(each, expected, "{width:?}, room for {room}");
                }
            }
            (before, all_before, key_before) = (lanes, all, key);
        }
    }
}

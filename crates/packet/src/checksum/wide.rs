//! Checksums with the widest vector registers.

use super::sum_narrow;

/// From this length on, 64-byte registers make up for the final reduction.
#[cfg(target_arch = "x86_64")]
const WIDEST: usize = 1024;

/// The sum of `bytes` as by [`sum_narrow`], or one that folds to the same.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDEST && x86::has_avx512() {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: AVX-512BW and AVX-512VNNI were detected.
        return unsafe { x86::sum_avx512(bytes) };
    } else if is_x86_feature_detected!("avx2") {
        #[expect(
            unsafe_code,
            reason = "calling a function compiled for more than every x86-64 has"
        )]
        // SAFETY: AVX2 was detected.
        return unsafe { x86::sum_avx2(bytes) };
    }
    sum_narrow(bytes)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_dpwssd_epi32, _mm512_loadu_si512,
        _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi32, _mm512_set1_epi16, _mm512_setzero_si512,
        _mm512_xor_si512,
    };

    use super::sum_narrow;

    /// Bytes of a register.
    const REGISTER: usize = 64;

    /// Parallel sums, so that none waits for the one before: an addition takes some five cycles,
    /// and one can begin in each.
    const SUMS: usize = 4;

    /// No 32-bit lane overflows before, nor does the sum of all lanes.
    const LONGEST: usize = 1 << 16;

    /// Bias of a register of zeros: each word is taken as signed, 2^15 less than it is.
    const TOO_LITTLE: usize = (REGISTER / 2) << 15;

    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni")
    }

    /// [`sum_narrow`] with registers of 32 bytes: twice as fast.
    #[target_feature(enable = "avx2")]
    pub(super) fn sum_avx2(bytes: &[u8]) -> u64 {
        sum_narrow(bytes)
    }

    /// With 64-byte registers, whose words are added directly: twice as fast again.
    #[target_feature(enable = "avx512bw,avx512vnni")]
    pub(super) fn sum_avx512(bytes: &[u8]) -> u64 {
        if bytes.len() <= LONGEST {
            return sum_chunk(bytes);
        }
        bytes.chunks(LONGEST).map(|chunk| sum_chunk(chunk)).sum()
    }

    /// Sums at most [`LONGEST`] bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn sum_chunk(bytes: &[u8]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); SUMS];
        let (head, bytes) = bytes.split_at(before_line(bytes));
        sums[SUMS - 1] = add(sums[SUMS - 1], load(head));
        let (rounds, rest) = bytes.as_chunks::<{ SUMS * REGISTER }>();
        for round in rounds {
            for (sum, part) in sums.iter_mut().zip(round.as_chunks::<REGISTER>().0) {
                *sum = add(*sum, load(part));
            }
        }
        for (sum, part) in sums.iter_mut().zip(rest.chunks(REGISTER)) {
            *sum = add(*sum, load(part));
        }
        total(sums, 1 + bytes.len().div_ceil(REGISTER))
    }

    /// Bytes before the first cache line boundary: aligned registers load faster. 0 if the address
    /// is odd, as words would be split.
    #[inline(always)]
    fn before_line(bytes: &[u8]) -> usize {
        let before = bytes.as_ptr().align_offset(REGISTER);
        if before.is_multiple_of(2) { before.min(bytes.len()) } else { 0 }
    }

    /// Adds pairs of words in one instruction.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn add(sum: __m512i, words: __m512i) -> __m512i {
        let (sign, one) = (_mm512_set1_epi16(i16::MIN), _mm512_set1_epi16(1));
        _mm512_dpwssd_epi32(sum, _mm512_xor_si512(words, sign), one)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn total([a, b, c, d]: [__m512i; SUMS], registers: usize) -> u64 {
        let all = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
        let sum = i64::from(_mm512_reduce_add_epi32(all));
        ((registers * TOO_LITTLE) as u64).wrapping_add_signed(sum)
    }

    /// The first [`REGISTER`] bytes, padded with zeros.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    #[expect(unsafe_code, reason = "reads memory into a register")]
    fn load(bytes: &[u8]) -> __m512i {
        if bytes.len() >= REGISTER {
            // SAFETY: so many bytes may be read there, wherever they lie.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        } else {
            let there = (1_u64 << bytes.len()) - 1;
            // SAFETY: the mask leaves only bytes of the slice to be read.
            unsafe { _mm512_maskz_loadu_epi8(there, bytes.as_ptr().cast()) }
        }
    }
}

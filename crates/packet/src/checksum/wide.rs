//! Sums of many bytes by the widest registers there are.

use super::sum_narrow;

/// From this length on registers of 64 bytes make up for adding their lanes up at the end.
#[cfg(target_arch = "x86_64")]
const WIDEST: usize = 512;

/// The sum of `bytes` as [`sum_narrow`] counts it, or one that folds to the same.
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
        __m512i, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_loadu_si512,
        _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi32, _mm512_set1_epi16, _mm512_setzero_si512,
        _mm512_slli_epi32,
    };

    use super::sum_narrow;

    /// Bytes of a register.
    const REGISTER: usize = 64;

    /// No lane of 32 bits overflows before, nor does the sum of all of them.
    const LONGEST: usize = 1 << 16;

    /// Bytes of words' first halves and of their second ones apart, each added up by fours in one instruction.
    #[derive(Clone, Copy)]
    struct Halves {
        first: __m512i,
        second: __m512i,
    }

    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni")
    }

    /// [`sum_narrow`] with registers of 32 bytes: twice as fast.
    #[target_feature(enable = "avx2")]
    pub(super) fn sum_avx2(bytes: &[u8]) -> u64 {
        sum_narrow(bytes)
    }

    /// With registers of 64 bytes, all of which are added up as they are: twice as fast again.
    #[target_feature(enable = "avx512bw,avx512vnni")]
    pub(super) fn sum_avx512(bytes: &[u8]) -> u64 {
        bytes.chunks(LONGEST).map(|chunk| sum_chunk(chunk)).sum()
    }

    /// Of [`LONGEST`] bytes at the most.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn sum_chunk(bytes: &[u8]) -> u64 {
        // Two sums in turn, so that none waits for the one before.
        let (mut even, mut odd) = (zero(), zero());
        let (head, bytes) = bytes.split_at(before_line(bytes));
        odd = add(odd, load(head));
        let (pairs, rest) = bytes.as_chunks::<{ 2 * REGISTER }>();
        for pair in pairs {
            let (first, second) = pair.split_at(REGISTER);
            even = add(even, load(first));
            odd = add(odd, load(second));
        }
        let (first, second) = rest.split_at(rest.len().min(REGISTER));
        even = add(even, load(first));
        odd = add(odd, load(second));
        total(even, odd)
    }

    /// How many bytes lie before the first cache line that begins in them: registers of a line each are loaded faster. None if they are
    /// of an odd number, as words would be cut.
    #[inline(always)]
    fn before_line(bytes: &[u8]) -> usize {
        let before = bytes.as_ptr().align_offset(REGISTER);
        if before.is_multiple_of(2) { before.min(bytes.len()) } else { 0 }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn zero() -> Halves {
        Halves { first: _mm512_setzero_si512(), second: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn add(sum: Halves, bytes: __m512i) -> Halves {
        let (first, second) = (_mm512_set1_epi16(0x0001), _mm512_set1_epi16(0x0100));
        Halves {
            first: _mm512_dpbusd_epi32(sum.first, bytes, first),
            second: _mm512_dpbusd_epi32(sum.second, bytes, second),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    fn total(even: Halves, odd: Halves) -> u64 {
        let first = _mm512_add_epi32(even.first, odd.first);
        let second = _mm512_slli_epi32::<8>(_mm512_add_epi32(even.second, odd.second));
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        u64::from(sum.cast_unsigned())
    }

    /// The first [`REGISTER`] bytes, or as many as there are and zeros.
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

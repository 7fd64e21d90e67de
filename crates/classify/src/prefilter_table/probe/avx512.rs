//! [`PrefilterProbe`] with AVX-512.

use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm256_storeu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi64_epi32, _mm512_loadu_si512, _mm512_mask_cmple_epu32_mask,
    _mm512_mask_cmpneq_epu32_mask, _mm512_mask_srli_epi32, _mm512_maskz_compress_epi32,
    _mm512_min_epu32, _mm512_mullo_epi64, _mm512_or_si512, _mm512_rol_epi64, _mm512_set_epi32,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srl_epi64, _mm512_srli_epi32, _mm512_srli_epi64, _mm512_storeu_si512,
    _mm512_test_epi32_mask, _mm512_testn_epi32_mask, _mm512_xor_si512,
};

use super::{
    CAPACITY, KeyRow, LANES, PROBE_KEYS, PrefilterProbe, ProbeTargets, WordColumn, number,
};
use crate::prefilter_table::{
    FINGERPRINT, FINGERPRINT_SHIFT, MIXED, MULTIPLIER, NO_RANK, PrefilterTable,
};

/// Whether the CPU has the features that these functions are compiled for.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("popcnt")
}

impl PrefilterProbe {
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and fewer than
    /// [`MAX_TABLES`](super::MAX_TABLES) tables were asked.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "loads and stores through pointers")]
    pub(super) unsafe fn query_avx512(&mut self, table: &PrefilterTable, keys: &[WordColumn]) {
        let (hashes, shift) = (hashes(table, keys), _mm_cvtsi32_si128(table.shift.cast_signed()));
        let slots = self.slots[self.tables].write([0; PROBE_KEYS]);
        let mut bits = [0_u32; PROBE_KEYS];
        for (at, hash) in (0..).step_by(8).zip(hashes) {
            let slot = _mm512_cvtepi64_epi32(_mm512_srl_epi64(hash, shift));
            let fingerprint = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<FINGERPRINT_SHIFT>(hash));
            // SAFETY: there are eight numbers for each of the hashes; the stores need no alignment.
            unsafe {
                _mm256_storeu_si256(slots.as_mut_ptr().add(at).cast(), slot);
                _mm256_storeu_si256(bits.as_mut_ptr().add(at).cast(), fingerprint);
            }
        }
        let ranks = self.ranks[self.tables].write([0; PROBE_KEYS]);
        // SAFETY: a slot's number is below the number of slots: `shift` leaves no more bits.
        unsafe { gather(&table.slots, slots, ranks) };
        let [fingerprint, several, none, this] = [FINGERPRINT, MIXED, NO_RANK, number(self.tables)]
            .map(|all| _mm512_set1_epi32(all.cast_signed()));
        for at in (0..PROBE_KEYS).step_by(LANES) {
            let (found, bits) = (lanes(ranks, at), lanes(&bits, at));
            let known = _mm512_testn_epi32_mask(_mm512_xor_si512(found, bits), fingerprint)
                | _mm512_test_epi32_mask(found, several);
            let rank = _mm512_mask_srli_epi32::<16>(none, known, found);
            let this = _mm512_or_si512(_mm512_slli_epi32::<8>(rank), this);
            let first = _mm512_min_epu32(lanes(&self.best, at), this);
            // SAFETY: sixteen numbers from `at` on are inside; the stores need no alignment.
            unsafe {
                _mm512_storeu_si512(ranks.as_mut_ptr().add(at).cast(), rank);
                _mm512_storeu_si512(self.best.as_mut_ptr().add(at).cast(), first);
            }
        }
        self.tables += 1;
    }

    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    pub(super) unsafe fn best_targets_avx512(
        &self,
        count: usize,
        own: &KeyRow,
        targets: &mut ProbeTargets,
    ) {
        for at in (0..PROBE_KEYS).step_by(LANES) {
            let (first, own) = (lanes(&self.best, at), lanes(own, at));
            let rank = _mm512_srli_epi32::<8>(first);
            let taken = _mm512_mask_cmple_epu32_mask(first_lanes(count, at), rank, own);
            let table = _mm512_and_si512(first, _mm512_set1_epi32(0xff));
            // SAFETY: as this function's caller says; no key goes to more than one table.
            unsafe { targets.push_avx512(table, at, taken) };
        }
    }

    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    pub(super) unsafe fn other_targets_avx512(
        &self,
        count: usize,
        own: &KeyRow,
        targets: &mut ProbeTargets,
    ) {
        for at in (0..PROBE_KEYS).step_by(LANES) {
            let own = lanes(own, at);
            let first = _mm512_and_si512(lanes(&self.best, at), _mm512_set1_epi32(0xff));
            for (table, ranks) in (0..).zip(self.rows(&self.ranks)) {
                let table = _mm512_set1_epi32(table);
                let other = _mm512_mask_cmpneq_epu32_mask(first_lanes(count, at), first, table);
                let taken = _mm512_mask_cmple_epu32_mask(other, lanes(ranks, at), own);
                // SAFETY: as this function's caller says; each key goes to each table but once.
                unsafe { targets.push_avx512(table, at, taken) };
            }
        }
    }
}

impl ProbeTargets {
    /// Appends pairs for some of the keys from `at` on.
    ///
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and there are fewer steps than keys and
    /// tables.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "a store through a pointer")]
    unsafe fn push_avx512(&mut self, table: __m512i, at: usize, taken: u16) {
        let keys = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let keys = _mm512_add_epi32(keys, _mm512_set1_epi32(number(at).cast_signed()));
        let target = _mm512_or_si512(_mm512_slli_epi32::<8>(table), keys);
        let target = _mm512_maskz_compress_epi32(taken, target);
        debug_assert!(self.count + LANES <= CAPACITY, "room for all");
        // SAFETY: there is room for as many as a vector holds beyond those of all keys and tables.
        unsafe { _mm512_storeu_si512(self.targets.as_mut_ptr().add(self.count).cast(), target) };
        self.count += taken.count_ones() as usize;
    }
}

/// Hashes of all keys, eight per vector. Word by word, so that few branches test which words are
/// masked out.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn hashes(table: &PrefilterTable, keys: &[WordColumn]) -> [__m512i; PROBE_KEYS / 8] {
    let odd = _mm512_set1_epi64(MULTIPLIER.cast_signed());
    let mut hashes = [_mm512_setzero_si512(); PROBE_KEYS / 8];
    for (mask, word) in table.mask.iter().zip(keys).filter(|(mask, _)| **mask != 0) {
        let mask = _mm512_set1_epi64(mask.cast_signed());
        for (hash, word) in hashes.iter_mut().zip(word.as_chunks::<8>().0) {
            // SAFETY: there are eight words; the load needs no alignment.
            let word = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
            let word = _mm512_and_si512(word, mask);
            let mixed = _mm512_xor_si512(_mm512_rol_epi64::<32>(*hash), word);
            *hash = _mm512_mullo_epi64(mixed, odd);
        }
    }
    hashes
}

/// Reads some slots. Scalar and not compiled for AVX-512, as gathers are slower on AMD.
///
/// # Safety
///
/// There are slots of these numbers.
#[inline(never)]
#[expect(unsafe_code, reason = "no number is checked, and the hash leaves none that is too large")]
unsafe fn gather(all: &[u32], slots: &KeyRow, found: &mut KeyRow) {
    for (found, slot) in found.iter_mut().zip(slots) {
        // SAFETY: as this function's caller says.
        *found = unsafe { *all.get_unchecked(*slot as usize) };
    }
}

/// Sixteen lanes of a row.
#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn lanes(row: &KeyRow, at: usize) -> __m512i {
    let row = &row[at..at + LANES];
    // SAFETY: there are sixteen; the load needs no alignment.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

/// Lane mask of keys below `count`, from `at` on.
#[inline]
fn first_lanes(count: usize, at: usize) -> u16 {
    u16::MAX.checked_shr(number(LANES - count.saturating_sub(at).min(LANES))).unwrap_or(0)
}

//! With AVX-512.

use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm256_loadu_si256, _mm256_mask_srli_epi32, _mm256_min_epu32,
    _mm256_or_si256, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_storeu_si256,
    _mm256_test_epi32_mask, _mm256_testn_epi32_mask, _mm256_xor_si256, _mm512_add_epi32,
    _mm512_and_si512, _mm512_cvtepi64_epi32, _mm512_i64gather_epi32, _mm512_loadu_si512,
    _mm512_mask_cmple_epu32_mask, _mm512_mask_cmpneq_epu32_mask, _mm512_maskz_compress_epi32,
    _mm512_mullo_epi64, _mm512_or_si512, _mm512_rol_epi64, _mm512_set_epi32, _mm512_set1_epi32,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srl_epi64,
    _mm512_srli_epi32, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::super::{NO_LEVEL, ODD, PRINT, PRINT_SHIFT, SEVERAL, Slots};
use super::{Columns, KEYS, LANES, ROOM, Row, Steps, Told, number};

/// Whether the processor has what these functions are compiled for.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("popcnt")
}

impl Told {
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and fewer than [`TABLES`](super::TABLES) tables were asked.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "loads and stores through pointers")]
    pub(super) unsafe fn ask_avx512(&mut self, table: &Slots, keys: &[Columns]) {
        let odd = _mm512_set1_epi64(ODD.cast_signed());
        let shift = _mm_cvtsi32_si128(table.shift.cast_signed());
        let [print, several, none, this] = [PRINT, SEVERAL, NO_LEVEL, number(self.tables)]
            .map(|all| _mm256_set1_epi32(all.cast_signed()));
        let levels = self.levels[self.tables].as_mut_ptr().cast::<u32>();
        let slots = self.slots[self.tables].as_mut_ptr().cast::<u32>();
        for at in (0..KEYS).step_by(8) {
            let mut hash = _mm512_setzero_si512();
            for (mask, word) in table.mask.iter().zip(keys) {
                if *mask != 0 {
                    // SAFETY: eight words from `at` on are inside; the load needs no alignment.
                    let word = unsafe { _mm512_loadu_si512(word.as_ptr().add(at).cast()) };
                    let word = _mm512_and_si512(word, _mm512_set1_epi64(mask.cast_signed()));
                    let mixed = _mm512_xor_si512(_mm512_rol_epi64::<32>(hash), word);
                    hash = _mm512_mullo_epi64(mixed, odd);
                }
            }
            let slot = _mm512_srl_epi64(hash, shift);
            // SAFETY: a slot's number is below the number of slots: `shift` leaves no more bits.
            let found = unsafe { _mm512_i64gather_epi32::<4>(slot, table.slots.as_ptr().cast()) };
            let bits = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<PRINT_SHIFT>(hash));
            let known = _mm256_testn_epi32_mask(_mm256_xor_si256(found, bits), print)
                | _mm256_test_epi32_mask(found, several);
            let level = _mm256_mask_srli_epi32::<16>(none, known, found);
            // SAFETY: eight numbers from `at` on are inside; nothing of it needs alignment.
            unsafe {
                _mm256_storeu_si256(levels.add(at).cast(), level);
                _mm256_storeu_si256(slots.add(at).cast(), _mm512_cvtepi64_epi32(slot));
                let first = self.firsts.as_mut_ptr().add(at).cast();
                let this = _mm256_or_si256(_mm256_slli_epi32::<8>(level), this);
                _mm256_storeu_si256(first, _mm256_min_epu32(_mm256_loadu_si256(first), this));
            }
        }
        self.tables += 1;
    }

    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    pub(super) unsafe fn firsts_avx512(&self, count: usize, own: &Row, steps: &mut Steps) {
        for at in (0..KEYS).step_by(LANES) {
            let (first, own) = (lanes(&self.firsts, at), lanes(own, at));
            let level = _mm512_srli_epi32::<8>(first);
            let taken = _mm512_mask_cmple_epu32_mask(these(count, at), level, own);
            let table = _mm512_and_si512(first, _mm512_set1_epi32(0xff));
            // SAFETY: as this function's caller says; no key goes to more than one table.
            unsafe { steps.note_avx512(table, at, taken) };
        }
    }

    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[expect(unsafe_code, reason = "as of what it calls")]
    pub(super) unsafe fn others_avx512(&self, count: usize, own: &Row, steps: &mut Steps) {
        for at in (0..KEYS).step_by(LANES) {
            let own = lanes(own, at);
            let first = _mm512_and_si512(lanes(&self.firsts, at), _mm512_set1_epi32(0xff));
            for (table, levels) in (0..).zip(self.rows(&self.levels)) {
                let table = _mm512_set1_epi32(table);
                let other = _mm512_mask_cmpneq_epu32_mask(these(count, at), first, table);
                let taken = _mm512_mask_cmple_epu32_mask(other, lanes(levels, at), own);
                // SAFETY: as this function's caller says; each key goes to each table but once.
                unsafe { steps.note_avx512(table, at, taken) };
            }
        }
    }
}

impl Steps {
    /// Notes the steps of some of the keys from `at` on.
    ///
    /// # Safety
    ///
    /// The processor has what [`has_avx512`] asks for, and there are fewer steps than keys and tables.
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,popcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "a store through a pointer")]
    unsafe fn note_avx512(&mut self, table: __m512i, at: usize, taken: u16) {
        let keys = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let keys = _mm512_add_epi32(keys, _mm512_set1_epi32(number(at).cast_signed()));
        let step = _mm512_or_si512(_mm512_slli_epi32::<8>(table), keys);
        let step = _mm512_maskz_compress_epi32(taken, step);
        debug_assert!(self.count + LANES <= ROOM, "room for all");
        // SAFETY: there is room for as many as a vector holds beyond those of all keys and tables.
        unsafe { _mm512_storeu_si512(self.steps.as_mut_ptr().add(self.count).cast(), step) };
        self.count += taken.count_ones() as usize;
    }
}

/// Sixteen numbers.
#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn lanes(row: &Row, at: usize) -> __m512i {
    let row = &row[at..at + LANES];
    // SAFETY: there are sixteen; the load needs no alignment.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

/// Which of the keys from `at` on are among the first so many, as bits.
#[inline]
fn these(count: usize, at: usize) -> u16 {
    u16::MAX.checked_shr(number(LANES - count.saturating_sub(at).min(LANES))).unwrap_or(0)
}

//! With AVX-512.

use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm256_storeu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi64_epi32, _mm512_loadu_si512, _mm512_mask_cmple_epu32_mask,
    _mm512_mask_cmpneq_epu32_mask, _mm512_mask_srli_epi32, _mm512_maskz_compress_epi32,
    _mm512_min_epu32, _mm512_mullo_epi64, _mm512_or_si512, _mm512_rol_epi64, _mm512_set_epi32,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srl_epi64, _mm512_srli_epi32, _mm512_srli_epi64, _mm512_storeu_si512,
    _mm512_test_epi32_mask, _mm512_testn_epi32_mask, _mm512_xor_si512,
};

use super::{Columns, KEYS, LANES, ROOM, Row, Steps, Told, number};
use crate::prefilter_table::{NO_LEVEL, ODD, PRINT, PRINT_SHIFT, SEVERAL, Slots};

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
        let (hashes, shift) = (hashes(table, keys), _mm_cvtsi32_si128(table.shift.cast_signed()));
        let slots = self.slots[self.tables].write([0; KEYS]);
        let mut bits = [0_u32; KEYS];
        for (at, hash) in (0..).step_by(8).zip(hashes) {
            let slot = _mm512_cvtepi64_epi32(_mm512_srl_epi64(hash, shift));
            let print = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<PRINT_SHIFT>(hash));
            // SAFETY: there are eight numbers for each of the hashes; the stores need no alignment.
            unsafe {
                _mm256_storeu_si256(slots.as_mut_ptr().add(at).cast(), slot);
                _mm256_storeu_si256(bits.as_mut_ptr().add(at).cast(), print);
            }
        }
        let levels = self.levels[self.tables].write([0; KEYS]);
        // SAFETY: a slot's number is below the number of slots: `shift` leaves no more bits.
        unsafe { fetch(&table.slots, slots, levels) };
        let [print, several, none, this] = [PRINT, SEVERAL, NO_LEVEL, number(self.tables)]
            .map(|all| _mm512_set1_epi32(all.cast_signed()));
        for at in (0..KEYS).step_by(LANES) {
            let (found, bits) = (lanes(levels, at), lanes(&bits, at));
            let known = _mm512_testn_epi32_mask(_mm512_xor_si512(found, bits), print)
                | _mm512_test_epi32_mask(found, several);
            let level = _mm512_mask_srli_epi32::<16>(none, known, found);
            let this = _mm512_or_si512(_mm512_slli_epi32::<8>(level), this);
            let first = _mm512_min_epu32(lanes(&self.firsts, at), this);
            // SAFETY: sixteen numbers from `at` on are inside; the stores need no alignment.
            unsafe {
                _mm512_storeu_si512(levels.as_mut_ptr().add(at).cast(), level);
                _mm512_storeu_si512(self.firsts.as_mut_ptr().add(at).cast(), first);
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

/// The hashes of all keys, by eights. Word by word, so that few branches ask which words count.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn hashes(table: &Slots, keys: &[Columns]) -> [__m512i; KEYS / 8] {
    let odd = _mm512_set1_epi64(ODD.cast_signed());
    let mut hashes = [_mm512_setzero_si512(); KEYS / 8];
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

/// What some slots have. One by one, and not compiled for AVX-512, as AMD's processors take longer to gather.
///
/// # Safety
///
/// There are slots of these numbers.
#[inline(never)]
#[expect(unsafe_code, reason = "no number is checked, and the hash leaves none that is too large")]
unsafe fn fetch(all: &[u32], slots: &Row, found: &mut Row) {
    for (found, slot) in found.iter_mut().zip(slots) {
        // SAFETY: as this function's caller says.
        *found = unsafe { *all.get_unchecked(*slot as usize) };
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

//! Aggregated bit vectors: one row of bits for each byte of a key, and their intersection.

mod field_rows;
mod layout;
mod row_search;

use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) use field_rows::{FieldLocation, FieldRows, KeyField};
#[cfg(target_arch = "x86_64")]
use layout::{BY_WORDS, LISTED};
use layout::{ByteLayout, TWO, whole_words};
use row_search::RowScan;

/// A cache line of a row: eight words.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub(crate) struct BitLine(pub [u64; 8]);

/// One byte of a key, and the row of bits for each of its values.
#[derive(Clone, Debug)]
pub(crate) struct ByteField {
    /// Byte index, from the lowest byte of the first word. In the last word, bytes below
    /// [`UNUSED_BYTES`] match nothing.
    pub(crate) place: usize,
    /// Row number for each value. Numbers beyond the last row mean the last row.
    pub(crate) numbers: [u16; VALUES],
    /// Rows, one after the other.
    pub(crate) rows: Vec<u64>,
}

/// Rows of bits, selected by the bytes of a key. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ByteRows {
    /// Words of a row: 1, 2, 4, 8 or a multiple of 16.
    width: usize,
    /// Number of rows.
    count: usize,
    /// Number of bytes that have rows.
    rows_read: usize,
    /// Words that a key must have for the AVX-512 path.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    min_words: usize,
    /// Whether the CPU supports the AVX-512 path.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    uses_avx512: bool,
    /// Bytes that have rows; with [`ByteLayout::ByWords`] all bytes of their words.
    asked: Arc<[ByteIndex]>,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    layout: ByteLayout,
    /// Shift of a row number in [`ByteIndex`], so that it counts words.
    scale: u32,
    /// Shift that remains to be applied; 0 unless there are too many rows.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    shift: u32,
    /// Row 0 has all bits set. Rows of 16 words and more are stored in blocks: the first 16 words
    /// of each row, then the next 16. One spare line follows the last row.
    lines: Arc<[BitLine]>,
}

/// The rows of one byte.
#[derive(Clone, Debug)]
struct ByteIndex {
    /// Byte index, from the lowest byte of the first word.
    place: usize,
    /// Offset of each value's row in its block, in words or shifted as [`ByteRows::shift`] says.
    /// `of` makes sure that each offset is inside.
    rows: [u16; VALUES],
}

/// Number of values of a byte.
const VALUES: usize = 256;
/// Low bytes of the last word that no rule matches.
pub(crate) const UNUSED_BYTES: usize = 3;
/// Keys processed side by side, so that shared loads are done once.
#[cfg(target_arch = "x86_64")]
const UNROLL: usize = 2;
/// Words per block of the longest rows, and their bits.
const BLOCK: usize = 16;
const BLOCK_BITS: u32 = 64 * 16;
/// Bytes of a word; bytes of the last word that rules can match.
const WORD: usize = 8;
const LAST: usize = WORD - UNUSED_BYTES;

impl ByteRows {
    /// Builds the rows of `fields` for keys of `key_words` words. Rows have `width` words: 1, 2, 4,
    /// 8 or a multiple of 16. Fields outside the key, and rows beyond the first 65,535, are
    /// ignored.
    pub(crate) fn of(key_words: usize, width: usize, fields: &[ByteField]) -> Self {
        let (last, width) = (key_words.saturating_sub(1), width.max(1));
        let mut numbered: Vec<(usize, [u16; VALUES])> = Vec::new();
        let mut words = vec![u64::MAX; width];
        for field in fields {
            let Some(numbers) = field.with_offset(words.len() / width, width) else { continue };
            if field.place / 8 > last || field.place / 8 == last && field.place % 8 < UNUSED_BYTES {
                continue;
            }
            numbered.push((field.place, numbers));
            words.extend_from_slice(&field.rows[..field.rows.len() / width * width]);
        }
        let (count, rows_read) = (words.len() / width, numbered.len());
        let unit = width.min(BLOCK).ilog2();
        let (scale, shift) = if count << unit <= 1 << u16::BITS { (unit, 0) } else { (0, unit) };
        let whole = if shift == 0 { whole_words(last, &numbered) } else { None };
        let layout = match &whole {
            None => ByteLayout::Listed,
            Some(bytes) if key_words == 2 && bytes.len() == TWO => ByteLayout::Two,
            Some(_) => ByteLayout::ByWords,
        };
        let numbered = whole.unwrap_or(numbered);
        let min_words = numbered.iter().map(|(place, _)| place / 8 + 1).max().unwrap_or(0);
        let asked = numbered.into_iter().map(|(place, numbers)| ByteIndex {
            place,
            rows: numbers.map(|number| number << scale),
        });
        let (asked, lines) = (asked.collect(), lines(&words, width));
        // The AVX-512 path supports these widths only.
        let uses_avx512 = has_avx512() && (matches!(width, 1 | 2 | 4 | 8) || width % BLOCK == 0);
        Self { width, count, rows_read, min_words, uses_avx512, asked, layout, scale, shift, lines }
    }

    /// For each key, finds the lowest bit set in `live` and in all rows that the key selects;
    /// a number beyond all bits if there is none. Words that a key lacks match everything.
    pub(crate) fn find_first_batch<K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        let keys = &keys[..keys.len().min(found.len())];
        #[cfg(target_arch = "x86_64")]
        if self.uses_avx512
            && live.len() >= self.width.div_ceil(8)
            && keys.iter().all(|key| key.as_ref().len() >= self.min_words)
        {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected when these were made, and
            // keys and `live` have all words.
            return unsafe { self.batch_avx512(keys, live, found) };
        }
        for (found, key) in found.iter_mut().zip(keys) {
            *found = self.find_first_from(key.as_ref(), live, 0).unwrap_or(u32::MAX);
        }
    }

    /// [`ByteRows::find_first_batch`] for one key.
    #[inline]
    pub(crate) fn find_first<K: AsRef<[u64]>>(&self, key: &K, live: &[BitLine]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.uses_avx512
            && live.len() >= self.width.div_ceil(8)
            && key.as_ref().len() >= self.min_words
        {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected when these were made, and
            // the key and `live` have all words.
            return unsafe { self.one_avx512(key, live) };
        }
        self.find_first_from(key.as_ref(), live, 0).unwrap_or(u32::MAX)
    }

    /// [`ByteRows::find_first_batch`] for one key, from bit `from` on.
    pub(crate) fn find_first_from(
        &self,
        key: &[u64],
        live: &[BitLine],
        from: usize,
    ) -> Option<u32> {
        let mut numbers = [0; MAX_FIELDS];
        let bit = self.row_scan(key, live, &mut numbers).first(from)?;
        u32::try_from(bit).ok()
    }

    /// Number of rows read for a key.
    pub(crate) fn rows_read(&self) -> usize {
        self.rows_read
    }

    /// Bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.asked) + size_of_val(&*self.lines)
    }

    /// Collects the row numbers first: the loop over rows is faster without the key look-ups.
    fn row_scan<'a>(
        &'a self,
        key: &[u64],
        live: &'a [BitLine],
        numbers: &'a mut [u16; MAX_FIELDS],
    ) -> RowScan<'a> {
        let rows = self.asked.iter().filter_map(|asked| {
            let byte = key.get(asked.place / 8)?.to_le_bytes()[asked.place % 8];
            Some(asked.rows[usize::from(byte)] >> self.scale)
        });
        let rows = rows.filter(|row| *row != 0);
        let noted = numbers.iter_mut().zip(rows).map(|(number, row)| *number = row).count();
        let Self { width, count, .. } = *self;
        let (words, live) = (words(&self.lines), words(live));
        RowScan { words, numbers: &numbers[..noted], live, width, count }
    }

    /// Rows of up to half a line share one code path whatever their width, which spares a branch.
    ///
    /// # Safety
    ///
    /// `live` has all lines of a row, each key has all words that are asked for, and there
    /// are no fewer `found`.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn batch_avx512<K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        // SAFETY: as this function's caller says; widths are as the functions ask.
        unsafe {
            match self.layout {
                ByteLayout::Listed => self.find_batch::<LISTED, K>(keys, live, found),
                ByteLayout::ByWords => self.find_batch::<BY_WORDS, K>(keys, live, found),
                ByteLayout::Two => self.find_batch::<TWO, K>(keys, live, found),
            }
        }
    }

    /// One key: no loop overhead.
    ///
    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn one_avx512<K: AsRef<[u64]>>(&self, key: &K, live: &[BitLine]) -> u32 {
        // SAFETY: as this function's caller says.
        unsafe {
            match self.layout {
                ByteLayout::Listed => self.find_one::<LISTED, K>(key, live),
                ByteLayout::ByWords => self.find_one::<BY_WORDS, K>(key, live),
                ByteLayout::Two => self.find_one::<TWO, K>(key, live),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`], and this is the layout.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn find_one<const LAYOUT: usize, K: AsRef<[u64]>>(
        &self,
        key: &K,
        live: &[BitLine],
    ) -> u32 {
        let keys = std::array::from_ref(key);
        // SAFETY: as this function's caller says; widths are as the functions ask.
        let [found] = unsafe {
            match self.width {
                ..=4 => self.and_short::<LAYOUT, 1, K>(keys, live),
                8 => self.and_lines::<1, LAYOUT, 1, K>(keys, live, 0),
                BLOCK => self.and_lines::<2, LAYOUT, 1, K>(keys, live, 0),
                _ => {
                    let mut found = [0];
                    self.batch_blocks::<LAYOUT, K>(keys, live, &mut found);
                    found
                }
            }
        };
        found
    }

    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`], and this is the layout.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn find_batch<const LAYOUT: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        // SAFETY: as this function's caller says; widths are as the functions ask.
        unsafe {
            match self.width {
                ..=4 => self.batch_short::<LAYOUT, K>(keys, live, found),
                8 => self.batch_lines::<1, LAYOUT, K>(keys, live, 0, found),
                BLOCK => self.batch_lines::<2, LAYOUT, K>(keys, live, 0, found),
                _ => self.batch_blocks::<LAYOUT, K>(keys, live, found),
            }
        }
    }

    /// Rows of up to four words.
    ///
    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn batch_short<const LAYOUT: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        let (groups, rest) = keys.as_chunks::<UNROLL>();
        let (found, rest_found) = found.split_at_mut(keys.len() - rest.len());
        for (found, keys) in found.as_chunks_mut().0.iter_mut().zip(groups) {
            // SAFETY: as this function's caller says.
            *found = unsafe { self.and_short::<LAYOUT, _, K>(keys, live) };
        }
        for (found, key) in rest_found.iter_mut().zip(rest) {
            // SAFETY: as this function's caller says.
            [*found] = unsafe { self.and_short::<LAYOUT, _, K>(std::array::from_ref(key), live) };
        }
    }

    /// Searches block `block`, of `LINES` lines of each row; bits count from the block's start. A
    /// separate function, so that its loop has all registers.
    ///
    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`], and rows have such a block.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn batch_lines<const LINES: usize, const LAYOUT: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        block: usize,
        found: &mut [u32],
    ) {
        let (groups, rest) = keys.as_chunks::<UNROLL>();
        let (found, rest_found) = found.split_at_mut(keys.len() - rest.len());
        for (found, keys) in found.as_chunks_mut().0.iter_mut().zip(groups) {
            // SAFETY: as this function's caller says.
            *found = unsafe { self.and_lines::<LINES, LAYOUT, UNROLL, K>(keys, live, block) };
        }
        for (found, key) in rest_found.iter_mut().zip(rest) {
            let key = std::array::from_ref(key);
            // SAFETY: as this function's caller says.
            [*found] = unsafe { self.and_lines::<LINES, LAYOUT, 1, K>(key, live, block) };
        }
    }

    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`], and rows have some blocks.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline(never)]
    #[expect(unsafe_code, reason = "what was checked once is not checked with each key")]
    unsafe fn batch_blocks<const LAYOUT: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        // SAFETY: as this function's caller says.
        unsafe { self.batch_lines::<2, LAYOUT, K>(keys, live, 0, found) };
        for (found, key) in found.iter_mut().zip(keys) {
            for (block, first) in
                (0..self.width / BLOCK).zip((0..).step_by(BLOCK_BITS as usize)).skip(1)
            {
                if *found < first {
                    break;
                }
                let mut bit = [0];
                // SAFETY: as this function's caller says.
                unsafe {
                    self.batch_lines::<2, LAYOUT, K>(
                        std::slice::from_ref(key),
                        live,
                        block,
                        &mut bit,
                    );
                }
                *found = first + bit[0];
            }
        }
    }

    /// Intersects rows of up to four words. Words loaded beyond a row yield bit numbers that rows
    /// do not have.
    ///
    /// # Safety
    ///
    /// As of [`ByteRows::batch_avx512`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "loads through pointers")]
    unsafe fn and_short<const LAYOUT: usize, const KEYS: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K; KEYS],
        live: &[BitLine],
    ) -> [u32; KEYS] {
        use core::arch::x86_64::{
            _mm_cvtsi128_si64, _mm256_and_si256, _mm256_castsi256_si128, _mm256_loadu_epi64,
            _mm256_maskz_compress_epi64, _mm256_test_epi64_mask,
        };
        let first = self.lines.as_ptr().cast::<i64>();
        // SAFETY: `live` has a line, which is twice as long.
        let mut all = [unsafe { _mm256_loadu_epi64(live.as_ptr().cast()) }; KEYS];
        // SAFETY: as this function's caller says.
        unsafe {
            self.for_each_row::<LAYOUT, KEYS, K>(keys, |at, row| {
                // The row begins inside the lines, and a spare line follows the last row.
                let row = _mm256_loadu_epi64(first.add(row));
                all[at] = _mm256_and_si256(all[at], row);
            });
        }
        all.map(|all| {
            let some = _mm256_test_epi64_mask(all, all);
            let first = _mm256_castsi256_si128(_mm256_maskz_compress_epi64(some, all));
            bit(some.into(), _mm_cvtsi128_si64(first))
        })
    }

    /// Intersects one block of lines for some keys. Called from one place per key count, so that
    /// the compiler inlines it: `inline(always)` is not allowed here.
    ///
    /// # Safety
    ///
    /// As of [`ByteRows::batch_lines`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,lzcnt")]
    #[inline]
    #[expect(unsafe_code, reason = "loads through pointers")]
    unsafe fn and_lines<
        const LINES: usize,
        const LAYOUT: usize,
        const KEYS: usize,
        K: AsRef<[u64]>,
    >(
        &self,
        keys: &[K; KEYS],
        live: &[BitLine],
        block: usize,
    ) -> [u32; KEYS] {
        use core::arch::x86_64::{_mm512_and_si512, _mm512_loadu_si512};

        // SAFETY: rows have this block, and `live` has a row.
        let load = |line: *const BitLine| unsafe {
            std::array::from_fn::<_, LINES, _>(|at| _mm512_loadu_si512(line.add(at).cast()))
        };
        let first = self.lines.as_ptr().wrapping_add(block * self.count * LINES);
        let mut all = [load(live.as_ptr().wrapping_add(block * LINES)); KEYS];
        // SAFETY: as this function's caller says.
        unsafe {
            self.for_each_row::<LAYOUT, KEYS, K>(keys, |at, row| {
                let row = load(first.cast::<u64>().wrapping_add(row).cast());
                all[at] = std::array::from_fn(|line| _mm512_and_si512(all[at][line], row[line]));
            });
        }
        // SAFETY: this function is compiled for it.
        all.map(|lines| unsafe { first_bit(lines) })
    }

    /// Visits the first word of each byte's row, byte by byte for all keys.
    ///
    /// # Safety
    ///
    /// Each key has all words that are asked for, and this is the layout.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "loads through pointers")]
    unsafe fn for_each_row<const LAYOUT: usize, const KEYS: usize, K: AsRef<[u64]>>(
        &self,
        keys: &[K; KEYS],
        mut show: impl FnMut(usize, usize),
    ) {
        // x86-64 is little-endian.
        let bytes = keys.each_ref().map(|key| {
            let words = key.as_ref();
            assert!(words.len() >= self.min_words, "a key that became shorter");
            words.as_ptr().cast::<u8>()
        });
        let mut look = |asked: &ByteIndex, place: usize, shift: u32| {
            for (at, bytes) in bytes.iter().enumerate() {
                // SAFETY: the byte is in one of the words that keys have.
                let byte = unsafe { *bytes.add(place) };
                show(at, usize::from(asked.rows[usize::from(byte)]) << shift);
            }
        };
        let mut all_of = |bytes: &[ByteIndex], first: usize| {
            bytes.iter().enumerate().for_each(|(at, asked)| look(asked, first + at, 0));
        };
        let (words, last) = self.asked.as_chunks::<WORD>();
        match (LAYOUT, words, last.first_chunk::<LAST>()) {
            (TWO, [first], Some(last)) => {
                all_of(first, 0);
                all_of(last, WORD + UNUSED_BYTES);
            }
            (BY_WORDS, words, Some(last)) => {
                words.iter().for_each(|word| all_of(word, word[0].place));
                all_of(last, last[0].place);
            }
            _ => self.asked.iter().for_each(|asked| look(asked, asked.place, self.shift)),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// Lays rows out as [`ByteRows`] stores them.
fn lines(rows: &[u64], width: usize) -> Arc<[BitLine]> {
    let mut lines = vec![BitLine::default(); rows.len().div_ceil(8) + 1];
    let room = <[u64]>::mut_from_bytes(lines.as_mut_bytes()).unwrap_or_default();
    let of_block = |block: usize| {
        let blocks = rows.chunks_exact(width).map(move |row| row.iter().skip(block * BLOCK));
        blocks.flat_map(|block| block.take(BLOCK))
    };
    let words = (0..width.div_ceil(BLOCK)).flat_map(of_block);
    room.iter_mut().zip(words).for_each(|(room, word)| *room = *word);
    lines.into()
}

/// Upper limit of bytes in a key.
const MAX_FIELDS: usize = 64;

impl ByteField {
    /// Row numbers shifted by `rows` earlier rows of `width` words; `None` if they do not fit 16
    /// bits or there are no rows.
    fn with_offset(&self, rows: usize, width: usize) -> Option<[u16; VALUES]> {
        let first = u16::try_from(rows).ok()?;
        let last = u16::try_from(rows + (self.rows.len() / width).checked_sub(1)?).ok()?;
        Some(self.numbers.map(|number| first.saturating_add(number).min(last)))
    }
}

fn words(lines: &[BitLine]) -> &[u64] {
    <[u64]>::ref_from_bytes(lines.as_bytes()).unwrap_or_default()
}

/// The lowest set bit of some lines; beyond all bits if there is none.
///
/// # Safety
///
/// What this becomes a part of is compiled for AVX-512, which the processor has.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code, reason = "it is compiled for what its callers are")]
unsafe fn first_bit<const LINES: usize>(lines: [core::arch::x86_64::__m512i; LINES]) -> u32 {
    use core::arch::x86_64::{
        _mm_cvtsi128_si64, _mm512_castsi512_si128, _mm512_maskz_compress_epi64,
        _mm512_test_epi64_mask,
    };
    let (mut some, mut word) = (0, 0);
    for (at, line) in lines.into_iter().enumerate().rev() {
        // SAFETY: as this function's caller says.
        let (these, first) = unsafe {
            let these = _mm512_test_epi64_mask(line, line);
            let first = _mm512_castsi512_si128(_mm512_maskz_compress_epi64(these, line));
            (these, _mm_cvtsi128_si64(first))
        };
        word = std::hint::select_unpredictable(these == 0, word, first);
        some |= u32::from(these) << (8 * at);
    }
    bit(some, word)
}

/// The lowest set bit of some words: `some` marks those that are not empty, `word` is the first of
/// these. Beyond all bits if there is none. Branch-free.
#[cfg(target_arch = "x86_64")]
#[inline]
const fn bit(some: u32, word: i64) -> u32 {
    some.trailing_zeros() * 64 + word.trailing_zeros()
}

#[cfg(test)]
mod tests;

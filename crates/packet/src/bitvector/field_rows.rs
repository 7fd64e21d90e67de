//! Rows of bits by what stands in whole fields of a key: fewer rows than one for each byte, found by a search among the values that are told apart, or a
//! trie of them.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod patricia;
mod row_index;

use std::sync::Arc;

use super::BitLine;
use row_index::RowIndex;

/// Where a field stands in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLocation {
    /// Some bits of a word, up to 32, from `shift` upwards.
    Bits {
        /// Which word.
        word: usize,
        /// The lowest of them.
        shift: u32,
        /// How many.
        bits: u32,
    },
    /// This word, which counts for more, and the next one.
    Words(usize),
}

/// A field of keys, and which row each of its values stands for.
#[derive(Clone, Debug)]
pub struct KeyField {
    /// Where it stands.
    pub place: FieldLocation,
    /// Values in order, each the last that stands for a row, with the row's number. The last of all is the highest that there is.
    pub ends: Vec<(u128, usize)>,
    /// The rows, one after the other.
    pub rows: Vec<u64>,
}

/// Rows of bits, and which of them the fields of a key stand for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FieldRows {
    /// Lines of a row.
    width: usize,
    /// How many rows there are.
    count: usize,
    /// How many words a key has at least, if it has all that is asked for.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    min_key_words: usize,
    /// Whether the processor has what the quickest way needs.
    uses_avx512: bool,
    /// [`MAX_KEY_FIELDS`] at the most. `of` sees to it that each number is below `count`.
    fields: Arc<[RowIndex]>,
    /// First some lines of each row, as many as are compared together, then the next ones.
    lines: Arc<[BitLine]>,
}

/// No key has more fields.
pub const MAX_KEY_FIELDS: usize = 6;
/// Lines of a row that are compared together at the most.
const BLOCK: usize = 4;
/// Keys that are looked up together.
const KEYS: usize = 32;

/// The rows that the axes of some keys stand for.
type RowNumbers = [[u16; KEYS]; MAX_KEY_FIELDS];

impl FieldRows {
    /// Of these axes, whose rows have so many words. None if there are too many axes, rows or values told apart, too many stretches of two
    /// words inside each other, an axis has no rows or does not end with the highest value.
    #[must_use]
    pub fn of(words: usize, fields: &[KeyField]) -> Option<Self> {
        let width = lines_per_row(words);
        if fields.len() > MAX_KEY_FIELDS {
            return None;
        }
        let (mut rows, mut found) = (Vec::new(), Vec::with_capacity(fields.len()));
        for field in fields {
            let here = field.rows.chunks_exact(words.max(1));
            let number = |row: usize| {
                let number = u16::try_from(rows.len() + row).ok()?;
                (row < here.len()).then_some(number)
            };
            found.push(RowIndex::of(field.place, &field.ends, number)?);
            rows.extend(here);
        }
        let (count, lines) = (rows.len(), lines(&rows, width));
        let min_key_words =
            fields.iter().map(|field| field.place.min_key_words()).max().unwrap_or(0);
        Some(Self {
            width,
            count,
            min_key_words,
            uses_avx512: has_avx512(),
            fields: found.into(),
            lines,
        })
    }

    /// For each key the lowest bit that is set `candidates` some and in the rows that the key stands for; if there is none, a number beyond all bits.
    /// Words that a key does not have are zeros.
    pub fn find_first_batch<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        candidates: &[BitLine],
        found: &mut [u32],
    ) {
        for (keys, found) in keys.chunks(KEYS).zip(found.chunks_mut(KEYS)) {
            self.find_chunk(&keys[..keys.len().min(found.len())], candidates, found);
        }
    }

    fn find_chunk<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        candidates: &[BitLine],
        found: &mut [u32],
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.uses_avx512 && candidates.len() >= self.width && N >= self.min_key_words {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected when this was made; keys and `candidates` have all words, and there are no more
            // keys than are looked up together, nor fewer `found`.
            return unsafe { self.find_chunk_avx512(keys, candidates, found) };
        }
        for (key, found) in keys.iter().zip(found) {
            *found = self.find_first_from(key.as_ref(), candidates, 0).unwrap_or(u32::MAX);
        }
    }

    /// As [`FieldRows::find_first_batch`] of one key, but the lowest bit from `from` on.
    #[must_use]
    pub fn find_first_from(&self, key: &[u64], candidates: &[BitLine], from: usize) -> Option<u32> {
        let mut numbers = [0; MAX_KEY_FIELDS];
        for (number, field) in numbers.iter_mut().zip(&*self.fields) {
            *number = field.number(key);
        }
        let rows = &numbers[..self.fields.len()];
        (from / BitLine::BITS..self.width).find_map(|line| {
            let all = self.and_rows(rows, line, *candidates.get(line)?);
            let first = (0..all.0.len()).find_map(|at| {
                let start = line * BitLine::BITS + at * 64;
                let skipped = u32::try_from(from.saturating_sub(start)).unwrap_or(u32::MAX);
                let word = all.0[at] & u64::MAX.checked_shl(skipped).unwrap_or(0);
                (word != 0).then(|| start + word.trailing_zeros() as usize)
            });
            first.and_then(|bit| u32::try_from(bit).ok())
        })
    }

    /// How many rows are read for a key.
    #[must_use]
    pub fn rows_read(&self) -> usize {
        self.fields.len()
    }

    /// Whether the processor has what the quickest way needs.
    #[must_use]
    pub const fn uses_avx512(&self) -> bool {
        self.uses_avx512
    }

    /// Lines of a row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn memory(&self) -> usize {
        let ends = self.fields.iter().map(|field| size_of_val(field) + field.memory());
        ends.sum::<usize>() + size_of_val(&*self.lines)
    }

    /// What is set in a line of all of these rows and in another one.
    fn and_rows(&self, rows: &[u16], line: usize, mut all: BitLine) -> BitLine {
        let block = self.width.min(BLOCK);
        for row in rows {
            let at = (line / block * self.count + usize::from(*row)) * block + line % block;
            if let Some(line) = self.lines.get(at) {
                all.0.iter_mut().zip(line.0).for_each(|(all, word)| *all &= word);
            }
        }
        all
    }
}

impl BitLine {
    /// How many bits it has.
    const BITS: usize = 512;
}

impl FieldLocation {
    /// What stands in it at the most.
    const fn highest(self) -> u128 {
        match self {
            Self::Bits { bits, .. } => u128::MAX >> (128 - bits),
            Self::Words(_) => u128::MAX,
        }
    }

    /// How many words a key has that has it.
    const fn min_key_words(self) -> usize {
        match self {
            Self::Bits { word, .. } => word + 1,
            Self::Words(word) => word + 2,
        }
    }
}

/// Lines of a row of so many words: of a long one some more, so that as many as are compared together are.
const fn lines_per_row(words: usize) -> usize {
    let lines = words.div_ceil(8);
    match lines {
        0 => 1,
        1..=BLOCK => lines,
        _ => lines.next_multiple_of(BLOCK),
    }
}

/// Rows as they lie in a [`FieldRows`].
fn lines(rows: &[&[u64]], width: usize) -> Arc<[BitLine]> {
    let block = width.min(BLOCK);
    let line = |row: &[u64], line: usize| {
        BitLine(std::array::from_fn(|at| row.get(line * 8 + at).copied().unwrap_or(0)))
    };
    let starts = (0..width).step_by(block);
    let parts = starts.flat_map(|start| rows.iter().map(move |row| (*row, start)));
    parts.flat_map(|(row, start)| (start..start + block).map(move |at| line(row, at))).collect()
}

#[cfg(target_arch = "x86_64")]
use avx512::has_avx512;

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests;

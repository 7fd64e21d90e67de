//! Aggregated bit vectors by whole fields of a key: fewer rows than by bytes. The row of a value is
//! found by a search among interval ends, or by a trie.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod patricia;
mod row_index;

use std::sync::Arc;

use super::BitLine;
use row_index::RowIndex;

/// Location of a field in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldLocation {
    /// Up to 32 bits of one word, from `shift` upwards.
    Bits {
        /// Word index.
        word: usize,
        /// Lowest bit.
        shift: u32,
        /// Number of bits.
        bits: u32,
    },
    /// Two words: this one (high) and the next.
    Words(usize),
}

/// One field of a key, and the row of bits for each of its values.
#[derive(Clone, Debug)]
pub(crate) struct KeyField {
    /// Location in the key.
    pub(crate) place: FieldLocation,
    /// Interval ends in ascending order, each with its row number. The last end is the field's
    /// highest value.
    pub(crate) ends: Vec<(u128, usize)>,
    /// Rows, one after the other.
    pub(crate) rows: Vec<u64>,
}

/// Rows of bits, selected by the fields of a key. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FieldRows {
    /// Cache lines of a row.
    width: usize,
    /// Number of rows.
    count: usize,
    /// Words that a key must have for the AVX-512 path.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512 alone"))]
    min_words: usize,
    /// Whether the CPU supports the AVX-512 path.
    uses_avx512: bool,
    /// At most [`MAX_KEY_FIELDS`]. `of` makes sure that each row number is below `count`.
    fields: Arc<[RowIndex]>,
    /// In blocks: the first lines of each row, as many as are compared together, then the next
    /// ones.
    lines: Arc<[BitLine]>,
}

/// Upper limit of fields in a key.
pub(crate) const MAX_KEY_FIELDS: usize = 6;
/// Lines of a row that are compared together.
const BLOCK: usize = 4;
/// Keys looked up together.
const KEYS: usize = 32;

/// Selected rows, by field and key.
type RowNumbers = [[u16; KEYS]; MAX_KEY_FIELDS];

impl FieldRows {
    /// Builds the rows of `fields`; each row has `words` words. `None` if there are too many
    /// fields, rows or interval ends, if intervals of two-word fields nest too deeply, or if a
    /// field has no rows or does not end with its highest value.
    pub(crate) fn of(words: usize, fields: &[KeyField]) -> Option<Self> {
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
        let min_words = fields.iter().map(|field| field.place.min_words()).max().unwrap_or(0);
        Some(Self {
            width,
            count,
            min_words,
            uses_avx512: has_avx512(),
            fields: found.into(),
            lines,
        })
    }

    /// For each key, finds the lowest bit set in `live` and in all rows that the key selects;
    /// a number beyond all bits if there is none. Words that a key lacks are 0.
    pub(crate) fn find_first_batch<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        for (keys, found) in keys.chunks(KEYS).zip(found.chunks_mut(KEYS)) {
            self.find_chunk(&keys[..keys.len().min(found.len())], live, found);
        }
    }

    fn find_chunk<const N: usize, K: AsRef<[u64; N]>>(
        &self,
        keys: &[K],
        live: &[BitLine],
        found: &mut [u32],
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.uses_avx512 && live.len() >= self.width && N >= self.min_words {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected when this was made; keys
            // and `live` have all words, and there are no more keys than are looked up
            // together, nor fewer `found`.
            return unsafe { self.chunk_avx512(keys, live, found) };
        }
        for (key, found) in keys.iter().zip(found) {
            *found = self.find_first_from(key.as_ref(), live, 0).unwrap_or(u32::MAX);
        }
    }

    /// [`FieldRows::find_first_batch`] for one key, from bit `from` on.
    pub(crate) fn find_first_from(
        &self,
        key: &[u64],
        live: &[BitLine],
        from: usize,
    ) -> Option<u32> {
        let mut numbers = [0; MAX_KEY_FIELDS];
        for (number, field) in numbers.iter_mut().zip(&*self.fields) {
            *number = field.number(key);
        }
        let rows = &numbers[..self.fields.len()];
        (from / BitLine::BITS..self.width).find_map(|line| {
            let all = self.and_rows(rows, line, *live.get(line)?);
            let first = (0..all.0.len()).find_map(|at| {
                let start = line * BitLine::BITS + at * 64;
                let skipped = u32::try_from(from.saturating_sub(start)).unwrap_or(u32::MAX);
                let word = all.0[at] & u64::MAX.checked_shl(skipped).unwrap_or(0);
                (word != 0).then(|| start + word.trailing_zeros() as usize)
            });
            first.and_then(|bit| u32::try_from(bit).ok())
        })
    }

    /// Number of rows read for a key.
    pub(crate) fn rows_read(&self) -> usize {
        self.fields.len()
    }

    /// Whether the CPU supports the AVX-512 path.
    pub(crate) const fn uses_avx512(&self) -> bool {
        self.uses_avx512
    }

    /// Cache lines of a row.
    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// Bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        let ends = self.fields.iter().map(|field| size_of_val(field) + field.memory());
        ends.sum::<usize>() + size_of_val(&*self.lines)
    }

    /// Intersects one line of these rows with `all`.
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
    /// Bits of a line.
    const BITS: usize = 512;
}

impl FieldLocation {
    /// Highest value of the field.
    const fn highest(self) -> u128 {
        match self {
            Self::Bits { bits, .. } => u128::MAX >> (128 - bits),
            Self::Words(_) => u128::MAX,
        }
    }

    /// Words of a key that contains the field.
    const fn min_words(self) -> usize {
        match self {
            Self::Bits { word, .. } => word + 1,
            Self::Words(word) => word + 2,
        }
    }
}

/// Lines of a row of `words` words, rounded up to whole blocks.
const fn lines_per_row(words: usize) -> usize {
    let lines = words.div_ceil(8);
    match lines {
        0 => 1,
        1..=BLOCK => lines,
        _ => lines.next_multiple_of(BLOCK),
    }
}

/// Lays rows out as [`FieldRows`] stores them.
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
